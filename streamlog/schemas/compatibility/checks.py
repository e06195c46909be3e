"""The check of a schema against those before it, by the level of compatibility.

Rule: as in Confluent's registry, the newest earlier schema is compared first, and the first one
that does not fit is reported, alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlog.schemas.avro_schemas.avro_schema import AvroSchema
from streamlog.schemas.compatibility.avro_compatibility import SENTENCES as AVRO_SENTENCES
from streamlog.schemas.compatibility.avro_compatibility import avro_differences
from streamlog.schemas.compatibility.json_compatibility import json_incompatibilities
from streamlog.schemas.compatibility.json_kinds import JSON_SENTENCES
from streamlog.schemas.compatibility.levels import (
    CompatibilityLevel,
    Difference,
    Incompatibility,
)
from streamlog.schemas.compatibility.protobuf_compatibility import (
    PROTOBUF_SENTENCES,
    protobuf_incompatibilities,
)
from streamlog.schemas.json_schema.json_parsing import JsonSchema
from streamlog.schemas.protobuf.protobuf_schema import ProtobufSchema
from streamlog.schemas.schema import ParsedSchema

OTHER_TYPE = "SCHEMA_TYPE_CHANGED"
"""The kind for two schemas of different formats, for which Confluent's registry has no name."""


def check(
    new: ParsedSchema, earlier: Sequence[ParsedSchema], level: CompatibilityLevel
) -> list[Incompatibility]:
    """Return why a schema may not follow others; [] if it may.

    Args:
        new: the schema.
        earlier: the schemas before it, the oldest first.
        level: who has to be able to read what.

    Raises:
        InvalidSchema: two schemas are nested too deep to be compared.
    """
    first = 0 if level.is_transitive else max(0, len(earlier) - 1)
    for index in reversed(range(first, len(earlier))):
        found: list[Incompatibility] = []
        if level.is_backward:
            found += incompatibilities(new, earlier[index], "new", "old", earlier=index)
        # The old schema reads what programs with the new one will write.
        if level.is_forward:
            found += incompatibilities(earlier[index], new, "old", "new", earlier=index)
        # One earlier schema is enough, and its version is what the answer names.
        if found:
            return found
    return []


def incompatibilities(
    reader: ParsedSchema,
    writer: ParsedSchema,
    reader_name: str = "new",
    writer_name: str = "old",
    *,
    earlier: int = 0,
) -> list[Incompatibility]:
    """Return why a reader with one schema can't read what a writer with another writes.

    Args:
        reader: the reader's schema.
        writer: the writer's schema.
        reader_name: what sentences call the reader's schema.
        writer_name: what sentences call the writer's schema.
        earlier: which of several earlier schemas is compared.

    Raises:
        InvalidSchema: the schemas are nested too deep to be compared.
    """
    match reader, writer:
        case AvroSchema(), AvroSchema():
            sentences, found = AVRO_SENTENCES, avro_differences(reader.root, writer.root)
        case JsonSchema(), JsonSchema():
            sentences, found = JSON_SENTENCES, json_incompatibilities(reader.root, writer.root)
        case ProtobufSchema(), ProtobufSchema():
            sentences, found = PROTOBUF_SENTENCES, protobuf_incompatibilities(reader, writer)
        case _:
            message = "Incompatible because of different schema type"
            return [Incompatibility(OTHER_TYPE, "/", message, earlier=earlier)]
    return [
        Incompatibility(
            each.kind,
            each.path,
            _sentence(sentences, each, reader_name, writer_name),
            each.detail,
            earlier,
        )
        for each in found
    ]


def _sentence(
    sentences: Mapping[str, str], found: Difference, reader_name: str, writer_name: str
) -> str:
    return sentences[found.kind].format(
        path=found.path, detail=found.detail, reader=reader_name, writer=writer_name
    )
