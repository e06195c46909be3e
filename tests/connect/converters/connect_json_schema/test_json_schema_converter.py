"""JSON with JSON Schemas: laws on random rows, and jsonschema, which validates what is written."""

from __future__ import annotations

import json
import math
import os
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from jsonschema import Draft7Validator

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.connector_settings import read_settings
from streamlog.connect.converters.connect_json_schema.json_schema_converter import (
    JsonSchemaConverter,
    JsonSchemaFormat,
)
from streamlog.connect.row_schema import Field, Schema
from streamlog.schemas import Schema as RegistrySchema
from streamlog.schemas import SchemaType
from streamlog.serdes.registered.schema_source import RegisteredSchema
from tests.connect.converters.random_rows import RandomRows

ROWS = 20_000 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 160
ONE_OF = "io.confluent.connect.json.OneOf"


def made(**settings: str) -> JsonSchemaFormat:
    named = {name.replace("_", "."): text for name, text in settings.items()}
    found = read_settings(JsonSchemaConverter, {"schema.registry.url": "http://none", **named})
    return found.format()


PLAIN = made()


def registered(node: Any) -> RegisteredSchema:
    return RegisteredSchema(1, None, RegistrySchema(SchemaType.JSON, json.dumps(node)))


def written(
    schema: Schema | None, value: Any, format_: JsonSchemaFormat = PLAIN
) -> tuple[Any, bytes]:
    """Return the JSON Schema and the bytes of a value."""
    described, _ = format_.described(schema)
    data = format_.writer(schema, RegisteredSchema(1, None, described))(value)
    return json.loads(described.text), data


def read(node: Any, data: bytes, format_: JsonSchemaFormat = PLAIN) -> Any:
    return format_.reader(registered(node))(data, 0)


def is_finite(value: Any) -> bool:
    match value:
        case dict():
            return all(is_finite(each) for each in (*value, *value.values()))
        case list():
            return all(map(is_finite, value))
        case float():
            return math.isfinite(value)
    return True


@pytest.mark.parametrize("seed", range(2))
def test_random_rows_come_back_and_fit_their_json_schema(seed: int) -> None:
    numeric = made(decimal_format="NUMERIC", object_additional_properties="false")
    for number in range(seed * ROWS, seed * ROWS + ROWS // 2):
        schema, value = RandomRows(number).row()
        for each in (PLAIN, numeric):
            node, data = written(schema, value, each)
            found = read(node, data, each)
            assert repr(found.value) == repr(value), number
            assert found.schema == schema, number
        if number % 8 == 0:
            Draft7Validator.check_schema(node)
            if is_finite(value):
                Draft7Validator(node).validate(json.loads(data))


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        (Schema("int32"), 5, "5"), (Schema("bytes"), b"ab", '"YWI="'), (Schema("string"), "", '""'),
        (Schema("bytes", logical="Decimal", parameters=(("scale", "0"),)), Decimal(15), '"Dw=="'),
        (Schema("int32", logical="Date"), date(1970, 1, 3), "2"),
        (Schema("map", keys=Schema("string"), items=Schema("int32")), {"a": 1}, '{"a":1}'),
        (
            Schema("map", keys=Schema("int32"), items=Schema("int32")), {2: 1},
            '[{"key":2,"value":1}]',
        ),
        (
            Schema("map", keys=Schema("string", optional=True), items=Schema("int32")), {None: 1},
            '[{"key":null,"value":1}]',
        ),
        (Schema("string", optional=True), None, "null"),
    ],
)  # fmt: skip
def test_values_are_written_as_in_java(schema: Schema, value: object, text: str) -> None:
    node, data = written(schema, value)
    assert data == text.encode()
    assert read(node, data) == (schema, value)


def test_a_null_that_is_required_is_a_tombstone_as_in_java() -> None:
    assert PLAIN.is_tombstone(Schema("string"))
    assert PLAIN.is_tombstone(None)
    assert not PLAIN.is_tombstone(Schema("string", optional=True))


