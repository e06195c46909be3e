"""What a JSON Schema says, as nodes: one for each kind of value, and their combinations.

The kinds are those of Everit's library, which Confluent's registry compares schemas with: a schema
with both a type and an enum is both of them combined, and a list of types is one of several.

Rule: a node is equal only to itself, since schemas may be recursive. A node says nothing that its
keywords do not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from typing import TypeAlias

import msgspec

from streamlog.schemas.json_text import JsonValue


class JsonNode(msgspec.Struct, eq=False, kw_only=True):
    """What every schema may have."""

    id: str | None = None
    title: str | None = None
    description: str | None = None
    default: JsonValue = None
    has_default: bool = False
    keywords: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    """The schema as JSON, with the keywords that no draft knows; empty for true and false."""


class JsonAnything(JsonNode, eq=False, kw_only=True):
    """Any value: true, or a schema without keywords that restrict it."""


class JsonNothing(JsonNode, eq=False, kw_only=True):
    """No value: false."""


class JsonBool(JsonNode, eq=False, kw_only=True):
    """True or false."""


class JsonNull(JsonNode, eq=False, kw_only=True):
    """Null."""


class JsonText(JsonNode, eq=False, kw_only=True):
    """Text."""

    min_length: Fraction | None = None
    max_length: Fraction | None = None
    pattern: str | None = None


class JsonNumber(JsonNode, eq=False, kw_only=True):
    """A number, or an integer."""

    is_integer: bool = False
    minimum: Fraction | None = None
    maximum: Fraction | None = None
    exclusive_minimum: Fraction | None = None
    exclusive_maximum: Fraction | None = None
    multiple_of: Fraction | None = None


class JsonEnumeration(JsonNode, eq=False, kw_only=True):
    """One of some values; a const is one of one."""

    values: frozenset[str]
    """As JSON text with sorted keys, in which 1 and 1.0 are one value."""


class JsonList(JsonNode, eq=False, kw_only=True):
    """A list."""

    items: JsonType | None = None
    """The schema of all items, where the first ones have none of their own."""
    first_items: tuple[JsonType, ...] = ()
    """The schemas of the first items: `prefixItems`, or a list of `items` before draft 2020-12."""
    additional: JsonType | None = None
    """The schema of the items after those; None for any."""
    unevaluated: JsonType | None = None
    min_items: Fraction | None = None
    max_items: Fraction | None = None
    min_contains: Fraction | None = None
    max_contains: Fraction | None = None
    is_unique: bool = False


class JsonMapping(JsonNode, eq=False, kw_only=True):
    """An object of JSON."""

    properties: dict[str, JsonType] = msgspec.field(default_factory=dict)
    required: frozenset[str] = frozenset()
    patterns: dict[str, JsonType] = msgspec.field(default_factory=dict)
    """The schemas of properties by a pattern of their names."""
    additional: JsonType | None = None
    """The schema of all other properties; None for any."""
    unevaluated: JsonType | None = None
    required_with: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """Names that have to be there if another one is."""
    schema_with: dict[str, JsonType] = msgspec.field(default_factory=dict)
    """Schemas that hold if a name is there."""
    min_properties: Fraction | None = None
    max_properties: Fraction | None = None


class Criterion(StrEnum):
    """How many of several schemas a value has to fit."""

    ALL = "allOf"
    ANY = "anyOf"
    ONE = "oneOf"


class JsonCombination(JsonNode, eq=False, kw_only=True):
    """A value that fits all, any or one of several schemas."""

    criterion: Criterion
    parts: tuple[JsonType, ...] = ()


class JsonNegation(JsonNode, eq=False, kw_only=True):
    """A value that does not fit a schema."""

    inner: JsonType


class JsonCondition(JsonNode, eq=False, kw_only=True):
    """A value whose schema depends on another one: if, then, else."""


class JsonLink(JsonNode, eq=False, kw_only=True):
    """A `$ref`; `target` is filled in when it has been read, since schemas may be recursive."""

    target: JsonType | None = None


JsonType: TypeAlias = (
    JsonAnything
    | JsonNothing
    | JsonBool
    | JsonNull
    | JsonText
    | JsonNumber
    | JsonEnumeration
    | JsonList
    | JsonMapping
    | JsonCombination
    | JsonNegation
    | JsonCondition
    | JsonLink
)


def follow(found: JsonType) -> JsonType:
    """Return what a chain of `$ref` leads to; the loader has refused chains without an end."""
    # A link without a target is one that is still being read.
    while isinstance(found, JsonLink) and found.target is not None:
        found = found.target
    return found
