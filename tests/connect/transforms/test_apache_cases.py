"""Transforms and JsonConverter do what the classes of Kafka Connect and Debezium did.

The cases are answers of Apache's classes that `python -m tests.oracle.connect --golden` has kept.
`make oracle-connect` asks them about thousands of other records.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.oracle.connect.__main__ import normal
from tests.oracle.connect.runner import Question, ours

CASES = json.loads((Path(__file__).parent / "apache_cases.json").read_text())
CLASSES = sorted({case["asked"]["class"] for case in CASES})


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_does_what_apaches_does(name: str) -> None:
    for case in CASES:
        asked: Question = case["asked"]
        if asked["class"] == name:
            assert normal(ours(asked)) == normal(case["answer"]), asked


def test_every_class_has_cases() -> None:
    assert len(CLASSES) == 30
