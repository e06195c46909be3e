"""Avro decoding: Avro's bytes as rows with a schema of Connect.

A reader is compiled for the Avro schema that the bytes were written with, and the schema that was
made of it (`schemas_from_avro`).

Rule: every length in the bytes is checked before memory is spent on it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.converters.connect_avro.avro_conventions import is_union
from streamlog.connect.converters.connect_avro.schemas_from_avro import entry_of, is_null
from streamlog.connect.converters.json_schemas import DEPTH_MAX, from_base
from streamlog.connect.java_values import wrapped
from streamlog.connect.row_schema import Schema, part_of
from streamlog.schemas.avro_schemas.avro_types import (
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroRecord,
    AvroType,
    AvroUnion,
)

EMPTY_ITEMS_MAX: Final = 10_000
"""The most items of an array that may take no byte each, such as empty records."""
_LONG_BYTES_MAX: Final = 10
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_LAST_SEVEN, _CONTINUES = 0x7F, 0x80


class AvroBytes:
    """Bytes of Avro that are read from the front."""

    __slots__ = ("_data", "at")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at
        """The bytes that are read."""

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self._data) - self.at

    def take(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            BadRecord: there are fewer.
        """
        start, stop = self.at, self.at + size
        # A slice would take a negative size, as damaged bytes have it, from the end.
        if size < 0 or stop > len(self._data):
            raise BadRecord(f"the bytes end within a value of {size} bytes")
        self.at = stop
        return self._data[start:stop]

    def long(self) -> int:
        """Return the next whole number.

        Raises:
            BadRecord: it is cut off, or larger than Avro's long.
        """
        found = shift = 0
        for byte in self._data[self.at : self.at + _LONG_BYTES_MAX]:
            self.at += 1
            found |= (byte & _LAST_SEVEN) << shift
            if byte < _CONTINUES:
                # Zigzag: the last bit is the sign.
                return (found >> 1) ^ -(found & 1)
            shift += 7
        raise BadRecord("a number is cut off, or longer than 10 bytes")

    def count(self) -> int:
        """Return the number of items of the next block; 0 at the end.

        Raises:
            BadRecord: there can't be as many.
        """
        found = self.long()
        if found < 0:
            # The size of the block in bytes follows, for readers that pass it over.
            found = -found
            self.long()
        # Before any list is made: damaged bytes may name more items than memory holds.
        if found > max(self.left, EMPTY_ITEMS_MAX):
            raise BadRecord(f"{found} items can't be in the {self.left} bytes that are left")
        return found


ReadAvro = Callable[[AvroBytes], object]
"""Returns the next value; raises BadRecord if the bytes are malformed."""


def avro_reader(schema: Schema | None, node: AvroType) -> ReadAvro:
    """Return what reads values of an Avro type as those of a schema that was made of it."""
    return _read_anything if schema is None else _reader(schema, node)


def _reader(schema: Schema, node: AvroType) -> ReadAvro:
    if isinstance(node, AvroUnion):
        return _union(schema, node)
    read = _base(schema, node)
    if schema.logical is None:
        return read
    return lambda data: from_base(schema, read(data))


def _union(schema: Schema, node: AvroUnion) -> ReadAvro:
    branches: list[ReadAvro] = []
    # The members of the struct are in the order of the types.
    members = iter(schema.fields) if is_union(schema) else None
    for each in node.branches:
        if is_null(each):
            branches.append(_read_null)
        elif members is None:
            branches.append(_reader(schema, each))
        else:
            member = next(members)
            branches.append(_member(schema, member.name, _reader(member.schema, each)))

    def read(data: AvroBytes) -> object:
        at = data.long()
        if not 0 <= at < len(branches):
            raise BadRecord(f"a union of {len(branches)} types has no type {at}")
        return branches[at](data)

    return read


def _member(schema: Schema, name: str, read: ReadAvro) -> ReadAvro:
    # The other members are there as well, and null.
    empty = dict.fromkeys(each.name for each in schema.fields)
    return lambda data: {**empty, name: read(data)}


