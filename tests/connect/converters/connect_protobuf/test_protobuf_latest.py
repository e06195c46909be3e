"""Rows under a `.proto` that others wrote: what its fields take, by the encoding of Protobuf."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.row_schema import Field, Schema
from streamlog.replace import replace
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas import SchemaType
from streamlog.serdes.registered.schema_source import RegisteredSchema
from tests.connect.converters.connect_protobuf.test_protobuf_converter import (
    COLOR,
    ENUM,
    PAID,
    PLAIN,
    made,
    one,
    read,
    registered,
    written,
)
from tests.connect.converters.random_rows import LOGICAL

IMPORTS = "".join(
    f'import "{each}.proto"; '
    for each in (
        "google/type/date", "google/type/timeofday", "google/protobuf/timestamp",
        "google/protobuf/wrappers", "confluent/type/decimal",
    )
)  # fmt: skip
FREE, X = Schema("string", logical="Decimal"), one(Schema("int32"), "x")


def latest(field: str) -> RegisteredSchema:
    """Return a schema whose message T has a field, beside a message, an enum, and imports."""
    head = (
        f'syntax = "proto3"; {IMPORTS} message A {{ int32 x = 1; }} enum E {{ NO = 0; RED = 7; }}'
    )
    return registered(f"{head} message T {{ {field} }}")


def put(field: str, schema: Schema, value: Any) -> bytes:
    """Return what a row has as bytes behind the index of T, the second message."""
    data = PLAIN.writer(one(schema), latest(field))({"f": value})
    assert data[:2] == b"\2\2"
    return data[2:]


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes((number & 127 | 128,))
        number >>= 7
    return found + bytes((number,))


@pytest.mark.parametrize(
    ("field", "schema", "value", "data"),
    [
        ("int32 f = 1;", Schema("int8"), -1, b"\x08" + varint(2**64 - 1)),
        ("sint32 f = 1;", Schema("int32"), -1, b"\x08\x01"),
        ("fixed32 f = 1;", Schema("int64"), 2**32 - 1, b"\x0d\xff\xff\xff\xff"),
        ("uint64 f = 1;", Schema("int64"), -1, b"\x08" + varint(2**64 - 1)),
        ("fixed64 f = 1;", Schema("int64"), -(2**63), b"\x09" + b"\0" * 7 + b"\x80"),
        ("sfixed64 f = 1;", Schema("int64"), -1, b"\x09" + b"\xff" * 8),
        ("int64 f = 1;", Schema("int16"), 5, b"\x08\x05"),
        ("double f = 1;", Schema("int32"), 1, b"\x09" + b"\0" * 6 + b"\xf0\x3f"),
        ("float f = 1;", Schema("float32"), 0.5, b"\x0d\0\0\0\x3f"),
        ("bool f = 1;", Schema("boolean"), True, b"\x08\x01"),
        ("bytes f = 1;", Schema("bytes"), memoryview(b"ab"), b"\x0a\x02ab"),
        ("string f = 1;", FREE, Decimal("1.5"), b"\x0a\x031.5"),
        ("string f = 1;", Schema("string"), "é", b"\x0a\x02\xc3\xa9"),
        ("E f = 1;", Schema("string"), "RED", b"\x08\x07"),
        ("E f = 1;", Schema("int32"), 7, b"\x08\x07"),
        ("E f = 1;", replace(COLOR, parameters=((f"{ENUM}.OLD", "9"),)), "OLD", b"\x08\x09"),
        ("E f = 1;", replace(COLOR, parameters=((f"{ENUM}.OLD", "-1"),)), "OLD",
         b"\x08" + varint(2**64 - 1)),
        ("A f = 1;", Schema("struct"), {}, b"\x0a\0"),
        ("repeated A f = 1;", Schema("array", items=X), [{"x": 1}, {"x": 0}],
         b"\x0a\x02\x08\x01\x0a\0"),
        ("repeated int32 f = 1;", Schema("array", items=Schema("int32")), (1, 2), b"\x0a\2\1\2"),
        ("repeated string f = 1;", Schema("array"), ["a"], b"\x0a\x01a"),
        ("map<string, string> f = 1;", Schema("map"), {"a": "b"}, b"\x0a\x06\x0a\x01a\x12\x01b"),
        ("map<int32, A> f = 1;", Schema("map", keys=Schema("int32"), items=X),
         {1: {"x": 2}}, b"\x0a\x06\x08\x01\x12\x02\x08\x02"),
        ("google.protobuf.Int64Value f = 1;", Schema("int64"), 0, b"\x0a\0"),
        ("google.protobuf.StringValue f = 1;", Schema("string"), "", b"\x0a\0"),
        ("google.protobuf.Int64Value f = 1;", one(Schema("int64"), "value"), {"value": 5},
         b"\x0a\x02\x08\x05"),
        ("google.type.TimeOfDay f = 1;", LOGICAL[3], time(0), b"\x0a\0"),
        ("google.type.TimeOfDay f = 1;", LOGICAL[3], time(1, 2, 3, 4000),
         b"\x0a\x0b\x08\x01\x10\x02\x18\x03\x20" + varint(4_000_000)),
        ("google.type.Date f = 1;", LOGICAL[2], date(1970, 2, 3),
         b"\x0a\x07\x08\xb2\x0f\x10\x02\x18\x03"),
        ("google.protobuf.Timestamp f = 1;", LOGICAL[4], datetime(1970, 1, 1), b"\x0a\0"),  # noqa: DTZ001
        ("google.protobuf.Timestamp f = 1;", LOGICAL[4], datetime(1970, 1, 1, 0, 0, 1, 2000),  # noqa: DTZ001
         b"\x0a\x06\x08\x01\x10" + varint(2_000_000)),
        ("confluent.type.Decimal f = 1;", LOGICAL[0], Decimal("-1.29"),
         b"\x0a\x08\x0a\x02\xff\x7f\x10\x03\x18\x02"),
        ("confluent.type.Decimal f = 1;", LOGICAL[0], Decimal(0), b"\x0a\x05\x0a\x01\0\x10\x01"),
    ],
)  # fmt: skip
def test_values_are_encoded_as_protobuf_defines_it(
    field: str, schema: Schema, value: object, data: bytes
) -> None:
    assert put(field, schema, value) == data


@pytest.mark.parametrize(
    ("field", "schema", "why"),
    [
        ("A f = 1;", Schema("int32"), "A holds structs, not int32"),
        ("int32 f = 1;", Schema("struct"), r"T\.f holds no struct"),
        ("int32 f = 1;", Schema("array"), r"T\.f holds no array"),
        ("A f = 1;", Schema("map"), r"T\.f holds no map"),
        ("repeated int32 f = 1;", Schema("map"), r"T\.f holds lists, not map"),
        ("map<string, int32> f = 1;", Schema("array"), r"T\.f holds maps, not array"),
        ("map<string, int32> f = 1;", Schema("map", items=Schema("struct")), "holds no struct"),
        ("google.type.Date f = 1;", Schema("int32"), r"T\.f holds a Date, not int32"),
        ("google.type.Date f = 1;", LOGICAL[4], r"T\.f holds a Date, not int64"),
        ("google.protobuf.Int64Value f = 1;", Schema("array"), "holds no array"),
    ],
)  # fmt: skip
def test_a_message_that_can_not_hold_rows_is_refused_before_any_row(
    field: str, schema: Schema, why: str
) -> None:
    with pytest.raises(BadRecord, match=f"field f: .*{why}"):
        PLAIN.writer(one(schema), latest(field))


@pytest.mark.parametrize(
    ("field", "schema", "value", "why"),
    [
        ("E f = 1;", Schema("string"), "BLUE", "'BLUE' is no symbol of the enum E"),
        ("E f = 1;", replace(COLOR, parameters=((f"{ENUM}.X", "y"),)), "X", "no symbol"),
        ("E f = 1;", Schema("int32"), 1.5, "is no number of the enum E"),
        ("E f = 1;", Schema("int32"), True, "is no number of the enum E"),
        ("bool f = 1;", Schema("boolean"), 1, "is no boolean"),
        ("int32 f = 1;", Schema("boolean"), True, "is no boolean"),
        ("int32 f = 1;", Schema("int64"), 2**31, "does not fit"),
        ("int64 f = 1;", Schema("int8"), 128, "is no int8"),
        ("string f = 1;", Schema("bytes"), b"x", "is no bytes"),
        ("repeated A f = 1;", Schema("array", items=Schema("struct")), [None], "has a null"),
        ("map<string, A> f = 1;", Schema("map", items=Schema("struct")), {"a": None}, "has a null"),
        ("map<string, A> f = 1;", Schema("map", items=Schema("struct")), [], "is no map"),
        ("repeated A f = 1;", Schema("array", items=Schema("struct")), {}, "is no array"),
    ],
)  # fmt: skip
def test_a_value_that_its_field_can_not_hold_is_refused(
    field: str, schema: Schema, value: object, why: str
) -> None:
    with pytest.raises(BadRecord, match=why):
        put(field, schema, value)


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_decimal_has_at_most_10_000_digits_behind_its_point(sign: str) -> None:
    field = "confluent.type.Decimal f = 1;"
    for most in (Decimal(f"{sign}1E-10000"), Decimal(f"{sign}1E+10000")):
        data = put(field, LOGICAL[0], most)
        found = read(latest(field).schema.text, b"\2\2" + data).value["f"]
        assert found.as_tuple() == most.as_tuple()
    for more in (Decimal(f"{sign}1E-10001"), Decimal(f"{sign}1E+10001")):
        with pytest.raises(BadRecord, match="10000 is the limit"):
            put(field, LOGICAL[0], more)
    for scale in (10_001, 2**64 - 10_001):
        inner = b"\x18" + varint(scale)
        with pytest.raises(BadRecord, match="10000 is the limit"):
            read(latest(field).schema.text, b"\2\2\x0a" + bytes((len(inner),)) + inner)


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("Infinity"), 5, "1.5"])
def test_a_decimal_is_a_finite_decimal(value: object) -> None:
    with pytest.raises(BadRecord, match="is no Decimal"):
        put("confluent.type.Decimal f = 1;", LOGICAL[0], value)


def test_a_null_is_written_as_the_default_of_its_field() -> None:
    fields = (Field("f", Schema("int32"), 5), Field("g", Schema("bytes", optional=True), "YQ=="))
    schema = Schema("struct", name="T", fields=fields)
    found = latest("int32 f = 1; bytes g = 2;")
    write = PLAIN.writer(schema, found)
    assert write({}) == write({"f": None, "g": None}) == b"\2\2\x08\x05\x12\x01a"
    assert write({"f": 1, "g": b""}) == b"\2\2\x08\x01"


def test_of_a_oneof_the_first_field_with_a_value_is_written() -> None:
    found = latest("oneof paid { string card = 4; int64 cents = 5; }")
    write = PLAIN.writer(one(PAID), found)
    assert write({"f": {"card": None, "cents": 0}}) == b"\2\2\x28\0"
    assert write({"f": {"card": "x", "cents": 7}}) == b"\2\2\x22\x01x"
    assert write({"f": None}) == b"\2\2"
    # What the latest version lacks is left out.
    narrow = PLAIN.writer(one(PAID), latest("oneof paid { int64 cents = 5; }"))
    assert narrow({"f": {"card": "x", "cents": 7}}) == b"\2\2\x28\x07"
    with pytest.raises(BadRecord, match="field f: none of the fields of a oneof"):
        narrow({"f": {"card": "x", "cents": None}})
    with pytest.raises(BadRecord, match="field card: "):
        PLAIN.writer(one(PAID), latest("oneof paid { A card = 4; }"))


def test_equal_maps_have_equal_bytes_whatever_their_order() -> None:
    field, schema = "map<string, int32> f = 1;", Schema("map", items=Schema("int32"))
    keys = [f"key{number}" for number in range(40)]
    there, back = (dict.fromkeys(each, 1) for each in (keys, reversed(keys)))
    assert put(field, schema, there) == put(field, schema, back)


def test_a_wrapper_may_be_a_struct_as_well() -> None:
    text, data = written(Schema("int64"), 5)
    whole = made(wrapper_for_raw_primitives="false", enhanced_protobuf_schema_support="true")
    found = read(text, data, whole)
    assert found.value == {"value": 5}
    assert found.schema.name == "google.protobuf.Int64Value"
    assert whole.writer(found.schema, registered(text))(found.value) == data


def test_a_schema_of_another_format_is_refused() -> None:
    avro = RegisteredSchema(1, None, RegistrySchema(SchemaType.AVRO, '"string"'))
    for make in (PLAIN.reader, lambda found: PLAIN.writer(one(Schema("int32")), found)):
        with pytest.raises(BadRecord, match="its schema is AVRO, and ProtobufConverter takes"):
            make(avro)
    for make in (PLAIN.reader, lambda found: PLAIN.writer(one(Schema("int32")), found)):
        with pytest.raises(BadRecord, match="no schema of Protobuf: "):
            make(registered("message {"))
