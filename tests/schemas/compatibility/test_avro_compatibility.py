"""Avro's compatibility: cases of others, and random pairs against fastavro, which reads values."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from random import Random
from typing import Any

import fastavro
import pytest

from streamlog.errors import InvalidSchema
from streamlog.schemas import AvroSchema, Schema, SchemaType, incompatibilities, parse_schema
from tests.schemas.compatibility.avro_cases import COMPATIBLE, INCOMPATIBLE, Found, field, record
from tests.schemas.random_avro import random_pair, random_value, walk

PAIRS = 20_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 600
VALUES = 8


def parsed(value: Any) -> AvroSchema:
    found = parse_schema(Schema(SchemaType.AVRO, json.dumps(value)))
    assert isinstance(found, AvroSchema)
    return found


def found_between(reader: Any, writer: Any) -> list[Found]:
    found = incompatibilities(parsed(reader), parsed(writer))
    return [(each.kind, each.path, each.detail) for each in found]


@pytest.mark.parametrize(("reader", "writer"), COMPATIBLE)
def test_a_reader_reads_what_avro_says_it_reads(reader: Any, writer: Any) -> None:
    assert found_between(reader, writer) == []


@pytest.mark.parametrize(("reader", "writer", "found"), INCOMPATIBLE)
def test_kinds_paths_and_details_are_avros(reader: Any, writer: Any, found: list[Found]) -> None:
    assert found_between(reader, writer) == found


def test_what_is_compatible_is_read_and_most_of_the_rest_has_a_counterexample() -> None:
    counts = Counter[str]()
    for seed in range(PAIRS):
        reader, writer = random_pair(seed)
        try:
            fastavro.parse_schema(json.loads(json.dumps(reader)))
        except fastavro.schema.UnknownType:
            continue  # A change has moved a name before its definition, which fastavro can't read.
        pair = parsed(reader), parsed(writer)
        is_compatible = not incompatibilities(*pair)
        problem = counterexample(pair[0].resolved, pair[1].resolved, writer, seed)
        if is_compatible:
            assert not problem, f"seed {seed}: {problem}"
        counts["compatible" if is_compatible else "shown" if problem else "not shown"] += 1
    # A value that shows the difference may be rare: an empty list shows nothing of its items.
    assert counts["compatible"] > PAIRS / 2
    assert counts["shown"] > PAIRS / 4
    assert counts["not shown"] < counts["shown"] / 50


def counterexample(reader: Any, writer: Any, plain: Any, seed: int) -> str:
    """Return why fastavro does not read one of some random values, or ""."""
    names = {each["name"]: each for each in walk(plain) if each["type"] in NAMED}
    write, read = (fastavro.parse_schema(json.loads(json.dumps(x))) for x in (writer, reader))
    chance = Random(seed)
    for _ in range(VALUES):
        data = io.BytesIO()
        fastavro.schemaless_writer(data, write, random_value(plain, chance, names))
        data.seek(0)
        try:
            fastavro.schemaless_reader(data, write, read)
        except Exception as error:  # noqa: BLE001 - fastavro raises several kinds of its own
            return f"{type(error).__name__}: {error}"
    return ""


NAMED = ("record", "enum", "fixed")


def test_a_wrong_assumption_about_a_recursive_type_is_taken_back() -> None:
    # While A is compared, B is, in which A is taken for compatible; A is not, by its last field.
    inner = record("B", field("a", ["null", "A"]))
    writer = record("A", field("b", ["null", inner]), field("x", "int"))
    reader = record("A", field("b", ["null", inner]), field("x", "string"))
    either = record("Top", field("one", ["null", writer]), field("two", ["null", "B"]))
    other = record("Top", field("one", ["null", reader, "int"]), field("two", ["null", "B"]))
    paths = [path for _, path, _ in found_between(other, either)]
    assert paths == ["/fields/0/type/1", "/fields/1/type/1"]


def test_a_field_with_two_fields_of_the_writer_behind_it_is_refused() -> None:
    writer = record("R", field("a", "int"), field("b", "int"))
    reader = record("R", field("a", "int", aliases=["b"]))
    assert found_between(reader, writer) == [
        ("NAME_MISMATCH", "/fields/0", "field a matches a, b"),
    ]


def test_a_difference_counts_once_however_often_its_type_is_used() -> None:
    def chain(kind: str) -> dict[str, Any]:
        links = [record("R0", field("x", kind))]
        links += [
            record(f"R{n}", *(field(f"{x}", f"R{n - 1}") for x in "ab")) for n in range(1, 60)
        ]
        return record("All", *(field(f"f{n}", each) for n, each in enumerate(links)))

    found = found_between(chain("int"), chain("string"))
    assert [each[1] for each in found] == ["/fields/0/type/fields/0/type"]


def test_large_unions_are_compared_by_name() -> None:
    union = [record(f"R{n}", field("a", "int")) for n in range(3_000)]
    assert found_between(union, union[::-1]) == []
    assert len(found_between(union[:1_000], union)) == 2_000


def test_schemas_that_are_nested_too_deep_together_are_refused() -> None:
    def cycle(length: int) -> Any:
        found: Any = "R0"
        for number in reversed(range(length)):
            found = record(f"R{number}", field("a", {"type": "array", "items": found}))
        return found

    # Pairs of a circle of 31 types and one of 32 form a path of 992.
    with pytest.raises(InvalidSchema, match="nested deeper than 110 types together"):
        found_between(cycle(31), cycle(32))
