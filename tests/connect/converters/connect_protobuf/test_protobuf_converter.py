"""Protobuf for converters: random rows, held against classes of protoc; Confluent's conventions."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.connector_settings import read_settings
from streamlog.connect.converters.connect_protobuf.protobuf_converter import (
    ProtobufConverter,
    ProtobufFormat,
)
from streamlog.connect.converters.json_schemas import to_base
from streamlog.connect.row_schema import Field, Schema
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas import SchemaType
from streamlog.serdes.registered.schema_source import RegisteredSchema
from tests.connect.converters.connect_protobuf.compiled import compiled
from tests.connect.converters.random_rows import LOGICAL, RandomRows

ROWS = 10_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 12
PROTOC_EVERY = 20
ENUM = "io.confluent.connect.protobuf.Enum"
ONEOF = "io.confluent.connect.protobuf.Union"
TAG = "io.confluent.connect.protobuf.Tag"
TYPE = "io.confluent.connect.protobuf.Type"
META = '(confluent.field_meta) = { params : [ { key : "connect.type" , value : "int8" } ] }'
COLOR = Schema(
    "string", name="Color", parameters=((ENUM, "Color"), (f"{ENUM}.RED", "1"), (f"{ENUM}.NO", "0"))
)
PAID = Schema(
    "struct", optional=True, name=f"{ONEOF}.paid",
    fields=(Field("card", Schema("string")), Field("cents", Schema("int64"))),
)  # fmt: skip


def made(**settings: str) -> ProtobufFormat:
    named = {name.replace("_", "."): text for name, text in settings.items()}
    found = read_settings(ProtobufConverter, {"schema.registry.url": "http://none", **named})
    return found.format()


PLAIN = made()
OPTIONAL = made(optional_for_nullables="true")
WRAPPERS = made(wrapper_for_nullables="true")


def registered(text: str) -> RegisteredSchema:
    return RegisteredSchema(1, None, RegistrySchema(SchemaType.PROTOBUF, text))


def written(schema: Schema, value: Any, format_: ProtobufFormat = PLAIN) -> tuple[str, bytes]:
    described, _ = format_.described(schema)
    return described.text, format_.writer(schema, registered(described.text))(value)


def read(text: str, data: bytes, format_: ProtobufFormat = PLAIN) -> Any:
    return format_.reader(registered(text))(data, 0)


def one(schema: Schema, name: str = "f") -> Schema:
    return Schema("struct", name="T", fields=(Field(name, schema),))


def is_held(schema: Schema, value: Any) -> bool:
    """Return whether Protobuf has a place for a value, by its own rules."""
    match schema.kind:
        case "struct":
            return all(is_held(each.schema, value[each.name]) for each in schema.fields if value)
        case "array" | "map":
            items = schema.items or Schema("string")
            parts = list(value.values() if isinstance(value, dict) else value or ())
            is_flat = items.kind not in ("array", "map")
            return is_flat and None not in parts and all(is_held(items, each) for each in parts)
    return True


def flat(schema: Schema) -> bool:
    """Return whether no list or map is directly within another one."""
    parts = [each.schema for each in schema.fields]
    if schema.items is not None:
        parts.append(schema.items)
        if schema.items.kind in ("array", "map"):
            return False
    return all(map(flat, parts))


def expected(schema: Schema, value: Any) -> Any:
    """Return a value as it comes back: an absent list is empty, our own types are plain."""
    match schema.kind:
        case "struct" if value is not None:
            return {each.name: expected(each.schema, value[each.name]) for each in schema.fields}
        case "array":
            return [expected(schema.items or Schema("string"), each) for each in value or ()]
        case "map":
            items = schema.items or Schema("string")
            return {key: expected(items, each) for key, each in sorted((value or {}).items())}
    is_own = schema.logical is not None and schema.logical not in {each.logical for each in LOGICAL}
    is_text = schema.kind == "string" and schema.logical == "Decimal"
    return to_base(schema, value) if value is not None and (is_own or is_text) else value


def check_by_protoc(message: Any, schema: Schema, value: Mapping[str, Any]) -> None:
    """Hold the scalars of a message against a row; protoc's class has read the bytes."""
    for each in schema.fields:
        part, want = getattr(message, each.name), value[each.name]
        if want is None and each.schema.kind not in ("array", "map"):
            assert not message.HasField(each.name)
        elif each.schema.kind in ("array", "map"):
            assert len(part) == len(want or ())
        elif each.schema.kind == "struct":
            check_by_protoc(part, each.schema, want)
        elif each.schema.logical is None:
            assert part == want or (math.isnan(part) and math.isnan(want))
        elif each.schema.logical == "Timestamp":
            assert part.ToDatetime(UTC) == want
        elif each.schema.logical == "Date":
            assert (part.year, part.month, part.day) == (want.year, want.month, want.day)


