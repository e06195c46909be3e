"""Avro of rows: laws on random schemas and values, and fastavro, which reads and writes them."""

from __future__ import annotations

import io
import json
import os
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_conventions import AvroForm
from streamlog.connect.converters.connect_avro.avro_converter import AvroFormat
from streamlog.connect.converters.connect_avro.schemas_to_avro import avro_of
from streamlog.connect.row_schema import Field, Schema
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas import SchemaType
from streamlog.serdes.registered.schema_source import RegisteredSchema
from tests.connect.converters.random_rows import RandomRows

ROWS = 20_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 240
FORM = AvroForm()
AVRO = AvroFormat(FORM)


def written(schema: Schema | None, value: Any, avro: AvroFormat = AVRO) -> tuple[Any, bytes]:
    """Return the Avro schema and the bytes of a value."""
    described, _ = avro.described(schema)
    data = avro.writer(schema, RegisteredSchema(1, None, described))(value)
    return json.loads(described.text), data


def read(node: Any, data: bytes, avro: AvroFormat = AVRO) -> Any:
    return avro.reader(registered(node))(data, 0)


def registered(node: Any) -> RegisteredSchema:
    return RegisteredSchema(1, None, RegistrySchema(SchemaType.AVRO, json.dumps(node)))


def without_logical(node: Any) -> Any:
    """Return an Avro schema whose values fastavro leaves as they are."""
    if isinstance(node, dict):
        kept = {key: without_logical(each) for key, each in node.items() if key != "default"}
        kept.pop("logicalType", None)
        return kept
    return [without_logical(each) for each in node] if isinstance(node, list) else node


EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of times without a zone


def base(schema: Schema, value: Any) -> Any:
    """Return a value as Avro has it, by Avro's and Connect's specifications alone."""
    match value:
        case dict() if schema.kind == "struct":
            return {each.name: base(each.schema, value[each.name]) for each in schema.fields}
        case dict() if schema.keys != Schema("string"):
            assert schema.keys
            assert schema.items
            return [
                {"key": base(schema.keys, key), "value": base(schema.items, each)}
                for key, each in value.items()
            ]
        case dict() | list():
            assert schema.items
            if isinstance(value, list):
                return [base(schema.items, each) for each in value]
            return {key: base(schema.items, each) for key, each in value.items()}
    return base_of_scalar(schema, value)


def base_of_scalar(schema: Schema, value: Any) -> Any:  # noqa: PLR0911 - a case for each type
    match value:
        case Decimal() if schema.kind == "bytes":
            number = int(value.scaleb(int(dict(schema.parameters)["scale"])))
            size = 1
            while not -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1:
                size += 1
            return number.to_bytes(size, "big", signed=True)
        case Decimal():
            return format(value, "f")
        case datetime(tzinfo=None):
            return (value - EPOCH) // timedelta(microseconds=1)
        case datetime():
            return (value.replace(tzinfo=None) - EPOCH) // timedelta(milliseconds=1)
        case date():
            return (value - EPOCH.date()).days
        case time():
            return (datetime.combine(EPOCH, value) - EPOCH) // timedelta(milliseconds=1)
    return value


@pytest.mark.parametrize("seed", range(4))
def test_random_rows_come_back_and_fastavro_agrees(seed: int) -> None:
    for number in range(seed * ROWS, seed * ROWS + ROWS // 4):
        schema, value = RandomRows(number).row()
        node, data = written(schema, value)
        found = read(node, data)
        assert repr(found.value) == repr(value), number
        assert found.schema == schema, number
        if schema.kind == "bytes" and not schema.optional:
            assert data == base(schema, value)
            continue
        plain = fastavro.parse_schema(without_logical(node))
        theirs = fastavro.schemaless_reader(io.BytesIO(data), plain)  # type: ignore[call-arg]
        assert repr(theirs) == repr(base(schema, value)), number
        out = io.BytesIO()
        fastavro.schemaless_writer(out, plain, base(schema, value))
        assert repr(read(node, out.getvalue()).value) == repr(value), number


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        (Schema("bytes"), b"ab", b"ab"), (Schema("bytes"), b"", b""),
        (Schema("bytes", logical="Decimal", parameters=(("scale", "0"),)), Decimal(-1), b"\xff"),
        (Schema("bytes", optional=True), b"ab", b"\x02\x04ab"),
    ],
)  # fmt: skip
def test_bytes_that_are_the_whole_value_have_no_size_as_in_java(
    schema: Schema, value: object, data: bytes
) -> None:
    node, found = written(schema, value)
    assert found == data
    assert read(node, data) == (schema, value)
    # Behind the id of its schema.
    assert AVRO.reader(registered(node))(b"12345" + data, 5).value == value


