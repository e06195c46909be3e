"""Writes Avro types as JSON: as Avro's Java library does, normalized, or with references resolved.

Rule: a named type is written in full once, where it first stands, and by name afterwards. Names of
references are never written in full, unless the caller asks for a text that needs no references.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from streamlog.schemas.avro_schemas.avro_types import (
    NO_DEFAULT,
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroNamed,
    AvroPrimitive,
    AvroRecord,
    AvroType,
    AvroUnion,
    Properties,
    split_name,
)
from streamlog.schemas.json_text import JsonValue


@dataclass(slots=True)
class AvroWriter:
    """Writes one schema as decoded JSON.

    Args:
        known: full names of types that are written by name only.
        is_normalized: whether names are full and properties sorted.
    """

    known: Iterable[str] = ()
    is_normalized: bool = False
    _written: set[str] = field(default_factory=set)

    def write(self, found: AvroType) -> JsonValue:
        """Return a type as decoded JSON, its keys in the order of Avro's Java library."""
        self._written = set(self.known)
        return self._type(found, "")

    def _type(self, found: AvroType, namespace: str) -> JsonValue:
        match found:
            case AvroPrimitive(kind=kind, properties=properties):
                return {"type": kind, **self._properties(properties)} if properties else kind
            case AvroUnion(branches=branches):
                return [self._type(each, namespace) for each in branches]
            case AvroArray(items=items, properties=properties):
                inner = self._type(items, namespace)
                return {"type": "array", "items": inner, **self._properties(properties)}
            case AvroMap(values=values, properties=properties):
                inner = self._type(values, namespace)
                return {"type": "map", "values": inner, **self._properties(properties)}
            case _:
                return self._named(found, namespace)

    def _named(self, found: AvroNamed, namespace: str) -> JsonValue:
        space, last = split_name(found.name)
        if found.name in self._written:
            return self._shortest(found.name, namespace)
        # Noted before the fields are written: a recursive type refers to itself by name.
        self._written.add(found.name)
        head: dict[str, JsonValue] = {"type": "error" if _is_error(found) else found.kind}
        if self.is_normalized:
            head["name"] = found.name
        else:
            head["name"] = last
            # No namespace of its own inside one with a namespace is written as "".
            if space != namespace:
                head["namespace"] = space
        if found.doc is not None:
            head["doc"] = found.doc
        match found:
            case AvroRecord(fields=fields):
                head["fields"] = [self._field(each, space) for each in fields]
            case AvroEnum(symbols=symbols, default=default):
                head["symbols"] = list(symbols)
                if default is not None:
                    head["default"] = default
            case AvroFixed(size=size):
                head["size"] = size
        head.update(self._properties(found.properties))
        if found.aliases:
            head["aliases"] = [self._shortest(each, space) for each in found.aliases]
        return head

    def _field(self, found: AvroField, namespace: str) -> JsonValue:
        head: dict[str, JsonValue] = {
            "name": found.name,
            "type": self._type(found.type, namespace),
        }
        if found.doc is not None:
            head["doc"] = found.doc
        if found.default is not NO_DEFAULT:
            head["default"] = found.default
        # Java leaves out what is the default of an attribute.
        if found.order != "ascending":
            head["order"] = found.order
        if found.aliases:
            head["aliases"] = list(found.aliases)
        return {**head, **self._properties(found.properties)}

    def _shortest(self, name: str, namespace: str) -> str:
        space, last = split_name(name)
        return last if space == namespace and not self.is_normalized else name

    def _properties(self, properties: Properties) -> Properties:
        return dict(sorted(properties.items())) if self.is_normalized else properties


def _is_error(found: AvroNamed) -> bool:
    return isinstance(found, AvroRecord) and found.is_error
