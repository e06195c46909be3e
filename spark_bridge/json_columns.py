"""JSON columns: the Spark type of a JSON Schema, and values of it.

| JSON Schema | Spark |
|---|---|
| string, integer, number, boolean | string, bigint, double, boolean |
| enum, const | as its values: texts or whole numbers |
| object with properties | struct; other properties are left out |
| object without properties, whose values have a schema | map |
| array | array |
| null and X | X: every column may be NULL |

Rule: a value is read by the columns alone, as readers of JSON do; formats such as `date-time` stay
text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from streamlog.errors import ConfigError
from streamlog.schemas import Schema, parse_schema
from streamlog.schemas.json_schema.json_parsing import JsonSchema
from streamlog.schemas.json_schema.json_types import (
    Criterion,
    JsonAnything,
    JsonBool,
    JsonCombination,
    JsonEnumeration,
    JsonList,
    JsonMapping,
    JsonNothing,
    JsonNull,
    JsonNumber,
    JsonText,
    JsonType,
    follow,
)
from streamlog.serdes.registered.framing import head_size, read_key

_NESTING_MAX: Final = 100
_SCALARS: Final[Mapping[tuple[type[JsonType], bool], str]] = {
    (JsonText, False): "string",
    (JsonBool, False): "boolean",
    (JsonNumber, False): "double",
    (JsonNumber, True): "bigint",
}
"""Spark types by the kind of a value, and whether it is an integer."""


class JsonColumns:
    """The values of one topic in JSON."""

    def __init__(self, latest: Schema, referenced: Mapping[str, Schema]) -> None:
        self._schema = parse_schema(latest, referenced, is_new=False)
        self._read = msgspec.json.Decoder().decode

    def spark_type(self, topic: str) -> str:
        """Return the Spark type of values; `topic` is for messages.

        Raises:
            ConfigError: Spark has no such type.
        """
        schema = self._schema
        return _type_of(schema.root, topic, 0) if isinstance(schema, JsonSchema) else "binary"

    def decode(self, data: bytes) -> object:
        """Return a value.

        Raises:
            SerdeError: it names no schema.
            msgspec.DecodeError: it is not JSON.
        """
        # The id is not looked up, but a value without one was written by something else.
        read_key(data, "a value with a schema")
        return self._read(data[head_size(data) :])


def _type_of(given: JsonType, where: str, depth: int) -> str:
    found = follow(given)
    if depth > _NESTING_MAX:
        raise ConfigError(f"{where}: Spark has no types that contain themselves: read bytes")
    match found:
        case JsonText() | JsonBool() | JsonNumber():
            return _SCALARS[type(found), isinstance(found, JsonNumber) and found.is_integer]
        case JsonEnumeration():
            return _type_of_values(found, where)
        case JsonList(items=items) if items is not None and not found.first_items:
            return f"array<{_type_of(items, f'{where}[]', depth + 1)}>"
        case JsonMapping():
            return _type_of_mapping(found, where, depth)
        case JsonCombination():
            return _type_of_any(found, where, depth)
    raise _lacking(where, type(found).__name__.removeprefix("Json").lower())


def _type_of_mapping(found: JsonMapping, where: str, depth: int) -> str:
    if found.properties:
        columns = (
            f"`{name}`: {_type_of(part, f'{where}.{name}', depth + 1)}"
            for name, part in found.properties.items()
        )
        return f"struct<{', '.join(columns)}>"
    # 1. `{"type": "object"}` says nothing of its values: there is no type for a column. 2. A closed
    # object without properties is always empty, which is no column either.
    values = None if found.additional is None else follow(found.additional)
    if values is None or isinstance(values, JsonAnything | JsonNothing):
        raise _lacking(where, "an object without properties")
    return f"map<string, {_type_of(values, f'{where}[]', depth + 1)}>"


def _type_of_any(found: JsonCombination, where: str, depth: int) -> str:
    parts = [follow(each) for each in found.parts]
    if found.criterion is Criterion.ALL:
        # A type beside an enum is both of them combined; what restricts nothing says nothing.
        parts = [each for each in parts if not isinstance(each, JsonAnything)]
    types = {_type_of(each, where, depth + 1) for each in parts if not isinstance(each, JsonNull)}
    if len(types) != 1:
        raise _lacking(where, "a union")
    return types.pop()


def _type_of_values(found: JsonEnumeration, where: str) -> str:
    # Null is one of the values of an optional enumeration, and no type of its own.
    kinds = {type(msgspec.json.decode(text)) for text in found.values} - {type(None)}
    names = {str: "string", int: "bigint", bool: "boolean"}
    if len(kinds) != 1 or not kinds <= names.keys():
        raise _lacking(where, "values of several types")
    return names[kinds.pop()]


def _lacking(where: str, kind: str) -> ConfigError:
    return ConfigError(f"{where} has a type that Spark lacks ({kind}): read bytes")
