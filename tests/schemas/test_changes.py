"""Changes in words: one sentence for each change of a field, in all three formats."""

from __future__ import annotations

import doctest
import json
from typing import Any

import pytest

import streamlog.schemas.changes as changes_module
from streamlog.schemas import Schema, SchemaType, describe_changes, parse_schema
from tests.schemas.compatibility.avro_cases import array, enum, field, mapping, record

ADDRESS = record("Address", field("street", "string"))


def changes(kind: SchemaType, old: str, new: str) -> list[str]:
    return describe_changes(*(parse_schema(Schema(kind, each)) for each in (old, new)))


def avro(*fields: dict[str, Any]) -> str:
    return json.dumps(record("Order", *fields))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (field("a", "int"), field("a", "int", doc="x"), []),
        (field("a", "int"), field("a", "long"), ["field `a` is long now, it was int"]),
        (
            field("a", "int"),
            field("b", "int"),
            ["field `a` is gone (int)", "field `b` is new (int), without a default"],
        ),
        (
            field("a", "int"),
            field("b", "string", aliases=["a"], default=""),
            [
                "field `a` is called `b` now",
                "field `b` is string now, it was int",
                'the default of field `b` is "" now, it was none',
            ],
        ),
        (
            field("a", ["null", ADDRESS]),
            field("a", ["null", record("Address", field("town", "string", default="ulm"))]),
            [
                "field `a.street` is gone (string)",
                'field `a.town` is new (string), with the default "ulm"',
            ],
        ),
        (
            field("a", array(ADDRESS)),
            field("a", mapping(ADDRESS)),
            [
                "field `a` is map of Address now, it was list of Address",
                "field `a[].street` is gone (string)",
                "field `a{}.street` is new (string), without a default",
            ],
        ),
        (
            field("a", enum("E", "AB")),
            field("a", {"type": "int", "logicalType": "date"}),
            ["field `a` is date now, it was E: A, B"],
        ),
        (field("a", ["null", "Order"]), field("a", ["null", "Order"]), []),
    ],
)
def test_changes_of_avro(old: Any, new: Any, expected: list[str]) -> None:
    assert changes(SchemaType.AVRO, avro(old), avro(new)) == expected


def test_changes_of_json_schema() -> None:
    old = {
        "title": "Order",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": ["string", "null"]},
            "c": {"type": "array", "items": {"properties": {"x": {}}}},
            "d": {"enum": [1, "y"]},
        },
    }
    new = {
        "title": "Sale",
        "required": ["a", "e"],
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "string", "default": "x"},
            "c": {"type": "array", "items": {"properties": {"y": True}}},
            "e": {"$ref": "#"},
        },
    }
    assert changes(SchemaType.JSON, json.dumps(old), json.dumps(new)) == [
        "the name is Sale now, it was Order",
        "field `a` is required now",
        "field `b` is string now, it was string or null",
        'the default of field `b` is "x" now, it was none',
        "field `c[].x` is gone (any value)",
        'field `d` is gone (one of "y", 1)',
        "field `c[].y` is new (any value)",
        "field `e` is new (object), without a default",
    ]


def test_changes_of_protobuf_go_by_numbers() -> None:
    old = "message M { int32 a = 1; repeated N b = 2; message N { string x = 1; } }"
    new = "message M { int64 c = 1; map<string, N> b = 2; message N { string y = 2; } }"
    assert changes(SchemaType.PROTOBUF, f'syntax="proto3"; {old}', f'syntax="proto3"; {new}') == [
        "field `M.a` is called `M.c` now",
        "field `M.c` is int64 now, it was int32",
        "field `M.b` is map of string to N now, it was list of N",
        "field `M.N.x` is gone (string)",
        "field `M.N.y` is new (string)",
    ]


def test_another_format_is_one_change() -> None:
    old, new = Schema(SchemaType.AVRO, '"int"'), Schema(SchemaType.JSON, "{}")
    assert describe_changes(parse_schema(old), parse_schema(new)) == [
        "the format is JSON now, it was AVRO"
    ]


def test_shared_types_are_followed_to_a_limit() -> None:
    links = [record("R0", field("x", "int"))]
    for number in range(1, 40):
        inner = f"R{number - 1}"
        links.append(record(f"R{number}", field("a", inner), field("b", inner)))
    chain = avro(*(field(f"f{n}", each) for n, each in enumerate(links)))
    assert changes(SchemaType.AVRO, chain, chain) == []


def test_the_example_runs() -> None:
    assert doctest.testmod(changes_module).failed == 0
