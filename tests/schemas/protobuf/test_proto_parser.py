"""The parser of `.proto` text: Google's own files as protoc has compiled them, and refusals."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import google.type.money_pb2
import grpc_tools
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import InvalidSchema
from streamlog.schemas.protobuf.proto_library import link_files
from streamlog.schemas.protobuf.proto_parser import parse_proto
from streamlog.schemas.protobuf.proto_text import write_proto

ROOTS = (
    Path(grpc_tools.__file__).parent / "_proto",
    Path(google.type.money_pb2.__file__).parent.parent.parent,
)
FILES = {
    path.relative_to(root).as_posix(): path
    for root in ROOTS
    for path in sorted(root.glob("google/**/*.proto"))
    # It is a copy of operations.proto under another name.
    if path.name != "operations_proto.proto"
}


def compiled(path: str) -> Any:
    """Return what protoc has made of a file; None if there is no module of it."""
    if re.search("descriptor|features", path):
        return None  # The compiler and the library bring different releases of these along.
    try:
        module = import_module(f"{path.removesuffix('.proto').replace('/', '.')}_pb2")
    except ImportError:
        return None
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def without_options(found: Any) -> str:
    """Return a descriptor as text, without options, which protoc interprets, and JSON names."""
    waiting = [found]
    while waiting:
        each = waiting.pop()
        names = {known.name for known in each.DESCRIPTOR.fields}
        if "options" in names and not getattr(each.options, "map_entry", False):
            each.ClearField("options")
        for known, value in each.ListFields():
            if known.type == known.TYPE_MESSAGE and known.name not in {"options", "visibility"}:
                waiting += value if known.is_repeated else [value]
    return re.sub(r" *json_name: .*\n", "", str(found))


def test_googles_files_are_read_as_protoc_reads_them() -> None:
    parsed = {path: parse_proto(each.read_text(), path) for path, each in FILES.items()}
    ordered: dict[str, Any] = {}

    def add(path: str) -> None:
        if path not in ordered:
            for each in parsed[path].dependency:
                add(each)
            ordered[path] = parsed[path]

    for path in parsed:
        add(path)
    linked = link_files(list(ordered.values()))
    compared = 0
    for path, found in linked.items():
        expected = compiled(path)
        if expected is not None:
            assert without_options(found) == without_options(expected), path
            compared += 1
    assert compared > 60
    for path, found in parsed.items():
        text = write_proto(found)
        assert write_proto(parse_proto(text, path)) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("syntax", "'=' is expected, not the end .at line 1, column 7"),
        ('syntax = "proto4";', "The syntax proto4 is not proto2 or proto3"),
        ('edition = "1999";', "The edition 1999 is not known"),
        ("message M {", "is expected, not the end"),
        ("message M {} }", "Message, enum, service, .* or package is expected, not }"),
        ("message M { string a = 1; }", "Optional, required or repeated is expected, not string"),
        ("\n\n  message 1 {}", "A name is expected, not 1 .at line 3, column 11"),
        ("package a; package b;", "Package stands twice"),
        ("message M { optional int32 a = 0; }", "0 is not between 1 and 536870911"),
        ("message M { optional int32 a = x; }", "A number is expected, not x"),
        ("message M { optional int32 a = 1.5; }", "1.5 is not an integer"),
        ("message M { optional int32 a = 099; }", "099 is not an integer"),
        ('import "a', '"a is not Protobuf'),
        ("import 'a\\q';", r"\\q is not an escape"),
        ("import '\\xff';", "A text is not UTF-8"),
        ("import '\\ud800';", "is not a character"),
        ("message M { oneof o { repeated int32 a = 1; } }", "a oneof has fields without a label|A"),
        ("message M { optional group g = 1 {} }", "does not begin with a capital letter"),
        ("option a = {", "'}' is expected, not the end"),
        ("option deprecated = 1;", "A name is expected|true or false"),
        ("enum E { A = 99999999999; }", "is not between -2147483648 and 2147483647"),
        ('syntax = "proto3"; message M { required int32 a = 1; }', "Proto3 has no required fields"),
        ("é", "is not Protobuf"),
        ("/* open", "is expected, not /"),
        ("message M {" * 101, "Messages are nested deeper than 100, the limit"),
        ("message M {" * 5000, "Messages are nested deeper than 100, the limit"),
        ("option a = " + "{" * 5000, "An option is nested deeper than 100, the limit"),
    ],
)
def test_what_is_no_protobuf_is_refused_with_line_and_column(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        parse_proto(text, "a.proto")


PIECES = st.sampled_from(
    [
        *("message", "M", "{", "}", "enum", "E", "=", "1", ";", "string", "a", "optional", "map"),
        *("<", ">", ",", "oneof", "reserved", "to", "max", '"x"', "[", "]", "(", ")", ".", "-"),
        *("option", "extend", "group", "repeated", "service", "rpc", "returns", "stream", "import"),
        *("syntax", '"proto3"', "package", "extensions", "default", "inf", "0x1", "1e5", "//\n"),
    ]
)


@given(st.lists(PIECES, max_size=30).map(" ".join))
def test_any_text_is_protobuf_or_refused_with_a_sentence(text: str) -> None:
    try:
        found = parse_proto(text, "a.proto")
    except InvalidSchema:
        return
    written = write_proto(found)
    assert write_proto(parse_proto(written, "a.proto")) == written


@given(st.data())
def test_a_spoilt_schema_is_read_or_refused(data: st.DataObject) -> None:
    good = 'syntax = "proto3"; package p; message M { string a = 1; message In { M m = 2; } }'
    at = data.draw(st.integers(0, len(good)))
    text = good[:at] + data.draw(st.text(max_size=3)) + good[at + data.draw(st.integers(0, 5)) :]
    try:
        link_files([parse_proto(text, "a.proto")])
    except InvalidSchema:
        return
