"""`python -m tests.oracle.kafka`: random histories over all operators, against Kafka Streams.

Every kind of operator of `tests/oracle/histories` gets `--cases` cases (100). A case with different
results is explained by one of the documented `DIFFERENCES`, or it is printed as unexplained; then
the exit code is 1. `--seed` repeats a run, and `--kind` runs one kind of operator.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from conformance.kafka import Unavailable
from tests.golden.compare import Case, differing
from tests.golden.runners import run_on_driver
from tests.oracle.histories import KINDS
from tests.oracle.kafka.differences import Trial, explanation
from tests.oracle.kafka.runner import KafkaStreams, Refused

SHOWN_MAX = 3
"""The number of unexplained cases of a kind that are printed in full."""


def cases_of(kind: str, count: int, number: int) -> list[Case]:
    """Return random cases of a kind without restarts; `number` is the seed."""
    found: list[Case] = []

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(KINDS[kind])
    def collect(case: Case) -> None:
        found.append({**case, "inputs": [each for each in case["inputs"] if "control" not in each]})

    collect()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.kafka", description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    try:
        streams = KafkaStreams()
    except Unavailable as error:
        print(error)
        return 2
    with streams:
        report = {kind: run_kind(streams, kind, options) for kind in options.kind or KINDS}
    if options.report is not None:
        options.report.write_text(json.dumps(report, indent=2))
    cases = sum(counts["cases"] for counts in report.values())
    wrong = sum(counts["unexplained"] for counts in report.values())
    print(f"{cases} cases, {wrong} differ and are not explained")
    return 1 if wrong else 0


def run_kind(streams: KafkaStreams, kind: str, options: argparse.Namespace) -> dict[str, int]:
    """Count the cases of a kind that are equal, differ as documented, or are unexplained."""
    counts = Counter({"cases": 0, "equal": 0, "unexplained": 0})
    for case in cases_of(kind, options.cases, options.seed):
        counts["cases"] += 1
        try:
            trial = Trial(kind, case, run_on_driver(case), streams.rows(case), streams)
        except Refused as error:
            counts[f"Kafka Streams refuses: {error}"] += 1
            continue
        why = differing(case["expect"]["min_order"], trial.theirs, trial.ours)
        if why is None:
            counts["equal"] += 1
            continue
        explained_by = explanation(trial)
        counts["unexplained" if explained_by is None else explained_by] += 1
        if explained_by is None and counts["unexplained"] <= SHOWN_MAX:
            print(f"  {kind}: {why}\n    {json.dumps(case)}")
    texts = (f"{name} {count}" for name, count in counts.items() if count)
    print(f"{kind}: {'; '.join(texts)}", flush=True)
    return dict(counts)


if __name__ == "__main__":
    sys.exit(main())
