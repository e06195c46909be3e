"""Message dicts: Protobuf messages as dicts, by their descriptors alone.

| Protobuf | Python |
|---|---|
| a field without a value | its default; None where Protobuf tells absent from default |
| enum | the name; the number if the schema has no name for it |
| repeated, map | list, dict |
| Timestamp, Duration, Date, TimeOfDay, confluent.type.Decimal | as fields of derived types |
| wrappers (`Int64Value`), `Struct`, `Value`, `ListValue` | the value itself |
| every other message | dict |

Rule: what is read can be written, and gives the same message, to the microsecond. Extensions and
unknown fields are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from importlib import import_module
from typing import Final

from streamlog.errors import SerdeError
from streamlog.serdes.derived.protobuf_derivation import (
    DATE,
    DECIMAL,
    DURATION,
    TIME_OF_DAY,
    TIMESTAMP,
)
from streamlog.serdes.derived.protobuf_values import (
    KNOWN_PUTTERS,
    KNOWN_READERS,
    Message,
    Put,
    put_decimal,
    read_decimal,
)
from streamlog.serdes.erased_types import UserObject, UserValue

Read = Callable[[Message], UserValue]
Descriptor = UserObject
"""A descriptor of the library."""
_KNOWN: Final[Mapping[str, type]] = {
    TIMESTAMP: datetime,
    DURATION: timedelta,
    DATE: date,
    TIME_OF_DAY: time,
}
WRAPPERS: Final = frozenset(
    f"google.protobuf.{each}Value"
    for each in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
JSON_MESSAGES: Final = frozenset(
    f"google.protobuf.{each}" for each in ("Struct", "Value", "ListValue")
)
_SCALARS: Final[Mapping[str, tuple[type, ...]]] = {
    "INT32": (int,),
    "INT64": (int,),
    "UINT32": (int,),
    "UINT64": (int,),
    "DOUBLE": (float, int),
    "FLOAT": (float, int),
    "BOOL": (bool,),
    "STRING": (str,),
}
"""The types of values that a scalar field takes, by the library's `CPPTYPE_` of the field."""


