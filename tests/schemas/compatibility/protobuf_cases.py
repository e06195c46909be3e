"""Pairs of Protobuf schemas with all their differences, as Confluent's registry finds them.

The facts are those of its `diff-schema-examples.json`.
"""

from __future__ import annotations

Case = tuple[str, str, str]
"""The file before, the file after, both without their syntax, and the differences."""

A = "string a = 1;"
ENUM = "enum Status { ACTIVE = 0; INACTIVE = 1; }"
INNER = "message Status { string a = 1; }"


def message(fields: str, *others: str, name: str = "M") -> str:
    return " ".join((f"message {name} {{ {fields} }}", *others))


CASES: list[Case] = [
    (
        f"package foo; {message(f'{A} .foo.M.Status b = 2; {INNER}')}",
        f"package bar; {message(f'{A} .bar.M.Status b = 2; {INNER}')}",
        "PACKAGE_CHANGED #/",
    ),
    (message(f"{A} Status b = 2; {INNER}"), message(f"{A} .M.Status b = 2; {INNER}"), ""),
    (message(A), message(f"{A} string b = 2;"), "FIELD_ADDED #/M/2"),
    (message(f"{A} string b = 2;"), message(A), "FIELD_REMOVED #/M/2"),
    (
        message(f"int32 w = 1; message T {{ {A} }}", name="W"),
        message(f"int32 w = 1; message T {{ {A} string b = 2; }}", name="W"),
        "FIELD_ADDED #/W/T/2",
    ),
    (message(A), message("string a = 2;"), "FIELD_REMOVED #/M/1, FIELD_ADDED #/M/2"),
    (message("int32 a = 1;"), message("int64 a = 1;"), ""),
    (message("string a = 1;"), message("bytes a = 1;"), ""),
    (message("fixed32 a = 1;"), message("sfixed32 a = 1;"), ""),
    (message("int32 a = 1;"), message("sint32 a = 1;"), "FIELD_SCALAR_KIND_CHANGED #/M/1"),
    (message("float a = 1;"), message("double a = 1;"), "FIELD_SCALAR_KIND_CHANGED #/M/1"),
    (message("int32 a = 1;"), message("Status a = 1;", ENUM), "ENUM_ADDED #/Status"),
    (message("Status a = 1;", ENUM), message("int32 a = 1;"), "ENUM_REMOVED #/Status"),
    (
        message("int32 b = 2;"),
        message(f".M.Status b = 2; {INNER}", ENUM),
        "FIELD_KIND_CHANGED #/M/2, MESSAGE_ADDED #/M/Status, ENUM_ADDED #/Status",
    ),
    (
        message(f".M.Status b = 2; {INNER}", ENUM),
        message("int32 b = 2;"),
        "FIELD_KIND_CHANGED #/M/2, MESSAGE_REMOVED #/M/Status, ENUM_REMOVED #/Status",
    ),
    (
        message("Status a = 1;", ENUM),
        message("Status a = 1;", ENUM.replace("INACTIVE", "NOT_ACTIVE")),
        "ENUM_CONST_CHANGED #/Status/1",
    ),
    (
        message("", ENUM),
        message("", "enum Status { ACTIVE = 0; OTHER = 2; }"),
        "ENUM_CONST_REMOVED #/Status/1, ENUM_CONST_ADDED #/Status/2",
    ),
    # Oneofs.
    (
        message(f"{A} string b = 2;"),
        message(f"{A} oneof o {{ string b = 2; int32 c = 3; }}"),
        "ONEOF_ADDED #/M/o",
    ),
    (
        message(f"{A} string b = 2;"),
        message(f"oneof o {{ {A} string b = 2; int32 c = 3; }}"),
        "MULTIPLE_FIELDS_MOVED_TO_ONEOF #/M/o, ONEOF_ADDED #/M/o",
    ),
    (
        message(f"oneof o {{ {A} string b = 2; }}"),
        message(f"oneof o {{ {A} string b = 2; int32 c = 3; }}"),
        "ONEOF_FIELD_ADDED #/M/o/3",
    ),
    (
        message(f"oneof o {{ {A} string b = 2; int32 c = 3; }}"),
        message(f"oneof o {{ {A} string b = 2; }}"),
        "ONEOF_FIELD_REMOVED #/M/o/3",
    ),
    (
        message(f"oneof o {{ {A} }} string b = 2;"),
        message(f"oneof o {{ {A} string b = 2; }}"),
        "FIELD_MOVED_TO_EXISTING_ONEOF #/M/o, ONEOF_FIELD_ADDED #/M/o/2",
    ),
    (
        message(f"oneof o {{ {A} }}"),
        message("oneof p { int32 a = 1; }"),
        "ONEOF_REMOVED #/M/o, ONEOF_ADDED #/M/p, FIELD_SCALAR_KIND_CHANGED #/M/1",
    ),
    (message(f"oneof o {{ {A} }}"), message(A), "ONEOF_REMOVED #/M/o, FIELD_ADDED #/M/1"),
    (
        message(f"{A} oneof o {{ int32 b = 2; }}"),
        message(f"{A} oneof o {{ string b = 2; }}"),
        "FIELD_SCALAR_KIND_CHANGED #/M/o/2",
    ),
    # Types of fields.
    (
        message("int32 b = 2;"),
        message("N b = 2;", message(A, name="N")),
        "FIELD_KIND_CHANGED #/M/2, MESSAGE_ADDED #/N",
    ),
    (
        message("int32 b = 2;"),
        message("string c = 2;"),
        "FIELD_NAME_CHANGED #/M/2, FIELD_SCALAR_KIND_CHANGED #/M/2",
    ),
    (
        message("N b = 2;", message(A, name="N")),
        message("P b = 2;", message(A, name="P")),
        "FIELD_NAMED_TYPE_CHANGED #/M/2, MESSAGE_REMOVED #/N, MESSAGE_ADDED #/P",
    ),
    (
        message("map<string, int32> b = 2;"),
        message("map<string, string> c = 2;"),
        "FIELD_NAME_CHANGED #/M/2, FIELD_SCALAR_KIND_CHANGED #/M/2",
    ),
    (
        message(f"map<string, Status> b = 2; {INNER}"),
        message(f"map<string, M.Status> b = 2; {INNER}"),
        "",
    ),
    (message("map<string, int32> b = 2;"), message("int32 b = 2;"), "FIELD_KIND_CHANGED #/M/2"),
    # Labels.
    (
        message(f"optional Status b = 2; {INNER}"),
        message(f"repeated Status b = 2; {INNER}"),
        "",
    ),
    (
        message("optional string a = 1;"),
        message("repeated string a = 1;"),
        "FIELD_STRING_OR_BYTES_LABEL_CHANGED #/M/1",
    ),
    (
        message("optional bytes a = 1;"),
        message("repeated bytes a = 1;"),
        "FIELD_STRING_OR_BYTES_LABEL_CHANGED #/M/1",
    ),
    (
        message("optional int32 a = 1;"),
        message("repeated int32 a = 1;"),
        "FIELD_NUMERIC_LABEL_CHANGED #/M/1",
    ),
    # Messages.
    (message(A), message(A, message(A, name="N")), "MESSAGE_ADDED #/N"),
    (message(A), message(A, message(A), name="N"), "MESSAGE_MOVED #/M, MESSAGE_ADDED #/N"),
    (
        message(A, message(A, name="N")),
        message(A, message(A), name="N"),
        "MESSAGE_MOVED #/M, MESSAGE_MOVED #/N",
    ),
    (
        message("M m = 1; int32 a = 2;"),
        message("M m = 1; string a = 2;"),
        "FIELD_SCALAR_KIND_CHANGED #/M/2",
    ),
]

