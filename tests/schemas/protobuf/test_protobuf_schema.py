"""Protobuf schemas: texts, descriptors in base64, imports, and refusals."""

from __future__ import annotations

import base64
from random import Random

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import InvalidSchema
from streamlog.schemas import ProtobufSchema, Schema, SchemaReference, SchemaType, parse_schema

ORDER = """syntax = "proto3";
package shop;

import "google/protobuf/timestamp.proto";
import public "confluent/meta.proto";

option java_package = "org.shop";
option (my.opt).z = { a : 1 b { c : "d" } };

message Order {
  reserved 5, 7 to 9, 100 to max;
  reserved "old", "older";

  string id = 1 [deprecated = true, (confluent.field_meta).doc = "hi"];
  optional int32 count = 2 [json_name = "n"];
  repeated Item items = 3;
  map<string, Item> by_name = 4;

  oneof choice {
    Kind kind = 10;
    google.protobuf.Timestamp at = 11;
  }

  message Item {
    Order order = 1;
  }
}

enum Kind {
  reserved -5 to -1;
  option allow_alias = true;
  UNKNOWN = 0;
  NEW = 1;
  FRESH = 1 [deprecated = true];
}

service Orders {
  rpc Get (Order) returns (stream Order.Item);
  rpc Put (stream Order) returns (Order) {
    option deprecated = true;
  }
}
"""
PROTO_2 = """syntax = "proto2";

message M {
  option message_set_wire_format = false;

  optional group G = 1 {
    required string a = 1 [default = "x\\"y"];
  }
  optional bytes b = 2 [default = "\\000a"];
  optional float f = 3 [default = -inf];
  repeated int32 p = 4 [packed = true];

  extensions 100 to 200;

  extend M {
    optional int32 z = 100;
  }
}
"""


def parsed(text: str, **referenced: str) -> ProtobufSchema:
    """Return a parsed schema; `referenced` by path without `.proto`."""
    names = {f"{name}.proto": each for name, each in referenced.items()}
    references = tuple(SchemaReference(name, name, 1) for name in names)
    found = parse_schema(
        Schema(SchemaType.PROTOBUF, text, references),
        {name: Schema(SchemaType.PROTOBUF, each) for name, each in names.items()},
    )
    assert isinstance(found, ProtobufSchema)
    return found


@pytest.mark.parametrize("text", [ORDER, PROTO_2])
def test_the_canonical_text_is_that_of_confluents_registry(text: str) -> None:
    assert parsed(text).canonical == text
    squeezed = " ".join(text.replace("{\n", "{ // a comment\n").splitlines(keepends=True))
    assert parsed(squeezed).canonical == text


def test_spellings_of_one_schema_have_one_normalized_text() -> None:
    one = parsed(
        'syntax = "proto3"; package a.b; import "google/protobuf/any.proto"; import '
        '"google/protobuf/timestamp.proto"; message M { N n = 2; int32 x = 1; message N {} }'
    )
    two = parsed(
        'syntax = "proto3"; package a.b; import "google/protobuf/timestamp.proto"; import '
        '"google/protobuf/any.proto"; message M { int32 x = 1; .a.b.M.N n = 2; message N {} }'
    )
    assert one.canonical != two.canonical
    assert one.normalized == two.normalized
    assert parsed(one.normalized).normalized == one.normalized


def test_a_descriptor_in_base64_is_the_schema_that_it_describes() -> None:
    text = parsed(ORDER)
    binary = parsed(text.serialized)
    assert binary.normalized == text.normalized
    assert binary.record_name == "shop.Order"
    assert parsed(binary.canonical).canonical == binary.canonical


def test_the_files_of_a_schema_make_messages() -> None:
    pool = descriptor_pool.DescriptorPool()
    for each in parsed(ORDER).files:
        pool.AddSerializedFile(each)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    found = order(id="a", count=1, kind=1)
    found.by_name["x"].order.id = "b"
    assert order.FromString(found.SerializeToString()) == found


def test_imports_are_references_of_references_too() -> None:
    base = 'syntax = "proto3"; package b; message Base {}'
    middle = 'syntax = "proto3"; import public "base.proto"; message Middle { b.Base base = 1; }'
    top = 'syntax = "proto3"; import "middle.proto"; message Top { Middle m = 1; b.Base b = 2; }'
    found = parsed(top, middle=middle, base=base)
    assert found.record_name == "Top"
    assert list(found.messages) == [".b.Base", ".Middle", ".Top"]
    names = [descriptor_pb2.FileDescriptorProto.FromString(each).name for each in found.files]
    assert names == ["base.proto", "middle.proto", "default.proto"]


def test_a_descriptor_with_the_path_of_a_reference_gives_way() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="base.proto", syntax="proto3")
    file.dependency.append("base.proto")
    text = base64.b64encode(file.SerializeToString()).decode()
    found = parsed(text, base='syntax = "proto3"; message Base {}')
    assert [*found.messages] == [".Base"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('syntax = "proto3"; import "b.proto";', 'imports "b.proto", which is not one of its ref'),
        ('syntax = "proto3"; import "default.proto";', "circle: default.proto -> default.proto"),
        ('syntax = "proto3"; message M { N n = 1; }', '"?N"? is not defined|couldn.t resolve'),
        ('syntax = "proto3"; message M { int32 a = 1; int32 b = 1; }', "invalid: "),
        ('syntax = "proto3"; message M {} message M {}', "invalid: .*M"),
        ('syntax = "proto3"; enum E { A = 1; }', "invalid: "),
        ("YWJj", "no serialized FileDescriptorProto|invalid"),
        ("YWJ", "neither Protobuf nor a FileDescriptorProto in base64: YWJ"),
    ],
)
def test_what_can_not_be_linked_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        parsed(text)


def test_imports_that_form_a_circle_are_refused() -> None:
    a = 'syntax = "proto3"; import "b.proto";'
    b = 'syntax = "proto3"; import "a.proto";'
    with pytest.raises(InvalidSchema, match=r"circle: a\.proto -> b\.proto -> a\.proto"):
        parsed('syntax = "proto3"; import "a.proto";', a=a, b=b)


@given(st.integers(0, 1 << 32))
def test_a_spoilt_descriptor_is_read_or_refused(seed: int) -> None:
    chance = Random(seed)
    data = bytearray(DESCRIPTOR)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    try:
        found = parsed(base64.b64encode(bytes(data)).decode())
    except InvalidSchema:
        return
    assert parsed(found.canonical).record_name == found.record_name


DESCRIPTOR = base64.b64decode(parsed(ORDER).serialized)
