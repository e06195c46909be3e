"""Confluent's Python client and its serializers, method by method, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.common.schema_registry_client import ConfigCompatibilityLevel
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.schema_registry.schema_registry_client import (
    Metadata,
    MetadataProperties,
    SchemaReference,
)
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.timestamp_pb2 import Timestamp

from tests.registry.running import RunningRegistry


@pytest.fixture
def client(registry: RunningRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as made:
        yield made


def avro(name: str, *fields: tuple[str, Any], **defaults: Any) -> ClientSchema:
    declared = [
        {"name": field, "type": kind} | ({"default": defaults[field]} if field in defaults else {})
        for field, kind in fields
    ]
    return ClientSchema(json.dumps({"type": "record", "name": name, "fields": declared}), "AVRO")


FIRST = avro("Order", ("number", "int"))
SECOND = avro("Order", ("number", "int"), ("note", "string"), note="")
BROKEN = avro("Order", ("number", "int"), ("amount", "int"))


def test_a_schema_is_registered_once_and_found_again(client: SchemaRegistryClient) -> None:
    schema_id = client.register_schema("once-value", FIRST)
    assert client.register_schema("once-again-value", FIRST) == schema_id
    found = client.get_schema(schema_id)
    assert found.schema_type == "AVRO"
    assert json.loads(found.schema_str or "") == json.loads(FIRST.schema_str or "")
    looked_up = client.lookup_schema("once-value", FIRST)
    assert (looked_up.schema_id, looked_up.version, looked_up.subject) == (
        schema_id,
        1,
        "once-value",
    )
    assert looked_up.guid is not None
    client.clear_caches()
    assert (
        client.get_schema_by_guid(looked_up.guid).schema_str
        == client.get_schema(schema_id).schema_str
    )
    assert set(client.get_subjects_by_schema_id(schema_id)) >= {"once-value", "once-again-value"}
    versions = client.get_schema_versions(schema_id)
    assert ("once-value", 1) in {(each.subject, each.version) for each in versions}
    full = client.register_schema_full_response("once-value", FIRST)
    assert full.schema_id == schema_id


def test_versions_of_a_subject_are_listed_read_and_deleted(client: SchemaRegistryClient) -> None:
    client.register_schema("versions-value", FIRST)
    second = client.register_schema("versions-value", SECOND)
    assert client.get_versions("versions-value") == [1, 2]
    latest = client.get_latest_version("versions-value")
    assert (latest.version, latest.schema_id) == (2, second)
    assert client.get_version("versions-value", 1).version == 1
    assert client.delete_version("versions-value", 1) == 1
    assert client.get_versions("versions-value") == [2]
    assert client.get_versions("versions-value", deleted=True) == [1, 2]
    assert client.delete_version("versions-value", 1, permanent=True) == 1
    assert client.get_versions("versions-value", deleted=True) == [2]


def test_a_subject_is_deleted_softly_and_for_good(client: SchemaRegistryClient) -> None:
    schema_id = client.register_schema("gone-value", avro("Gone", ("x", "int")))
    assert "gone-value" in client.get_subjects()
    assert client.delete_subject("gone-value") == [1]
    assert "gone-value" not in client.get_subjects()
    assert "gone-value" in client.get_subjects(deleted=True)
    assert client.get_subjects(subject_prefix="gone", deleted_only=True) == ["gone-value"]
    client.clear_caches()
    assert client.get_schema(schema_id).schema_str
    assert client.get_schema_versions(schema_id) == []
    client.register_schema("gone-value", avro("Gone", ("x", "int")))
    assert client.get_versions("gone-value") == [2]
    assert client.delete_subject("gone-value") == [2]
    assert client.delete_subject("gone-value", permanent=True) == [2]
    client.clear_caches()
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_schema(schema_id)
    assert refused.value.error_code == 40403


def test_compatibility_is_configured_checked_and_enforced(client: SchemaRegistryClient) -> None:
    subject = "levels-value"
    client.register_schema(subject, FIRST)
    assert client.get_compatibility() == "BACKWARD"
    assert client.test_compatibility(subject, SECOND) is True
    assert client.test_compatibility(subject, BROKEN) is False
    assert client.test_compatibility(subject, BROKEN, version=1) is False
    assert client.test_compatibility_all_versions(subject, SECOND) is True
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, BROKEN)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 40901)
    client.set_compatibility(subject, "none")
    assert client.get_compatibility(subject) == "NONE"
    assert client.register_schema(subject, BROKEN)
    client.set_config(subject, ServerConfig(ConfigCompatibilityLevel.FULL, compatibility_group="x"))
    config = client.get_config(subject)
    assert (config.compatibility_level, config.compatibility_group) == ("FULL", "x")
    client.delete_config(subject)
    with pytest.raises(SchemaRegistryError) as missing:
        client.get_config(subject)
    assert missing.value.error_code == 40408


def test_modes_forbid_writes_and_allow_imports(client: SchemaRegistryClient) -> None:
    assert client.get_global_mode() == "READWRITE"
    client.update_mode("modes-value", "READONLY")
    assert client.get_mode("modes-value") == "READONLY"
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("modes-value", FIRST)
    assert refused.value.error_code == 42205
    client.update_mode("modes-value", "IMPORT")
    client.delete_mode("modes-value")
    assert client.update_global_mode("READWRITE") == "READWRITE"


def test_references_are_resolved_and_protect_what_they_name(client: SchemaRegistryClient) -> None:
    client.register_schema("address", avro("Address", ("city", "string")))
    person = ClientSchema(
        json.dumps(
            {"type": "record", "name": "Person", "fields": [{"name": "at", "type": "Address"}]}
        ),
        "AVRO",
        [SchemaReference("Address", "address", 1)],
    )
    schema_id = client.register_schema("person", person)
    assert client.get_referenced_by("address", 1) == [schema_id]
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_subject("address")
    assert refused.value.error_code == 42206
    client.clear_caches()
    found = client.get_schema(schema_id).references
    assert found is not None
    assert [(each.name, each.subject, each.version) for each in found] == [
        ("Address", "address", 1)
    ]


def test_metadata_is_kept_and_searched(client: SchemaRegistryClient) -> None:
    metadata = Metadata(tags=None, properties=MetadataProperties({"owner": "shop"}), sensitive=None)
    schema = ClientSchema(avro("Owned", ("x", "int")).schema_str, "AVRO", metadata=metadata)
    client.register_schema("owned", schema)
    found = client.get_latest_with_metadata("owned", {"owner": "shop"})
    assert found.version == 1


def test_types_and_contexts_are_listed(client: SchemaRegistryClient) -> None:
    assert set(client.get_schema_types()) == {"AVRO", "JSON", "PROTOBUF"}
    first = client.register_schema(":.other:orders-value", avro("Elsewhere", ("x", "int")))
    assert first >= 1
    assert ".other" in client.get_contexts()


def test_avro_records_come_back(client: SchemaRegistryClient) -> None:
    serializer = AvroSerializer(client, FIRST.schema_str)
    deserializer = AvroDeserializer(client)
    where = SerializationContext("avro-records", MessageField.VALUE)
    data = serializer({"number": 7}, where)
    assert data is not None
    assert data[0] == 0
    assert deserializer(data, where) == {"number": 7}
    assert topic_subject_name_strategy(where, None) == "avro-records-value"


def test_a_client_that_has_read_writes_without_registering(
    client: SchemaRegistryClient, registry: RunningRegistry
) -> None:
    where = SerializationContext("read-first", MessageField.VALUE)
    data = AvroSerializer(client, FIRST.schema_str)({"number": 7}, where)
    # Another client: it keeps the answer to the id that it reads as the registered schema.
    with SchemaRegistryClient({"url": registry.url}) as other:
        assert AvroDeserializer(other)(data, where) == {"number": 7}
        text = registry.get("/subjects/read-first-value/versions/1")["schema"]
        serializer = AvroSerializer(other, text, conf={"auto.register.schemas": False})
        assert serializer({"number": 7}, where) == data


def test_json_records_come_back(client: SchemaRegistryClient) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"number": {"type": "integer"}},
    }
    serializer = JSONSerializer(json.dumps(schema), client)
    deserializer = JSONDeserializer(json.dumps(schema), schema_registry_client=client)
    where = SerializationContext("json-records", MessageField.VALUE)
    data = serializer({"number": 7}, where)
    assert data is not None
    assert deserializer(data, where) == {"number": 7}
    assert client.get_latest_version("json-records-value").schema.schema_type == "JSON"


def test_protobuf_records_come_back(client: SchemaRegistryClient) -> None:
    serializer = ProtobufSerializer(Timestamp, client)
    deserializer = ProtobufDeserializer(Timestamp)
    where = SerializationContext("protobuf-records", MessageField.VALUE)
    data = serializer(Timestamp(seconds=7), where)
    assert data is not None
    assert deserializer(data, where) == Timestamp(seconds=7)
    assert client.get_latest_version("protobuf-records-value").schema.schema_type == "PROTOBUF"
