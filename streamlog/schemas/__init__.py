"""Schemas as a registry keeps them: parsing, canonical texts, and compatibility of three formats.

`parse_schema` (`parsing`) makes a `ParsedSchema` of a `Schema` (`schema`): of Avro
(`avro_schemas`), JSON Schema (`json_schema`) or Protobuf (`protobuf`). `compatibility` tells
whether a schema may follow others, and `changes` what has changed, in words.

Rule: pure functions of texts, without I/O. Not done here: which schemas are registered.
"""

from __future__ import annotations

from streamlog.errors import InvalidSchema
from streamlog.schemas.avro_schemas.avro_schema import AvroSchema
from streamlog.schemas.changes import describe_changes
from streamlog.schemas.compatibility import (
    CompatibilityLevel,
    Incompatibility,
    check,
    incompatibilities,
)
from streamlog.schemas.json_schema.json_parsing import JsonSchema
from streamlog.schemas.parsing import parse_schema
from streamlog.schemas.protobuf.protobuf_schema import ProtobufSchema
from streamlog.schemas.schema import (
    DEFAULT_LIMITS,
    ParsedSchema,
    Schema,
    SchemaLimits,
    SchemaReference,
    SchemaType,
)

__all__ = [
    "DEFAULT_LIMITS",
    "AvroSchema",
    "CompatibilityLevel",
    "Incompatibility",
    "InvalidSchema",
    "JsonSchema",
    "ParsedSchema",
    "ProtobufSchema",
    "Schema",
    "SchemaLimits",
    "SchemaReference",
    "SchemaType",
    "check",
    "describe_changes",
    "incompatibilities",
    "parse_schema",
]
