"""JSON Schemas: texts, references, and refusals that name what is wrong and where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import InvalidSchema
from streamlog.schemas import JsonSchema, Schema, SchemaReference, SchemaType, parse_schema
from streamlog.schemas.json_schema.json_documents import join_uri
from streamlog.schemas.json_schema.json_types import JsonMapping, JsonText, JsonType, follow


def parsed(value: Any, **referenced: Any) -> JsonSchema:
    """Return the parsed schema of a value; `referenced` by reference name."""
    references = tuple(SchemaReference(name, name, 1) for name in referenced)
    found = parse_schema(
        Schema(SchemaType.JSON, value if isinstance(value, str) else json.dumps(value), references),
        {name: Schema(SchemaType.JSON, json.dumps(each)) for name, each in referenced.items()},
    )
    assert isinstance(found, JsonSchema)
    return found


def property_of(found: JsonSchema, name: str) -> JsonType:
    root = follow(found.root)
    assert isinstance(root, JsonMapping)
    return follow(root.properties[name])


def test_the_canonical_text_keeps_the_order_of_keys_and_the_normalized_one_sorts_them() -> None:
    found = parsed(' {"type": "object",\n "properties": {"b": {"title": "ä"}, "a": true}}')
    assert found.canonical == '{"type":"object","properties":{"b":{"title":"ä"},"a":true}}'
    assert found.normalized == '{"properties":{"a":true,"b":{"title":"ä"}},"type":"object"}'


def test_the_record_name_is_the_title() -> None:
    assert parsed({"title": "Order"}).record_name == "Order"
    assert parsed({"title": "Order"}).root.title == "Order"
    assert parsed(True).record_name is None


@pytest.mark.parametrize(
    ("own", "name", "ref"),
    [
        ({}, "item.json", "item.json"),
        ({"$id": "http://shop/order.json"}, "item.json", "item.json"),
        ({"$id": "http://shop/v1/order.json"}, "../item.json", "../item.json#"),
        ({"$id": "http://shop/order.json"}, "http://other/item.json", "http://other/item.json"),
        ({"id": "http://shop/order.json"}, "item.json", "./item.json"),
        ({}, "item.json", "item.json#/definitions/price"),
        ({}, "item.json", "item.json#price"),
        ({}, "item.json", "urn:price"),
    ],
)
def test_a_ref_leads_to_a_reference(own: Any, name: str, ref: str) -> None:
    price = {"type": "string", "$id": "#price"}
    other = {"type": "string", "$id": "urn:price"}
    item = {"type": "string", "definitions": {"price": price, "other": other}}
    found = parsed({**own, "properties": {"item": {"$ref": ref}}}, **{name: item})
    assert isinstance(property_of(found, "item"), JsonText)


def test_a_ref_leads_to_an_anchor_a_pointer_and_a_metaschema() -> None:
    found = parsed(
        {
            "$defs": {"a/b~": {"type": "string"}, "c": {"$anchor": "here", "type": "string"}},
            "properties": {
                "pointer": {"$ref": "#/$defs/a~1b~0"},
                "percent": {"$ref": "#/%24defs/c"},
                "anchor": {"$ref": "#here"},
                "list": {"$ref": "#/allOf/0"},
                "meta": {"$ref": "http://json-schema.org/draft-07/schema#"},
            },
        }
        | {"allOf": [{"type": "string"}]}
    )
    assert found.root is not None


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("[]", r"\[\] is not a JSON Schema .at #"),
        ("1", "1 is not a JSON Schema"),
        ({"type": "text"}, "text is not a type: object, array, .* .at #/type"),
        ({"type": ["text"]}, "text is not a type"),
        ({"type": ["null"] * 8}, "A type is listed twice"),
        ({"type": {}}, "{} is not a type"),
        ({"properties": []}, "properties is not an object .at #/properties"),
        ({"properties": {"a": {"minLength": -1}}}, "minLength is not a count .at #/properties/a/m"),
        ({"maxItems": 1.5}, "maxItems is not a count"),
        ({"maximum": "1"}, "maximum is not a number"),
        ({"multipleOf": 0}, "multipleOf is not above 0"),
        ({"pattern": 1}, "pattern is not a text"),
        ({"required": [1]}, "required is not a list of names"),
        ({"enum": 1}, "enum is not a list"),
        ({"anyOf": {}}, "anyOf is not a list"),
        ({"title": 1}, "title is not a text"),
        ({"$ref": 1}, r"\$ref is not a text"),
        ({"$ref": "other.json"}, "other.json, which is not in the schema and not one of its ref"),
        ({"$ref": "#/definitions/a"}, "where nothing is"),
        ({"$ref": "#nowhere"}, "the anchor #nowhere, which is not there"),
        ({"$ref": "#"}, "refers to itself"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "refers to itself, directly or through others",
        ),
    ],
)
def test_what_is_no_schema_is_refused_with_its_path(schema: Any, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        parsed(schema)


def test_nesting_is_bounded_through_brackets_and_through_refs() -> None:
    deep: Any = True
    for _ in range(100):
        deep = {"not": deep}
    parsed(deep)
    with pytest.raises(InvalidSchema, match="nested deeper than 100 types"):
        parsed({"not": deep})
    chain = {f"d{n}": {"not": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(200)}
    with pytest.raises(InvalidSchema, match="nested deeper than 100 types"):
        parsed({"$ref": "#/$defs/d0", "$defs": {**chain, "d200": True}})


@pytest.mark.parametrize(
    ("base", "reference", "joined"),
    [
        ("http://a/b/c/d;p?q", "g", "http://a/b/c/g"),
        ("http://a/b/c/d;p?q", "./g", "http://a/b/c/g"),
        ("http://a/b/c/d;p?q", "g/", "http://a/b/c/g/"),
        ("http://a/b/c/d;p?q", "/g", "http://a/g"),
        ("http://a/b/c/d;p?q", "//g", "http://g"),
        ("http://a/b/c/d;p?q", "../g", "http://a/b/g"),
        ("http://a/b/c/d;p?q", "../../../g", "http://a/g"),
        ("http://a/b/c/d;p?q", "g?y#s", "http://a/b/c/g?y"),
        ("http://a/b/c/d;p?q", "#s", "http://a/b/c/d;p?q"),
        ("http://a/b", "urn:x", "urn:x"),
        ("", "a/b", "a/b"),
    ],
)
def test_uris_are_joined_as_rfc_3986_has_it(base: str, reference: str, joined: str) -> None:
    assert join_uri(base, reference) == joined


KEYWORDS = (
    *("type", "properties", "items", "$ref", "$id", "enum", "anyOf", "not", "required", "minimum"),
    *("pattern", "dependencies", "additionalProperties", "prefixItems", "$defs", "title", "if"),
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 2),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["string", "object", "#", "#/$defs/a", "x", "http://a/b", "#/0"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_any_json_is_a_schema_or_refused_with_a_sentence(value: Any) -> None:
    try:
        found = parsed(json.dumps(value))
    except InvalidSchema:
        return
    assert parsed(found.canonical).canonical == found.canonical
