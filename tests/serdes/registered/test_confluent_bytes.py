"""Bytes of all three formats, held against the serializers of confluent-kafka, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from streamlog.record import Headers
from streamlog.registry_client import RegistrySettings, SchemaBook
from streamlog.serdes.plain import StrSerde
from streamlog.serdes.registered import RegistrySerde, SchemaAccess, TopicSchema, registry_serde
from streamlog.serdes.registered.framing import absorb_header, split_header
from tests.registry_client.stub_registry import StubRegistry

Ids = Literal["prefix", "header"]


@dataclass
class Item:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: str
    amount: float
    items: list[Item] = field(default_factory=list)
    note: str | None = None


ORDER = Order("o-1", 12.5, [Item("a", 2), Item("b", 3)], "soon")


@pytest.fixture(scope="module")
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as found:
        yield found


@pytest.fixture(scope="module")
def client(registry: StubRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as found:
        yield found


def serde_of(registry: StubRegistry, given: TopicSchema, declared: Any) -> RegistrySerde[Any]:
    access = SchemaAccess(lambda: SchemaBook(RegistrySettings.of(registry.url)))
    return registry_serde(given, declared, "orders", "value", access)


def registered(registry: StubRegistry, serde: RegistrySerde[Any]) -> RegistrySerde[Any]:
    SchemaBook(RegistrySettings.of(registry.url)).client.register(serde.subject, serde.schema)
    return serde


def context(headers: list[Any]) -> SerializationContext:
    return SerializationContext("orders", MessageField.VALUE, headers)


def written(serde: RegistrySerde[Any], value: Any) -> tuple[bytes | None, Headers]:
    """Return a value and its headers as they are in the log."""
    _, data, headers = split_header(StrSerde(), serde, (None, serde.dumps(value), ()))
    return data, headers


def read(serde: RegistrySerde[Any], data: bytes, headers: list[Any]) -> Any:
    _, whole, left = absorb_header(StrSerde(), serde, (None, data, tuple(headers)))
    assert left == ()
    return serde.loads(whole or b"")


def conf(ids: Ids, **more: Any) -> dict[str, Any]:
    by = {"prefix": prefix_schema_id_serializer, "header": header_schema_id_serializer}
    return {"auto.register.schemas": False, "schema.id.serializer": by[ids], **more}


def nested_message() -> Any:
    file = FileDescriptorProto(name="places.proto", package="acme", syntax="proto3")
    file.message_type.add(name="First")
    nested = file.message_type.add(name="Shop").nested_type.add(name="Place")
    nested.field.add(name="name", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("acme.Shop.Place"))


@pytest.mark.parametrize("ids", ["prefix", "header"])
def test_avro_is_equal_byte_for_byte(
    registry: StubRegistry, client: SchemaRegistryClient, ids: Ids
) -> None:
    serde = registered(registry, serde_of(registry, TopicSchema("avro", ids=ids), Order))
    theirs = AvroSerializer(client, serde.schema.text, lambda order, _: asdict(order), conf(ids))
    headers: list[Any] = []
    data = theirs(ORDER, context(headers))
    assert written(serde, ORDER) == (data, tuple(headers))
    assert read(serde, data, headers) == ORDER
    back = AvroDeserializer(client, conf={"schema.id.deserializer": dual_schema_id_deserializer})
    ours, sent = written(serde, ORDER)
    assert back(ours, context([*sent])) == asdict(ORDER)


@pytest.mark.parametrize("ids", ["prefix", "header"])
def test_json_is_read_both_ways(
    registry: StubRegistry, client: SchemaRegistryClient, ids: Ids
) -> None:
    serde = registered(registry, serde_of(registry, TopicSchema("json", ids=ids), Order))
    theirs = JSONSerializer(
        serde.schema.text, client, lambda order, _: asdict(order), conf(ids, validate=True)
    )
    headers: list[Any] = []
    data = theirs(ORDER, context(headers))
    ours, sent = written(serde, ORDER)
    # The text of JSON is the writer's choice (theirs has blanks), what stands before it is not.
    assert sent == tuple(headers)
    assert ours is not None
    assert ours.partition(b"{")[0] == data.partition(b"{")[0]
    assert read(serde, data, headers) == ORDER
    back = JSONDeserializer(
        serde.schema.text,
        schema_registry_client=client,
        conf={"schema.id.deserializer": dual_schema_id_deserializer},
    )
    assert back(ours, context([*sent])) == asdict(ORDER)


@pytest.mark.parametrize("ids", ["prefix", "header"])
def test_messages_of_protoc_are_equal_byte_for_byte(
    registry: StubRegistry, client: SchemaRegistryClient, ids: Ids
) -> None:
    """The message is inside the second one of its file: its indexes are 1, 0."""
    place: Any = nested_message()
    value = place(name="ulm")
    serde = registered(registry, serde_of(registry, TopicSchema("protobuf", ids=ids), place))
    theirs = ProtobufSerializer(place, client, conf(ids, **{"use.deprecated.format": False}))
    headers: list[Any] = []
    data = theirs(value, context(headers))
    assert written(serde, value) == (data, tuple(headers))
    assert read(serde, data, headers) == value
    back = ProtobufDeserializer(
        place,
        {
            "use.deprecated.format": False,
            "schema.id.deserializer": dual_schema_id_deserializer,
        },
        client,
    )
    ours, sent = written(serde, value)
    assert back(ours, context([*sent])) == value


@pytest.mark.parametrize("ids", ["prefix", "header"])
def test_messages_of_derived_types_are_equal_byte_for_byte(
    registry: StubRegistry, client: SchemaRegistryClient, ids: Ids
) -> None:
    serde = registered(registry, serde_of(registry, TopicSchema("protobuf", ids=ids), Order))
    message: Any = serde._codec._message  # type: ignore[attr-defined]
    theirs = ProtobufSerializer(message, client, conf(ids, **{"use.deprecated.format": False}))
    # Theirs registers the descriptor in base64, ours the text: each has an id of its own.
    theirs._auto_register = True
    headers: list[Any] = []
    value = message.FromString(serde.dumps(ORDER)[serde.head_size(serde.dumps(ORDER)) :])
    data = theirs(value, context(headers))
    ours, sent = written(serde, ORDER)
    assert ours is not None
    skip = 6 if ids == "prefix" else 0
    assert ours[skip:] == data[skip:]
    assert [(name, len(found or b"")) for name, found in sent] == [
        (name, len(found)) for name, found in headers
    ]
    assert read(serde, data, headers) == ORDER
