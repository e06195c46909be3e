"""Which rows of a benchmark count as worse than in the history, and where curves bend."""

from __future__ import annotations

import json

import pytest

from benchmarks.compared import Measured, newest_line, rows, worse
from benchmarks.growth.chart import draw, short
from benchmarks.growth.curve import Curve

READING = {"name": "memory", "value": 50.0, "unit": "MiB", "least": None}
TIMES = {"name": "times Kafka", "value": 4.0, "unit": "times", "least": 1.2}
COST = {"job": "j1", "participant": "ours", "variant": "", "cpu_s": 2.0, "records": 1_000_000}
FIGURE = {
    "name": "produce",
    "client_cpu_s": 0.0,
    "broker_cpu_s": 0.5,
    "records": 500_000,
    "wall_s": 2.0,
    "latency_ms": {},
}
THROUGH = {**FIGURE, "name": "through", "latency_ms": {"p50": 0.3, "p99": 1.1, "p99.9": 9.0}}


def test_each_row_has_the_figures_of_its_runs() -> None:
    found = rows([READING, TIMES, COST, FIGURE, {**FIGURE, "broker_cpu_s": 1.0}, THROUGH])
    assert {name: (row.unit, row.values) for name, row in found.items()} == {
        "memory": ("MiB", [50.0]),
        "times Kafka": ("times", [4.0]),
        "j1 ours": ("ns", [2_000.0]),
        "produce, broker": ("us", [1.0, 2.0]),
        "produce, rate": ("records/s", [250_000.0, 250_000.0]),
        "through, broker": ("us", [1.0]),
        "through, p50": ("ms", [0.3]),
        "through, p99": ("ms", [1.1]),
        "through, rate": ("records/s", [250_000.0]),
    }
    assert found["produce, broker"].kept == [1.5, 1.0, 2.0, 2, "us"]


def test_a_row_is_worse_if_no_run_comes_near_the_one_of_before() -> None:
    before: dict[str, list[object]] = {each: [100.0] for each in ("a", "b", "c", "d", "e", "rate")}
    now = {
        "a": Measured("us", [103.5, 104.0]),
        "b": Measured("us", [101.0, 150.0]),
        "c": Measured("us", [90.0]),
        # Of these, more is better.
        "d": Measured("times", [96.0, 90.0], is_more_better=True),
        "e": Measured("times", [98.0, 90.0], is_more_better=True),
        # Another program on the machine may be the reason.
        "rate": Measured("records/s", [50.0], is_more_better=True, is_rate=True),
        "new": Measured("us", [1.0]),
    }
    assert worse(before, now) == ["a: 100 -> 103.8 us", "d: 100 -> 93 times"]


def test_a_line_is_compared_with_those_of_its_own_machine_or_build() -> None:
    here, there = {"processor": "A"}, {"processor": "B"}
    entries: list[dict[str, object]] = [
        {"built": {"python": "3.11"}, "instructions": {}},
        {"on": here, "figures": {"a": 1.0}},
        {"on": here, "figures": {"a": 2.0}},
        {"on": there, "figures": {"a": 3.0}},
    ]
    lines = [*map(json.dumps, entries)]
    assert newest_line(lines, "on", here) == entries[2]
    assert newest_line(lines, "on", {"processor": "C"}) is None
    assert newest_line(lines, "built", {"python": "3.11"}) == entries[0]
    assert newest_line(lines, "built", {"python": "3.12"}) is None


@pytest.mark.parametrize(
    ("is_total", "costs", "bends"),
    [
        (False, {1: 9.0, 10: 3.0, 100: 3.9}, []),
        (False, {1: 1.0, 10: 1.5, 100: 3.0}, [(10, 1.5), (100, 2.0)]),
        # All of it may grow as much as there is of it.
        (True, {1: 1.0, 10: 9.0, 100: 180.0}, [(100, 2.0)]),
    ],
)
def test_a_curve_bends_where_a_unit_costs_a_third_more(
    *, is_total: bool, costs: dict[int, float], bends: list[tuple[int, float]]
) -> None:
    curve = Curve("c", "a record", "keys", "us", is_total=is_total)
    for amount, cost in costs.items():
        for run in (cost * 10, cost, cost / 10):
            curve.add(amount, run)
    assert [(at, round(times, 6)) for at, times in curve.bends()] == bends
    picture = draw(curve)
    assert all(f">{short(cost)}<" in picture for cost in costs.values())


def test_numbers_in_pictures_are_short() -> None:
    found = [short(each) for each in (0.0123, 1.5, 1_000, 12_345, 2_000_000, 10**9)]
    assert found == ["0.0123", "1.5", "1k", "12.3k", "2M", "1G"]
