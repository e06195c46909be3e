"""Protobuf files of declared types, held against protoc."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any
from uuid import UUID

import google.protobuf
import grpc_tools
import msgspec
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
)
from google.type import date_pb2
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.errors import SerdeError
from streamlog.serdes.derived.protobuf_derivation import protobuf_file_of
from streamlog.serdes.derived.protobuf_values import ProtobufValues, file_descriptor, message_class
from streamlog.serdes.derived.type_description import FieldNumber, RecordType, describe_type
from tests.serdes.derived.typed_values import Typed, records

LIBRARY: ModuleType = google.protobuf
assert descriptor_pool
assert message_factory
assert duration_pb2
assert timestamp_pb2


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Item:
    sku: str
    count: int = 1


@dataclass
class Order:
    __schema_name__ = "com.acme.Order"
    id: UUID
    placed: datetime
    due: date
    daily: time
    lasts: timedelta
    total: Decimal
    color: Color
    items: list[Item]
    counts: dict[int, Item]
    which: int | Item | Color | None = None
    parent: Order | None = None
    note: str | None = "none"
    tags: frozenset[str] = frozenset()
    last: Annotated[Item, FieldNumber(40)] = field(default_factory=lambda: Item("x"))


ORDER = Order(
    UUID(int=7),
    datetime(1950, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    date(2024, 2, 29),
    time(1, 2, 3, 4),
    timedelta(days=-2, microseconds=3),
    Decimal("-12.50"),
    Color.BLUE,
    [Item("a"), Item("b", 0)],
    {3: Item("", 0)},
)

TEXT = """\
syntax = "proto3";

package com.acme;

import "confluent/type/decimal.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/timestamp.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";

message Order {
  string id = 1;
  .google.protobuf.Timestamp placed = 2;
  .google.type.Date due = 3;
  .google.type.TimeOfDay daily = 4;
  .google.protobuf.Duration lasts = 5;
  .confluent.type.Decimal total = 6;
  .com.acme.Color color = 7;
  repeated .com.acme.Item items = 8;
  map<int64, .com.acme.Item> counts = 9;
  oneof which {
    int64 which_int = 10;
    .com.acme.Item which_item = 11;
    .com.acme.Color which_color = 12;
  }
  .com.acme.Order parent = 13;
  optional string note = 14;
  repeated string tags = 15;
  .com.acme.Item last = 40;
}

message Item {
  string sku = 1;
  optional int64 count = 2;
}

enum Color {
  COLOR_UNSPECIFIED = 0;
  COLOR_RED = 1;
  COLOR_BLUE = 2;
}
"""

DECIMAL = """\
syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
"""


def written_and_read(declared: Any, value: Any) -> Any:
    described = describe_type(declared)
    assert isinstance(described, RecordType)
    values = ProtobufValues(described)
    cls = message_class(LIBRARY, protobuf_file_of(declared))
    message, copy = cls(), cls()
    values.put(message, value)
    copy.ParseFromString(message.SerializeToString())
    return values.read(copy)


def compiled(text: str, directory: Path) -> Any:
    """Return the descriptor that protoc makes out of a file."""
    (directory / "confluent/type").mkdir(parents=True)
    (directory / "confluent/type/decimal.proto").write_text(DECIMAL)
    (directory / "streamlog").mkdir()
    (directory / "streamlog/derived.proto").write_text(text)
    standard = Path(grpc_tools.__file__).parent / "_proto"
    found = directory / "found"
    code = protoc.main(
        [
            "protoc",
            f"-I{directory}",
            f"-I{standard}",
            f"-I{Path(date_pb2.__file__).parents[2]}",
            f"--descriptor_set_out={found}",
            "streamlog/derived.proto",
        ]
    )
    assert code == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(found.read_bytes()).file
    for message in files[0].message_type:
        for each in message.field:
            each.ClearField("json_name")
        for nested in message.nested_type:
            for each in nested.field:
                each.ClearField("json_name")
    return files[0]


def test_a_record_is_a_message_with_numbered_fields() -> None:
    assert protobuf_file_of(Order).text == TEXT


def test_protoc_reads_the_text_as_the_messages_that_are_written(tmp_path: Path) -> None:
    file = protobuf_file_of(Order)
    assert file_descriptor(LIBRARY, file) == compiled(file.text, tmp_path)


@pytest.mark.parametrize("which", [None, 0, Item("u"), Color.RED])
@pytest.mark.parametrize("parent", [None, ORDER])
@pytest.mark.parametrize("note", ["", "n"])
def test_values_come_back(which: Any, parent: Any, note: Any) -> None:
    order = Order(**{**vars(ORDER), "which": which, "parent": parent, "note": note})
    assert written_and_read(Order, order) == order


@given(typed=records(nests=False, unions=True), data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_values_of_random_types_come_back(typed: Typed, data: st.DataObject) -> None:
    declared, values = typed
    value = data.draw(values)
    assert written_and_read(declared, value) == value


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (list[list[int]], r"Order.f\[\]: a list, dict or union inside a list or dict"),
        (list[int] | None, "Order.f: Protobuf can't tell an empty list or dict from None"),
        (dict[float, int], "Order.f: the keys of a map in Protobuf are str, int or bool"),
        (int | list[int], r"Order.f: a union in Protobuf \(oneof\) can't contain lists"),
        (Annotated[int, FieldNumber(19_500)], "Order.f: 19500 can't be the number of a field"),
        (Annotated[datetime, msgspec.Meta(tz=False)], "Order.f: Protobuf has no datetime without"),
    ],
)
def test_what_has_no_equivalent_is_refused_with_the_field(kind: Any, reason: str) -> None:
    declared = msgspec.defstruct("Order", [("f", kind)])
    with pytest.raises(SerdeError, match=reason):
        protobuf_file_of(declared)


def test_a_number_is_given_once() -> None:
    declared = msgspec.defstruct("Order", [("a", int), ("b", Annotated[int, FieldNumber(1)])])
    with pytest.raises(SerdeError, match=r"Order.b: the number 1 belongs to Order.a already"):
        protobuf_file_of(declared)


def test_only_a_message_is_outermost() -> None:
    with pytest.raises(SerdeError, match="int has no equivalent in Protobuf, whose outermost"):
        protobuf_file_of(int)
