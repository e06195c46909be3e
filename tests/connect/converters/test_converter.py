"""Converters: bytes to rows and back, by Kafka Connect's names."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters import ConvertedValue, JsonConverter, converter_of
from streamlog.connect.converters.converter import unknown_converter_settings
from streamlog.connect.converters.json_schemas import schema_from_json, schema_to_json
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
        (b'{"schema":{"type":"int32"},"payload":"x"}', "is no int32"),
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
