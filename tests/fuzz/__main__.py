"""`python -m tests.fuzz --inputs 10000000`: decode damaged inputs, and print findings as hex."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from simulation.report import conditions
from tests.fuzz.decoding import Outcome, fuzz

SHOWN_CHARACTERS = 2_000
WORST_MS_MAX = 100
"""CPU time per input; judged only here, since in a test's process the collector may take it."""


def main() -> int:
    """Fuzz in several processes; the exit code says whether anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first process")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--report", type=Path, help="where to write the JSON report")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.jobs)
    with ProcessPoolExecutor(given.jobs) as processes:
        each = -(-given.inputs // given.jobs)
        outcomes = [*processes.map(fuzz, seeds, [each] * given.jobs)]
    summary = summed(outcomes)
    print(json.dumps(summary, indent=2)[:SHOWN_CHARACTERS])
    if given.report is not None:
        facts = conditions({"first": given.seed, "processes": given.jobs})
        given.report.write_text(json.dumps({**facts, **summary}, indent=2) + "\n")
    is_slow = any(outcome.worst_ms > WORST_MS_MAX for outcome in outcomes)
    return int(is_slow or any(outcome.findings for outcome in outcomes))


def summed(outcomes: list[Outcome]) -> dict[str, object]:
    """Return the outcomes as the content of a report."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts += outcome.counts
    worst = max(outcomes, key=lambda outcome: outcome.worst_ms)
    return {
        "inputs": counts.total(),
        "counts": dict(sorted(counts.items())),
        "findings": [finding for outcome in outcomes for finding in outcome.findings],
        "worst_ms": round(worst.worst_ms, 3),
        "worst_input": worst.worst_input,
        "grown_bytes": [outcome.grown_bytes for outcome in outcomes],
    }


if __name__ == "__main__":
    sys.exit(main())