def test_a_value_without_a_schema_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="values that have a schema"):
        PLAIN.described(None)


UNION: dict[str, Any] = {
    "oneOf": [
        {"type": "null"},
        {"type": "object", "title": "A", "properties": {"x": {"type": "integer"}}},
        {
            "type": "object", "title": "B",
            "properties": {"x": {"type": "integer"}, "y": {"type": "string"}},
        },
        {"type": "integer"},
        {"type": "string"},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "number"},
    ]
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "index", "value"),
    [
        ('{"x":1}', 0, {"x": 1}), ('{"x":1,"y":"a"}', 1, {"x": 1, "y": "a"}),
        ('{"y":"a"}', 1, {"x": None, "y": "a"}), ("5", 2, 5), ('"x"', 3, "x"), ("true", 4, True),
        ('["a"]', 5, ["a"]), ("0.5", 6, 0.5), ("null", None, None),
    ],
)  # fmt: skip
def test_one_of_several_types_is_a_struct_with_one_value(
    text: str, index: int | None, value: object
) -> None:
    found = read(UNION, text.encode())
    assert found.schema.name == ONE_OF
    assert found.schema.optional
    if index is None:
        assert found.value is None
        return
    own = {name: each for name, each in found.value.items() if each is not None}
    assert own == {f"{ONE_OF}.field.{index}": value}
    node, data = written(found.schema, found.value)
    assert read(node, data) == found


def test_what_json_lacks_is_lacking_again_as_in_java() -> None:
    node = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    found = read(node, b'{"b":"x"}')
    assert found.value == {"a": None, "b": "x"}
    assert written(found.schema, found.value)[1] == b'{"b":"x"}'


@pytest.mark.parametrize("text", ["1.0", "10e-1", "1", "1.00000000000000000000000000"])
def test_an_integer_may_be_written_with_a_fraction(text: str) -> None:
    Draft7Validator({"type": "integer"}).validate(json.loads(text))
    assert read({"type": "integer"}, text.encode()).value == 1


@pytest.mark.parametrize("text", ["1.5", "1e999999999", "-1e-999999999", '"1"', "true"])
def test_what_is_no_integer_is_a_bad_record(text: str) -> None:
    with pytest.raises(BadRecord, match="is no int64"):
        read({"type": "integer"}, text.encode())


