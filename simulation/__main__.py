"""`python -m simulation LEVEL... --seeds N`: lives N seeds of each level, or one with `--seed`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

from simulation.levels import LEVELS
from simulation.life import Life
from simulation.report import Summary, conditions
from streamlog.cli.session import collect_rarely
from streamlog.clock import SystemClock

CHUNK = 5
"""Seeds that a process takes at a time."""
PROGRESS_MS = 10_000
"""How often a run of many lives tells how far it is: one that is stopped leaves its count."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Live, tell, and return 1 if anything was violated."""
    given = _parser().parse_args(arguments)
    names: list[str] = given.levels or sorted(LEVELS)
    unknown = [name for name in names if name not in LEVELS]
    if unknown:
        print(f"no such level: {', '.join(unknown)}; there are {', '.join(sorted(LEVELS))}")
        return 2
    seeds = (
        [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    )
    summaries, clock = [], SystemClock()
    for name in names:
        summary, told_ms = Summary(name), clock.now_ms()
        for life in _lives(name, seeds, given.jobs):
            summary.add(life)
            if life.violations:
                print(f"{name}: seed {life.seed} violates: {life.violations[0]}", flush=True)
            if clock.now_ms() - told_ms >= PROGRESS_MS:
                told_ms = clock.now_ms()
                print(summary.progress(len(seeds)), flush=True)
        print(*summary.lines(), sep="\n", flush=True)
        if given.seed is not None:
            print("  trace", summary.trace)
        summaries.append(summary)
    if given.report is not None:
        facts = conditions({"first": seeds[0], "count": len(seeds)})
        levels = [summary.as_json() for summary in summaries]
        given.report.write_text(json.dumps({**facts, "levels": levels}, indent=2) + "\n")
    return int(any(summary.bad for summary in summaries))


def _lives(name: str, seeds: Sequence[int], jobs: int) -> Iterator[Life]:
    if len(seeds) == 1 or jobs == 1:
        yield from map(_live, repeat(name), seeds)
        return
    with ProcessPoolExecutor(jobs) as processes:
        yield from processes.map(_live, repeat(name), seeds, chunksize=CHUNK)


def _live(name: str, seed: int) -> Life:
    return LEVELS[name](seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("levels", nargs="*", help=f"of {', '.join(sorted(LEVELS))}; all of them")
    parser.add_argument("--seeds", type=int, default=100, help="how many lives of each")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="live this one, alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--report", type=Path, help="where to write the JSON report")
    return parser


if __name__ == "__main__":
    collect_rarely()  # Each life leaves its garbage at its end; what is loaded is in none.
    sys.exit(main())
