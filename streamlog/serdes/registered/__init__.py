"""Registered: values whose schemas a schema registry keeps, in Avro, JSON Schema or Protobuf.

`topic_schema` says what a topic declares, `framing` how a record names its schema, `registry_serde`
is the serde, with one codec for each format (`avro_codec`, `json_codec`, `protobuf_codec`), and
`schema_source` is the port to a registry, with one in memory for tests.

Rule: bytes name the schema that they were written with, and are read with it. Not done here:
requests to a registry (`registry_client`), and when a schema is registered (`worker`).
"""

from __future__ import annotations

from streamlog.serdes.registered.framing import SchemaKey
from streamlog.serdes.registered.registry_serde import RegistrySerde, registry_serde
from streamlog.serdes.registered.schema_source import (
    MEMORY_REGISTRY,
    RegisteredSchema,
    SchemaAccess,
    SchemaSource,
)
from streamlog.serdes.registered.topic_schema import SchemaPolicy, TopicSchema, subject_name

__all__ = [
    "MEMORY_REGISTRY",
    "RegisteredSchema",
    "RegistrySerde",
    "SchemaAccess",
    "SchemaKey",
    "SchemaPolicy",
    "SchemaSource",
    "TopicSchema",
    "registry_serde",
    "subject_name",
]
