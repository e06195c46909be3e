"""Rows written by another Avro schema than their own: what fastavro makes of it by Avro's rules."""

from __future__ import annotations

import copy
import io
import json
import os
import struct
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_conventions import UNION, AvroForm
from streamlog.connect.converters.connect_avro.avro_converter import AvroFormat
from streamlog.connect.row_schema import Field, Schema
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
        (ENUM, "C"), (FIXED, "abc"), (FIXED, "a"), ({"type": "array", "items": "int"}, {}),
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


def latest(kind: Any) -> RegisteredSchema:
    """Return a schema whose one field has a type."""
    return registered({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})


def one(schema: Schema) -> Schema:
    return Schema("struct", name="R", fields=(Field("f", schema),))


DECIMAL = Schema("bytes", logical="Decimal", parameters=(("scale", "0"),))


@pytest.mark.parametrize(
    ("number", "data"),
    [(0, b"\0\0"), (1, b"\0\1"), (-1, b"\xff\xff"), (127, b"\0\x7f"), (-128, b"\xff\x80"),
     (128, b"\0\x80"), (-32_768, b"\x80\0")],
)  # fmt: skip
def test_a_decimal_fills_a_fixed_with_its_sign(number: int, data: bytes) -> None:
    fixed = {**FIXED, "logicalType": "decimal", "precision": 4, "scale": 0}
    assert AVRO.writer(one(DECIMAL), latest(fixed))({"f": Decimal(number)}) == data
    assert AVRO.reader(latest(fixed))(data, 0).value == {"f": Decimal(number)}


def test_other_bytes_have_the_size_of_their_fixed() -> None:
    write = AVRO.writer(one(Schema("bytes")), latest(FIXED))
    assert write({"f": b"ab"}) == b"ab"
    for value in (b"a", b"abc", b""):
        with pytest.raises(BadRecord, match="F has 2 bytes, not"):
            write({"f": value})
    with pytest.raises(BadRecord, match="F has 2 bytes, not 3"):
        AVRO.writer(one(DECIMAL), latest(FIXED))({"f": Decimal(1 << 16)})


def test_a_null_needs_a_place_in_the_union_and_in_the_row() -> None:
    required, optional = one(Schema("int32")), one(Schema("int32", optional=True))
    assert AVRO.writer(optional, latest(["int", "null"]))({"f": None}) == b"\2"
    assert AVRO.writer(required, latest(["null", "int"]))({"f": 3}) == b"\2\6"
    for schema, kinds in ((required, ["null", "int"]), (optional, ["int", "string"])):
        with pytest.raises(BadRecord, match="field f: null for a value that is required"):
            AVRO.writer(schema, latest(kinds))({"f": None})


MEMBERS = (
    Field("int", Schema("int32", optional=True)),
    Field("B", Schema("struct", name="shop.B")),
)
KINDS = ["null", "int", {"type": "record", "name": "shop.B", "fields": []}]


def union(*, optional: bool) -> Schema:
    return one(Schema("struct", name=UNION, fields=MEMBERS, optional=optional))


def test_a_union_without_a_value_is_null_if_that_is_allowed() -> None:
    write = AVRO.writer(union(optional=True), latest(KINDS))
    assert write({"f": {"int": None, "B": None}}) == write({"f": None}) == b"\0"
    assert write({"f": {"int": 3, "B": {}}}) == b"\2\6"
    assert write({"f": {"B": {}}}) == b"\4"
    assert AVRO.writer(union(optional=True), latest([*KINDS[1:], "null"]))({"f": {}}) == b"\4"
    for schema, kinds in ((union(optional=False), KINDS), (union(optional=True), KINDS[1:])):
        with pytest.raises(BadRecord, match="field f: no field of a union has a value"):
            AVRO.writer(schema, latest(kinds))({"f": {"int": None}})
    with pytest.raises(BadRecord, match="the union of the Avro schema has no type B"):
        AVRO.writer(union(optional=True), latest(KINDS[:2]))


def test_of_several_records_the_name_decides() -> None:
    kinds = [
        "string", {"type": "record", "name": "a.A", "fields": []},
        {"type": "record", "name": "a.B", "fields": [{"name": "x", "type": "int"}]},
    ]  # fmt: skip
    row = (Field("x", Schema("int32")),)
    for name, data in (("a.B", b"\4\6"), ("a.A", b"\2"), ("other.Name", b"\2")):
        schema = one(Schema("struct", name=name, fields=row))
        assert AVRO.writer(schema, latest(kinds))({"f": {"x": 3}}) == data
    # A text takes no record, whatever its name.
    assert AVRO.writer(one(Schema("string", name="a.B")), latest(kinds))({"f": ""}) == b"\0\0"