@pytest.mark.parametrize("format_", [OPTIONAL, WRAPPERS], ids=["optional", "wrappers"])
def test_random_rows_come_back_and_protoc_reads_them(
    format_: ProtobufFormat, tmp_path: Path
) -> None:
    held = 0
    for number in range(ROWS):
        chance = RandomRows(number)
        schema = chance.struct(0)
        value = chance.value(schema)
        if not flat(schema) or not is_held(schema, value):
            continue
        held += 1
        text, data = written(schema, value, format_)
        found = read(text, data, format_)
        # Maps of Protobuf have no order.
        assert repr(expected(found.schema, found.value)) == repr(expected(schema, value)), number
        # The same bytes again: what was read has the numbers of its fields. Items of lists are read
        # as optional, as in Confluent's converter, so with wrappers they would be wrapped.
        if format_ is OPTIONAL:
            assert written(found.schema, found.value, format_)[1] == data, number
        if held % PROTOC_EVERY == 1 and format_ is OPTIONAL:
            message = compiled(tmp_path, text, str(schema.name))
            check_by_protoc(message.FromString(data[1:]), schema, value)
    assert held > ROWS / 4


@pytest.mark.parametrize("seed", range(3))
def test_what_protobuf_can_not_hold_is_refused(seed: int) -> None:
    refused = 0
    for number in range(seed * 40, seed * 40 + 40):
        chance = RandomRows(number)
        schema = chance.struct(0)
        value = chance.value(schema)
        if flat(schema) and not is_held(schema, value):
            with pytest.raises(BadRecord, match="has a null"):
                written(schema, value)
            refused += 1
        elif not flat(schema):
            with pytest.raises(BadRecord, match="put it in a struct"):
                PLAIN.described(schema)
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        (Schema("int8"), f"int32 f = 1 [{META}];"),
        (Schema("int32"), "int32 f = 1;"),
        (Schema("int64", parameters=((TYPE, "fixed32"),)), "fixed32 f = 1;"),
        (Schema("int64", parameters=((TAG, "7"),)), "int64 f = 7;"),
        (Schema("float32"), "float f = 1;"), (Schema("float64"), "double f = 1;"),
        (Schema("bytes"), "bytes f = 1;"), (Schema("string", optional=True), "string f = 1;"),
        (Schema("int32", logical="Date"), "google.type.Date f = 1;"),
        (Schema("int32", logical="Time"), "google.type.TimeOfDay f = 1;"),
        (Schema("int64", logical="Timestamp"), "google.protobuf.Timestamp f = 1;"),
        (Schema("array", items=Schema("int64")), "repeated int64 f = 1;"),
        (Schema("map", items=Schema("int64")), "map<string, int64> f = 1;"),
        (COLOR, "Color f = 1;"), (PAID, "int64 cents = 2;"),
        (Schema("struct", name="shop.f"), "fMessage f = 1;"),
        (Schema("struct"), "ConnectDefault1 f = 1;"),
    ],
)  # fmt: skip
def test_types_are_those_of_confluents_converter(schema: Schema, line: str) -> None:
    described, name = PLAIN.described(one(schema))
    assert name == "T"
    assert line in [each.strip() for each in described.text.splitlines()]


