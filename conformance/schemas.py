"""Clients of the schema registry: Confluent's Python client, and ours.

Both write one type in each format: a name and a count. What one of them has written the other one
reads, so that neither is compared with itself alone.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Final, Literal, Protocol, cast

from streamlog import App
from streamlog.errors import SchemaRegistryError
from streamlog.registry_client import RegistrySettings
from streamlog.registry_client.registry_admin import RegistryAdmin
from streamlog.registry_client.rest_api import CONFLICT
from streamlog.schemas import CompatibilityLevel, Schema, SchemaType
from streamlog.serdes.registered import RegistrySerde

REGISTRY: Final = "CONFORMANCE_REGISTRY"
"""The environment variable with the URLs of the cluster's registry."""
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
OWN_NAMES: Final[dict[str, Literal["avro", "json", "protobuf"]]] = {
    AVRO: "avro",
    JSON: "json",
    PROTOBUF: "protobuf",
}


class Refused(Exception):
    """The registry has refused a schema, because it would break readers."""


@dataclass
class Sale:
    """What is written."""

    name: str
    count: int


AVRO_TEXT: Final = json.dumps(
    {
        "type": "record",
        "name": "Sale",
        "fields": [{"name": "name", "type": "string"}, {"name": "count", "type": "long"}],
    }
)
JSON_TEXT: Final = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Sale",
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["name", "count"],
    }
)


class Schemas(Protocol):
    """A library's client of a registry, with its serializers."""

    def to_bytes(self, format_: str, topic: str, sale: Sale) -> bytes:
        """Return the bytes of a value, after its schema is registered."""
        ...

    def from_bytes(self, format_: str, topic: str, data: bytes) -> Sale:
        """Return the value that bytes hold."""
        ...

    def register(self, subject: str, text: str) -> int:
        """Register a schema of Avro and return its id, or raise `Refused`."""
        ...

    def text_of(self, schema_id: int) -> str:
        """Return a schema by its id."""
        ...

    def is_compatible(self, subject: str, text: str) -> bool:
        """Return whether a schema may follow."""
        ...

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject."""
        ...

    def subjects(self) -> list[str]:
        """Return all subjects."""
        ...

    def set_level(self, subject: str, level: str) -> None:
        """Set the compatibility level of a subject."""
        ...

    def delete(self, subject: str) -> list[int]:
        """Delete a subject; return its versions."""
        ...


class ConfluentSchemas(Schemas):
    """confluent-kafka's client."""

    def __init__(self) -> None:
        from confluent_kafka import schema_registry  # noqa: PLC0415 - only this feature takes its extras

        self._library: Any = schema_registry
        self._client = self._library.SchemaRegistryClient({"url": os.environ[REGISTRY]})

    def to_bytes(self, format_: str, topic: str, sale: Sale) -> bytes:
        from confluent_kafka.schema_registry import (  # noqa: PLC0415 - as above
            avro,
            json_schema,
            protobuf,
        )

        if format_ == AVRO:
            write: Any = avro.AvroSerializer(self._client, AVRO_TEXT)
        elif format_ == JSON:
            write = json_schema.JSONSerializer(JSON_TEXT, self._client)
        else:
            kind = _message_class()
            serializer = protobuf.ProtobufSerializer(
                kind, self._client, {"use.deprecated.format": False}
            )
            return cast("bytes", serializer(kind(**asdict(sale)), self._context(topic)))
        return cast("bytes", write(asdict(sale), self._context(topic)))

    def from_bytes(self, format_: str, topic: str, data: bytes) -> Sale:
        from confluent_kafka.schema_registry import (  # noqa: PLC0415 - as above
            avro,
            json_schema,
            protobuf,
        )

        context = self._context(topic)
        if format_ == PROTOBUF:
            read: Any = protobuf.ProtobufDeserializer(
                _message_class(), {"use.deprecated.format": False}
            )
            found = read(data, context)
            return Sale(found.name, found.count)
        read = (
            avro.AvroDeserializer(self._client)
            if format_ == AVRO
            else json_schema.JSONDeserializer(None, schema_registry_client=self._client)
        )
        return Sale(**read(data, context))

    def register(self, subject: str, text: str) -> int:
        try:
            return int(self._client.register_schema(subject, self._library.Schema(text, AVRO)))
        except self._library.SchemaRegistryError as error:
            raise _refusal(error, error.http_status_code) from error

    def text_of(self, schema_id: int) -> str:
        return str(self._client.get_schema(schema_id).schema_str)

    def is_compatible(self, subject: str, text: str) -> bool:
        return bool(self._client.test_compatibility(subject, self._library.Schema(text, AVRO)))

    def versions(self, subject: str) -> list[int]:
        return [*self._client.get_versions(subject)]

    def subjects(self) -> list[str]:
        return [*self._client.get_subjects()]

    def set_level(self, subject: str, level: str) -> None:
        levels = import_module(f"{self._library.__name__}.common.schema_registry_client")
        compatibility = levels.ConfigCompatibilityLevel(level)
        self._client.set_config(subject, self._library.ServerConfig(compatibility=compatibility))

    def delete(self, subject: str) -> list[int]:
        return [*self._client.delete_subject(subject)]

    def _context(self, topic: str) -> object:
        from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415 - as above

        return SerializationContext(topic, MessageField.VALUE)


