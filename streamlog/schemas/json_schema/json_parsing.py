"""JsonSchema: a JSON Schema with the schemas that it refers to, parsed.

Rule: the canonical text keeps the order of keys, as Confluent's registry does; the normalized text
sorts them. Not done here: validation of values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from streamlog.schemas.json_schema.json_documents import JsonDocuments, join_uri
from streamlog.schemas.json_schema.json_loader import JsonLoader
from streamlog.schemas.json_schema.json_types import JsonType
from streamlog.schemas.json_text import JsonValue, dump_json, load_json
from streamlog.schemas.schema import Schema, SchemaLimits, SchemaReference, SchemaType

_LATER_DRAFT = re.compile(r"https?://json-schema\.org/draft/20[0-9]{2}-")
"""The drafts from 2019-09 on."""


class JsonSchema(msgspec.Struct, frozen=True, eq=False):
    """A parsed JSON Schema."""

    references: tuple[SchemaReference, ...]
    root: JsonType
    value: JsonValue
    """The schema as decoded JSON."""
    referenced: Mapping[str, JsonValue]
    """The schemas that it refers to as decoded JSON, by the URI that a `$ref` gives."""
    canonical: str
    normalized: str
    type: Final[SchemaType] = SchemaType.JSON

    @property
    def record_name(self) -> str | None:
        """The title; None if it has none."""
        title = self.value.get("title") if isinstance(self.value, dict) else None
        return title if isinstance(title, str) else None


def parse_json_schema(
    schema: Schema, dependencies: Mapping[str, Schema], limits: SchemaLimits
) -> JsonSchema:
    """Parse a JSON Schema.

    Args:
        schema: the schema.
        dependencies: all schemas that it refers to, by reference name: a URI, which is relative to
            the schema's own id.
        limits: the limits on its size and depth.

    Raises:
        InvalidSchema: it, or one that it refers to, is no JSON Schema, or exceeds a limit.
    """
    value = load_json(schema.text, limits)
    documents = JsonDocuments()
    base = documents.add("", value)
    referenced = {name: load_json(each.text, limits) for name, each in dependencies.items()}
    for name, each in referenced.items():
        documents.add(join_uri(base, name), each)
        # Beside the schema's own id, a reference counts by the name as it was registered.
        documents.by_uri.setdefault(name.partition("#")[0], each)
    # As in Confluent's registry, a schema without a dialect is one of draft 7.
    dialect = value.get("$schema") if isinstance(value, dict) else None
    is_later = isinstance(dialect, str) and _LATER_DRAFT.match(dialect) is not None
    root = JsonLoader(documents, limits, reads_siblings=is_later).load(value, base)
    return JsonSchema(
        schema.references,
        root,
        value,
        referenced,
        dump_json(value),
        json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True),
    )