def test_nullable_fields_are_optional_or_wrappers_by_setting() -> None:
    schema = one(Schema("int64", optional=True))
    assert "optional int64 f = 1;" in OPTIONAL.described(schema)[0].text
    assert "google.protobuf.Int64Value f = 1;" in WRAPPERS.described(schema)[0].text
    for format_ in (OPTIONAL, WRAPPERS):
        for value in ({"f": None}, {"f": 0}):
            found = read(*written(schema, value, format_), format_)
            assert found.value == value
            assert found.schema.fields[0].schema.optional
    # By default null is the zero of its type, as in Confluent's converter.
    assert read(*written(schema, {"f": None})).value == {"f": 0}


OTHERS = """
syntax = "proto3";
package shop;
import "google/protobuf/wrappers.proto";
import "google/protobuf/duration.proto";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
message Outer {
  message Order {
    fixed64 id = 3;
    optional sint32 count = 1;
    int32 small = 2 [(confluent.field_meta).params = {key: "connect.type", value: "int16"}];
    oneof paid { string card = 4; int64 cents = 5; }
    google.protobuf.StringValue note = 6;
    map<string, Color> unit_colors = 7;
    repeated Color colors = 8;
    google.protobuf.Duration took = 9;
    confluent.type.Decimal price = 10 [(confluent.field_meta) =
      {params: [{key: "scale", value: "2"}, {key: "precision", value: "9"}]}];
    uint32 big = 11;
  }
  enum Color { NO = 0; RED = 1; }
}
message Second { message Third { string a = 1; } }
"""


def test_messages_of_others_are_rows_as_confluent_documents_them(tmp_path: Path) -> None:
    order = compiled(tmp_path, OTHERS, "shop.Outer.Order")
    given = order(
        id=2**64 - 1, small=-2, cents=5, colors=[1, 0, 9], unit_colors={"a": 1}, big=2**32 - 1
    )
    given.price.value, given.price.precision, given.price.scale = b"\x80", 3, 2
    given.took.seconds = 3
    # The message is the first one within the first one: its indexes are 0, 0.
    data = b"\4\0\0" + given.SerializeToString()
    found = read(OTHERS, data)
    assert found.value == {
        "paid_0": {"card": None, "cents": 5}, "id": -1, "count": None, "small": -2, "note": None,
        "unit_colors": {"a": "RED"}, "colors": ["RED", "NO", "UNKNOWN_ENUM_VALUE_Color_9"],
        "took": {"seconds": 3, "nanos": 0}, "price": Decimal("-1.28"), "big": 2**32 - 1,
    }  # fmt: skip
    schemas = {each.name: each.schema for each in found.schema.fields}
    assert found.schema.name == "Order"
    assert schemas["paid_0"].name == f"{ONEOF}.paid"
    assert schemas["unit_colors"].name == "unit_colors"
    assert [schemas[each].kind for each in ("id", "count", "small", "big", "note")] == [
        "int64", "int32", "int16", "int64", "struct",
    ]  # fmt: skip
    assert schemas["id"].parameters == ((TYPE, "fixed64"), (TAG, "3"))
    assert schemas["price"].parameter("connect.decimal.precision") == "9"
    assert schemas["price"].parameter("scale") == "2"
    assert all(each.optional for each in schemas.values())
    assert read(OTHERS, b"\4\2\0\n\1x").value == {"a": "x"}


