"""Rows written by another Avro schema than their own: what fastavro makes of it by Avro's rules."""

from __future__ import annotations

import copy
import io
import json
import os
import struct
from random import Random
from typing import Any

import fastavro
import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_conventions import AvroForm
from streamlog.connect.converters.connect_avro.avro_converter import AvroFormat
from streamlog.connect.row_schema import Schema
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas import SchemaType
from streamlog.serdes.registered.schema_source import RegisteredSchema
from tests.schemas.random_avro import random_pair, random_value, walk

PAIRS = 20_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 400
AVRO = AvroFormat(AvroForm())
STRICTER = ("is no symbol", "has no type", "is no ")
"""Rows don't narrow by their values, nor take an enum's default for what they have."""


def registered(node: Any) -> RegisteredSchema:
    return RegisteredSchema(1, None, RegistrySchema(SchemaType.AVRO, json.dumps(node)))


def by_fastavro(data: bytes, node: Any, reader: Any = None) -> Any:
    """Return a value that fastavro reads, as `alike` compares it."""
    schemas = [fastavro.parse_schema(copy.deepcopy(each)) for each in (node, reader) if each]
    return alike(fastavro.schemaless_reader(io.BytesIO(data), *schemas))  # type: ignore[arg-type]


def alike(value: Any) -> Any:
    """Return a value in which numbers are float32, and bytes the texts of Avro's defaults."""
    match value:
        case dict():
            return {key: alike(each) for key, each in value.items()}
        case list():
            return [alike(each) for each in value]
        case bytes():
            return value.decode("latin-1")
        case bool() | str() | None:
            return value
    return struct.pack("f", value)


def test_rows_under_another_schema_are_what_avro_resolves_them_to() -> None:
    equal = stricter = unexplained = 0
    for seed in range(PAIRS):
        reader, writer = random_pair(seed)
        for each in walk(reader):
            # By aliases old names find new ones; a field of a row has its one name.
            each.pop("aliases", None)
        named = {
            each["name"]: each for each in walk(writer) if {"fields", "symbols", "size"} & {*each}
        }
        out = io.BytesIO()
        plain = fastavro.parse_schema(copy.deepcopy(writer))
        fastavro.schemaless_writer(out, plain, random_value(writer, Random(seed), named))
        try:
            row = AVRO.reader(registered(writer))(out.getvalue(), 0)
            theirs = by_fastavro(out.getvalue(), writer, reader)
        except BadRecord:
            continue
        except (fastavro.read.SchemaResolutionError, fastavro.schema.SchemaParseException):
            with pytest.raises(BadRecord):
                AVRO.writer(row.schema, registered(reader))(row.value)
            continue
        try:
            data = AVRO.writer(row.schema, registered(reader))(row.value)
        except BadRecord as error:
            refusal = str(error)
            stricter += any(each in refusal for each in STRICTER)
            unexplained += not any(each in refusal for each in STRICTER)
            continue
        assert by_fastavro(data, reader) == theirs, seed
        equal += 1
    assert not unexplained
    assert equal > PAIRS / 4
    assert stricter < PAIRS / 20


ROWLESS = Schema("struct", name="R")
RECORD = {
    "type": "record", "name": "In", "fields": [
        {"name": "a", "type": "int"}, {"name": "b", "type": "string", "default": "x"},
    ],
}  # fmt: skip
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 2}


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("null", None), ("boolean", True), ("int", -3), ("long", 2**40), ("float", 0.5),
        ("double", 1.5), ("string", "é"), ("bytes", "a\u00ff"), (ENUM, "B"), (FIXED, "\u00ffz"),
        ({"type": "array", "items": "long"}, [1, 2]), ({"type": "map", "values": "int"}, {"k": 1}),
        (RECORD, {"a": 1, "b": "y"}), (["null", "int"], None),
        (["int", "null"], 5), (["string", FIXED, RECORD], "s"),
    ],
)  # fmt: skip
def test_a_field_that_rows_lack_has_its_default(kind: object, default: object) -> None:
    latest = {
        "type": "record", "name": "R", "fields": [{"name": "f", "type": kind, "default": default}],
    }  # fmt: skip
    data = AVRO.writer(ROWLESS, registered(latest))({})
    empty = {"type": "record", "name": "R", "fields": []}
    assert by_fastavro(data, latest) == by_fastavro(b"", empty, latest)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("null", 1), ("int", "x"), ("int", 1.5), ("boolean", 1), ("string", None), ("bytes", 5),
        (ENUM, "C"), (FIXED, "abc"), ({"type": "array", "items": "int"}, {}),
        ({"type": "map", "values": "int"}, []), ({"type": "array", "items": "int"}, ["x"]),
        (RECORD, {"b": "y"}), (RECORD, 5), (RECORD, {"a": None}), (["null", "int"], "x"),
    ],
)  # fmt: skip
def test_a_default_that_does_not_fit_is_refused_where_it_is_needed(
    kind: object, default: object
) -> None:
    latest = {
        "type": "record", "name": "R", "fields": [{"name": "f", "type": kind, "default": default}],
    }  # fmt: skip
    with pytest.raises(BadRecord):
        AVRO.writer(ROWLESS, registered(latest))


def test_a_default_is_of_the_first_type_of_a_union_that_takes_it() -> None:
    kinds = ["null", "int", "long", "string"]
    for default, data in (
        (None, b"\0"),
        (7, b"\x02\x0e"),
        (2**40, b"\x04" + b"\x80" * 5 + b"\x40"),
    ):
        latest = {
            "type": "record", "name": "R",
            "fields": [{"name": "f", "type": kinds, "default": default}],
        }  # fmt: skip
        assert AVRO.writer(ROWLESS, registered(latest))({}) == data


def test_a_default_may_lack_what_has_a_default_itself() -> None:
    latest = {
        "type": "record", "name": "R",
        "fields": [{"name": "f", "type": RECORD, "default": {"a": 1}}],
    }  # fmt: skip
    assert AVRO.writer(ROWLESS, registered(latest))({}) == b"\x02" + b"\x02x"
