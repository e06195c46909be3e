"""Protobuf messages as dicts: they come back, and are what Google's own JSON says."""

from __future__ import annotations

import base64
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import ConfigError, SerdeError
from streamlog.schemas import Schema, SchemaReference, SchemaType
from streamlog.serdes.registered import (
    MEMORY_REGISTRY,
    RegistrySerde,
    SchemaAccess,
    TopicSchema,
    registry_serde,
)
from streamlog.serdes.registered.message_dicts import MessageDicts
from streamlog.serdes.registered.protobuf_codec import registered_message

ORDER = """
syntax = "proto3";
package acme;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
import "confluent/type/decimal.proto";
message Order {
  int64 id = 1;
  int32 count = 2;
  uint64 large = 3;
  double amount = 4;
  bool paid = 5;
  string note = 6;
  bytes data = 7;
  optional string hint = 8;
  Kind kind = 9;
  repeated Kind kinds = 10;
  repeated string tags = 11;
  Line first = 12;
  repeated Line lines = 13;
  map<string, int64> stock = 14;
  map<int32, Line> shelves = 15;
  map<bool, Kind> switches = 16;
  oneof payer { string card = 17; Line voucher = 18; }
  Order parent = 19;
}
message Line { string sku = 1; double price = 2; }
enum Kind { NONE = 0; WEB = 1; SHOP = 2; }
message Known {
  google.protobuf.Timestamp at = 1;
  google.protobuf.Duration span = 2;
  google.type.Date day = 3;
  google.type.TimeOfDay clock = 4;
  confluent.type.Decimal total = 5;
  google.protobuf.Int64Value number = 6;
  google.protobuf.BytesValue raw = 7;
  google.protobuf.Struct more = 8;
  google.protobuf.Value anything = 9;
  google.protobuf.ListValue several = 10;
}
"""
SCHEMA = Schema(SchemaType.PROTOBUF, ORDER)
ORDERS, KNOWN = (registered_message(SCHEMA, {}, f"acme.{name}") for name in ("Order", "Known"))

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
numbers = st.integers(-(2**31), 2**31 - 1)
kinds = st.sampled_from(["NONE", "WEB", "SHOP"]) | st.integers(3, 9)
floats = st.floats(allow_nan=False)
lines = st.fixed_dictionaries({"sku": st.text(max_size=3), "price": floats})
whole = st.integers(-(2**63), 2**63 - 1)


def orders(parents: Any) -> Any:
    flat = st.fixed_dictionaries({
        "id": whole, "count": numbers, "large": st.integers(0, 2**64 - 1), "amount": floats,
        "paid": st.booleans(), "note": st.text(max_size=3), "data": st.binary(max_size=3),
        "hint": st.none() | st.text(max_size=3), "kind": kinds,
        "kinds": st.lists(kinds, max_size=3), "tags": st.lists(st.text(max_size=2), max_size=3),
        "first": st.none() | lines, "lines": st.lists(lines, max_size=2),
        "stock": st.dictionaries(st.text(max_size=2), whole, max_size=2),
        "shelves": st.dictionaries(numbers, lines, max_size=2),
        "switches": st.dictionaries(st.booleans(), kinds, max_size=2),
        "parent": parents,
    })  # fmt: skip
    payers = st.sampled_from([{}, {"card": "1"}, {"voucher": {"sku": "v", "price": 0.0}}])
    nothing = {"card": None, "voucher": None}
    return st.tuples(flat, payers).map(lambda both: {**both[0], **nothing, **both[1]})


@given(orders(st.none() | orders(st.none())))
def test_random_messages_come_back_and_are_what_googles_json_says(value: dict[str, Any]) -> None:
    dicts, message = MessageDicts(ORDERS.DESCRIPTOR), ORDERS()
    dicts.put(message, value)
    parsed = ORDERS.FromString(message.SerializeToString())
    assert dicts.read(parsed) == value
    theirs = json_format.MessageToDict(
        parsed, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    assert theirs == as_json(value)


def as_json(value: Any, name: str = "") -> Any:
    """Return a value of these messages as Google's JSON has it (ProtoJSON)."""
    match value:
        case dict():
            parts = {as_key(key): as_json(part, key) for key, part in value.items()}
            if name == "stock":
                return {key: str(part) for key, part in parts.items()}
            return {key: part for key, part in parts.items() if part is not None}
        case list():
            return [as_json(each) for each in value]
    return as_scalar(value, name)


def as_scalar(value: Any, name: str) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(value) if name in {"id", "large"} else value


def as_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


@given(
    st.fixed_dictionaries(
        {
            "at": st.none()
            | st.timedeltas(timedelta(-700_000), timedelta(2_900_000)).map(lambda d: EPOCH + d),
            "span": st.none() | st.timedeltas(timedelta(-100_000), timedelta(100_000)),
            "day": st.none() | st.dates(),
            "clock": st.none() | st.times(),
            "total": st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=2),
            "number": st.none() | whole,
            "raw": st.none() | st.binary(max_size=3),
            "more": st.none() | st.dictionaries(st.text(max_size=2), st.booleans(), max_size=2),
            "anything": st.text(max_size=2) | st.lists(st.booleans(), max_size=2),
            "several": st.none() | st.lists(st.text(max_size=2) | st.none(), max_size=2),
        }
    )
)
def test_well_known_messages_are_values_of_python(value: dict[str, Any]) -> None:
    dicts, message = MessageDicts(KNOWN.DESCRIPTOR), KNOWN()
    dicts.put(message, value)
    assert dicts.read(KNOWN.FromString(message.SerializeToString())) == value


