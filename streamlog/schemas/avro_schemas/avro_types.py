"""Avro's types, as `avro_parser` reads them: named types are objects that refer to each other.

Rule: a type is equal only to itself. A recursive type contains itself, so comparing and printing
follow names, not contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from streamlog.schemas.json_text import JsonValue


class NoDefault(Enum):
    """A default that is absent, since null is a default as well."""

    NO_DEFAULT = "no default"


NO_DEFAULT: Final = NoDefault.NO_DEFAULT
Properties: TypeAlias = Mapping[str, JsonValue]
"""Attributes that Avro does not define, and logical types."""


class AvroPrimitive(msgspec.Struct, eq=False):
    """null, boolean, int, long, float, double, bytes or string."""

    kind: str
    properties: Properties = msgspec.field(default_factory=dict)


class AvroArray(msgspec.Struct, eq=False):
    """A list of values of one type."""

    items: AvroType
    properties: Properties = msgspec.field(default_factory=dict)
    kind: Final = "array"


class AvroMap(msgspec.Struct, eq=False):
    """Values of one type by text."""

    values: AvroType
    properties: Properties = msgspec.field(default_factory=dict)
    kind: Final = "map"


class AvroUnion(msgspec.Struct, eq=False):
    """A value of one of several types; no two of them are arrays, maps, or of one name."""

    branches: tuple[AvroType, ...]
    kind: Final = "union"


class AvroField(msgspec.Struct, eq=False):
    """A field of a record."""

    name: str
    type: AvroType
    default: JsonValue = NO_DEFAULT
    doc: str | None = None
    order: str = "ascending"
    aliases: tuple[str, ...] = ()
    properties: Properties = msgspec.field(default_factory=dict)


class AvroRecord(msgspec.Struct, eq=False):
    """A record; `fields` are filled in after the name is known, since they may refer to it."""

    name: str
    """The full name."""
    fields: tuple[AvroField, ...] = ()
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    """Full names."""
    is_error: bool = False
    properties: Properties = msgspec.field(default_factory=dict)
    kind: Final = "record"


class AvroEnum(msgspec.Struct, eq=False):
    """One of several symbols."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    properties: Properties = msgspec.field(default_factory=dict)
    kind: Final = "enum"


class AvroFixed(msgspec.Struct, eq=False):
    """A fixed number of bytes."""

    name: str
    size: int
    doc: str | None = None
    aliases: tuple[str, ...] = ()
    properties: Properties = msgspec.field(default_factory=dict)
    kind: Final = "fixed"


AvroNamed: TypeAlias = AvroRecord | AvroEnum | AvroFixed
AvroType: TypeAlias = AvroPrimitive | AvroArray | AvroMap | AvroUnion | AvroNamed

NAMED: Final = (AvroRecord, AvroEnum, AvroFixed)
PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)


def split_name(name: str) -> tuple[str, str]:
    """Return the namespace and the last part of a full name."""
    namespace, _, last = name.rpartition(".")
    return namespace, last


def parts_of(found: AvroType) -> tuple[AvroType, ...]:
    """Return the types that a type is made of."""
    match found:
        case AvroArray(items=items):
            return (items,)
        case AvroMap(values=values):
            return (values,)
        case AvroUnion(branches=branches):
            return branches
        case AvroRecord(fields=fields):
            return tuple(each.type for each in fields)
        case _:
            return ()
