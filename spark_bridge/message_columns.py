"""Message columns: the Spark type of a Protobuf message, and values of it.

| Protobuf | Spark |
|---|---|
| int32 and alike, uint32, int64 | int, bigint, bigint |
| uint64, fixed64 | decimal(20, 0) |
| float, double, bool, string, bytes | float, double, boolean, string, binary |
| enum | string: the name, or the number if the schema has no name for it |
| repeated, map, message | array, map, struct |
| Timestamp, Duration, Date | timestamp, interval day to second, date |
| TimeOfDay, confluent.type.Decimal | bigint (microseconds), string |
| wrappers (`Int64Value`) | their value |
| `Struct`, `Value`, `ListValue` | string of JSON |

Rule: a value is read by the latest version of the topic's schema, as readers of Protobuf do. Of
several messages in a file, the columns are those of the first; another one in a record is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from streamlog.errors import ConfigError, SerdeError
from streamlog.registry_client import SchemaBook
from streamlog.schemas import Schema
from streamlog.serdes.derived.protobuf_derivation import (
    DATE,
    DECIMAL,
    DURATION,
    TIME_OF_DAY,
    TIMESTAMP,
)
from streamlog.serdes.registered.framing import after_indexes, head_size, read_key
from streamlog.serdes.registered.message_dicts import JSON_MESSAGES, WRAPPERS, MessageDicts, is_map
from streamlog.serdes.registered.protobuf_codec import (
    load_protobuf,
    message_at,
    registered_message,
)

_NESTING_MAX: Final = 100
_MICROS_PER_SECOND: Final = 1_000_000
_KNOWN: Final[Mapping[str, str]] = {
    TIMESTAMP: "timestamp",
    DURATION: "interval day to second",
    DATE: "date",
    TIME_OF_DAY: "bigint",
    DECIMAL: "string",
    **dict.fromkeys(JSON_MESSAGES, "string"),
}
_SCALARS: Final[Mapping[str, str]] = {
    "INT32": "int",
    "UINT32": "bigint",
    "INT64": "bigint",
    "UINT64": "decimal(20, 0)",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BOOL": "boolean",
    "STRING": "string",
    "ENUM": "string",
}
"""Spark types by the library's `CPPTYPE_` of a field."""
Convert = Callable[[Any], object]
Descriptor = Any
"""A descriptor of the library, whose classes are made at run time."""


class MessageColumns:
    """The values of one topic in Protobuf."""

    def __init__(self, book: SchemaBook, latest: Schema, referenced: Mapping[str, Schema]) -> None:
        self._book = book
        self._message = registered_message(latest, referenced)
        self._descriptor = self._message.DESCRIPTOR
        self._dicts = MessageDicts(self._descriptor)
        self._converts: dict[str, Convert | None] = {}
        self._known: set[bytes] = set()
        self._error: type[Exception] = load_protobuf().message.DecodeError

    def spark_type(self, topic: str) -> str:
        """Return the Spark type of values; `topic` is for messages.

        Raises:
            ConfigError: Spark has no such type.
        """
        return _type_of_message(self._descriptor, topic, 0)

    def decode(self, data: bytes) -> object:
        """Return a value.

        Raises:
            SerdeError: it can't be read.
        """
        key = read_key(data, "a value with a schema")
        start = after_indexes(data, head_size(data))
        head = data[:start]
        # 1. A record names its schema, and in it a message by its position. 2. Another version of
        # the file may have another order, so only the writer's schema tells which message it is.
        # 3. Once per schema and position: the head of the next record is known.
        if head not in self._known:
            found = self._book.find(key)
            name = message_at(found.schema, found.referenced, head[head_size(data) :])
            if name != self._descriptor.full_name:
                raise SerdeError(f"it is a {name}, and not a {self._descriptor.full_name}")
            self._known.add(head)
        try:
            value = self._dicts.read(self._message.FromString(data[start:]))
        except self._error as error:
            raise SerdeError(str(error)) from error
        return self._of_message(self._descriptor)(value)

    def _of_message(self, kind: Descriptor) -> Convert:
        """Return the conversion of a dict to what Arrow takes."""
        name = kind.full_name
        if name not in self._converts:
            self._converts[name] = _of_known(name)
        # A message that contains itself never gets here: it has no Spark type.
        known = self._converts[name]
        if known is not None:
            return known
        if name in _KNOWN or name in WRAPPERS:
            return _same
        fields = {each.name: self._of_field(each) for each in kind.fields}

        def convert(value: dict[str, Any]) -> object:
            return {name: fields[name](part) for name, part in value.items()}

        self._converts[name] = convert
        return convert

    def _of_field(self, field: Descriptor) -> Convert:
        if is_map(field):
            part = self._of_part(field.message_type.fields_by_name["value"])
            # Arrow takes a map as pairs.
            return lambda value: [(key, part(each)) for key, each in value.items()]
        convert = self._of_part(field)
        if field.is_repeated:
            return lambda value: [convert(each) for each in value]
        return lambda value: None if value is None else convert(value)

    def _of_part(self, field: Descriptor) -> Convert:
        if field.message_type is not None:
            return self._of_message(field.message_type)
        if field.enum_type is not None:
            # A number without a name is text as well: a column has one type.
            return str
        # Half of the numbers of 64 bits without a sign don't fit Spark's bigint.
        return Decimal if _SCALARS.get(_kind_of(field)) == _SCALARS["UINT64"] else _same


def _of_known(name: str) -> Convert | None:
    if name == TIME_OF_DAY:
        return lambda value: (
            ((value.hour * 60 + value.minute) * 60 + value.second) * _MICROS_PER_SECOND
            + value.microsecond
        )
    if name == DECIMAL:
        return str
    return _to_json if name in JSON_MESSAGES else None


def _to_json(value: object) -> object:
    return msgspec.json.encode(value).decode()


def _same(value: object) -> object:
    return value


def _kind_of(field: Descriptor) -> str:
    return next(name for name in (*_SCALARS, "MESSAGE") if _is_of(field, name))


def _is_of(field: Descriptor, name: str) -> bool:
    return bool(field.cpp_type == getattr(field, f"CPPTYPE_{name}"))


def _type_of_message(kind: Descriptor, where: str, depth: int) -> str:
    if depth > _NESTING_MAX:
        raise ConfigError(f"{where}: Spark has no types that contain themselves: read bytes")
    if kind.full_name in _KNOWN:
        return _KNOWN[kind.full_name]
    # A wrapper exists to tell absent from default, which every column of Spark does.
    if kind.full_name in WRAPPERS:
        return _type_of_part(kind.fields_by_name["value"], where, depth)
    if not kind.fields:
        raise ConfigError(f"{where} has a type that Spark lacks (no fields): read bytes")
    columns = (
        f"`{each.name}`: {_type_of_field(each, f'{where}.{each.name}', depth + 1)}"
        for each in kind.fields
    )
    return f"struct<{', '.join(columns)}>"


def _type_of_field(field: Descriptor, where: str, depth: int) -> str:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        key_type = _type_of_part(key, where, depth)
        return f"map<{key_type}, {_type_of_part(value, f'{where}[]', depth)}>"
    if field.is_repeated:
        return f"array<{_type_of_part(field, f'{where}[]', depth)}>"
    return _type_of_part(field, where, depth)


def _type_of_part(field: Descriptor, where: str, depth: int) -> str:
    if field.message_type is not None:
        return _type_of_message(field.message_type, where, depth)
    return "binary" if field.type == field.TYPE_BYTES else _SCALARS[_kind_of(field)]