def test_what_is_none_of_several_types_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="one of several types"):
        read({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, b'"x"')


def test_a_default_is_written_for_null_unless_it_is_told_to_stay() -> None:
    fields = (
        Field("a", Schema("float64", optional=True), 1.5),
        Field("b", Schema("bytes"), "YQ=="),
    )
    schema = Schema("struct", fields=fields, name="shop.Row")
    node, data = written(schema, {})
    assert json.loads(data) == {"a": 1.5, "b": "YQ=="}
    assert read(node, b"{}").value == {"a": 1.5, "b": b"a"}
    assert read(node, b"{}").schema == schema
    _, kept = written(schema, {}, made(ignore_default_for_nullables="true"))
    assert json.loads(kept) == {"a": None, "b": "YQ=="}


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (Schema("int32"), "x", "Invalid value for int32"), (Schema("int8"), 128, "int8"),
        (Schema("array", items=Schema("int32")), {}, "is no array"),
        (Schema("map", keys=Schema("string"), items=Schema("int32")), [], "is no map"),
        (Schema("map", keys=Schema("string"), items=Schema("int32")), {1: 1}, "another key"),
        (Schema("array", items=Schema("int32")), [None], "null value"),
        (Schema("struct", fields=(Field("a", Schema("int32")),)), {"a": "x"}, "field a: "),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_bad_record(schema: Schema, value: object, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        written(schema, value)


@pytest.mark.parametrize(
    ("node", "data", "why"),
    [
        ({"type": "integer"}, b"", "no JSON"), ({"type": "integer"}, b"1.5", "is no int64"),
        ({"type": "integer"}, b"null", "null"), ({"type": "string"}, b"5", "is no string"),
        ({"type": "array", "items": {"type": "integer"}}, b"{}", "is no array"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, b"[]", "is no struct"),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}}}, b'{"a":null}', "field a:",
        ),
        ({"type": "string", "connect.type": "bytes"}, b'"?"', "Invalid bytes field"),
    ],
)  # fmt: skip
def test_json_that_does_not_fit_is_a_bad_record(node: object, data: bytes, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        read(node, data)


def test_damaged_bytes_never_raise_anything_else() -> None:
    for number in range(ROWS // 4):
        rows = RandomRows(number)
        node, data = written(*rows.row())
        damaged = bytearray(data)
        for _ in range(min(len(damaged), 3)):
            damaged[rows.chance.randrange(len(damaged))] = rows.chance.randrange(32, 127)
        for each in (bytes(damaged), data[: len(data) // 2], data + b"x"):
            try:
                read(node, each)
            except BadRecord:
                continue


def test_an_integer_with_a_fraction_has_at_most_20_digits() -> None:
    # A short text may stand for a million digits; those of an int64 that Java wraps are fewer.
    assert read({"type": "integer"}, b"1E+18").value == 10**18
    assert read({"type": "integer"}, b"1E+19").value == 10**19 - 2**64
    with pytest.raises(BadRecord, match="is no int64"):
        read({"type": "integer"}, b"1E+20")


def test_other_properties_are_allowed_unless_the_settings_say_otherwise() -> None:
    row = Schema("struct", name="R", fields=(Field("a", Schema("int32")),))
    assert "additionalProperties" not in written(row, {"a": 1})[0]
    node, _ = written(row, {"a": 1}, made(object_additional_properties="false"))
    assert node["additionalProperties"] is False


def test_a_schema_of_another_format_is_refused() -> None:
    avro = RegisteredSchema(1, None, RegistrySchema(SchemaType.AVRO, '"string"'))
    for make in (PLAIN.reader, lambda found: PLAIN.writer(Schema("string"), found)):
        with pytest.raises(BadRecord, match="its schema is AVRO, and JsonSchemaConverter takes"):
            make(avro)
    broken = RegisteredSchema(1, None, RegistrySchema(SchemaType.JSON, '{"type": 5}'))
    with pytest.raises(BadRecord, match="no JSON Schema: "):
        PLAIN.reader(broken)


def test_a_value_of_no_type_is_null_if_that_is_allowed() -> None:
    members = (Field("0", Schema("int32", optional=True)), Field("1", Schema("string")))
    for optional in (True, False):
        schema = Schema("struct", name=ONE_OF, fields=members, optional=optional)
        described, _ = PLAIN.described(schema)
        write = PLAIN.writer(schema, RegisteredSchema(1, None, described))
        assert write({"0": 0, "1": "x"}) == b"0"
        if optional:
            assert write({"0": None}) == b"null"
        else:
            with pytest.raises(BadRecord, match="null value"):
                write({})


def test_the_least_fit_of_several_types_is_one_nevertheless() -> None:
    assert read(UNION, b'{"z":1}').value[f"{ONE_OF}.field.0"] == {"x": None}
    node = {"oneOf": [{"type": "integer"}, {"type": "string", "connect.type": "bytes"}]}
    assert read(node, b'"YQ=="').value == {f"{ONE_OF}.field.0": None, f"{ONE_OF}.field.1": b"a"}


ENTRIES = {
    "type": "array", "connect.type": "map",
    "items": {"type": "object", "properties": {
        "key": {"type": "integer"}, "value": {"type": "array", "items": {"type": "integer"}},
    }},
}  # fmt: skip
LIST_KEYS = {
    "type": "array", "connect.type": "map",
    "items": {"type": "object", "properties": {
        "key": {"type": "array", "items": {"type": "integer"}}, "value": {"type": "integer"},
    }},
}  # fmt: skip
TEXT_KEYS = {
    "type": "object", "connect.type": "map", "additionalProperties": {"type": "integer"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("node", "data", "why"),
    [
        (TEXT_KEYS, b"[]", "is no map"), (TEXT_KEYS, b'"x"', "is no map"),
        (ENTRIES, b"{}", "is no map with other keys than texts"),
        (ENTRIES, b"[1]", "no entry of a map"),
        (ENTRIES, b'[{"key":1}]', "no entry of a map"),
        (ENTRIES, b'[{"key":1,"value":[],"x":1}]', "no entry of a map"),
        (ENTRIES, b'["key"]', "no entry of a map"),
        (LIST_KEYS, b'[{"key":[1],"value":1}]', "keys of maps that are arrays"),
    ],
)  # fmt: skip
def test_json_that_is_no_map_is_a_bad_record(node: object, data: bytes, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        read(node, data)


def test_entries_have_a_key_and_a_value() -> None:
    assert read(ENTRIES, b'[{"value":[7],"key":1}]').value == {1: [7]}
    assert read(TEXT_KEYS, b'{"a":1}').value == {"a": 1}


DATA = "org.apache.kafka.connect.data."
NUMBER = {
    "type": "number", "connect.type": "bytes", "title": f"{DATA}Decimal", "connect.version": 1,
    "connect.parameters": {"scale": "1"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "text", "index", "value"),
    [
        ([{"type": "number"}, {"type": "integer"}], b"5", 0, 5.0),
        ([{"type": "boolean"}, {"type": "number"}], b"5", 1, 5.0),
        ([{"type": "string"}, {"type": "number", "connect.type": "float32"}], b"0.5", 1, 0.5),
        ([{"type": "string"}, NUMBER], b"0.5", 1, Decimal("0.5")),
        ([{"type": "string"}, NUMBER], b"5", 1, Decimal(5)),
        ([{"type": "string", "connect.type": "bytes"}, {"type": "string"}], b'"YQ=="', 1, "YQ=="),
        ([{"type": "string", "connect.type": "bytes"}, {"type": "integer"}], b"5", 1, 5),
        ([ENTRIES, {"type": "array", "items": {"type": "integer"}}], b"[]", 0, {}),
        ([TEXT_KEYS, ENTRIES], b"[]", 1, {}), ([ENTRIES, TEXT_KEYS], b'{"a":1}', 1, {"a": 1}),
        ([{"type": "integer"}, {"type": "boolean"}], b"true", 1, True),
    ],
)  # fmt: skip
def test_the_type_of_json_names_its_member(
    kinds: list[Any], text: bytes, index: int, value: object
) -> None:
    found = read({"oneOf": kinds}, text)
    assert not found.schema.optional
    want: dict[str, object] = {f"{ONE_OF}.field.{each}": None for each in range(len(kinds))}
    assert found.value == {**want, f"{ONE_OF}.field.{index}": value}


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ([{"type": "string", "connect.type": "bytes"}, {"type": "boolean"}], b"5"),
        ([{"type": "object"}, {"type": "boolean"}], b"[]"),
        ([{"type": "integer"}, {"type": "string"}], b"true"),
        ([NUMBER, {"type": "integer"}], b'{"a":1}'),
    ],
)  # fmt: skip
def test_json_of_none_of_the_types_is_refused(kinds: list[Any], text: bytes) -> None:
    with pytest.raises(BadRecord, match="no value of one of several types"):
        read({"oneOf": kinds}, text)


def test_a_null_that_an_enum_lists_is_one_of_its_symbols() -> None:
    node = {"type": "object", "properties": {"e": {"enum": ["A", None]}, "s": {"type": "string"}}}
    for data, value in ((b'{"e":null,"s":"x"}', None), (b'{"e":"A","s":"x"}', "A")):
        found = read(node, data)
        assert found.value == {"e": value, "s": "x"}
        again, written_data = written(found.schema, found.value)
        assert written_data == data
        assert read(again, written_data) == found
    with pytest.raises(BadRecord, match="field s: "):
        read(node, b'{"e":null,"s":null}')