def test_settings_change_how_messages_of_others_are_read(tmp_path: Path) -> None:
    order = compiled(tmp_path, OTHERS, "shop.Outer.Order")
    given = order(card="x", colors=[1])
    given.note.value = ""
    data = b"\4\0\0" + given.SerializeToString()
    full = made(enhanced_protobuf_schema_support="true", generate_index_for_unions="false")
    found = read(OTHERS, data, full)
    assert found.schema.name == "shop.Outer.Order"
    assert found.schema.field("paid").schema.name == f"{ONEOF}.shop.Outer.Order.paid"
    assert found.value["paid"] == {"card": "x", "cents": None}
    flattened = read(OTHERS, data, made(flatten_unions="true")).value
    assert (flattened["card"], flattened["cents"]) == ("x", None)
    assert read(OTHERS, data, made(int_for_enums="true")).value["colors"] == [1]
    wrapped = read(OTHERS, data, WRAPPERS)
    assert wrapped.value["note"] == ""
    assert wrapped.schema.field("note").schema.optional
    assert not wrapped.schema.field("big").schema.optional
    marked = read(OTHERS, data, OPTIONAL).schema
    assert marked.field("count").schema.optional
    assert not marked.field("small").schema.optional


@pytest.mark.parametrize("is_null", [True, False])
def test_fields_of_proto2_are_null_unless_told_otherwise(*, is_null: bool) -> None:
    text = 'syntax = "proto2"; message T { optional int32 a = 1 [default = 4]; }'
    format_ = made(optional_for_proto2=str(is_null).lower())
    assert read(text, b"\0", format_).value == {"a": None if is_null else 4}


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (Schema("int16"), -2, "Int32Value"), (Schema("int64"), 2**63 - 1, "Int64Value"),
        (Schema("float32"), 0.5, "FloatValue"), (Schema("float64"), 0.1, "DoubleValue"),
        (Schema("boolean"), False, "BoolValue"), (Schema("string"), "", "StringValue"),
        (Schema("bytes"), b"\0", "BytesValue"),
    ],
)  # fmt: skip
def test_a_scalar_alone_is_a_wrapper(schema: Schema, value: object, message: str) -> None:
    _, name = PLAIN.described(schema)
    assert name == f"google.protobuf.{message}"
    text, data = written(schema, value)
    found = read(text, data)
    assert found.value == value
    struct = read(text, data, made(wrapper_for_raw_primitives="false"))
    assert struct.value == {"value": value}
    assert PLAIN.is_tombstone(schema)