def test_the_types_are_those_of_derived_schemas() -> None:
    message = KNOWN()
    dicts = MessageDicts(KNOWN.DESCRIPTOR)
    given = {
        "at": datetime(2026, 11, 28, tzinfo=UTC), "span": timedelta(seconds=1.5),
        "day": date(2026, 11, 28), "clock": time(1, 2, 3, 4), "total": Decimal("1.20"),
    }  # fmt: skip
    dicts.put(message, given)
    assert message.at.ToJsonString() == "2026-11-28T00:00:00Z"
    assert message.total.scale == 2
    assert {name: dicts.read(message)[name] for name in given} == given


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "Order is a dict, got list"),
        ({"x": 1}, "`x` is no field of acme.Order"),
        ({"id": "1"}, "`id`: int expected, got str"),
        ({"id": True}, "`id`: int expected, got bool"),
        ({"id": None}, "`id`: int expected, got NoneType"),
        ({"count": 2**40}, "`count`: "),
        ({"kind": "OTHER"}, "`kind`: 'OTHER' is no member of Kind: NONE, WEB, SHOP"),
        ({"tags": "ab"}, "`tags`: list expected, got str"),
        ({"first": {"price": "1"}}, "`first.price`: float expected, got str"),
        ({"parent": {"first": {"y": 1}}}, "`parent.first`: `y` is no field of acme.Line"),
        ({"stock": {1: 1}}, "`stock`: str expected, got int"),
        ({"shelves": {1: 1}}, "`shelves`: Line is a dict, got int"),
    ],
)
def test_other_values_are_refused_with_their_path(value: Any, reason: str) -> None:
    with pytest.raises(SerdeError) as caught:
        MessageDicts(ORDERS.DESCRIPTOR).put(ORDERS(), value)
    assert str(caught.value).startswith(reason)


def serde_of(given: TopicSchema) -> RegistrySerde[Any]:
    access = SchemaAccess()
    access.use(MEMORY_REGISTRY)
    return registry_serde(given, dict, "orders", "value", access)


def test_a_topic_of_dicts_has_a_schema_by_hand() -> None:
    serde = serde_of(TopicSchema("protobuf", schema=SCHEMA))
    assert serde.schema is SCHEMA
    data = serde.dumps({"id": 1, "first": {"sku": "a"}})
    assert data[5:6] == b"\0"
    found = serde.loads(data)
    assert (found["id"], found["first"], found["hint"]) == (1, {"sku": "a", "price": 0.0}, None)
    with pytest.raises(SerdeError, match="dict can't be written as Protobuf: `id`: int expected"):
        serde.dumps({"id": "x"})


def test_another_message_of_the_file_may_be_meant() -> None:
    serde = serde_of(TopicSchema("protobuf", schema=SCHEMA, message="acme.Line", subjects="record"))
    assert serde.subject == "acme.Line"
    assert serde.dumps({"sku": "a"})[5:7] == b"\2\2"
    with pytest.raises(SerdeError, match=r"no message acme\.Nothing, but acme\.Known, acme\.Line"):
        serde_of(TopicSchema("protobuf", schema=SCHEMA, message="acme.Nothing"))


ITEM = Schema(SchemaType.PROTOBUF, 'syntax = "proto3"; message Item { string sku = 1; }')
BOX = Schema(
    SchemaType.PROTOBUF,
    'syntax = "proto3"; import "item.proto"; message Box { repeated Item items = 1; }',
    (SchemaReference("item.proto", "item", 1),),
)


def test_an_import_is_a_reference() -> None:
    serde = serde_of(TopicSchema("protobuf", schema=BOX, referenced={"item.proto": ITEM}))
    value = {"items": [{"sku": "a"}, {"sku": "b"}]}
    assert serde.loads(serde.dumps(value)) == value
    with pytest.raises(ConfigError, match=r"refers to item\.proto: give TopicSchema\(\.\.\., ref"):
        serde_of(TopicSchema("protobuf", schema=BOX))


def test_references_of_avro_and_json_schema_are_given_too() -> None:
    item = Schema(SchemaType.AVRO, '{"type":"fixed","name":"I","size":2}')
    box = Schema(
        SchemaType.AVRO,
        '{"type":"record","name":"B","fields":[{"name":"i","type":"I"}]}',
        (SchemaReference("I", "item", 1),),
    )
    avro = serde_of(TopicSchema("avro", schema=box, referenced={"I": item}))
    assert avro.loads(avro.dumps({"i": b"ab"})) == {"i": b"ab"}
    with pytest.raises(ConfigError, match="refers to I: give TopicSchema"):
        serde_of(TopicSchema("avro", schema=box))
    part = Schema(SchemaType.JSON, '{"$defs":{"N":{"type":"integer","minimum":3}}}')
    whole = Schema(
        SchemaType.JSON,
        '{"properties":{"n":{"$ref":"item.json#/$defs/N"}}}',
        (SchemaReference("item.json", "item", 1),),
    )
    json = serde_of(TopicSchema("json", schema=whole, referenced={"item.json": part}))
    assert json.loads(json.dumps({"n": 3})) == {"n": 3}
    with pytest.raises(SerdeError, match=r"`\$\.n`: 2 is less than the minimum of 3"):
        json.dumps({"n": 2})


def test_references_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"refers to 'item\.proto'.*which is unknown"):
        TopicSchema("protobuf", schema=BOX, referenced={"other.proto": ITEM})
