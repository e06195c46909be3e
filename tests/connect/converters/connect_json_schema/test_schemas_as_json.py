"""JSON Schemas as Confluent's JsonSchemaConverter has them, by the rules of its JsonSchemaData."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_json_schema.schemas_as_json import (
    JsonSchemaForm,
    json_schema_from,
    schema_from_json_schema,
)
from streamlog.connect.row_schema import Field, Schema
from streamlog.schemas import JsonSchema, SchemaType, parse_schema
from streamlog.schemas import Schema as RegistrySchema

DATA = "org.apache.kafka.connect.data."
ENUM = "io.confluent.connect.json.Enum"
HUE = Schema("string", parameters=((ENUM, ""), (f"{ENUM}.RED", "RED"), (f"{ENUM}.BLUE", "BLUE")))


def connect(written: Any, **form: bool) -> Schema:
    text = RegistrySchema(SchemaType.JSON, json.dumps(written))
    parsed = parse_schema(text, is_new=False)
    assert isinstance(parsed, JsonSchema)
    return schema_from_json_schema(parsed.root, JsonSchemaForm(**form))


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        (Schema("int8"), {"type": "integer", "connect.type": "int8"}),
        (Schema("int64"), {"type": "integer", "connect.type": "int64"}),
        (Schema("float32"), {"type": "number", "connect.type": "float32"}),
        (Schema("boolean"), {"type": "boolean"}), (Schema("string"), {"type": "string"}),
        (Schema("bytes"), {"type": "string", "connect.type": "bytes"}),
        (
            Schema("bytes", logical="Decimal", parameters=(("scale", "2"),)),
            {
                "type": "number", "connect.type": "bytes", "title": f"{DATA}Decimal",
                "connect.version": 1, "connect.parameters": {"scale": "2"},
            },
        ),
        (
            Schema("int64", logical="Timestamp", optional=True),
            {"oneOf": [{"type": "null"}, {
                "type": "integer", "connect.type": "int64", "title": f"{DATA}Timestamp",
                "connect.version": 1,
            }]},
        ),
        (HUE, {"enum": ["RED", "BLUE"]}),
        (
            Schema("string", parameters=((ENUM, ""), (f"{ENUM}.<NULL>", "<NULL>"))),
            {"enum": [None]},
        ),
        (
            Schema("array", items=Schema("boolean"), doc="its doc"),
            {"type": "array", "items": {"type": "boolean"}, "description": "its doc"},
        ),
        (
            Schema("map", keys=Schema("string"), items=Schema("boolean")),
            {"type": "object", "connect.type": "map", "additionalProperties": {"type": "boolean"}},
        ),
        (
            Schema("map", keys=Schema("int32"), items=Schema("string", optional=True)),
            {"type": "array", "connect.type": "map", "items": {"type": "object", "properties": {
                "key": {"type": "integer", "connect.type": "int32", "connect.index": 0},
                "value": {
                    "oneOf": [{"type": "null"}, {"type": "string"}], "connect.index": 1,
                },
            }}},
        ),
        (
            Schema("struct", name="shop.Order", version=2, fields=(
                Field("id", Schema("int32"), 5),
                Field("note", Schema("string", optional=True)),
                Field("inner", Schema("struct", name="shop.In", optional=True)),
            )),
            {
                "type": "object", "title": "shop.Order", "connect.version": 2, "properties": {
                    "id": {
                        "type": "integer", "connect.type": "int32", "default": 5,
                        "connect.index": 0,
                    },
                    "note": {"oneOf": [{"type": "null"}, {"type": "string"}], "connect.index": 1},
                    "inner": {
                        "oneOf": [{"type": "null"}, {"type": "object", "title": "shop.In"}],
                        "connect.index": 2,
                    },
                },
            },
        ),
    ],
)  # fmt: skip
def test_schemas_of_connect_are_written_as_in_java_and_come_back(
    schema: Schema, written: dict[str, Any]
) -> None:
    assert json_schema_from(schema, JsonSchemaForm()) == written
    assert connect(written) == schema


def test_other_properties_may_be_refused() -> None:
    inner = Schema("struct", fields=(Field("a", Schema("struct")),))
    found = json_schema_from(inner, JsonSchemaForm(allows_additional=False))
    assert found["additionalProperties"] is False
    assert found["properties"]["a"]["additionalProperties"] is False  # type: ignore[index,call-overload]


def test_fields_stand_at_their_index_whatever_the_order_of_the_text() -> None:
    properties = {
        "b": {"type": "string", "connect.index": 1},
        "c": {"type": "string", "connect.index": 2},
        "a": {"type": "string", "connect.index": 0},
    }
    schema = connect({"type": "object", "properties": properties})
    assert [each.name for each in schema.fields] == ["a", "b", "c"]


def test_a_schema_of_others_is_read_in_the_order_of_its_text() -> None:
    schema = connect(
        {
            "title": "Order", "type": "object", "required": ["id"],
            "definitions": {"price": {"type": "number", "description": "in EUR"}},
            "properties": {
                "zeta": {"type": ["string", "null"]}, "id": {"type": "integer"},
                "price": {"$ref": "#/definitions/price"},
                "state": {"type": "string", "enum": ["NEW", "OLD"]},
                "kind": {"type": "string", "const": "order"},
                "size": {"type": "integer", "enum": [1, 2]},
            },
        },
        is_optional_unless_required=True,
    )  # fmt: skip
    assert schema.name == "Order"
    symbols = ((ENUM, ""), (f"{ENUM}.NEW", "NEW"), (f"{ENUM}.OLD", "OLD"))
    assert schema.fields == (
        Field("zeta", Schema("string", optional=True)),
        Field("id", Schema("int64")),
        Field("price", Schema("float64", optional=True, doc="in EUR")),
        Field("state", Schema("string", optional=True, parameters=symbols)),
        Field("kind", Schema("string", optional=True)),
        Field("size", Schema("int64", optional=True)),
    )


def test_all_of_several_objects_have_the_fields_of_all() -> None:
    schema = connect(
        {
            "allOf": [
                {"$ref": "#/definitions/base"},
                {"type": "object", "properties": {"b": {"type": "boolean"}}},
            ],
            "definitions": {"base": {"type": "object", "properties": {"a": {"type": "string"}}}},
        }
    )
    assert [each.name for each in schema.fields] == ["a", "b"]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({}, "Connect has no schema"), ({"type": "array"}, "the items of an array"),
        ({"type": "object", "connect.type": "map"}, "the values of a map"),
        ({"type": "null"}, "Connect has no schema"), ({"const": 1}, "Connect has no schema"),
        ({"type": "integer", "connect.type": "int9"}, "int9"),
        ({"not": {"type": "string"}}, "Connect has no schema"),
        ({"type": "object", "properties": {"me": {"$ref": "#"}}}, "contains itself"),
    ],
)  # fmt: skip
def test_what_connect_has_no_schema_for_is_a_bad_record(node: Any, why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        connect(node)


def test_members_of_one_of_several_types_may_be_null_in_connect_and_not_in_json() -> None:
    one_of = "io.confluent.connect.json.OneOf"
    kinds = [{"type": "string"}, {"type": "boolean"}]
    for written in ({"oneOf": kinds}, {"oneOf": [{"type": "null"}, *kinds]}):
        schema = connect(written)
        assert schema.name == one_of
        assert schema.optional == (len(written["oneOf"]) == 3)
        assert [each.name for each in schema.fields] == [f"{one_of}.field.0", f"{one_of}.field.1"]
        assert all(each.schema.optional for each in schema.fields)
        again = json_schema_from(schema, JsonSchemaForm())
        plain = [{key: each[key] for key in ("type",)} for each in again["oneOf"]]  # type: ignore[union-attr,index,call-overload]
        assert plain == written["oneOf"]


def test_a_definition_may_be_used_twice() -> None:
    part = {"$ref": "#/definitions/part"}
    schema = connect(
        {
            "type": "object", "properties": {"a": part, "b": part},
            "definitions": {"part": {"type": "object", "properties": {"x": {"type": "string"}}}},
        }
    )  # fmt: skip
    inner = Schema("struct", fields=(Field("x", Schema("string")),))
    assert schema.fields == (Field("a", inner), Field("b", inner))


def test_what_several_objects_require_is_required() -> None:
    inner = {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}}}
    written = {
        "allOf": [
            {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
            {"allOf": [inner]},
            {"type": "object", "properties": {"c": {"type": "string"}}}, {"$ref": "#"},
        ]
    }  # fmt: skip
    schema = connect(written, is_optional_unless_required=True)
    assert [(each.name, each.schema.optional) for each in schema.fields] == [
        ("a", False), ("b", False), ("c", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "schema"),
    [
        ([{"type": "string"}, {"minLength": 3}], Schema("string")),
        ([{"type": "number"}, {"enum": [1, 2]}], Schema("float64")),
        ([{"type": "boolean"}, {"const": True}], Schema("boolean")),
        ([{"const": [1]}, {"type": "array", "items": {"type": "string"}}],
         Schema("array", items=Schema("string"))),
    ],
)  # fmt: skip
def test_all_of_several_types_are_the_one_that_says_most(parts: list[Any], schema: Schema) -> None:
    assert connect({"allOf": parts}) == schema
    with pytest.raises(BadRecord, match="no schema for the allOf"):
        connect({"allOf": [{"const": 1}]})


@pytest.mark.parametrize(("version", "kept"), [(3, 3), (True, None), ("3", None), (2.5, None)])
def test_a_version_is_a_number(version: object, kept: int | None) -> None:
    assert connect({"type": "string", "connect.version": version}).version == kept


def test_entries_of_a_map_have_no_default() -> None:
    entry = {"key": {"type": "integer"}, "value": {"type": "string"}}
    items = {"type": "object", "properties": entry}
    properties = {
        "entries": {"type": "array", "connect.type": "map", "items": items, "default": []},
        "texts": {
            "type": "object", "connect.type": "map", "default": {"a": "x"},
            "additionalProperties": {"type": "string"},
        },
        "list": {"type": "array", "items": {"type": "string"}, "default": ["a"]},
    }  # fmt: skip
    schema = connect({"type": "object", "properties": properties})
    assert [each.default for each in schema.fields] == [None, {"a": "x"}, ["a"]]
    again: Any = json_schema_from(schema, JsonSchemaForm())
    defaults = [each.get("default") for each in again["properties"].values()]
    assert defaults == [None, {"a": "x"}, ["a"]]
