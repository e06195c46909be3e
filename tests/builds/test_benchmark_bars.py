"""What benchmarks hold their rows against, and what they print of it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks import (
    beside_kafka,
    beyond_memory,
    idle_cluster,
    install,
    log,
    partitions,
    replicated,
    spark,
    wire,
)
from benchmarks.__main__ import readings_table, table
from benchmarks.engine.contest import Cost
from benchmarks.engine.participants import OURS, STREAMS
from benchmarks.engine.report import BARS, costs_table
from benchmarks.harness import Figure, Reading
from streamlog.replace import replace

GOALS: list[tuple[str, object, object]] = [
    ("CPU s of a million in 16 KB batches", wire.SMALL_BATCHES_CPU_S, 0.7),
    ("through a broker, ms", beside_kafka.THROUGH["through"][1], {"p50": 0.3, "p99": 1.2}),
    ("with syncs, ms", beside_kafka.THROUGH["synced"][1], {"p50": 0.65, "p99": 2.5}),
    ("CPU us a message", [each[2] for each in beside_kafka.THROUGH.values()], [200, 300]),
    ("send in bulk, a second", log.BULK_PER_S, 500_000),
    ("send with a future each, a second", log.FUTURES_PER_S, 300_000),
    ("create 5,000 partitions, s", partitions.CREATE_BAR_S, 0.3),
    ("produce over them, CPU s of a million", partitions.PRODUCE_BAR_CPU_S, 2.0),
    ("consume them, a second", partitions.CONSUME_BAR_PER_S, 400_000),
    ("restart, s", partitions.RESTART_BARS_S, {5_000: 3, 20_000: 10}),
    ("restart, MiB", partitions.RESTART_BARS_MIB, {20_000: 350}),
    ("idle broker of three, % of a core", idle_cluster.BAR_PERCENT, 0.5),
    ("J1, ns", BARS["j1", "typed"].cpu_ns, 1_200),
    ("J2 with 5,000,000 keys, us", (beyond_memory.KEYS, beyond_memory.BAR_US), (5_000_000, 8)),
    ("three brokers, ms", replicated.PACED_BARS_MS, {"p50": 2.5, "p99": 7}),
    ("Java's producer, times Kafka", beside_kafka.JAVA_TIMES, 1.2),
    ("Spark's windowed count, CPU us", spark.COUNT_BAR_US, 1.5),
    ("install, CPU s", install.CPU_BAR_S, 45),
]
"""What the project has set out to reach: a bar may become stricter, and no looser."""
FIGURE = Figure("row", 1_000_000, wall_s=2.0, client_cpu_s=0.0, broker_cpu_s=0.5)


def printed(found: Table) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(found)
    return " ".join(capture.get().split())


@pytest.mark.parametrize(("what", "bar", "goal"), GOALS, ids=[each[0] for each in GOALS])
def test_bars_are_the_goals(what: str, bar: object, goal: object) -> None:
    assert bar == goal, what


@pytest.mark.parametrize(
    ("bars", "said"),
    [
        ({"bar_cpu_s": 0.5}, "0.5 s holds"),
        ({"bar_cpu_s": 0.4}, "0.4 s missed"),
        ({"bar_records_per_s": 500_000}, "500,000/s holds"),
        ({"bar_records_per_s": 500_001}, "500,001/s missed"),
        ({"bar_ms": {"p50": 3.0}, "latency_ms": {"p50": 4.0}}, "p50 3 ms missed"),
    ],
)
def test_a_row_says_whether_each_of_its_bars_holds(bars: dict[str, Any], said: str) -> None:
    assert said in printed(table([replace(FIGURE, **bars)]))


def test_a_row_with_several_bars_names_all() -> None:
    row = replace(
        FIGURE, bar_cpu_s=0.4, bar_records_per_s=9, bar_ms={"p50": 3.0}, latency_ms={"p50": 2.0}
    )
    said = printed(table([row]))
    assert all(each in said for each in ("0.4 s missed", "9/s holds", "p50 3 ms holds"))


def test_a_reading_is_at_most_or_at_least_its_bar() -> None:
    said = printed(
        readings_table([Reading("a", 2.0, "s", bar=1.5), Reading("b", 2.0, "times", least=1.5)])
    )
    assert "1.5 missed" in said
    assert ">= 1.5 holds" in said


@pytest.mark.parametrize(
    ("theirs_s", "said"),
    [
        (0.60, "6.0 x after 6.0 x holds"),
        (0.583, "5.8 x after 6.0 x holds"),
        (0.581, "5.8 x after 6.0 x missed"),
    ],
)
def test_kafka_streams_is_held_against_the_last_ratio_of_this_machine(
    theirs_s: float, said: str
) -> None:
    costs = [
        Cost("j1", "typed", OURS, 100_000, cpu_s=0.1),
        Cost("j1", "", STREAMS, 100_000, cpu_s=theirs_s),
    ]
    before = {
        f"j1 {OURS} typed": [2_000.0, 2_000.0, 2_000.0, 5, "ns"],
        f"j1 {STREAMS}": [12_000.0, 12_000.0, 12_000.0, 5, "ns"],
    }
    assert f"{STREAMS} {said}" in printed(costs_table(costs, before))
    without = printed(costs_table(costs, {}))
    assert f"{STREAMS} {10 * theirs_s:.1f} x" in without
    assert "after" not in without
