"""Values are read, shown and cast as Kafka Connect's own classes did it.

The cases are answers of JsonConverter, StringConverter, SimpleHeaderConverter and Cast that
`python -m tests.oracle.connect_values --golden` has kept. `make oracle-connect-values` asks them
about thousands of others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.connect_values.__main__ import judge
from tests.oracle.golden import read_cases

CASES = read_cases(Path(__file__).parent / "apache_values.jsonl.xz")


@pytest.mark.parametrize("verdict", ["equal", "refused"])
def test_json_is_read_and_shown_as_by_kafka_connects_classes(verdict: str) -> None:
    chosen = [each for each in CASES if each["verdict"] == verdict]
    assert len(chosen) > 100
    for case in chosen:
        assert judge(case["asked"], case["theirs"]) == verdict, case
