"""AvroConverter writes and reads what a port of Confluent's class did.

The cases are answers of the class that `python -m tests.oracle.connect_avro --golden` has kept.
`make oracle-connect-avro` asks it about thousands of other rows and schemas.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.connect_avro.__main__ import judge
from tests.oracle.golden import read_cases

CASES = read_cases(Path(__file__).parent / "confluent_cases.jsonl.xz")


@pytest.mark.parametrize("way", ["row", "avro"])
@pytest.mark.parametrize("verdict", ["equal", "refused"])
def test_rows_and_schemas_are_converted_as_by_confluents_class(way: str, verdict: str) -> None:
    chosen = [each for each in CASES if way in each["asked"] and each["verdict"] == verdict]
    assert len(chosen) > 20
    for case in chosen:
        assert judge(case["asked"], case["theirs"]) == verdict, case