def test_a_null_becomes_the_default_as_in_java_unless_it_is_told_to_stay() -> None:
    fields = (
        Field("a", Schema("int32", optional=True), 5),
        Field("b", Schema("int32"), 6),
        Field("c", Schema("array", items=Schema("string"), optional=True), ["x"]),
        Field("d", Schema("float64", optional=True), 1.5),
    )
    schema = Schema("struct", fields=fields, name="shop.Row")
    assert read(*written(schema, {"a": None})).value == {"a": 5, "b": 6, "c": ["x"], "d": 1.5}
    keeps = AvroFormat(AvroForm(ignores_default=True))
    node, data = written(schema, {"a": None}, keeps)
    assert read(node, data).value == {"a": None, "b": 6, "c": None, "d": None}


@pytest.mark.parametrize(
    "value",
    [
        True, -3, 2**63 - 1, 0.5, "", "x", b"\0\xff", [], [None, [1, "x"]], {"a": None, "b": {}},
        {1: "x"}, {"deep": [{"er": [b"y", 1.5, {}]}]},
    ],
)  # fmt: skip
def test_values_without_a_schema_come_back(value: object) -> None:
    node, data = written(None, value)
    assert node["name"] == "Anything"
    found = read(node, data)
    assert found.schema is None
    assert found.value == value
    theirs = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(node))  # type: ignore[call-arg]
    (own,) = [each for each in theirs.values() if each is not None]  # type: ignore[union-attr]
    assert isinstance(value, list | dict) or own == value


def test_a_value_without_a_schema_may_not_be_nested_without_end() -> None:
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(BadRecord, match="nested too deep"):
        written(None, deep)
    node, data = written(None, [])
    hostile = (b"\0" * 7 + b"\2\2") * 5_000
    with pytest.raises(BadRecord, match="deeper than 100 levels"):
        read(node, hostile + data)


UNION = {
    "type": "record", "name": "shop.Row", "fields": [
        {"name": "u", "type": [
            "null", "int", "string", {"type": "map", "values": "int"},
            {"type": "record", "name": "shop.A", "fields": [{"name": "x", "type": "int"}]},
            {"type": "record", "name": "shop.B", "fields": [{"name": "x", "type": "int"}]},
            {"type": "enum", "name": "shop.Hue", "symbols": ["RED", "BLUE"]},
            {"type": "fixed", "name": "shop.Two", "size": 2},
        ], "default": None},
    ],
}  # fmt: skip


@pytest.mark.parametrize("is_enhanced", [False, True])
@pytest.mark.parametrize(
    ("name", "value", "theirs"),
    [
        ("int", 5, 5), ("string", "x", "x"), ("map", {"k": 1}, {"k": 1}),
        ("shop.A", {"x": 1}, ("shop.A", {"x": 1})), ("shop.B", {"x": 1}, ("shop.B", {"x": 1})),
        ("shop.Hue", "BLUE", ("shop.Hue", "BLUE")), ("shop.Two", b"ab", ("shop.Two", b"ab")),
        (None, None, None),
    ],
)  # fmt: skip
def test_a_union_is_a_struct_with_one_value(
    name: str | None, value: object, theirs: object, *, is_enhanced: bool
) -> None:
    avro = AvroFormat(AvroForm(is_enhanced=is_enhanced))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(UNION), {"u": theirs})
    found = read(UNION, out.getvalue(), avro)
    inner = found.value["u"]
    own = name if name is None or is_enhanced else name.rpartition(".")[2]
    if own is None:
        assert inner is None
    else:
        assert {key: each for key, each in inner.items() if each is not None} == {own: value}
    assert avro.writer(found.schema, registered(UNION))(found.value) == out.getvalue()


