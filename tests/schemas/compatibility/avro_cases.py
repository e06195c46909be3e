"""Pairs of Avro schemas with what is wrong between them, as Avro's checker says it.

The facts are those of Apache Avro's TestSchemaCompatibility and its siblings, which karapace's unit
tests repeat.
"""

from __future__ import annotations

from typing import Any

Found = tuple[str, str, str]
"""Kind, path and detail."""
Case = tuple[Any, Any, list[Found]]
"""Reader, writer, and what is found."""


def record(name: str, *fields: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **rest}


def field(name: str, kind: Any, **rest: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **rest}


def enum(name: str, symbols: str, **rest: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **rest}


def fixed(name: str, size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapping(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def one(kind: Any, **rest: Any) -> dict[str, Any]:
    """Return a record with one field of a type."""
    return record("Record1", field("f", kind, **rest))


def int_list(kind: str) -> dict[str, Any]:
    return record("List", field("head", kind), field("tail", "List"))


def lacking(kind: str, path: str) -> Found:
    return ("MISSING_UNION_BRANCH", path, f"reader union lacking writer type: {kind}")


def mismatch(reader: str, writer: str, path: str = "/") -> Found:
    detail = f"reader type: {reader} not compatible with writer type: {writer}"
    return ("TYPE_MISMATCH", path, detail)


def absent(name: str, path: str) -> Found:
    return ("READER_FIELD_MISSING_DEFAULT_VALUE", path, name)


def name_mismatch(expected: str, path: str = "/name") -> Found:
    return ("NAME_MISMATCH", path, f"expected: {expected}")


A_INT = record("Record1", field("a", "int"))
A_LONG = record("Record1", field("a", "long"))
A_DEFAULT = record("Record1", field("a", "int", default=0))
A_B_INT = record("Record1", field("a", "int"), field("b", "int"))
A_B_DEFAULT = record("Record1", field("a", "int"), field("b", "int", default=0))
BOTH_DEFAULT = record("Record1", field("a", "int", default=0), field("b", "int", default=0))
EMPTY = record("Record1")
RECORD2 = record("Record2", field("f", "int"))
ENUM_AB, ENUM_ABC, ENUM_BC = enum("Enum1", "AB"), enum("Enum1", "ABC"), enum("Enum1", "BC")

COMPATIBLE: list[tuple[Any, Any]] = [
    *((kind, kind) for kind in ("null", "boolean", "int", "long", "float", "double", "bytes")),
    ("string", "string"),
    ("long", "int"),
    ("float", "int"),
    ("float", "long"),
    ("double", "int"),
    ("double", "long"),
    ("double", "float"),
    ("string", "bytes"),
    ("bytes", "string"),
    (array("int"), array("int")),
    (array("long"), array("int")),
    (mapping("long"), mapping("int")),
    (ENUM_AB, ENUM_AB),
    (ENUM_ABC, ENUM_AB),
    (enum("Enum1", "AB", default="A"), ENUM_ABC),
    (fixed("Fixed", 4), fixed("Fixed", 4)),
    ([], []),
    (["float"], []),
    (["float"], ["int", "long"]),
    (["int", "string"], ["string", "int"]),
    (["string"], ["bytes"]),
    (["double"], ["int", "float"]),
    ("float", ["int", "float"]),
    ("long", ["int", "long"]),
    ("double", ["int", "long", "float", "double"]),
    (["int"], "int"),
    ("int", ["int"]),
    (EMPTY, EMPTY),
    (EMPTY, A_INT),
    (A_DEFAULT, A_INT),
    (A_INT, A_DEFAULT),
    (A_LONG, A_INT),
    (A_INT, A_B_INT),
    (A_B_DEFAULT, A_INT),
    (BOTH_DEFAULT, EMPTY),
    (A_B_INT, BOTH_DEFAULT),
    (int_list("int"), int_list("int")),
    (int_list("long"), int_list("int")),
    (one(enum("E", "AB", default="A")), one(enum("E", "ABC", default="A"))),
    # A renamed field and a renamed record, by their aliases.
    (record("Record1", field("b", "int", aliases=["a"])), A_INT),
    (record("Other", field("a", "int"), aliases=["Record1"]), A_INT),
    # Namespaces do not count.
    (
        one(["null", array(record("ns1.R", field("a", "int")))]),
        one(["null", array(record("ns2.R", field("a", "int")))]),
    ),
    # A type becomes a union with it.
    *(
        (one(["null", kind]), one(kind))
        for kind in (
            array("string"),
            record("In", field("x", "string")),
            ENUM_AB,
            fixed("F", 16),
            "string",
            mapping("int"),
        )
    ),
]

INCOMPATIBLE: list[Case] = [
    *(
        (reader, writer, [mismatch(reader.upper(), writer.upper())])
        for reader, writer in (
            ("null", "int"),
            ("null", "long"),
            ("boolean", "int"),
            ("int", "null"),
            ("int", "boolean"),
            ("int", "long"),
            ("int", "float"),
            ("int", "double"),
            ("long", "float"),
            ("long", "double"),
            ("float", "double"),
            ("string", "boolean"),
            ("string", "int"),
            ("bytes", "null"),
            ("bytes", "int"),
        )
    ),
    (array("int"), array("long"), [mismatch("INT", "LONG", "/items")]),
    (mapping("int"), array("int"), [mismatch("MAP", "ARRAY")]),
    (mapping("int"), mapping("long"), [mismatch("INT", "LONG", "/values")]),
    ("int", ["int", "string"], [mismatch("INT", "STRING", "/1")]),
    (one("int"), one("string"), [mismatch("INT", "STRING", "/fields/0/type")]),
    (int_list("int"), int_list("long"), [mismatch("INT", "LONG", "/fields/0/type")]),
    ("int", ["int", "null"], [mismatch("INT", "NULL", "/1")]),
    (enum("E", "A"), "int", [mismatch("ENUM", "INT")]),
    (A_INT, EMPTY, [absent("a", "/fields/0")]),
    (A_B_DEFAULT, EMPTY, [absent("a", "/fields/0")]),
    (A_B_INT, EMPTY, [absent("a", "/fields/0"), absent("b", "/fields/1")]),
    # The default of an enum is none for the field.
    (one(enum("E", "A", default="A")), EMPTY, [mismatch("ENUM", "RECORD", "/fields/0/type")]),
    (fixed("F", 4), fixed("F", 8), [("FIXED_SIZE_MISMATCH", "/size", "expected: 8, found: 4")]),
    (
        one(fixed("F", 8)),
        one(fixed("F", 4)),
        [("FIXED_SIZE_MISMATCH", "/fields/0/type/size", "expected: 4, found: 8")],
    ),
    (ENUM_AB, ENUM_ABC, [("MISSING_ENUM_SYMBOLS", "/symbols", "[C]")]),
    (ENUM_BC, enum("Enum1", "ABCD"), [("MISSING_ENUM_SYMBOLS", "/symbols", "[A, D]")]),
    (one(ENUM_AB), one(ENUM_ABC), [("MISSING_ENUM_SYMBOLS", "/fields/0/type/symbols", "[C]")]),
    (ENUM_AB, enum("Enum2", "AB"), [name_mismatch("Enum2")]),
    (record("Record2"), EMPTY, [name_mismatch("Record1")]),
    (fixed("Fixed", 4), fixed("n.Other", 4), [name_mismatch("n.Other")]),
    (one(ENUM_AB), one(enum("Enum2", "AB")), [name_mismatch("Enum2", "/fields/0/type/name")]),
    (["int"], ["int", "string"], [lacking("STRING", "/1")]),
    (["string"], ["int", "string"], [lacking("INT", "/0")]),
    (["int", one("int")], ["int", RECORD2], [lacking("RECORD", "/1")]),
    *(
        (["int"], ["int", kind], [lacking(name, "/1")])
        for kind, name in (
            (one("int"), "RECORD"),
            (ENUM_AB, "ENUM"),
            (fixed("F", 4), "FIXED"),
            ("boolean", "BOOLEAN"),
            (array("int"), "ARRAY"),
            (mapping("int"), "MAP"),
            ("null", "NULL"),
        )
    ),
    *(
        (["int"], [kind], [lacking(kind.upper(), "/0")])
        for kind in ("long", "float", "double", "bytes")
    ),
    (["int"], ["int", "long", "float"], [lacking("LONG", "/1"), lacking("FLOAT", "/2")]),
    (
        one(["int"], default=0),
        one(["int", "string"], default=0),
        [lacking("STRING", "/fields/0/type/1")],
    ),
    (["int", "string"], "boolean", [lacking("BOOLEAN", "/")]),
    (one(["null", "int"]), one("string"), [lacking("STRING", "/fields/0/type")]),
]
