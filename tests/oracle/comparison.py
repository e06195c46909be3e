"""compare: numbered questions to a program in Java and to us; what they say is judged and counted.

A judge returns "equal", "refused" (by both), the name of a reason for which the two differ, or the
difference itself, which nothing explains. `--golden FILE` keeps the first answers on which both
agree, for tests without Java (`tests.oracle.golden`).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from conformance.kafka import Unavailable
from tests.oracle.golden import Case, write_cases
from tests.oracle.java import JavaProgram

SHOWN_MAX: Final = 8
"""How many differences without a reason are printed whole."""
Question = dict[str, Any]


class Oracle(NamedTuple):
    """What is asked, of whom, and who judges."""

    name: str
    """Its package within `tests.oracle`."""
    java: Callable[[], JavaProgram]
    question: Callable[[int], Question]
    judge: Callable[[Question, dict[str, Any]], str]
    reasons: Mapping[str, str]
    golden: Mapping[str, int]
    """How many cases of each verdict `--golden` keeps."""


def compare(
    oracle: Oracle, arguments: Sequence[str] | None, *, doc: str | None, questions: int
) -> int:
    """Ask, and print the counts; return 1 if a difference has no reason, 2 without Java."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.oracle.{oracle.name}", description=doc)
    parser.add_argument("--questions", type=int, default=questions)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--golden", type=Path)
    options = parser.parse_args(arguments)
    counts = Counter[str]()
    kept: list[Case] = []
    try:
        java = oracle.java()
    except Unavailable as error:
        print(error)
        return 2
    with java:
        for seed in range(options.seed, options.seed + options.questions):
            asked = oracle.question(seed)
            theirs = java.ask(asked)
            verdict = oracle.judge(asked, theirs)
            is_known = verdict in {"equal", "refused", *oracle.reasons}
            if counts[verdict] < oracle.golden.get(verdict, 0):
                kept.append({"asked": asked, "theirs": theirs, "verdict": verdict})
            counts[verdict if is_known else "unexplained"] += 1
            if not is_known and counts["unexplained"] <= SHOWN_MAX:
                print(f"seed {seed}: {json.dumps(asked)}\n    {verdict}")
    for name, count in counts.most_common():
        why = oracle.reasons.get(name)
        print(f"{count:7} {name if why is None else f'{name}: {why}'}")
    if options.report is not None:
        options.report.write_text(json.dumps(counts, indent=2))
    if options.golden is not None:
        write_cases(options.golden, kept)
    return 1 if counts["unexplained"] else 0