def test_enhanced_support_keeps_enums_and_unions_through_both_ways() -> None:
    avro = AvroFormat(AvroForm(is_enhanced=True))
    data = b"\x0c\x02"
    found = read(UNION, data, avro)
    again, second = written(found.schema, found.value, avro)
    assert second == data
    kinds = [each if isinstance(each, str) else each["type"] for each in again["fields"][0]["type"]]
    assert kinds == ["null", "int", "string", "map", "record", "record", "enum", "fixed"]
    assert read(again, second, avro) == found


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (Schema("int8"), 128, "is no int8"), (Schema("int64"), 2**63, "is no int64"),
        (Schema("int32"), True, "is no int32"), (Schema("float32"), 1e300, "is no float32"),
        (Schema("string"), 5, "is no string"), (Schema("string"), "\ud800", "surrogate"),
        (Schema("boolean"), 1, "is no boolean"), (Schema("bytes"), "x", "is no bytes"),
        (Schema("array", items=Schema("int32")), {}, "is no array"),
        (Schema("struct", fields=(Field("a", Schema("int32")),)), {}, "field a: null"),
        (Schema("struct", fields=(Field("a", Schema("int32")),)), {"a": "x"}, "field a: str 'x'"),
        (Schema("int32"), None, "null for a int32 that is required"),
        (Schema("bytes", logical="Decimal", parameters=(("scale", "2"),)), Decimal(1), "scale"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_bad_record(schema: Schema, value: object, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        written(schema, value)


@pytest.mark.parametrize(
    ("node", "data", "why"),
    [
        ("int", b"", "cut off"), ("int", b"\x80" * 11, "longer than 10"),
        ("string", b"\x06ab", "end within"),
        ("string", b"\x01", "end within"), ("string", b"\x02\xff", "no UTF-8"),
        ("boolean", b"\x02", "0 or 1"), ("int", b"\0\0", "1 bytes are left"),
        (["null", "int"], b"\x04", "no type 2"), (["null", "int"], b"\x01", "no type -1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no symbol 1"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\0", "items can't be"),
        ({"type": "map", "values": "int"}, b"\xfe\xff\xff\xff\x0f\0", "items can't be"),
        ("double", b"\0" * 7, "end within"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "-1 ms is no time of day"),
    ],
)  # fmt: skip
def test_malformed_bytes_are_a_bad_record(node: object, data: bytes, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        read(node, data)


def test_damaged_bytes_never_raise_anything_else() -> None:
    for number in range(ROWS // 4):
        rows = RandomRows(number)
        node, data = written(*rows.row())
        damaged = bytearray(data)
        for _ in range(min(len(damaged), 3)):
            damaged[rows.chance.randrange(len(damaged))] = rows.chance.randrange(256)
        for each in (bytes(damaged), data[: len(data) // 2], data + b"x"):
            try:
                read(node, each)
            except BadRecord:
                continue


def test_array_blocks_may_have_their_size_before_them() -> None:
    node = {"type": "array", "items": "int"}
    # -2 items in 2 bytes, then one without a size.
    assert read(node, b"\x03\x04\x02\x04" + b"\x02\x06" + b"\0").value == [1, 2, 3]


def test_the_latest_version_takes_rows_of_another_schema() -> None:
    latest = {
        "type": "record", "name": "shop.Row", "fields": [
            {"name": "new", "type": ["null", "string"], "default": None},
            {"name": "b", "type": "double"},
            {"name": "rest", "type": {"type": "array", "items": "int"}, "default": [1]},
            {"name": "a", "type": ["string", "null"]},
        ],
    }  # fmt: skip
    fields = (
        Field("a", Schema("string", optional=True)),
        Field("b", Schema("int32")),
        Field("left", Schema("int32")),
    )
    schema = Schema("struct", fields=fields, name="shop.Row")
    data = AVRO.writer(schema, registered(latest))({"a": None, "b": 7, "left": 1})
    theirs = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(latest))  # type: ignore[call-arg]
    assert theirs == {"new": None, "b": 7.0, "rest": [1], "a": None}
    narrow = {**latest, "fields": [{"name": "b", "type": "string"}]}
    with pytest.raises(BadRecord, match="field b: a int32 is no string of Avro"):
        AVRO.writer(schema, registered(narrow))
    needed = {**latest, "fields": [{"name": "must", "type": "string"}]}
    with pytest.raises(BadRecord, match="the field must without a default"):
        AVRO.writer(schema, registered(needed))


def test_a_schema_that_contains_itself_or_a_bare_null_is_refused() -> None:
    node = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
    with pytest.raises(BadRecord, match="contains itself"):
        read(node, b"\0")
    with pytest.raises(BadRecord, match="Avro's type null"):
        read("null", b"")


def test_two_schemas_of_one_name_are_refused() -> None:
    other = Schema("struct", name="shop.A", fields=(Field("y", Schema("int32")),))
    first = Schema("struct", name="shop.A", fields=(Field("x", Schema("int32")),))
    with pytest.raises(BadRecord, match="two different schemas have the name shop"):
        avro_of(Schema("struct", fields=(Field("a", first), Field("b", other))), FORM)
    assert avro_of(Schema("struct", fields=(Field("a", first), Field("b", first))), FORM)
