"""A schema as a registry stores it, as a program reads it, and the limits of both.

`Schema` is the text with its references. `ParsedSchema` is what `parsing` makes of it; each format
has a class of its own that adds what its serdes need.

Rule: a limit is checked before the memory or the time that it bounds is spent.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec


class SchemaType(StrEnum):
    """The formats of schemas, by the names of the registry's REST API."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class SchemaReference(msgspec.Struct, frozen=True, order=True):
    """A name that a schema uses, and the registered schema that defines it."""

    name: str
    """The full name of a type (Avro), an import path (Protobuf), or a URI (JSON Schema)."""
    subject: str
    version: int


class Schema(msgspec.Struct, frozen=True):
    """A schema as text, with its references."""

    type: SchemaType
    text: str
    references: tuple[SchemaReference, ...] = ()


class SchemaLimits(msgspec.Struct, frozen=True):
    """The limits on one schema with everything that it refers to."""

    text_bytes: int = 1 << 20
    """The size of each text in UTF-8."""
    depth: int = 100
    """How deep types are nested, in one another or through their names."""
    references: int = 1000
    """The number of schemas that it refers to, directly or through others."""


DEFAULT_LIMITS = SchemaLimits()


class ParsedSchema(Protocol):
    """A schema that has been read and checked."""

    @property
    def type(self) -> SchemaType:
        """The format."""

    @property
    def references(self) -> tuple[SchemaReference, ...]:
        """The references that the schema was registered with."""

    @property
    def canonical(self) -> str:
        """The text that a registry stores: equal texts are one schema."""

    @property
    def normalized(self) -> str:
        """The text that a registry stores with `normalize=true`: without a choice of spelling."""

    @property
    def record_name(self) -> str | None:
        """The full name of the record, message or titled object; None if it has no name."""
