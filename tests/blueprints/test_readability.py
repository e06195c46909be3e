"""The parts of registered schemas that a reader can't read, by the names of fields."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any

import msgspec
import pytest

from streamlog.blueprints.avro_readability import unread_avro
from streamlog.blueprints.readability import is_readable, unread_parts
from streamlog.blueprints.unread_part import UnreadKind
from streamlog.schemas import AvroSchema, Schema, SchemaType, parse_schema
from streamlog.schemas.compatibility.avro_compatibility import avro_differences
from streamlog.serdes.derived import avro_schema_of, json_schema_of
from tests.schemas.random_avro import random_pair


def record(name: str, **fields: Any) -> type:
    return make_dataclass(name, list(fields.items()))


def registered(kind: str, schema: object) -> Any:
    return {"registry": {"type": kind, "text": msgspec.json.encode(schema).decode()}}


def avro(declared: Any) -> Any:
    return registered("AVRO", avro_schema_of(declared))


def json(declared: Any) -> Any:
    return registered("JSON", json_schema_of(declared))


@dataclass
class Line:
    sku: str
    price: float


@dataclass
class Order:
    id: int
    lines: list[Line]
    by_sku: dict[str, Line | None]
    note: str | None = None


SHORT = record("Line", sku=str)
CHANGED = record("Order", id=str, lines=list[SHORT], by_sku=dict[str, SHORT | None])  # type: ignore[valid-type]


@pytest.mark.parametrize("form", [avro, json])
def test_parts_have_the_paths_of_the_fields(form: Any) -> None:
    assert unread_parts(form(Order), form(Order)) == []
    found = {(part.path, part.kind) for part in unread_parts(form(Order), form(CHANGED))}
    assert found == {
        ("id", UnreadKind.TYPE),
        ("lines[].price", UnreadKind.MISSING),
        ("by_sku{}.price", UnreadKind.MISSING),
    }
    gone = unread_parts(form(Order), form(CHANGED), needs_all=True)
    assert ("note", UnreadKind.MISSING) in {(part.path, part.kind) for part in gone}
    # Readers skip fields that they do not know.
    assert is_readable(form(record("Order", id=int)), form(Order))


def proto(text: str) -> Any:
    return {"registry": {"type": "PROTOBUF", "text": f'syntax = "proto3"; {text}'}}


def test_fields_of_protobuf_have_names_and_what_only_the_writer_has_is_skipped() -> None:
    order = "message Order { int64 id = 1; double amount = 2; Line line = 3; }"
    line = "message Line { string sku = 1; }"
    other = "message Order { string id = 1; Line line = 3; Note note = 4; }"
    lines = "message Line { int64 sku = 1; } message Note { string text = 1; }"
    assert is_readable(proto(line), proto("message Line { string sku = 1; int32 n = 2; }"))
    found = unread_parts(proto(order + line), proto(other + lines))
    assert [(each.path, each.kind, each.reader, each.writer) for each in found] == [
        ("id", UnreadKind.TYPE, "int64", "string"),
        ("Line.sku", UnreadKind.TYPE, "string", "int64"),
    ]
    gone = unread_parts(proto(order + line), proto(other + lines), needs_all=True)
    assert [each.path for each in gone if each.kind is UnreadKind.MISSING] == ["amount"]


def test_equal_keys_need_equal_schemas() -> None:
    more = record("Line", sku=str, price=float, note=str)
    assert is_readable(avro(Line), avro(more))
    assert not is_readable(avro(Line), avro(more), is_key=True)
    assert is_readable(avro(Line), avro(Line), is_key=True)


def test_types_are_named_as_avro_names_them() -> None:
    (part,) = unread_parts(avro(record("A", a=int | None)), avro(record("A", a=str)))
    assert (part.reader, part.writer) == ("a long or null", "a string")


def test_schemas_that_can_not_be_parsed_alone_are_not_compared() -> None:
    inner = {"type": "record", "name": "A", "fields": [{"name": "b", "type": "other.B"}]}
    (part,) = unread_parts(avro(Line), registered("AVRO", inner))
    assert part.kind is UnreadKind.INCOMPARABLE
    (part,) = unread_parts(avro(Line), json(Line))
    assert part.kind is UnreadKind.CODING


@pytest.mark.parametrize("seed", range(0, 1000, 50))
def test_a_part_is_found_exactly_if_avro_refuses(seed: int) -> None:
    for each in range(seed, seed + 50):
        reader, writer = (_parse(schema) for schema in random_pair(each))
        found = unread_avro(reader.root, writer.root)
        assert bool(found) == bool(avro_differences(reader.root, writer.root)), each


def _parse(schema: Any) -> AvroSchema:
    text = msgspec.json.encode(schema).decode()
    parsed = parse_schema(Schema(SchemaType.AVRO, text), is_new=False)
    assert isinstance(parsed, AvroSchema)
    return parsed
