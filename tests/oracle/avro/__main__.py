"""`python -m tests.oracle.avro`: random pairs of Avro schemas, against Apache Avro's own library.

For each pair, both say whether the schemas are valid, how they are written, and why the reader
can't read what the writer writes. A difference has one of the `REASONS`, or it is printed as
unexplained; then the exit code is 1. `--seed` is the first pair's number.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from conformance.kafka import Unavailable
from streamlog.errors import InvalidSchema
from streamlog.schemas import AvroSchema, Schema, SchemaType, incompatibilities, parse_schema
from tests.oracle.avro.runner import AvroJava
from tests.schemas.random_avro import random_pair, spoil

SHOWN_MAX = 5
"""The number of unexplained pairs that are printed."""
SPOILT = 0.2
"""The share of pairs of which one schema is made invalid, mostly."""
REASONS = {
    "ambiguous": (
        "A reader's field has several fields of the writer behind its name and aliases. Avro ends "
        "with an exception, we with NAME_MISMATCH at its path."
    ),
    "repeated": (
        "A difference inside a type that is used several times: Avro lists it for each use, with "
        "the path of the first one; we list it once."
    ),
    "assumed": (
        "A recursive type was taken for compatible while it was compared, and is not. Avro keeps "
        "what followed from that; we take it back, and find more."
    ),
}


def parsed(text: str) -> AvroSchema | None:
    """Return a schema of ours; None for one that we refuse."""
    try:
        found = parse_schema(Schema(SchemaType.AVRO, text))
    except InvalidSchema:
        return None
    assert isinstance(found, AvroSchema)
    return found


def judge(java: AvroJava, reader: str, writer: str) -> str:
    """Return "equal", "invalid" if both refuse one, one of the reasons, or what differs."""
    theirs = java.answer(reader, writer)
    ours = {"reader": parsed(reader), "writer": parsed(writer)}
    for side, mine in ours.items():
        if (mine is None) != (theirs[side] is None):
            who = "Avro refuses" if theirs[side] is None else "we refuse"
            return f"{who} the {side}: {theirs.get(f'{side}Error')}"
        if mine is not None and mine.canonical != theirs[side]:
            return f"the text of the {side}: {theirs[side]} and {mine.canonical}"
    pair = ours["reader"], ours["writer"]
    if pair[0] is None or pair[1] is None:
        return "invalid"
    mine_found = [(x.kind, x.path, x.detail) for x in incompatibilities(pair[0], pair[1])]
    return _compare(mine_found, theirs)


def _compare(ours: list[tuple[str, str, str]], theirs: dict[str, Any]) -> str:
    if "error" in theirs:
        is_ambiguous = any(" matches " in detail for _, _, detail in ours)
        return "ambiguous" if is_ambiguous else f"Avro's comparison ends: {theirs['error']}"
    found = [tuple(each) for each in theirs["found"]]
    if ours == found:
        return "equal"
    if set(ours) == set(found):
        return "repeated"
    if set(found) < set(ours):
        return "assumed"
    return f"{found} and {ours}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.avro", description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args(arguments)
    counts = Counter[str]()
    try:
        java = AvroJava()
    except Unavailable as error:
        print(error)
        return 2
    with java:
        for seed in range(options.seed, options.seed + options.pairs):
            chance = Random(seed)
            reader, writer = map(json.dumps, random_pair(seed))
            if chance.random() < SPOILT:
                reader = json.dumps(spoil(json.loads(reader), chance))
            verdict = judge(java, reader, writer)
            is_known = verdict in {"equal", "invalid", *REASONS}
            counts[verdict if is_known else "unexplained"] += 1
            if not is_known and counts["unexplained"] <= SHOWN_MAX:
                print(f"seed {seed}: {verdict}\n    {reader}\n    {writer}")
    for name, count in counts.most_common():
        print(f"{count:7} {name}{f': {REASONS[name]}' if name in REASONS else ''}")
    if options.report is not None:
        options.report.write_text(json.dumps(counts, indent=2))
    return 1 if counts["unexplained"] else 0


if __name__ == "__main__":
    sys.exit(main())
