"""Converters: bytes to rows and back, by Kafka Connect's names."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters import ConvertedValue, JsonConverter, converter_of
from streamlog.connect.converters.converter import (
    CONVERTERS,
    converter_names,
    unknown_converter_settings,
)
from streamlog.connect.converters.json_schemas import (
    from_base,
    schema_from_json,
    schema_to_json,
    unscaled_bytes,
)
from streamlog.connect.converters.registry_converter import RegistryConverterSettings
from streamlog.connect.row_schema import Field, Schema
from streamlog.errors import ConfigError

PLAIN = JsonConverter(schemas_enable=False)
ENVELOPED = JsonConverter()
DECIMAL = Schema("bytes", logical="Decimal", parameters=(("scale", "2"),))
ROW = Schema(
    "struct",
    fields=(
        Field("id", Schema("int64")),
        Field("price", DECIMAL),
        Field("day", Schema("int32", logical="Date", optional=True)),
        Field("at", Schema("int64", logical="Timestamp")),
        Field("clock", Schema("int32", logical="Time")),
        Field("tags", Schema("array", items=Schema("string"))),
        Field("colour", Schema("string"), default="red"),
    ),
    name="shop.Order",
)
VALUE = {
    "id": 7,
    "price": Decimal("-12.50"),
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC),
    "clock": time(1, 2, 3),
    "tags": ["a", "b"],
    "colour": "blue",
}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_rows_without_schemas_survive(value: object) -> None:
    written = PLAIN.encode(None, value)
    expected = json.loads(json.dumps(value), parse_constant=str)
    assert PLAIN.decode(written) == ConvertedValue(None, expected)


def test_rows_with_schemas_survive() -> None:
    assert ENVELOPED.decode(ENVELOPED.encode(ROW, VALUE)) == ConvertedValue(ROW, VALUE)


def test_a_schema_survives_as_kafka_connect_writes_it() -> None:
    written = schema_to_json(DECIMAL)
    assert written == {
        "type": "bytes",
        "optional": False,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2"},
    }
    assert schema_from_json(written) == DECIMAL
    assert schema_from_json(schema_to_json(ROW)) == ROW


def test_our_logical_types_are_plain_kinds_to_others() -> None:
    schema = Schema("string", logical="uuid", optional=True)
    assert schema_to_json(schema)["name"] == "streamlog.uuid"
    assert schema_from_json(schema_to_json(schema)) == schema


def test_a_default_may_be_a_list_or_an_object() -> None:
    texts = Schema("array", items=Schema("string"))
    schema = Schema("struct", fields=(Field("tags", texts, default=["new"]),))
    converter = JsonConverter()
    written = converter.encode(schema, {"tags": ["a", "b"]})
    assert converter.decode(written) == (schema, {"tags": ["a", "b"]})


def test_a_null_takes_the_default_of_its_field() -> None:
    found = ENVELOPED.decode(ENVELOPED.encode(ROW, {**VALUE, "colour": None})).value
    assert found == {**VALUE, "colour": "red"}


def test_a_default_may_have_a_fraction() -> None:
    numeric = JsonConverter(decimal_format="NUMERIC")
    for schema, value in ((Schema("float64"), 1.5), (DECIMAL, Decimal("1.50"))):
        row = Schema("struct", fields=(Field("a", schema, 1.5),))
        text = json.dumps({"schema": schema_to_json(row), "payload": {}})
        assert numeric.decode(text.encode()).value == {"a": value}


def test_a_time_is_within_a_day() -> None:
    time_schema = json.dumps(schema_to_json(Schema("int32", logical="Time")))
    for ms in (-1, 86_400_000):
        text = f'{{"schema": {time_schema}, "payload": {ms}}}'
        with pytest.raises(BadRecord, match="no time of day"):
            ENVELOPED.decode(text.encode())


def test_a_decimal_may_be_a_number() -> None:
    numeric = JsonConverter(decimal_format="NUMERIC")
    written = numeric.encode(DECIMAL, Decimal("12345678901234567890.12"))
    assert written is not None
    assert written.endswith(b'"payload":12345678901234567890.12}')
    assert numeric.decode(written).value == Decimal("12345678901234567890.12")


def test_one_schema_for_all_values_of_a_topic() -> None:
    content = json.dumps(schema_to_json(Schema("int32")))
    converter = JsonConverter(schema_content=content)
    assert converter.decode(b"7") == ConvertedValue(Schema("int32"), 7)
    without = JsonConverter(schemas_enable=False, schema_content=content)
    assert without.decode(b"7") == ConvertedValue(None, 7)
    with pytest.raises(ConfigError, match=r"schema\.content"):
        JsonConverter(schema_content="{}").check()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "no JSON"),
        (b"{}", "requires"),
        (b'{"schema":null,"payload":1,"more":2}', "requires"),
        (b'{"schema":{"type":"int9"},"payload":1}', "Unknown schema type: int9"),
        (b'{"schema":{"type":"int32"},"payload":null}', "Invalid null"),
        (b'{"schema":{"type":"int32"},"payload":"x"}', "str 'x' is no int32"),
        (b'{"schema":{"type":"bytes"},"payload":"\\u00e9"}', "Invalid bytes"),
    ],
)
def test_bytes_that_do_not_fit_are_bad_records(data: bytes, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        ENVELOPED.decode(data)


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    text = b'{"type":"array","items":' * 200 + b'{"type":"int32"}' + b"}" * 200
    with pytest.raises(BadRecord, match="nested"):
        ENVELOPED.decode(b'{"schema":' + text + b',"payload":[]}')


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Schema("int8"), 128),
        (Schema("int32"), True),
        (Schema("string"), 5),
        (Schema("array", items=Schema("int32")), 5),
        (DECIMAL, Decimal("1.5")),
        (Schema("int64"), None),
    ],
)
def test_values_that_do_not_fit_their_schema_are_bad_records(schema: Schema, value: object) -> None:
    with pytest.raises(BadRecord):
        ENVELOPED.encode(schema, value)


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("storage.StringConverter", "é", "é".encode()),
        ("converters.ByteArrayConverter", b"\0", b"\0"),
        ("converters.ShortConverter", -2, b"\xff\xfe"),
        ("converters.IntegerConverter", 1, b"\0\0\0\1"),
        ("converters.LongConverter", 1, b"\0\0\0\0\0\0\0\1"),
        ("converters.FloatConverter", 1.5, b"\x3f\xc0\0\0"),
        ("converters.DoubleConverter", 1.5, b"\x3f\xf8\0\0\0\0\0\0"),
        ("converters.BooleanConverter", True, b"\1"),
    ],
)
def test_a_scalar_converter_writes_what_kafkas_serializer_writes(
    name: str, value: object, data: bytes
) -> None:
    converter = converter_of({"key.converter": f"org.apache.kafka.connect.{name}"}, "key")
    assert converter.encode(None, value) == data
    assert converter.decode(data).value == value
    assert converter.encode(None, None) is None
    assert converter.decode(None).value is None
    # A topic's values may be null, whatever the others are.
    kind = converter.decode(data).schema.kind
    assert converter.decode(data).schema == Schema(kind, optional=True)
    assert converter.decode(None).schema == Schema(kind, optional=True)
    if name not in ("storage.StringConverter", "converters.ByteArrayConverter"):
        with pytest.raises(BadRecord):
            converter.decode(b"123")
        with pytest.raises(BadRecord):
            converter.encode(None, "text")


def test_text_is_what_java_shows() -> None:
    converter = converter_of({"value.converter": "StringConverter"}, "value")
    assert converter.encode(None, {"a": 1, "b": [1.0, None]}) == b"{a=1, b=[1.0, null]}"
    assert (
        converter.encode(Schema("struct", fields=(Field("a", Schema("int8")),)), {"a": 1})
        == b"Struct{a=1}"
    )


def test_settings_behind_the_prefix_are_the_converters() -> None:
    settings = {"value.converter": "JsonConverter", "value.converter.schemas.enable": "false"}
    assert converter_of(settings, "value") == PLAIN
    assert converter_of({}, "value", default=PLAIN) is PLAIN
    with pytest.raises(ConfigError, match=r"key.converter is missing"):
        converter_of(settings, "key")
    with pytest.raises(ConfigError, match="there are AvroConverter, BooleanConverter"):
        converter_of({"value.converter": "XmlConverter"}, "value")
    with pytest.raises(ConfigError, match=r"schemas\.enable"):
        converter_of({**settings, "value.converter.schemas.enable": "maybe"}, "value")


@pytest.mark.parametrize(
    ("settings", "unknown"),
    [
        ({"value.converter": "JsonConverter", "value.converter.schemas.enable": "true"}, []),
        (
            {"value.converter": "StringConverter", "value.converter.schemas.enable": "true"},
            ["value.converter.schemas.enable"],
        ),
        (
            {"value.converter": "JsonConverter", "value.converter.schema.enable": "true"},
            ["value.converter.schema.enable"],
        ),
        ({"value.converter.schemas.enable": "true"}, ["value.converter.schemas.enable"]),
        ({"key.converter.schemas.enable": "true"}, []),
    ],
)
def test_settings_that_the_converter_does_not_have_are_named(
    settings: dict[str, str], unknown: list[str]
) -> None:
    assert unknown_converter_settings(settings, "value") == unknown


@pytest.mark.parametrize("name", ["StringConverter", "IntegerConverter", "ByteArrayConverter"])
def test_a_null_is_a_tombstone_but_for_json_with_a_schema(name: str) -> None:
    converter = converter_of({"value.converter": name}, "value")
    assert not isinstance(converter, RegistryConverterSettings)
    for schema in (None, Schema("string", optional=True)):
        assert converter.is_tombstone(schema)
        assert converter.encode(schema, None) is None
    assert JsonConverter().is_tombstone(None)
    assert not JsonConverter().is_tombstone(Schema("string", optional=True))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ShortConverter", 32_768), ("IntegerConverter", True), ("IntegerConverter", 2**31),
        ("LongConverter", 1.0), ("DoubleConverter", False), ("BooleanConverter", 1),
        ("ByteArrayConverter", "text"), ("FloatConverter", "1.5"),
    ],
)  # fmt: skip
def test_a_scalar_converter_takes_its_type_alone(name: str, value: object) -> None:
    converter = converter_of({"value.converter": name}, "value")
    assert not isinstance(converter, RegistryConverterSettings)
    with pytest.raises(BadRecord):
        converter.encode(None, value)


def test_whole_numbers_are_numbers_with_a_fraction_as_well() -> None:
    converter = converter_of({"value.converter": "DoubleConverter"}, "value")
    assert converter.encode(None, 2) == b"\x40" + b"\0" * 7


def test_a_boolean_is_the_byte_0_or_1() -> None:
    converter = converter_of({"value.converter": "BooleanConverter"}, "value")
    with pytest.raises(BadRecord, match="the byte 0 or 1"):
        converter.decode(b"\2")


def test_converters_are_listed_by_their_classes() -> None:
    names = dict(converter_names())
    assert names.keys() == CONVERTERS.keys()
    assert {*names.values()} == {"converter"}
    assert [*names] == sorted(names)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1: "a"}, b'[[1,"a"]]'), ({"a": {2: None}}, b'{"a":[[2,null]]}'), (b"ab", b'"YWI="'),
        (math.inf, b'"Infinity"'), (-math.inf, b'"-Infinity"'), (math.nan, b'"NaN"'),
        ((1, True), b"[1,true]"),
    ],
)  # fmt: skip
def test_values_without_a_schema_are_written_as_in_java(value: object, text: bytes) -> None:
    assert PLAIN.encode(None, value) == text


@pytest.mark.parametrize(
    "value", [object(), date(2026, 1, 2), Decimal(1), {1, 2}, [{"a": time(1)}]]
)
def test_what_java_has_no_type_for_needs_a_schema(value: object) -> None:
    with pytest.raises(BadRecord, match="has no corresponding schema type"):
        PLAIN.encode(None, value)


def test_numbers_that_are_none_come_back_as_they_were_written() -> None:
    for kind in ("float32", "float64"):
        schema = Schema(kind)  # type: ignore[arg-type]
        for value in (math.inf, -math.inf):
            assert ENVELOPED.decode(ENVELOPED.encode(schema, value)).value == value
        assert math.isnan(ENVELOPED.decode(ENVELOPED.encode(schema, math.nan)).value)  # type: ignore[arg-type]


def test_a_default_is_written_for_null_as_the_schema_has_it() -> None:
    row = Schema("struct", fields=(Field("a", Schema("bytes", optional=True), "YQ=="),))
    bare = JsonConverter(schemas_enable=False)
    assert bare.encode(row, {"a": None}) == b'{"a":"YQ=="}'
    keeps = JsonConverter(schemas_enable=False, replace_null_with_default=False)
    assert keeps.encode(row, {"a": None}) == b'{"a":null}'


@pytest.mark.parametrize(
    "data", [b"{", b"", b"\xff", b'{"schema":null,"payload":' + b"[" * 100_000]
)
def test_bytes_that_are_no_json_are_bad_records(data: bytes) -> None:
    for converter in (PLAIN, ENVELOPED):
        with pytest.raises(BadRecord, match="the bytes are no JSON"):
            converter.decode(data)


@pytest.mark.parametrize(
    ("schema", "value", "base"),
    [
        (Schema("int64", logical="Duration"), timedelta(seconds=-1), -1_000_000),
        (Schema("int64", logical="LocalTimestamp"), datetime(1970, 1, 1, 0, 0, 1), 1_000_000),  # noqa: DTZ001
        (Schema("string", logical="json"), {"a": [1]}, '{"a":[1]}'),
        (Schema("string", logical="uuid"), UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Schema("string", logical="Decimal"), Decimal("1E+2"), "100"),
        (Schema("int64", logical="Timestamp"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1_000),
        (Schema("int32", logical="Date"), date(1969, 12, 31), -1),
        (Schema("string", logical="Decimal"), Decimal("-1.50"), "-1.50"),
        (Schema("int32", logical="Time"), time(0, 0, 1), 1_000),
    ],
)  # fmt: skip
def test_logical_values_have_their_units(schema: Schema, value: object, base: object) -> None:
    written = ENVELOPED.encode(schema, value)
    assert written is not None
    assert json.loads(written)["payload"] == base
    assert ENVELOPED.decode(written).value == value


@given(st.integers() | st.integers(-(2**40), 2**40).map(lambda each: 1 << abs(each) % 300))
def test_digits_of_a_decimal_are_the_shortest_that_give_them_back(number: int) -> None:
    for each in (number, -number, number - 1, ~number):
        data = unscaled_bytes(Schema("bytes", logical="Decimal", parameters=SCALE), Decimal(each))
        assert int.from_bytes(data, "big", signed=True) == each
        # A byte less would hold another number.
        assert len(data) == 1 or int.from_bytes(data[1:], "big", signed=True) != each


SCALE = (("scale", "0"),)


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("Infinity"), 5, "5", None])
def test_digits_are_those_of_a_finite_decimal(value: object) -> None:
    with pytest.raises(BadRecord, match="Invalid type for Decimal"):
        unscaled_bytes(Schema("bytes", logical="Decimal", parameters=SCALE), value)


@pytest.mark.parametrize("logical", ["Date", "Time", "Timestamp", "Duration", "LocalTimestamp"])
@pytest.mark.parametrize("value", [True, 1.5, "5", None, b"5"])
def test_a_logical_number_is_a_whole_number(logical: str, value: object) -> None:
    with pytest.raises(BadRecord, match=f"Invalid type for {logical}"):
        from_base(Schema("int64", logical=logical), value)


@pytest.mark.parametrize("scale", [(), (("scale", "x"),), (("scale", ""),), (("scale", "1.5"),)])
def test_a_decimal_without_a_scale_is_a_bad_record(scale: tuple[tuple[str, str], ...]) -> None:
    schema = Schema("bytes", logical="Decimal", parameters=scale)
    with pytest.raises(BadRecord, match="scale parameter not found"):
        ENVELOPED.encode(schema, Decimal(1))


def test_a_scale_may_be_negative() -> None:
    schema = Schema("bytes", logical="Decimal", parameters=(("scale", "-2"),))
    written = ENVELOPED.encode(schema, Decimal("3E+2"))
    assert ENVELOPED.decode(written).value == Decimal(300)


def nested(depth: int, name: str) -> dict[str, object]:
    """Return a schema within as many others."""
    found: dict[str, object] = {"type": "int32"}
    for _ in range(depth):
        inner = {"type": name, "items": found, "keys": {"type": "string"}, "values": found}
        found = {**inner, "fields": [{**found, "field": "a"}]}
        found = {key: found[key] for key in PARTS[name]}
    return found


PARTS = {
    "array": ("type", "items"), "map": ("type", "keys", "values"), "struct": ("type", "fields"),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_schema_may_be_nested_100_levels_deep(name: str) -> None:
    assert schema_from_json(nested(100, name)) is not None  # type: ignore[arg-type]
    with pytest.raises(BadRecord, match="nested deeper than 100 levels"):
        schema_from_json(nested(101, name))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"type": "array"}, "Array schema did not specify its items"),
        ({"type": "map", "keys": {"type": "string"}}, "Map schema did not specify its values"),
        ({"type": "struct"}, "is not an array"), ({"type": "struct", "fields": {}}, "not an array"),
        ({"type": "struct", "fields": [5]}, "Schema must contain"),
        ({"type": "struct", "fields": [None]}, "field name not specified"),
        ({"type": "struct", "fields": [{"type": "int8"}]}, "field name not specified"),
        ({"type": "struct", "fields": [{"type": "int8", "field": 5}]}, "name not specified"),
        ({"type": "int8", "parameters": {"a": 1}}, "must have string values"),
        ({"type": 5}, "must contain 'type'"), ({"type": "float32"}, "Unknown schema type"),
        (7, "'type'"),
    ],
)  # fmt: skip
def test_what_describes_no_schema_is_refused(described: object, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        schema_from_json(described)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "Date", "org.apache.kafka.connect.data.Other", "org.apache.kafka.connect.data.uuid",
        "streamlog.Date",
    ],
)  # fmt: skip
def test_a_name_like_that_of_a_logical_type_is_a_name(name: str) -> None:
    schema = schema_from_json({"type": "int32", "name": name, "version": 2})
    assert schema == Schema("int32", name=name, version=2)


@pytest.mark.parametrize("logical", ["LocalTimestamp", "Duration"])
def test_microseconds_may_be_given_as_a_number(logical: str) -> None:
    written = ENVELOPED.encode(Schema("int64", logical=logical), 1_500_000)
    assert written is not None
    assert json.loads(written)["payload"] == 1_500_000


@pytest.mark.parametrize("name", ["Decimal", "Time"])
def test_text_keeps_a_name_of_kafka_connects_logical_types(name: str) -> None:
    schema = {"type": "string", "optional": False, "name": f"org.apache.kafka.connect.data.{name}"}
    data = json.dumps({"schema": schema, "payload": "gA=="}, separators=(",", ":")).encode()
    read = JsonConverter().decode(data)
    assert read.value == "gA=="
    assert JsonConverter().encode(read.schema, read.value) == data
