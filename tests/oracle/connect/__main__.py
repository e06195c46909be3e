"""`python -m tests.oracle.connect`: random records through Kafka Connect's classes and ours.

Both read the record with JsonConverter, transform it, and write it again; what they write has to be
equal as JSON, with schemas, headers and topic, or both have to refuse. A difference has one of the
`REASONS`, or it is printed as unexplained; then the exit code is 1.

`--golden FILE` asks the questions of that file instead, and keeps the answers there for tests
without Java. `--add SEED` adds random questions to it, such as those that `make mutants` misses.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.kafka import Unavailable
from tests.oracle.connect.questions import question
from tests.oracle.connect.runner import ConnectJava, Question, ours

SHOWN_MAX = 8
REASONS = {
    "cast": (
        "Cast takes the logical type off a whole Date, Time, Timestamp or Decimal. Kafka's leaves"
        " its name, and JsonConverter refuses the number."
    ),
    "default": (
        "A field with a default becomes the whole. Kafka's schema has the default, ours has not:"
        " a default belongs to a field."
    ),
    "kind": "SetSchemaMetadata names schemas of every kind; Kafka's fails at those without fields.",
    "year": "Times beyond the year 9999, which Python does not have, are refused.",
}


def normal(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with its JSON parsed; of errors, only that there is one."""
    if "error" in answer:
        return {"error": True}
    if "value" not in answer:
        return answer
    parsed = {
        side: None if answer[side] is None else json.loads(answer[side], parse_float=_single)
        for side in ("key", "value")
    }
    headers = [[name, _structured(text)] for name, text in answer["headers"]]
    return {**answer, **parsed, "headers": headers}


def _single(text: str) -> float:
    """Return a number as a float32: JDK 17 writes one with more digits than it needs."""
    found: float = struct.unpack("f", struct.pack("f", float(text)))[0]
    return found


def _without_default(answer: dict[str, Any]) -> dict[str, Any]:
    changed = dict(answer)
    for side in ("key", "value"):
        whole = json.loads(answer.get(side) or "null")
        if isinstance(whole, dict) and isinstance(whole.get("schema"), dict):
            whole["schema"].pop("default", None)
            changed[side] = json.dumps(whole)
    return changed


def _structured(text: str | None) -> object:
    """Return a header's text, parsed if it is a map or list: Java's maps have no order."""
    try:
        return json.loads(text) if text is not None and text.startswith(("{", "[")) else text
    except ValueError:
        return text


def judge(asked: Question, theirs: dict[str, Any]) -> str:
    """Return "equal", "refused", one of the reasons, or what differs."""
    mine = ours(asked)
    if normal(mine) == normal(theirs):
        return "refused" if "error" in mine else "equal"
    if "not in the years 1 to 9999" in mine.get("error", ""):
        return "year"
    why = theirs.get("error", "")
    if "ExtractField" in asked["class"] and normal(mine) == normal(_without_default(theirs)):
        return "default"
    if "expected Date but was" in why or "expected BigDecimal but was" in why:
        return "cast"
    if "Cannot list fields on non-struct type" in why:
        return "kind"
    return f"theirs {theirs}\n      ours {mine}"


def keep_answers(java: ConnectJava, golden: Path, added: Sequence[int]) -> None:
    """Ask the questions of a file again, and some more; write those that both answer alike."""
    asked: list[Question] = [each["asked"] for each in json.loads(golden.read_text())]
    asked += [question(seed) for seed in added]
    asked.sort(key=lambda each: str(each["class"]))
    cases = [(each, java.ask(each)) for each in asked]
    lines = [
        json.dumps({"asked": each, "answer": answer})
        for each, answer in cases
        if judge(each, answer) in {"equal", "refused"}
    ]
    golden.write_text("[\n" + ",\n".join(dict.fromkeys(lines)) + "\n]\n")
    print(f"{len(lines)} answers of {len(cases)} kept in {golden}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.connect", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000, help="of each transform")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--add", type=int, nargs="*", default=[], metavar="SEED")
    options = parser.parse_args(arguments)
    counts = Counter[str]()
    try:
        java = ConnectJava()
    except Unavailable as error:
        print(error)
        return 2
    with java:
        if options.golden is not None:
            keep_answers(java, options.golden, options.add)
            return 0
        for seed in range(options.seed, options.seed + 18 * options.records):
            asked = question(seed)
            theirs = java.ask(asked)
            verdict = judge(asked, theirs)
            is_known = verdict in {"equal", "refused", *REASONS}
            counts[verdict if is_known else "unexplained"] += 1
            if not is_known:
                counts[f"  {asked['class'].rpartition('.')[2]}"] += 1
                if counts["unexplained"] <= SHOWN_MAX:
                    print(f"seed {seed}: {json.dumps(asked)}\n    {verdict}")
    for name, count in counts.most_common():
        print(f"{count:7} {name}{f': {REASONS[name]}' if name in REASONS else ''}")
    if options.report is not None:
        options.report.write_text(json.dumps(counts, indent=2))
    return 1 if counts["unexplained"] else 0


if __name__ == "__main__":
    sys.exit(main())