class MessageDicts:
    """Converts the messages of one descriptor to dicts, and back."""

    def __init__(self, descriptor: Descriptor) -> None:
        # A message may contain itself, so each one is compiled when it is first met.
        self._putters: dict[str, Put] = {}
        self._readers: dict[str, Read] = {}
        self._descriptor = descriptor

    def put(self, message: Message, value: UserValue) -> None:
        """Write a dict into an empty message.

        Raises:
            SerdeError: a value has another type, or a key is the name of no field.
        """
        self._put(self._descriptor, message, value)

    def read(self, message: Message) -> UserValue:
        """Return a message as a dict."""
        return self._read(self._descriptor, message)

    def _put(self, kind: Descriptor, message: Message, value: UserValue) -> None:
        found = self._putters.get(kind.full_name)
        if found is None:
            found = self._putters[kind.full_name] = self._putter(kind)
        found(message, value)

    def _putter(self, kind: Descriptor) -> Put:
        """Return what writes a value into a message of a kind."""
        name = kind.full_name
        if name in _KNOWN:
            return KNOWN_PUTTERS[_KNOWN[name]]
        if name == DECIMAL:
            return put_decimal
        if name in JSON_MESSAGES:
            return _put_json
        if name in WRAPPERS:
            put_value = self._field_putter(kind.fields_by_name["value"])

            def put_wrapped(message: Message, value: UserValue) -> None:
                # A wrapper of the default has no bytes, and is still there.
                message.SetInParent()
                put_value(message, value)

            return put_wrapped
        return self._record_putter(kind)

    def _record_putter(self, kind: Descriptor) -> Put:
        fields = {each.name: self._field_putter(each) for each in kind.fields}

        def put(message: Message, value: UserValue) -> None:
            if not isinstance(value, Mapping):
                raise SerdeError(f"{kind.name} is a dict, got {type(value).__name__}")
            # An empty dict is a message that is there, unlike None.
            message.SetInParent()
            for key, part in value.items():
                found = fields.get(key)
                if found is None:
                    raise SerdeError(f"`{key}` is no field of {kind.full_name}")
                try:
                    found(message, part)
                except (SerdeError, TypeError, ValueError) as error:
                    raise SerdeError(_within(key, str(error))) from error

        return put

    def _field_putter(self, field: Descriptor) -> Put:
        name = field.name
        if is_map(field):
            return self._map_putter(field)
        if field.is_repeated:
            return self._list_putter(field)
        if field.message_type is not None:

            def put_message(message: Message, value: UserValue) -> None:
                if value is not None:
                    self._put(field.message_type, getattr(message, name), value)

            return put_message
        write, has_presence = _scalar_writer(field), field.has_presence

        def put(message: Message, value: UserValue) -> None:
            # None in a field that is never absent is an error of the writer, not its default.
            if value is not None or not has_presence:
                setattr(message, name, write(value))

        return put

    def _list_putter(self, field: Descriptor) -> Put:
        name, kind = field.name, field.message_type
        write = None if kind is not None else _scalar_writer(field)

        def put(message: Message, value: UserValue) -> None:
            if not isinstance(value, list | tuple):
                raise SerdeError(f"list expected, got {type(value).__name__}")
            found = getattr(message, name)
            if write is not None:
                # A copy first: the library would keep what it took before an error.
                found.extend([*map(write, value)])
                return
            for each in value:
                self._put(kind, found.add(), each)

        return put

    def _map_putter(self, field: Descriptor) -> Put:
        name = field.name
        key, item = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        write_key, kind = _scalar_writer(key), item.message_type
        write = None if kind is not None else _scalar_writer(item)

        def put(message: Message, value: UserValue) -> None:
            if not isinstance(value, Mapping):
                raise SerdeError(f"dict expected, got {type(value).__name__}")
            found = getattr(message, name)
            for each, part in value.items():
                if write is not None:
                    found[write_key(each)] = write(part)
                else:
                    self._put(kind, found[write_key(each)], part)

        return put

    def _read(self, kind: Descriptor, message: Message) -> UserValue:
        found = self._readers.get(kind.full_name)
        if found is None:
            found = self._readers[kind.full_name] = self._reader(kind)
        return found(message)

    def _reader(self, kind: Descriptor) -> Read:
        """Return what reads a message of a kind."""
        name = kind.full_name
        if name in _KNOWN:
            return KNOWN_READERS[_KNOWN[name]]
        if name == DECIMAL:
            return read_decimal
        if name in WRAPPERS:
            return lambda message: message.value
        if name in JSON_MESSAGES:
            return _read_json
        fields = {each.name: self._field_reader(each) for each in kind.fields}
        return lambda message: {name: read(message) for name, read in fields.items()}

    def _field_reader(self, field: Descriptor) -> Read:
        name = field.name
        if is_map(field):
            read_part = self._part_reader(field.message_type.fields_by_name["value"])
            return lambda message: {
                key: read_part(part) for key, part in getattr(message, name).items()
            }
        read = self._part_reader(field)
        if field.is_repeated:
            return lambda message: [read(each) for each in getattr(message, name)]
        if field.has_presence:
            return lambda message: read(getattr(message, name)) if message.HasField(name) else None
        return lambda message: read(getattr(message, name))

    def _part_reader(self, field: Descriptor) -> Read:
        """Return what reads a value of a field, or one of several."""
        if field.message_type is not None:
            return lambda message: self._read(field.message_type, message)
        if field.enum_type is not None:
            # An alias has a number of another name: the first name stands for both.
            names = {each.number: each.name for each in reversed(field.enum_type.values)}
            return lambda number: names.get(number, number)
        return lambda value: value


def is_map(field: Descriptor) -> bool:
    """Return whether a field is a map, which is a repeated message of keys and values."""
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _scalar_writer(field: Descriptor) -> Callable[[UserValue], UserValue]:
    if field.enum_type is not None:
        return _enum_writer(field.enum_type)
    kinds = {getattr(field, f"CPPTYPE_{name}"): types for name, types in _SCALARS.items()}
    # Bytes are texts to C++.
    expected = (bytes,) if field.type == field.TYPE_BYTES else kinds[field.cpp_type]
    first = expected[0]

    def write(value: UserValue) -> UserValue:
        # True is an int to Python, and 1 to the library.
        if not isinstance(value, expected) or (isinstance(value, bool) and first is not bool):
            raise SerdeError(f"{first.__name__} expected, got {type(value).__name__}")
        return value

    return write


def _enum_writer(kind: Descriptor) -> Callable[[UserValue], UserValue]:
    numbers = {each.name: each.number for each in kind.values}

    def write(value: UserValue) -> UserValue:
        found = numbers.get(value) if isinstance(value, str) else value
        if not isinstance(found, int) or isinstance(found, bool):
            raise SerdeError(f"{value!r} is no member of {kind.name}: {', '.join(numbers)}")
        return found

    return write


def _put_json(message: Message, value: UserValue) -> None:
    json_format = import_module("google.protobuf.json_format")
    try:
        json_format.ParseDict(value, message)
    except json_format.ParseError as error:
        raise SerdeError(str(error)) from error


def _read_json(message: Message) -> UserValue:
    return import_module("google.protobuf.json_format").MessageToDict(message)


def _within(key: str, reason: str) -> str:
    """Return a reason with the path of a field in front: "`lines.price`: float expected"."""
    inner = reason.partition("`: ")
    if reason.startswith("`") and inner[1]:
        return f"`{key}.{inner[0][1:]}`: {inner[2]}"
    return f"`{key}`: {reason}"
