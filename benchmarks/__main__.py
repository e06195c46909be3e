"""Runs the benchmarks in turn and prints medians.

`python -m benchmarks --records 1000000 --runs 3`; the figures of every run are written to
`benchmarks/results/` as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks import log, windowed_count
from benchmarks.harness import Figure

RESULTS = Path(__file__).parent / "results"
BENCHMARKS: dict[str, Callable[[Path, int], AsyncIterator[Figure]]] = {
    "log": log.figures,
    "windowed_count": windowed_count.figures,
}


async def run(records: int, runs: int) -> list[Figure]:
    """Every benchmark, `runs` times in turn, each with a fresh broker and directory."""
    figures: list[Figure] = []
    for number in range(runs):
        for name, benchmark in BENCHMARKS.items():
            with tempfile.TemporaryDirectory(prefix=f"streamlog-{name}-") as directory:
                async for figure in benchmark(Path(directory), records):
                    print(f"run {number + 1}: {figure.name}: {figure.records_per_s:,.0f}/s")
                    figures.append(figure)
    return figures


def table(figures: list[Figure]) -> Table:
    """Medians over the runs."""
    by_name: dict[str, list[Figure]] = defaultdict(list)
    for figure in figures:
        by_name[figure.name].append(figure)
    printed = Table(title="medians", title_justify="left")
    printed.add_column("benchmark")
    for column in ("records", "records/s", "client CPU s/M", "broker CPU s/M"):
        printed.add_column(column, justify="right")
    for name, runs in by_name.items():
        printed.add_row(
            name,
            f"{runs[0].records:,}",
            f"{median(run.records_per_s for run in runs):,.0f}",
            f"{median(run.cpu_s_per_million(run.client_cpu_s) for run in runs):.2f}",
            f"{median(run.cpu_s_per_million(run.broker_cpu_s) for run in runs):.2f}",
        )
    return printed


def write(figures: list[Figure]) -> Path:
    """All runs as JSON, with what they ran on."""
    now = datetime.now(UTC)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    machine = {"python": platform.python_version(), "machine": platform.platform()}
    content = {"at": now.isoformat(), **machine, "figures": [asdict(f) for f in figures]}
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--records", type=int, default=500_000, help="records per benchmark")
    parser.add_argument("--runs", type=int, default=3, help="runs of each; medians are printed")
    arguments = parser.parse_args()
    figures = asyncio.run(run(arguments.records, arguments.runs))
    console = Console()
    console.print(table(figures))
    console.print(f"every run: {write(figures)}")


if __name__ == "__main__":
    main()