def _base(schema: Schema, node: AvroType) -> ReadAvro:
    match node:
        case AvroRecord():
            found = _record(schema, node)
        case AvroArray():
            entry = entry_of(node.items)
            items = part_of(schema.items)
            if entry is None:
                found = _array(_reader(items, node.items))
            else:
                found = _map(_reader(part_of(schema.keys), entry[0]), _reader(items, entry[1]))
        case AvroMap():
            found = _map(_read_text, _reader(part_of(schema.items), node.values))
        case AvroEnum():
            found = _enum(node)
        case AvroFixed(size=size):
            found = lambda data: data.take(size)  # noqa: E731 - one of many readers
        case _ if schema.kind in ("int8", "int16"):
            kind = schema.kind
            # As Java narrows an int.
            found = lambda data: wrapped(data.long(), kind)  # noqa: E731 - the same
        case _:
            found = _SCALARS[node.kind]
    return found


def _record(schema: Schema, node: AvroRecord) -> ReadAvro:
    # The fields of the schema were made of those of the record, one for each.
    pairs = zip(schema.fields, node.fields, strict=True)
    steps = [(field.name, _reader(field.schema, own.type)) for field, own in pairs]
    return lambda data: {name: read(data) for name, read in steps}


def _array(read_item: ReadAvro) -> ReadAvro:
    def read(data: AvroBytes) -> object:
        found: list[object] = []
        while count := data.count():
            found += [read_item(data) for _ in range(count)]
        return found

    return read


def _map(read_key: ReadAvro, read_item: ReadAvro) -> ReadAvro:
    def read(data: AvroBytes) -> object:
        found: dict[object, object] = {}
        while count := data.count():
            for _ in range(count):
                key = read_key(data)
                # Java's maps take any key; Python's take what has a hash.
                if isinstance(key, dict | list):
                    raise BadRecord(
                        "keys of maps that are arrays, maps or structs are not supported"
                    )
                found[key] = read_item(data)
        return found

    return read


def _enum(node: AvroEnum) -> ReadAvro:
    symbols = node.symbols

    def read(data: AvroBytes) -> object:
        at = data.long()
        if not 0 <= at < len(symbols):
            raise BadRecord(f"the enum {node.name} has no symbol {at}")
        return symbols[at]

    return read


def _read_null(_data: AvroBytes) -> object:
    return None


def _read_boolean(data: AvroBytes) -> object:
    found = data.take(1)
    # Any other byte shows that the bytes are of another schema.
    if found not in (b"\0", b"\1"):
        raise BadRecord("a boolean is the byte 0 or 1")
    return found == b"\1"


def _read_text(data: AvroBytes) -> object:
    try:
        return data.take(data.long()).decode()
    except UnicodeDecodeError:
        raise BadRecord("a text is no UTF-8") from None


_SCALARS: Final[dict[str, ReadAvro]] = {
    "boolean": _read_boolean,
    "int": lambda data: wrapped(data.long(), "int32"),
    "long": lambda data: wrapped(data.long(), "int64"),
    "float": lambda data: _FLOAT.unpack(data.take(4))[0],
    "double": lambda data: _DOUBLE.unpack(data.take(8))[0],
    "string": _read_text,
    "bytes": lambda data: data.take(data.long()),
}


# ------------------------------------------------------------------------------ without a schema


def _read_anything(data: AvroBytes, depth: int = 0) -> object:
    """Read a value without a schema: a record with one field that is not null."""
    if depth > DEPTH_MAX:
        raise BadRecord(f"a value without a schema is nested deeper than {DEPTH_MAX} levels")

    def read_inner(inner: AvroBytes) -> object:
        return _read_anything(inner, depth + 1)

    found: object = None
    # All nine fields are read: those behind the one with a value have bytes, too.
    for read in (*_ANY_SCALARS, _array(read_inner), _map(read_inner, read_inner)):
        at = data.long()
        if at not in (0, 1):
            raise BadRecord(f"a union of 2 types has no type {at}")
        own = read(data) if at == 1 else None
        found = own if found is None else found
    return found


_ANY_SCALARS: Final = tuple(
    _SCALARS[kind] for kind in ("boolean", "bytes", "double", "float", "int", "long", "string")
)