class OwnSchemas(Schemas):
    """Our serdes, and our client for operators."""

    def __init__(self) -> None:
        self._app = App("conformance", schema_registry=os.environ[REGISTRY])
        self._admin = RegistryAdmin(RegistrySettings.of(os.environ[REGISTRY]))
        self._serdes: dict[tuple[str, str], RegistrySerde[Any]] = {}

    def to_bytes(self, format_: str, topic: str, sale: Sale) -> bytes:
        serde = self._serde(format_, topic)
        # A worker does this when it starts.
        self._admin.add(serde.subject, serde.schema)
        return serde.dumps(sale)

    def from_bytes(self, format_: str, topic: str, data: bytes) -> Sale:
        return cast("Sale", self._serde(format_, topic).loads(data))

    def register(self, subject: str, text: str) -> int:
        try:
            return self._admin.add(subject, Schema(SchemaType.AVRO, text))
        except SchemaRegistryError as error:
            raise _refusal(error, error.status) from error

    def text_of(self, schema_id: int) -> str:
        return self._admin.schema_by_id(schema_id).text

    def is_compatible(self, subject: str, text: str) -> bool:
        return self._admin.compare(subject, Schema(SchemaType.AVRO, text)).is_compatible

    def versions(self, subject: str) -> list[int]:
        return self._admin.versions_of(subject)

    def subjects(self) -> list[str]:
        return self._admin.subjects()

    def set_level(self, subject: str, level: str) -> None:
        self._admin.set_config(subject, level=CompatibilityLevel(level))

    def delete(self, subject: str) -> list[int]:
        return self._admin.delete_subject(subject)

    def _serde(self, format_: str, topic: str) -> RegistrySerde[Any]:
        known = self._serdes.get((format_, topic))
        if known is None:
            declared = self._app.topic(topic, key=str, value=Sale, schema=OWN_NAMES[format_])
            serde = declared.spec.value
            assert isinstance(serde, RegistrySerde)
            known = self._serdes[format_, topic] = serde
        return known


def _message_class() -> Any:
    """Return a class of Protobuf with the fields of a sale."""
    # Without types of its own, and only this feature takes it.
    descriptor_pb2, descriptor_pool, message_factory = (
        import_module(f"google.protobuf.{name}")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    file = descriptor_pb2.FileDescriptorProto(name="conformance/sale.proto", syntax="proto3")
    message = file.message_type.add(name="Sale")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        (("name", kinds.TYPE_STRING), ("count", kinds.TYPE_INT64)), 1
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Sale"))


def _refusal(error: Exception, status: int) -> Exception:
    return Refused(str(error)) if status == CONFLICT else error