@pytest.mark.parametrize(
    ("schema", "kind", "why"),
    [
        (
            Schema("map", keys=Schema("int32"), items=Schema("int32")),
            {"type": "array", "items": "int"}, "no array of Avro, unless its items are entries",
        ),
        (Schema("array", items=Schema("int32")), {"type": "map", "values": "int"}, "is no map"),
        (Schema("boolean"), ["null", "string"], "none of the Avro types null, string"),
        (Schema("int64"), "int", "a int64 is no int of Avro"),
        (Schema("float64"), "float", "a float64 is no float of Avro"),
    ],
)  # fmt: skip
def test_a_schema_that_can_not_hold_rows_is_refused_before_any_row(
    schema: Schema, kind: Any, why: str
) -> None:
    with pytest.raises(BadRecord, match=f"field f: .*{why}"):
        AVRO.writer(one(schema), latest(kind))


def test_a_text_is_a_symbol_of_the_enum_or_refused() -> None:
    write = AVRO.writer(one(Schema("string")), latest(ENUM))
    assert write({"f": "B"}) == b"\2"
    for value in ("C", ""):
        with pytest.raises(BadRecord, match="no symbol of the enum E"):
            write({"f": value})


@pytest.mark.parametrize("value", [object(), {1, 2}, Decimal(1), [object()], {"a": Decimal(1)}])
def test_what_connect_has_no_type_for_needs_a_schema(value: object) -> None:
    described, _ = AVRO.described(None)
    with pytest.raises(BadRecord, match="has no corresponding schema type"):
        AVRO.writer(None, RegisteredSchema(1, None, described))(value)


def test_empty_items_are_counted_before_they_are_made() -> None:
    node = {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}
    reader = AVRO.reader(registered(node))
    number = long_of_fastavro(10_000)
    assert reader(number + b"\0", 0).value == [{}] * 10_000
    with pytest.raises(BadRecord, match="10001 items can't be"):
        reader(long_of_fastavro(10_001) + b"\0", 0)


def long_of_fastavro(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


@pytest.mark.parametrize(
    "number", [0, -1, 63, 64, -64, -65, 2**31, 2**63 - 1, -(2**63), 8191, 8192]
)
def test_numbers_are_those_of_fastavro(number: int) -> None:
    reader, written = AVRO.reader(registered("long")), long_of_fastavro(number)
    assert reader(written, 0).value == number
    assert AVRO.writer(Schema("int64"), registered("long"))(number) == written


def test_a_number_has_at_most_ten_bytes() -> None:
    reader = AVRO.reader(registered("long"))
    assert reader(b"\x82" + b"\x80" * 8 + b"\0", 0).value == 1
    with pytest.raises(BadRecord, match="longer than 10 bytes"):
        reader(b"\x82" + b"\x80" * 9 + b"\0", 0)


def test_keys_that_have_no_hash_are_refused() -> None:
    fields = [
        {"name": "key", "type": {"type": "array", "items": "int"}},
        {"name": "value", "type": "int"},
    ]
    entry = {"type": "record", "name": "io.confluent.connect.avro.MapEntry", "fields": fields}
    reader = AVRO.reader(registered({"type": "array", "items": entry}))
    with pytest.raises(BadRecord, match="keys of maps that are arrays"):
        reader(b"\2" + b"\2\2\0" + b"\4" + b"\0", 0)


def anything(depth: int) -> bytes:
    """Return nested lists without a schema: seven nulls, an array of one item, and no map."""
    inner = b"\0" * 9
    for _ in range(depth):
        inner = b"\0" * 7 + b"\2\2" + inner + b"\0" + b"\0"
    return inner


def test_a_value_without_a_schema_may_be_nested_100_levels_deep() -> None:
    described, _ = AVRO.described(None)
    reader = AVRO.reader(RegisteredSchema(1, None, described))
    deep: Any = None
    for _ in range(100):
        deep = [deep]
    assert reader(anything(100), 0).value == deep
    with pytest.raises(BadRecord, match="deeper than 100 levels"):
        reader(anything(101), 0)
    with pytest.raises(BadRecord, match="a union of 2 types has no type 2"):
        reader(b"\4", 0)


def test_defaults_of_logical_types_are_written_as_their_base() -> None:
    schema = Schema("struct", name="R", fields=(
        Field("day", Schema("int32", logical="Date"), 3),
        Field("n", Schema("int64", optional=True), -1),
    ))  # fmt: skip
    described, _ = AVRO.described(schema)
    found = RegisteredSchema(1, None, described)
    assert AVRO.writer(schema, found)({}) == b"\6" + b"\0\1"
    assert AVRO.writer(schema, found)({"day": None, "n": 1}) == b"\6" + b"\0\2"


def test_a_default_without_a_field_that_is_needed_says_so() -> None:
    field = {"name": "f", "type": RECORD, "default": {"b": "y"}}
    with pytest.raises(BadRecord, match="the default of In lacks the field a"):
        AVRO.writer(ROWLESS, registered({"type": "record", "name": "R", "fields": [field]}))
