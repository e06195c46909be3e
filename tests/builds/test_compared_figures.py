"""Which rows of a benchmark count as worse than in the history, and where curves bend."""

from __future__ import annotations

import json

import pytest

from benchmarks.compared import last_figures, rows, worse
from benchmarks.growth.chart import draw, short
from benchmarks.growth.curve import Curve

READING = {"name": "memory", "value": 50.0, "unit": "MiB", "least": None}
RATE = {"name": "times Kafka", "value": 4.0, "unit": "times", "least": 1.2}
COST = {"job": "j1", "participant": "ours", "variant": "", "cpu_s": 2.0, "records": 1_000_000}
FIGURE = {"name": "produce", "client_cpu_s": 0.0, "broker_cpu_s": 0.5, "records": 500_000}


def test_what_a_row_costs_is_less_if_it_is_better() -> None:
    assert rows([READING, RATE, COST, FIGURE, {**FIGURE, "broker_cpu_s": 1.0}]) == {
        "memory": [50.0],
        "times Kafka": [0.25],
        "j1 ours, ns": [2_000.0],
        "produce, broker s/M": [1.0, 2.0],
    }


def test_a_row_is_worse_if_no_run_comes_near_the_one_of_before() -> None:
    before = {"a": 100.0, "b": 100.0, "c": 100.0}
    now = {"a": [103.5, 104.0], "b": [101.0, 150.0], "c": [90.0], "new": [1.0]}
    assert worse(before, now) == ["a: 100 -> 103.8 (+3.8%)"]


def test_figures_are_compared_with_those_of_the_machine_only() -> None:
    here, there = {"processor": "A"}, {"processor": "B"}
    entries: list[dict[str, object]] = [
        {"built": {}, "instructions": {}},
        {"on": here, "figures": {"a": 1.0}},
        {"on": here, "figures": {"a": 2.0}},
        {"on": there, "figures": {"a": 3.0}},
    ]
    lines = [*map(json.dumps, entries)]
    found = last_figures(lines, here)
    assert found is not None
    assert found["figures"] == {"a": 2.0}
    assert last_figures(lines, {"processor": "C"}) is None


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