def test_logical_values_are_the_messages_of_google_and_confluent(tmp_path: Path) -> None:
    fields = {
        "d": (Schema("int32", logical="Date"), date(2024, 2, 29)),
        "t": (Schema("int32", logical="Time"), time(23, 59, 59, 999_000)),
        "s": (Schema("int64", logical="Timestamp"), datetime(1969, 12, 31, 23, 59, 59, 1000, UTC)),
        "n": (LOGICAL[0], Decimal("-1.28")),
    }
    schema = Schema(
        "struct", name="T", fields=tuple(Field(name, each) for name, (each, _) in fields.items())
    )
    value = {name: each for name, (_, each) in fields.items()}
    text, data = written(schema, value)
    message = compiled(tmp_path, text, "T").FromString(data[1:])
    assert (message.d.year, message.d.month, message.d.day) == (2024, 2, 29)
    assert (message.t.hours, message.t.minutes, message.t.seconds) == (23, 59, 59)
    assert message.t.nanos == 999_000_000
    assert (message.s.seconds, message.s.nanos) == (-1, 1_000_000)
    # As BigInteger.toByteArray: -128 is one byte.
    assert (message.n.value, message.n.precision, message.n.scale) == (b"\x80", 3, 2)
    assert read(text, data).value == value


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (None, {}, "has none"), (Schema("array"), [], "alone"),
        (LOGICAL[2], date(2024, 1, 1), "alone"),
        (one(Schema("int32")), {"f": 2**31}, "field f: int .* is no int32"),
        (one(Schema("int32")), {"f": True}, "is no int32"),
        (one(Schema("string")), {"f": 1}, "is no string"),
        (one(Schema("int64", parameters=((TYPE, "uint32"),))), {"f": -1}, "does not fit"),
        (one(Schema("int32", logical="Time")), {"f": 5.5}, "no date or time"),
        (one(LOGICAL[0]), {"f": Decimal("1E+20000")}, "limit"),
        (one(COLOR), {"f": "BLUE"}, "no symbol of the enum Color"),
        (one(PAID), {"f": {"card": None, "cents": None}}, "none of the fields of a oneof"),
        (one(Schema("map", keys=Schema("float64"))), {"f": {}}, "Protobuf has no such schema"),
        (one(Schema("int32"), "a name"), {"a name": 1}, "scrub.invalid.names"),
        (one(Schema("int32", parameters=((TAG, "x"),))), {"f": 1}, "is a number"),
        (one(Schema("string"), "f"), {"f": "\ud800"}, "does not fit"),
        (Schema("struct", name="T", fields=(
            Field("a", Schema("struct", name="x.R", fields=(Field("b", Schema("int32")),))),
            Field("c", Schema("struct", name="y.R", fields=(Field("d", Schema("int32")),))),
        )), {}, "two types of one message have the name R"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(schema: Schema | None, value: object, why: str) -> None:
    def write() -> None:
        described, _ = PLAIN.described(schema)
        PLAIN.writer(schema, registered(described.text))(value)

    with pytest.raises(BadRecord, match=why):
        write()


def test_names_are_scrubbed_as_in_java() -> None:
    scrubbing = made(scrub_invalid_names="true")
    for name, want in (("a b", "a_b"), ("1", "x1"), ("_a", "x_a"), ("é", "_C3_A9"), ("ok", "ok")):
        text, data = written(one(Schema("int32"), name), {name: 5}, scrubbing)
        assert f"int32 {want} = 1;" in text
        assert read(text, data, scrubbing).value == {want: 5}


def test_numbers_of_fields_stay_and_new_ones_take_what_is_free() -> None:
    fields = (Field("a", Schema("int32", parameters=((TAG, "1"),))), Field("new", Schema("int32")))
    text, _ = written(Schema("struct", name="T", fields=fields), {"a": 1, "new": 2})
    assert "int32 a = 1;" in text
    assert "int32 new = 2;" in text


def test_the_latest_version_decides_what_is_written() -> None:
    latest = 'syntax = "proto3"; message A {} message T { string by = 1; sint64 f = 4; }'
    schema = Schema(
        "struct", name="T", fields=(Field("f", Schema("int32")), Field("g", LOGICAL[0]))
    )
    data = PLAIN.writer(schema, registered(latest))({"f": -1, "g": Decimal("1.00")})
    assert data == b"\2\2" + b"\x20\x01"
    assert read(latest, data).value == {"by": "", "f": -1}
    other = 'syntax = "proto3"; message T { repeated int32 f = 1; }'
    with pytest.raises(BadRecord, match=r"T\.f holds lists, not int32"):
        PLAIN.writer(schema, registered(other))
    with pytest.raises(BadRecord, match="no message T"):
        PLAIN.writer(schema, registered('syntax = "proto3"; message A {}'))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off"), (b"\2", "cut off"), (b"\2\x12", "no message 9"),
        (b"\0\x0a\x05a", "no shop.Outer"),
        (b"\xff\xff\xff\xff\x0f", "message indexes"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_message_are_bad_records(data: bytes, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        read(OTHERS, data)


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        ("google.type.Date", b"\x08\xe8\x0f\x10\x0d", "no Date"),
        ("google.type.TimeOfDay", b"\x08\x18", "no Time"),
        ("google.protobuf.Timestamp", b"\x08" + b"\xff" * 8 + b"\x7f", "years"),
        ("confluent.type.Decimal", b"\x18\xff\xff\xff\xff\x07", "the scale"),
    ],
)
def test_values_of_others_that_there_are_not(type_: str, value: bytes, why: str) -> None:
    path = type_.lower().replace(".", "/")
    text = f'syntax = "proto3"; import "{path}.proto"; message T {{ {type_} f = 1; }}'
    with pytest.raises(BadRecord, match=why):
        read(text, b"\0\x0a" + bytes((len(value),)) + value)


def test_a_message_that_contains_itself_is_refused() -> None:
    with pytest.raises(BadRecord, match="contains itself"):
        read('syntax = "proto3"; message T { T t = 1; }', b"\0")
