"""Contracts as an AsyncAPI 3.0 document, and back.

A topic is a channel, each type in it a message, and each use by an app an operation. The contracts
themselves are in the extension `x-streamlog-contracts`, so that a document stands in for a log
where there is none, as in CI. Each is a text, because tools follow references in extensions too.

Rule: the document follows AsyncAPI's JSON Schema. JSON Schemas of types are rewritten in draft 7,
which AsyncAPI's Schema Object extends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from streamlog.contracts.contract import MALFORMED, Contract, TopicType, TopicUse
from streamlog.contracts.contract_map import MappedTopic, map_topics
from streamlog.errors import CorruptData
from streamlog.serdes.erased_types import JsonValue

VERSION: Final = "3.0.0"
EXTENSION: Final = "x-streamlog-contracts"
BINDING_VERSION: Final = "0.5.0"
"""The version of AsyncAPI's Kafka bindings."""
DOCUMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest document that is read."""
JSON_TYPE, BINARY_TYPE = "application/json", "application/octet-stream"
Json = dict[str, JsonValue]

_PLAIN: Mapping[str, Json] = {
    "StrSerde": {"type": "string"},
    "BytesSerde": {"type": "string", "format": "binary"},
    "IntSerde": {"type": "integer", "format": "int64"},
    "FloatSerde": {"type": "number", "format": "double"},
}
_FORMATS = {
    "AVRO": "application/vnd.apache.avro+json;version=1.9.0",
    "JSON": "application/schema+json;version=draft-07",
    "PROTOBUF": "application/vnd.google.protobuf;version=3",
}
"""AsyncAPI's names for the formats of registered schemas."""
_OUTSIDE = re.compile(r"[^\w.-]+")
_RENAMED = {"prefixItems": "items", "items": "additionalItems"}
"""Keywords for tuples that draft 7 has under other names."""


def async_api(
    contracts: Iterable[Contract],
    *,
    title: str,
    version: str,
    host: str | None = None,
    partitions: Mapping[str, int] | None = None,
) -> Json:
    """Return the document of these contracts.

    Args:
        contracts: one contract per app.
        title: the document's title.
        version: the version of what it describes.
        host: HOST:PORT of a broker; None leaves servers out.
        partitions: the partition counts of topics.
    """
    contracts = list(contracts)
    document: Json = {
        "asyncapi": VERSION,
        "info": {"title": title, "version": version},
        "defaultContentType": JSON_TYPE,
    }
    if host is not None:
        document["servers"] = {"log": {"host": host, "protocol": "kafka"}}
    # Topic by topic: a message is named after its type, and two topics may have types of one name.
    writing = _Document()
    for topic in map_topics(contracts, partitions):
        writing.add(topic)
    return document | {
        "channels": writing.channels,
        "operations": writing.operations,
        "components": {"messages": writing.messages, "schemas": writing.schemas},
        EXTENSION: {each.app: each.encode().decode() for each in contracts},
    }


def read_document(data: bytes, name: str) -> tuple[dict[str, Contract], dict[str, int]]:
    """Return the contracts in a document by app, and the partition counts of topics.

    Args:
        data: the document as JSON.
        name: the name of its file, for messages.

    Raises:
        CorruptData: it is no such document.
    """
    if len(data) > DOCUMENT_BYTES_MAX:
        raise CorruptData(f"{name} has {len(data)} bytes, more than {DOCUMENT_BYTES_MAX}")
    try:
        document = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        if EXTENSION not in document:
            raise CorruptData(
                f"{name} has no {EXTENSION!r}: write it with `streamlog contracts export`"
            )
        texts = msgspec.json.decode(document[EXTENSION], type=dict[str, str])
        found = {app: Contract.decode(text.encode()) for app, text in texts.items()}
        channels = msgspec.json.decode(document.get("channels", b"{}"), type=dict[str, _Channel])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptData(f"{name} is no document of contracts: {error}") from error
    partitions = {
        name: kafka.partitions
        for name, channel in channels.items()
        if (kafka := channel.bindings.kafka) is not None and kafka.partitions is not None
    }
    return found, partitions


class _KafkaBinding(msgspec.Struct):
    partitions: int | None = None


class _Bindings(msgspec.Struct):
    kafka: _KafkaBinding | None = None


class _Channel(msgspec.Struct):
    bindings: _Bindings = msgspec.field(default_factory=_Bindings)


