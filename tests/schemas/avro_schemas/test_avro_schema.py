"""Avro schemas: canonical and normalized texts, and what Avro refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastavro import parse_schema as fastavro_parse
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import InvalidSchema
from streamlog.schemas import (
    AvroSchema,
    Schema,
    SchemaReference,
    SchemaType,
    describe_changes,
    incompatibilities,
    parse_schema,
)


def parsed(value: Any, **referenced: Any) -> AvroSchema:
    """Return the parsed schema of a value; `referenced` by reference name."""
    references = tuple(SchemaReference(name, name, 1) for name in referenced)
    found = parse_schema(
        Schema(SchemaType.AVRO, json.dumps(value), references),
        {name: Schema(SchemaType.AVRO, json.dumps(each)) for name, each in referenced.items()},
    )
    assert isinstance(found, AvroSchema)
    return found


def record(name: str, *fields: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, **rest, "fields": list(fields)}


def field(name: str, kind: Any, **rest: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **rest}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('"int"', '"int"'),
        ("string", '"string"'),
        (' {"type" : "int"} ', '"int"'),
        ('{"type":"int","name":"n","size":1}', '"int"'),
        ('{"type":"fixed","name":"é1","size":0}', '{"type":"fixed","name":"é1","size":0}'),
        ('{"type":"int","logicalType":"date"}', '{"type":"int","logicalType":"date"}'),
        (
            '{"name":"E","symbols":["B","A"],"type":"enum","default":"A","x":1,"namespace":"n"}',
            '{"type":"enum","name":"E","namespace":"n","symbols":["B","A"],"default":"A","x":1}',
        ),
        (
            (
                '{"type":"record","name":"a.R","aliases":["Q","b.Q"],"doc":"d","fields":['
                '{"default":null,"type":["null","a.R"],"name":"r","order":"IGNORE","aliases":["s"]},'
                '{"name":"o","type":{"type":"fixed","namespace":"b","name":"F","size":2},"doc":"ä"}]}'
            ),
            (
                '{"type":"record","name":"R","namespace":"a","doc":"d","fields":['
                '{"name":"r","type":["null","R"],"default":null,"order":"ignore","aliases":["s"]},'
                '{"name":"o","type":{"type":"fixed","name":"F","namespace":"b","size":2},"doc":"ä"}],'
                '"aliases":["Q","b.Q"]}'
            ),
        ),
    ],
)
def test_the_canonical_text_is_that_of_avros_java_library(text: str, canonical: str) -> None:
    once = parse_schema(Schema(SchemaType.AVRO, text))
    assert once.canonical == canonical
    assert parse_schema(Schema(SchemaType.AVRO, canonical)).canonical == canonical


def test_spellings_of_one_schema_have_one_normalized_text() -> None:
    inner = record("n.In", field("a", "int"))
    one = parsed(record("n.R", field("x", inner), field("y", "In"), b=1, a=2))
    two = parsed(
        {
            "fields": [
                field(
                    "x", {"name": "In", "type": "record", "fields": [field("a", {"type": "int"})]}
                ),
                field("y", "n.In"),
            ],
            "a": 2,
            "b": 1,
            "name": "R",
            "namespace": "n",
            "type": "record",
        }
    )
    assert one.canonical != two.canonical
    assert one.normalized == two.normalized


def test_references_stay_names_in_the_canonical_text_and_are_resolved_for_readers() -> None:
    item = record("shop.Item", field("price", "double"))
    found = parsed(
        record("shop.Order", field("items", {"type": "array", "items": "Item"})),
        **{"shop.Item": item},
    )
    assert '"items":"Item"' in found.canonical
    fastavro_parse(found.resolved)
    assert parsed(found.resolved).record_name == "shop.Order"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("Nothing", '"Nothing" is not a defined name'),
        (1, "1 is not an Avro schema"),
        ({}, 'no "type"'),
        ({"type": {"type": "int"}}, 'no "type" that is a text'),
        ({"type": "nothing"}, '"nothing" is not a defined name.* /type'),
        ({"type": "array"}, 'An array has no "items"'),
        ({"type": "record", "fields": []}, 'A record has no "name"'),
        ({"type": "record", "name": "R"}, 'R has no list of "fields"'),
        (record("R", field("a", "int"), field("a", "int")), 'R has "a" twice .at /fields/1'),
        (record("1R"), '"1R" is not a name'),
        (record("int"), '"int" is the name of a primitive type'),
        (record("R", field("a-b", "int")), "a-b is not a name for a field"),
        (record("R", {"name": "a"}), "Field 'a' has no \"type\""),
        (record("R", field("a", record("R"))), '"R" is defined twice .at /fields/0/type'),
        (record("R", field("a", "int", default="x")), "The default of field 'a' does not fit"),
        (record("R", field("a", "int", order="up")), "order of field 'a'"),
        (["int", "int"], 'A union has "int" twice .at /1'),
        (["int", ["null"]], "A union contains a union"),
        ({"type": "fixed", "name": "F", "size": -1}, "not a number of bytes"),
        ({"type": "fixed", "name": "F", "size": True}, "not a number of bytes"),
        ({"type": "enum", "name": "E"}, 'no "symbols"'),
        ({"type": "enum", "name": "E", "symbols": ["a", "a"]}, '"a" twice .at /symbols/1'),
        ({"type": "enum", "name": "E", "symbols": ["a b"]}, '"a b" is not a symbol'),
        ({"type": "enum", "name": "E", "symbols": ["a"], "default": "b"}, "none of its symbols"),
    ],
)
def test_what_avro_refuses_is_refused_with_its_path(schema: Any, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        parsed(schema)


@pytest.mark.parametrize(
    ("kind", "default", "fits"),
    [
        ("int", 1 << 31, False),
        ("long", 1 << 31, True),
        ("int", True, False),
        ("double", 1, True),
        ("bytes", "ÿ", True),
        ("bytes", "€", True),
        ("double", "NaN", True),
        ("double", "1e5", True),
        ("double", "x", False),
        (["null", "int"], 1, True),
        (["null", "int"], "x", False),
        ({"type": "map", "values": "int"}, {"a": 1}, True),
        ({"type": "array", "items": "int"}, [1, "x"], False),
        (record("In", field("a", "int"), field("b", "int", default=1)), {"a": 1}, True),
        (record("In", field("a", "int")), {}, False),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, 1, False),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", True),
        ({"type": "fixed", "name": "F", "size": 2}, 12, False),
    ],
)
def test_a_default_fits_its_type(kind: Any, default: Any, fits: bool) -> None:
    schema = record("R", field("a", kind, default=default))
    if fits:
        parsed(schema)
        return
    with pytest.raises(InvalidSchema, match="The default of field 'a' does not fit its type"):
        parsed(schema)
    stored = Schema(SchemaType.AVRO, json.dumps(schema))
    assert parse_schema(stored, is_new=False).record_name == "R"


def test_a_default_can_not_contain_itself() -> None:
    with pytest.raises(InvalidSchema, match="The default of field 'a' does not fit"):
        parsed(record("R", field("a", ["null", "R"], default={})))
    parsed(record("R", field("a", {"type": "map", "values": "R"}, default={})))


def test_a_name_may_be_used_before_its_definition() -> None:
    item = record("n.Item", field("price", "double"))
    early = record("n.R", field("a", ["null", "Item"]), field("b", item), field("c", "R"))
    found = parsed(early)
    assert found.canonical.index('"price"') < found.canonical.index('"name":"b"')
    assert parsed(found.resolved).canonical == found.canonical
    fastavro_parse(found.resolved)


def test_nesting_through_brackets_and_through_names_is_bounded() -> None:
    deep: Any = "int"
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    parsed(deep)
    with pytest.raises(InvalidSchema, match="nested deeper than 100 types"):
        parsed({"type": "array", "items": deep})
    chain = [record("R0")]
    chain += [record(f"R{n + 1}", field("a", f"R{n}")) for n in range(150)]
    with pytest.raises(InvalidSchema, match="nested deeper than 100 types"):
        parsed(record("All", *(field(f"f{n}", each) for n, each in enumerate(chain))))


KEYS = st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "default"])
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 2),
        st.sampled_from(["record", "int", "enum", "fixed", "array", "map", "R", "n.R", "", "null"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=20,
)


@given(VALUES, VALUES)
def test_any_json_is_a_schema_or_refused_and_any_schemas_are_compared(one: Any, other: Any) -> None:
    try:
        pair = parsed(one), parsed(other)
    except InvalidSchema:
        return
    assert parsed(json.loads(pair[0].canonical)).canonical == pair[0].canonical
    assert incompatibilities(pair[0], pair[0]) == []
    assert describe_changes(pair[0], pair[0]) == []
    assert isinstance(incompatibilities(*pair), list)
