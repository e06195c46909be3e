"""Runs the benchmarks in turn and prints medians.

`python -m benchmarks --records 1000000 --runs 3`; the figures of every run are written to
`benchmarks/results/` as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks import (
    beside_kafka,
    beside_kafka_streams,
    beyond_memory,
    commits,
    compaction,
    connect,
    engine,
    idle_cluster,
    install,
    latency,
    log,
    memory,
    message_floor,
    mirroring,
    mirroring_to_kafka,
    nexmark,
    partitions,
    registered,
    replicated,
    sizes,
    spark,
    state,
    windowed_count,
    wire,
    workers,
)
from benchmarks.compared import last_figures
from benchmarks.engine.contest import Cost
from benchmarks.engine.report import costs_table
from benchmarks.harness import Figure, Reading, conditions
from streamlog.replace import replace

PIPE_COLUMNS = 130
RESULTS = Path(__file__).parent / "results"
Measured: TypeAlias = Figure | Reading | Cost
Benchmark: TypeAlias = Callable[
    [Path, int],
    AsyncIterator[Figure]
    | AsyncIterator[Reading]
    | AsyncIterator[Figure | Reading]
    | AsyncIterator[Cost | Reading]
    | AsyncIterator[Cost],
]
BENCHMARKS: dict[str, Benchmark] = {
    "wire": wire.figures,
    "log": log.figures,
    "replicated": replicated.figures,
    "idle_cluster": idle_cluster.figures,
    "compaction": compaction.figures,
    "windowed_count": windowed_count.figures,
    "engine": engine.figures,
    "commits": commits.figures,
    "beyond_memory": beyond_memory.figures,
    "registered": registered.figures,
    "sizes": sizes.figures,
    "latency": latency.figures,
    "workers": workers.figures,
    "nexmark": nexmark.figures,
    "memory": memory.figures,
    "partitions": partitions.figures,
    "state": state.figures,
    "spark": spark.figures,
    "connect": connect.figures,
    "mirroring": mirroring.figures,
    "mirror_memory": mirroring_to_kafka.memory,
    "beside_kafka": beside_kafka.figures,
    "beside_kafka_streams": beside_kafka_streams.figures,
    "install": install.figures,
    "message_floor": message_floor.figures,
}
ALONE = {
    *("connect", "idle_cluster", "install", "message_floor", "mirroring", "mirror_memory"),
    *("beside_kafka", "beside_kafka_streams", "partitions"),
}
"""Run only if they are named: they need programs that most machines lack, or minutes."""
ONCE = {
    *("beside_kafka", "beside_kafka_streams", "memory", "mirror_memory", "spark", "state"),
}
"""Runs for so long that a median of several says no more, or has rounds of its own."""
KEPT = {"install", "partitions"}
"""Their files stay until the last round has ended. Without a journal, ext4 looks at each inode that
was deleted in the last minutes: from the second round on, to make a file would take ten times as
long."""


async def run(names: list[str], records: int, runs: int) -> list[Measured]:
    """The named benchmarks, `runs` times in turn, each with a fresh broker and directory."""
    figures: list[Measured] = []
    with ExitStack() as after_all:
        for number, name in product(range(runs), names):
            if number and name in ONCE:
                continue
            with ExitStack() as after_this:
                stack = after_all if name in KEPT else after_this
                made = tempfile.TemporaryDirectory(prefix=f"streamlog-{name}-")
                directory = Path(stack.enter_context(made))
                async for figure in BENCHMARKS[name](directory, records):
                    print(f"run {number + 1}: {figure.name}: {_told(figure)}")
                    figures.append(figure)
    return figures


def table(figures: list[Figure]) -> Table:
    """Medians over the runs."""
    by_name: dict[str, list[Figure]] = defaultdict(list)
    for figure in figures:
        by_name[figure.name].append(figure)
    printed = Table(title="medians", title_justify="left")
    printed.add_column("benchmark")
    columns = (
        "records",
        "records/s",
        "client CPU s/M",
        "broker CPU s/M",
        "p50/p99/p99.9 ms",
        "bar",
    )
    for column in columns:
        printed.add_column(column, justify="right")
    for name, runs in by_name.items():
        printed.add_row(
            name,
            f"{runs[0].records:,}",
            f"{median(run.records_per_s for run in runs):,.0f}",
            f"{median(run.cpu_s_per_million(run.client_cpu_s) for run in runs):.2f}",
            f"{median(run.cpu_s_per_million(run.broker_cpu_s) for run in runs):.3f}",
            _latencies(runs),
            _bar(runs),
        )
    return printed


def readings_table(readings: list[Reading]) -> Table:
    """Medians over the runs."""
    by_name: dict[str, list[Reading]] = defaultdict(list)
    for reading in readings:
        by_name[reading.name].append(reading)
    printed = Table(title="readings", title_justify="left")
    printed.add_column("what")
    for column in ("value", "unit", "bar"):
        printed.add_column(column, justify="right")
    for name, runs in by_name.items():
        middle = replace(runs[0], value=median(run.value for run in runs))
        value = f"{middle.value:,.{middle.digits}f}"
        printed.add_row(name, value, middle.unit, _reading_bar(middle))
    return printed


def _reading_bar(reading: Reading) -> str:
    if reading.least is not None:
        return f">= {reading.least:g} {_held(reading.least, reading.value)}"
    return "" if reading.bar is None else f"{reading.bar:g} {_held(reading.value, reading.bar)}"


def _told(figure: Measured) -> str:
    if isinstance(figure, Cost):
        return f"{figure.cpu_ns:,.0f} ns of CPU a record"
    if isinstance(figure, Reading):
        return f"{figure.value:,.{figure.digits}f} {figure.unit}"
    return f"{figure.records_per_s:,.0f}/s"


def _latencies(runs: list[Figure]) -> str:
    """The median, and what 99 % and 99.9 % of the records stay below."""
    names = runs[0].latency_ms
    return " / ".join(f"{median(run.latency_ms[name] for run in runs):.2f}" for name in names)


def _bar(runs: list[Figure]) -> str:
    """What it is held against, and whether it holds."""
    first, held = runs[0], list[str]()
    if first.bar_cpu_s is not None:
        cpu_s = median(run.cpu_s_per_million(run.broker_cpu_s) for run in runs)
        held.append(f"{first.bar_cpu_s:g} s {_held(cpu_s, first.bar_cpu_s)}")
    if (least := first.bar_records_per_s) is not None:
        rate = median(run.records_per_s for run in runs)
        held.append(f"{least:,.0f}/s {_held(least, rate)}")
    for name, bar_ms in first.bar_ms.items():
        took_ms = median(run.latency_ms[name] for run in runs)
        held.append(f"{name} {bar_ms:g} ms {_held(took_ms, bar_ms)}")
    return "\n".join(held)


def _held(figure: float, bar: float) -> str:
    return "holds" if figure <= bar else "missed"


def write(figures: list[Measured]) -> Path:
    """All runs as JSON, with what they ran on."""
    now = datetime.now(UTC)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    machine = {"python": platform.python_version(), "machine": platform.platform()}
    content = {
        "at": now.isoformat(),
        **machine,
        **conditions(),
        "figures": [asdict(f) for f in figures],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000, help="records per benchmark")
    parser.add_argument("--runs", type=int, default=3, help="runs of each; medians are printed")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=BENCHMARKS,
        default=[each for each in BENCHMARKS if each not in ALONE],
        help="which ones",
    )
    arguments = parser.parse_args()
    measured = asyncio.run(run(arguments.only, arguments.records, arguments.runs))
    # A pipe has no width of its own; at 80 columns the table would be a pillar.
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    if figures := [each for each in measured if isinstance(each, Figure)]:
        console.print(table(figures))
    if readings := [each for each in measured if isinstance(each, Reading)]:
        console.print(readings_table(readings))
    if costs := [each for each in measured if isinstance(each, Cost)]:
        console.print(costs_table(costs, last_figures()))
    console.print(", ".join(f"{what}: {found}" for what, found in conditions().items()))
    console.print(f"every run: {write(measured)}")


if __name__ == "__main__":
    main()