HOME = "message GoogleHome { int32 id = 1; bool enabled = 2; }"
OUTER = f"message outer {{ {HOME} }}"

IMPORT_CASES: list[tuple[str, str, str, str, str]] = [
    ("domain.GoogleHome", HOME, "domain.GoogleHome", HOME, ""),
    (
        "domain.GoogleHome",
        HOME,
        "domain.GoogleHome",
        HOME.replace("int32", "string"),
        "FIELD_SCALAR_KIND_CHANGED #/GoogleHome/1, FIELD_NAMED_TYPE_CHANGED #/M/1",
    ),
    ("domain.GoogleHome", HOME, "domain2.GoogleHome", HOME, ""),
    ("domain.outer.GoogleHome", OUTER, "domain2.outer.GoogleHome", OUTER, ""),
    (
        "domain.outer.GoogleHome",
        OUTER,
        "domain2.outer.GoogleHome",
        OUTER.replace("int32", "string"),
        "FIELD_SCALAR_KIND_CHANGED #/outer/GoogleHome/1, FIELD_NAMED_TYPE_CHANGED #/M/1",
    ),
    ("", HOME, "domain.GoogleHome", HOME, "MESSAGE_REMOVED #/GoogleHome"),
    ("domain.GoogleHome", HOME, "", HOME, "MESSAGE_ADDED #/GoogleHome"),
]
"""The type of a field before and its file, the type after and its file; "" for a local one."""
