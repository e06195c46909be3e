"""`python -m benchmarks.growth [CURVE...]`: measure, print, and draw growth curves."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.growth.broker_curves import (
    Measure,
    connections,
    history,
    members,
    partitions,
    sizes,
    topics,
)
from benchmarks.growth.chart import draw, short
from benchmarks.growth.curve import Curve
from benchmarks.growth.keys_curve import keys
from benchmarks.harness import conditions

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "growth.json"
IMAGES = ROOT / "docs" / "images"
MEASURES: dict[str, tuple[Measure, tuple[int, ...]]] = {
    "partitions": (partitions, (10, 100, 1_000, 5_000, 20_000)),
    "topics": (topics, (1, 10, 100, 1_000, 10_000)),
    "connections": (connections, (1, 10, 100, 1_000, 5_000)),
    "sizes": (sizes, (10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)),
    "members": (members, (1, 10, 50, 100, 500)),
    "history": (history, (1, 5, 20, 46)),
    "keys": (keys, (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)),
}
"""What measures the curves by what there is more of, and at which amounts."""


async def measured(name: str, runs: int, most: int | None) -> list[Curve]:
    """Return the curves of one measure, each point as often as there are runs."""
    measure, amounts = MEASURES[name]
    curves: dict[str, Curve] = {}
    for amount in amounts:
        if most is not None and amount > most:
            continue
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as directory:
                async for curve in measure(Path(directory, "data"), amount):
                    kept = curves.setdefault(curve.name, curve)
                    if kept is not curve:
                        for cost in curve.runs[amount]:
                            kept.add(amount, cost)
                    print(f"{curve.name} at {amount:,}: {short(curve.runs[amount][-1])}"
                          f" {curve.unit}", flush=True)  # fmt: skip
    return [*curves.values()]


def table_of(curves: list[Curve]) -> Table:
    """Return what was measured, with the bends."""
    table = Table("curve", "unit", "by", "median at each amount", "bends")
    for curve in curves:
        points = "  ".join(f"{short(at)}: {short(cost)}" for at, cost in curve.points())
        bends = ", ".join(f"{times:.1f} x at {short(at)}" for at, times in curve.bends())
        table.add_row(curve.title, curve.unit, curve.amount, points, bends or "none")
    return table


def main() -> None:
    """Measure the named curves, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("curves", nargs="*", help=f"of {', '.join(MEASURES)}; all of them")
    parser.add_argument("--runs", type=int, default=3, help="of each point; medians count")
    parser.add_argument("--most", type=int, help="leave out points with more than that")
    given = parser.parse_args()
    if unknown := {*given.curves} - {*MEASURES}:
        parser.error(f"no such curves: {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    found: list[Curve] = []
    for name in given.curves or MEASURES:
        found += asyncio.run(measured(name, given.runs, given.most))
    Console(width=160).print(table_of(found))
    RESULTS.parent.mkdir(exist_ok=True)
    kept = {"conditions": conditions(), "curves": [asdict(each) for each in found]}
    RESULTS.write_text(json.dumps(kept, indent=2))
    for curve in found:
        if len(curve.runs) > 1:
            (IMAGES / f"growth-{curve.name}.svg").write_text(draw(curve))
            print(f"drawn: docs/images/growth-{curve.name}.svg")


if __name__ == "__main__":
    main()
