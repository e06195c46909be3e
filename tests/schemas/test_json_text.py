"""JSON text of schemas: the limits hold before time is spent, and what is no JSON is refused."""

from __future__ import annotations

import time

import pytest

from streamlog.errors import InvalidSchema
from streamlog.schemas import SchemaLimits
from streamlog.schemas.json_text import dump_json, load_json


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[NaN]", "not a number of JSON"),
        ("[-Infinity]", "not a number of JSON"),
        ("[1e999]", "not a number of JSON, or is too large"),
        (f"[{'1' * 5000}]", "not JSON"),
        ('["\\ud800"]', "half of a surrogate pair"),
        ('["\ud800"]', "half of a surrogate pair at character 2"),
        ("[" * 401, "nested deeper than 100 types"),
        ("[" * 100_000, "nested deeper than 100 types"),
        ('{"a":' * 100_000, "nested deeper than 100 types"),
    ],
)
def test_what_is_no_json_or_too_deep_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        load_json(text)


def test_brackets_in_strings_do_not_count() -> None:
    text = dump_json(["[" * 1000 + '"' + "{" * 1000 + "\\"])
    assert dump_json(load_json(text)) == text


@pytest.mark.parametrize("unit", ['\\"', '"', "\\", '"\\', "[]"])
def test_a_text_of_the_largest_size_takes_no_time(unit: str) -> None:
    text = '"' + unit * ((1 << 20) // len(unit) - 1)
    start = time.process_time()
    with pytest.raises(InvalidSchema):
        load_json(text)
    assert time.process_time() - start < 1


def test_the_size_counts_in_bytes() -> None:
    limits = SchemaLimits(text_bytes=10)
    assert load_json('"12345678"', limits) == "12345678"
    for text in ('"123456789"', '"äöüäö"'):
        with pytest.raises(InvalidSchema, match="larger than 10 bytes, which is the limit"):
            load_json(text, limits)