class _Document:
    """The parts of a document, as they grow."""

    def __init__(self) -> None:
        self.channels: Json = {}
        self.operations: Json = {}
        self.messages: Json = {}
        self.schemas: Json = {}

    def add(self, topic: MappedTopic) -> None:
        """Add a topic with its messages and operations."""
        kafka: Json = {"topic": topic.name, "bindingVersion": BINDING_VERSION}
        if topic.partitions is not None:
            kafka["partitions"] = topic.partitions
        channel: Json = {
            "address": topic.name,
            "messages": {},
            "bindings": {"kafka": kafka},
        }
        self.channels[topic.name] = channel
        named: dict[bytes, str] = {}
        for action, uses in (("send", topic.writers), ("receive", topic.readers)):
            for app, use in uses.items():
                # Equal types of several apps are one message.
                content = msgspec.json.encode((use.key, use.value), order="deterministic")
                # 1. `shop` writes `Order`, and `billing` reads a type of equal fields: one message.
                # 2. `fraud` reads an `Order` with two of the fields: a second message,
                #    `Order-fraud`, which only its own operation names.
                if content not in named:
                    taken = channel["messages"]
                    named[content] = self._message(topic.name, app, use, taken)
                    taken[named[content]] = {
                        "$ref": f"#/components/messages/{topic.name}.{named[content]}"
                    }
                self._operation(topic.name, app, action, named[content])

    def _message(self, topic: str, app: str, use: TopicUse, taken: Mapping[str, object]) -> str:
        name = _OUTSIDE.sub("_", use.value.name).strip("_") or "value"
        # An app that reads the topic with another type of that name.
        name = f"{name}-{app}" if name in taken else name
        suffix = f"-{app}" if taken else ""
        key: Json = {"bindingVersion": BINDING_VERSION}
        keys = self._schema(use.key, f"{topic}.key.", suffix)
        # A key's binding is a Schema Object: other formats are described, not included. A bare
        # reference is refused by AsyncAPI's JSON Schema, to which it is a schema as well.
        key["key"] = {"description": use.key.name} if "schemaFormat" in keys else {"allOf": [keys]}
        is_json = isinstance(use.value.form, dict) and "json" in use.value.form
        is_text = use.value.form == "StrSerde"
        self.messages[f"{topic}.{name}"] = {
            "name": use.value.name,
            "title": use.value.name,
            "contentType": JSON_TYPE if is_json else "text/plain" if is_text else BINARY_TYPE,
            "payload": self._schema(use.value, f"{topic}.", suffix),
            "bindings": {"kafka": key},
        }
        return name

    def _operation(self, topic: str, app: str, action: str, message: str) -> None:
        operation: Json = {
            "action": action,
            "channel": {"$ref": f"#/channels/{topic}"},
            "messages": [{"$ref": f"#/channels/{topic}/messages/{message}"}],
            "tags": [{"name": app}],
        }
        if action == "receive":
            group = {"type": "string", "enum": [app]}
            operation["bindings"] = {"kafka": {"groupId": group, "bindingVersion": BINDING_VERSION}}
        self.operations[f"{app}.{action}.{topic}"] = operation

    def _schema(self, type_: TopicType, prefix: str, suffix: str) -> Json:
        """Return the schema of a type; definitions in it go to the components."""
        try:
            return self._described(type_, prefix, suffix)
        except MALFORMED:
            # Another app's description comes from the log.
            return {"description": type_.name}

    def _described(self, type_: TopicType, prefix: str, suffix: str) -> Json:
        match type_.form:
            case {"json": {**words}} | {"msgpack": {**words}}:
                schema: Json = {str(word): value for word, value in words.items()}
                definitions: Json = schema.pop("$defs", {})
                names = {each: f"{prefix}{_OUTSIDE.sub('_', each)}{suffix}" for each in definitions}
                for each, definition in definitions.items():
                    self.schemas[names[each]] = _draft_7(definition, names)
                found: Json = _draft_7(schema, names)
                return found
            case {"registry": {"type": str(kind), "text": str(text)}}:
                # Schemas that it refers to stay in the contract, `x-streamlog-contracts`.
                registered: JsonValue = text if kind == "PROTOBUF" else msgspec.json.decode(text)
                return {"schemaFormat": _FORMATS[kind], "schema": registered}
            case str(plain) if plain in _PLAIN:
                return _PLAIN[plain]
        # Bytes of a format that JSON Schema can't describe.
        return {"description": type_.name}


def _draft_7(schema: JsonValue, names: Mapping[str, str]) -> JsonValue:
    """Return a JSON Schema in draft 7, with its references to the components."""
    if isinstance(schema, list):
        return [_draft_7(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # References begin at the root of the document, where a schema's own `$defs` are not.
    if "$ref" in schema:
        return {"$ref": f"#/components/schemas/{names[str(schema['$ref']).rpartition('/')[2]]}"}
    found: Json = {}
    is_tuple = "prefixItems" in schema
    for word, value in schema.items():
        match word, value:
            case "discriminator", {"propertyName": name}:
                # AsyncAPI has the name of the property alone.
                found[word] = name
            case "properties", {**properties}:
                # Names of fields, which may be those of keywords.
                found[word] = {
                    str(each): _draft_7(part, names) for each, part in properties.items()
                }
            case (("enum" | "const" | "default" | "examples" | "required"), _):
                found[word] = value
            case _:
                renamed = _RENAMED.get(str(word), word) if is_tuple else word
                found[str(renamed)] = _draft_7(value, names)
    return found
