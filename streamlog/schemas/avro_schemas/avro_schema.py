"""AvroSchema: an Avro schema with the schemas that it refers to, parsed.

Rule: references are read in the order in which they depend on one another, whatever the order of
the mapping. Not done here: encoding and decoding of values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from streamlog.schemas.avro_schemas.avro_parser import AvroParser
from streamlog.schemas.avro_schemas.avro_text import AvroWriter
from streamlog.schemas.avro_schemas.avro_types import NAMED, AvroNamed, AvroType
from streamlog.schemas.json_text import JsonValue, check_size, dump_json, load_json
from streamlog.schemas.schema import Schema, SchemaLimits, SchemaReference, SchemaType

_BARE_NAME = re.compile(r"[A-Za-z_][\w.]*")
"""The name of a type, which Avro takes without the quotes of JSON."""


class AvroSchema(msgspec.Struct, frozen=True, eq=False):
    """A parsed Avro schema."""

    references: tuple[SchemaReference, ...]
    root: AvroType
    canonical: str
    """As Apache Avro's Java library writes it, names of references by name."""
    normalized: str
    """With full names and sorted properties, whatever the order and spelling of the text."""
    resolved: JsonValue
    """Decoded JSON that needs no references: each of their types stands where it is first used."""
    type: Final[SchemaType] = SchemaType.AVRO

    @property
    def record_name(self) -> str | None:
        """The full name of the record, enum or fixed; None for other types."""
        return self.root.name if isinstance(self.root, NAMED) else None


def parse_avro(
    schema: Schema,
    dependencies: Mapping[str, Schema],
    limits: SchemaLimits,
    *,
    is_new: bool,
) -> AvroSchema:
    """Parse an Avro schema.

    Args:
        schema: the schema.
        dependencies: all schemas that it refers to by reference name, each after those that it
            depends on itself.
        limits: the limits on its size and depth.
        is_new: whether defaults have to fit their types.

    Raises:
        InvalidSchema: it, or one that it refers to, is no Avro schema, or exceeds a limit.
    """
    names: dict[str, AvroNamed] = {}
    for each in dependencies.values():
        AvroParser(names, limits, checks_defaults=False).parse(_load(each.text, limits))
    # The parser adds the names that the schema defines; these are written in full.
    known = frozenset(names)
    root = AvroParser(names, limits, checks_defaults=is_new).parse(_load(schema.text, limits))
    return AvroSchema(
        schema.references,
        root,
        dump_json(AvroWriter(known).write(root)),
        dump_json(AvroWriter(known, is_normalized=True).write(root)),
        AvroWriter().write(root),
    )


def _load(text: str, limits: SchemaLimits) -> JsonValue:
    check_size(text, limits)
    return text.strip() if _BARE_NAME.fullmatch(text.strip()) else load_json(text, limits)
