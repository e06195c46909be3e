"""Which schemas may follow which, by level: what karapace's REST tests expect."""

from __future__ import annotations

from typing import Any

from tests.registry.karapace_sequences import Differs, field, record

NESTED = record("a", field("b", record("c", name="Inner")))
TEXTS_OR = [{"type": "array", "items": "string"}, "string"]
MD5 = {"type": "fixed", "size": 16, "name": "md5", "aliases": ["one"]}
INNER = {"type": "array", "items": record("foo", name="Inner")}
WIDER = {
    "type": "array",
    "items": record("foo", field("bar", ["null", "string"], default=None), name="Inner"),
}
SYMBOL = Differs(
    200, 409, "a reader without the new symbol, and without a default, can't read it (Avro 1.12)"
)
EMBEDDED = record("name", name="Inner", namespace="example")
PRICED = record("name", field("price", "int"), name="Inner", namespace="example")

MATRIX: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "enum_schema_field_add": (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]},
        {"BACKWARD": 200, "FORWARD": SYMBOL, "FULL": SYMBOL},
    ),
    "enum_schema, a symbol is removed": (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"BACKWARD": SYMBOL, "FORWARD": 200, "FULL": SYMBOL},
    ),
    "enum_schema, another name": (
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "enum", "name": "Other", "symbols": ["A"]},
        {"BACKWARD": 409, "FORWARD": 409, "FULL": 409},
    ),
    "enum_schema, another name in a record": (
        record(field("a", {"type": "enum", "name": "E", "symbols": ["A"]})),
        record(field("a", {"type": "enum", "name": "Other", "symbols": ["A"]})),
        {"BACKWARD": 409, "FORWARD": 409, "FULL": 409},
    ),
    "array_schema_field_add": (
        {"type": "array", "items": "int"},
        {"type": "array", "items": "long"},
        {"BACKWARD": 200, "FORWARD": 409, "FULL": 409},
    ),
    "array_nested_record": (
        {"type": "array", "items": record("a")},
        {"type": "array", "items": record("a", "b")},
        {"BACKWARD": 409, "FORWARD": 200, "FULL": 409},
    ),
    "record_nested_array": (
        record(field("a", {"type": "array", "items": "int"})),
        record(field("a", {"type": "array", "items": "long"})),
        {"BACKWARD": 200, "FORWARD": 409, "FULL": 409},
    ),
    "map_schema_field_add": (
        {"type": "map", "values": "int"},
        {"type": "map", "values": "long"},
        {"BACKWARD": 200, "FORWARD": 409, "FULL": 409},
    ),
    "fixed_schema, another alias": (
        MD5,
        {**MD5, "aliases": ["one", "two"]},
        {"BACKWARD": 200, "FORWARD": 200, "FULL": 200},
    ),
    "fixed_schema, another size": (
        MD5,
        {**MD5, "size": 32},
        {"BACKWARD": 409, "FORWARD": 409, "FULL": 409},
    ),
    "fixed_schema, another name": (
        MD5,
        {**MD5, "name": "other"},
        {"BACKWARD": 409, "FORWARD": 409, "FULL": 409},
    ),
    "fixed_schema, another alias in a record": (
        record(field("a", MD5)),
        record(field("a", {**MD5, "aliases": ["one", "two"]})),
        {"BACKWARD": 200, "FORWARD": 200, "FULL": 200},
    ),
    "fixed_schema, another size in a record": (
        record(field("a", MD5)),
        record(field("a", {**MD5, "size": 32})),
        {"BACKWARD": 409, "FORWARD": 409, "FULL": 409},
    ),
    "fixed_schema, another name in a record": (
        record(field("a", MD5)),
        record(field("a", {**MD5, "name": "other"})),
        {"BACKWARD": 409, "FORWARD": 409, "FULL": 409},
    ),
    "primitive_schema, text to bytes": (
        "string",
        "bytes",
        {"BACKWARD": 200, "FORWARD": 200, "FULL": 200},
    ),
    "primitive_schema, text to int": (
        "string",
        "int",
        {"BACKWARD": 409, "FORWARD": 409, "FULL": 409},
    ),
    "union_comparing_to_other_types, to a member": (
        TEXTS_OR,
        "string",
        {"BACKWARD": 409, "FORWARD": 200, "FULL": 409},
    ),
    "union_comparing_to_other_types, from a member": (
        TEXTS_OR[0],
        TEXTS_OR,
        {"BACKWARD": 200, "FORWARD": 409, "FULL": 409},
    ),
    "union_comparing_to_other_types, to neither": (
        TEXTS_OR,
        "int",
        {"BACKWARD": 409, "FORWARD": 409, "FULL": 409},
    ),
    "union_to_union, an alternative is gone": (
        record(field("a", ["string", "int"])),
        record(field("a", ["null", "string"])),
        {"BACKWARD": 409, "FORWARD": 409},
    ),
    "union_to_union, an alternative is new": (
        record(field("a", ["string", "int"])),
        record(field("a", ["int", "string", record("foo", name="Inner")])),
        {"BACKWARD": 200},
    ),
    "union_to_union, an alternative is dropped": (
        record(field("a", ["int", "string", record("foo", name="Inner")])),
        record(field("a", ["string", "int"])),
        {"FORWARD": 200},
    ),
    "record_union_schema, with a default": (
        record(field("a", [INNER])),
        record(field("a", [WIDER])),
        {"BACKWARD": 200},
    ),
    "record_union_schema, and back": (
        record(field("a", [WIDER])),
        record(field("a", [INNER])),
        {"BACKWARD": 200},
    ),
    "record_nested_schema": (
        NESTED,
        record("a", field("b", record(field("c", "int"), name="Inner"))),
        {"BACKWARD": 409},
    ),
    "inner_type_compat_failure": (
        record(field("meta", record(field("date", "long"), name="Meta"))),
        record(
            field(
                "meta",
                record(
                    field("date", {"type": "long", "logicalType": "timestamp-millis"}), name="Meta"
                ),
            )
        ),
        {"BACKWARD": 200},
    ),
    "anon_type_union_failure, another doc": (
        record(field("a", ["null", record(field("b", ["null", "double"]), name="Inner")])),
        record(field("a", ["null", record(field("b", ["null", "double"], doc="x"), name="Inner")])),
        {"BACKWARD": 200},
    ),
    "full_transitive_failure": (
        record(field("a", ["null", EMBEDDED])),
        record(field("a", ["null", PRICED])),
        {"FULL": 409, "FULL_TRANSITIVE": 409},
    ),
    "record_schema_compatibility_forward, fields are added": (
        record("first"),
        record("first", "last", field("age", "int")),
        {"FORWARD": 200},
    ),
    "record_schema_compatibility_forward, a field is removed": (
        record("first", "last", field("age", "int")),
        record("last", field("third", "string", default="x"), field("age", "int")),
        {"FORWARD": 409},
    ),
    "record_schema_compatibility_forward, a number is wider": (
        record("first", "last", field("age", "int")),
        record("first", "last", field("age", "long")),
        {"FORWARD": 409},
    ),
    "record_schema_compatibility_forward, a field with a default is added": (
        record("first", "last", field("age", "int")),
        record("first", "last", field("third", "string", default="x"), field("age", "int")),
        {"FORWARD": 200},
    ),
    "record_schema_compatibility_backward, no default": (
        record("first"),
        record("first", "last"),
        {"BACKWARD": 409},
    ),
    "record_schema_compatibility_backward, a default": (
        record("first"),
        record("first", field("last", "string", default="x")),
        {"BACKWARD": 200},
    ),
    "record_schema_compatibility_backward, another type": (
        record("first", field("last", "string", default="x")),
        record("first", field("last", "int", default=2)),
        {"BACKWARD": 409},
    ),
}
"""An earlier and a later schema, and the status of the later one by level."""

PROMOTED = [("int", "long"), ("int", "float"), ("int", "double")]
"""The second reads the first."""
ALIKE = [("int", "int"), ("bytes", "bytes"), ("bytes", "string"), ("boolean", "boolean")]
"""Each reads the other."""
APART = [
    (number, other)
    for number in ("int", "long", "float", "double")
    for other in ("boolean", "string", "bytes")
]
"""Neither reads the other."""


def conversions() -> list[tuple[str, str, str, bool]]:
    """Return karapace's `test_type_compatibility`: level, earlier type, later type, answer."""
    found = []
    for first, then in PROMOTED:
        found += [("BACKWARD", first, then, True), ("BACKWARD", then, first, False)]
        found += [("FORWARD", first, then, False), ("FORWARD", then, first, True)]
        found += [("FULL", first, then, False), ("FULL", then, first, False)]
    for pairs, fits in ((ALIKE, True), (APART, False)):
        for first, then in pairs:
            for name in ("BACKWARD", "FORWARD", "FULL"):
                found += [(name, first, then, fits), (name, then, first, fits)]
    return found
