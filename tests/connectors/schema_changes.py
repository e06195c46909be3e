"""Schemas and rows at random, of a stream whose schema changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from streamlog.connect import Field, Schema
from streamlog.connect.row_schema import decimal_schema
from streamlog.replace import replace

PART = Schema("struct", fields=(Field("x", Schema("int32")), Field("y", Schema("string"))))
WIDER_PART = Schema(
    "struct", fields=(Field("z", Schema("boolean")), Field("x", Schema("int64", optional=True)))
)
VALUES: dict[Schema, Sequence[Any]] = {
    Schema("int32"): (0, 7, -(2**31)),
    Schema("int64"): (0, 2**63 - 1, -(2**63), 2**53 + 1),
    Schema("float32"): (0.5, float("inf")),
    Schema("float64"): (0.1, -0.0, 1e300),
    Schema("string"): ("", "ü", "7"),
    Schema("boolean"): (True, False),
    Schema("bytes"): (b"", b"text"),
    decimal_schema(6, 2): (Decimal("1.25"), Decimal("-9999.99")),
    decimal_schema(12, 4): (Decimal("1.2345"),),
    PART: ({"x": 1, "y": "a"}, {"x": -5, "y": ""}),
    WIDER_PART: ({"z": True, "x": 2**40}, {"z": False, "x": None}),
    Schema("array", items=Schema("int32")): ([], [1, 2]),
    Schema("array", items=Schema("int64", optional=True)): ([2**40, None],),
    Schema("map", items=Schema("int32")): ({}, {"k": 1}),
}


def schema_at_random(chance: random.Random) -> Schema | None:
    """Return a schema of some of three fields, of any type, in any order, null or not; or none."""
    if chance.random() < 0.1:
        return None
    kinds = [*VALUES]
    fields = [
        Field(name, replace(chance.choice(kinds), optional=chance.random() < 0.5))
        for name in chance.sample("abc", chance.randint(1, 3))
    ]
    return Schema("struct", fields=tuple(fields))


def row_at_random(chance: random.Random, schema: Schema | None) -> dict[str, Any] | None:
    if chance.random() < 0.2:
        return None
    if schema is None:
        return {"d": chance.randint(-5, 5)}
    return {
        each.name: None
        if each.schema.optional and chance.random() < 0.3
        else chance.choice(VALUES[replace(each.schema, optional=False)])
        for each in schema.fields
    }


def without_nulls(value: Any) -> Any:
    """Return a value without nulls in it; pairs of a map are a dict, decimals have no scale."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        pairs = [each for each in value if isinstance(each, tuple)]
        return dict(pairs) if pairs else [without_nulls(each) for each in value] or {}
    return value.normalize() if isinstance(value, Decimal) else value
