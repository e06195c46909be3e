"""Avro scalars: what writes single values and collections as Avro's bytes.

Rule: a value of another type is refused; nothing is rounded, cut or made a text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.java_values import INTEGER_BITS
from streamlog.connect.row_schema import Kind
from streamlog.schemas.avro_schemas.avro_types import AvroEnum, AvroFixed

WriteAvro = Callable[[bytearray, object], None]
"""Adds the bytes of a value; raises BadRecord if it does not fit."""
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_LAST_SEVEN: Final = 0x7F
_CONTINUES: Final = 0x80
"""The bit of a byte after which a number continues."""


def long_bytes(number: int) -> bytes:
    """Return a whole number as Avro writes it: zigzag, 7 bits in a byte, the lowest first."""
    left = (number << 1) ^ (number >> 63)
    if left <= _LAST_SEVEN:
        return bytes((left,))
    found = bytearray()
    while left > _LAST_SEVEN:
        found.append(left & _LAST_SEVEN | _CONTINUES)
        left >>= 7
    found.append(left)
    return bytes(found)


def mapping_of(value: object) -> Mapping[object, object]:
    """Return a value as a mapping; raises BadRecord if it is none."""
    if not isinstance(value, Mapping):
        raise _no("map", value)
    return value


def _listed(value: object) -> list[object] | tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise _no("array", value)
    return value


def counted_writer(write: WriteAvro, of: Callable[[object], Mapping[object, object]]) -> WriteAvro:
    """Return a writer that puts the number of entries before them, and their end behind them."""

    def write_all(out: bytearray, value: object) -> None:
        if found := of(value):
            out += long_bytes(len(found))
            write(out, found)
        out += b"\0"

    return write_all


def blocks_writer(write_item: WriteAvro) -> WriteAvro:
    """Return the writer of arrays: their number of items, the items, and the end."""

    def write(out: bytearray, value: object) -> None:
        if found := _listed(value):
            out += long_bytes(len(found))
            for each in found:
                write_item(out, each)
        out += b"\0"

    return write


def text_map_writer(write_item: WriteAvro) -> WriteAvro:
    """Return the writer of maps whose keys are texts."""

    def write(out: bytearray, value: object) -> None:
        for key, each in mapping_of(value).items():
            write_text(out, key)
            write_item(out, each)

    return counted_writer(write, mapping_of)


def enum_writer(node: AvroEnum) -> WriteAvro:
    """Return the writer of an enum's symbols."""
    symbols = {symbol: long_bytes(at) for at, symbol in enumerate(node.symbols)}

    def write(out: bytearray, value: object) -> None:
        found = symbols.get(value) if isinstance(value, str) else None
        if found is None:
            raise BadRecord(f"{str(value)[:40]!r} is no symbol of the enum {node.name}")
        out += found

    return write


def fixed_writer(node: AvroFixed, *, is_number: bool) -> WriteAvro:
    """Return the writer of bytes of a fixed size; a number is filled up to it."""

    def write(out: bytearray, value: object) -> None:
        found = bytes_of(value)
        if is_number and len(found) < node.size:
            # The digits of a decimal keep their value with the sign in front.
            found = (b"\xff" if found[:1] >= b"\x80" else b"\0") * (node.size - len(found)) + found
        if len(found) != node.size:
            raise BadRecord(f"{node.name} has {node.size} bytes, not {len(found)}")
        out += found

    return write


def scalar_writer(kind: Kind, avro_kind: str) -> WriteAvro:
    """Return the writer of a scalar kind as one of Avro's types."""
    if kind in INTEGER_BITS:
        write = whole_writer(kind)
        return write if avro_kind in ("int", "long") else floating_writer(kind, avro_kind)
    if kind in ("float32", "float64"):
        return floating_writer(kind, avro_kind)
    return {"boolean": write_boolean, "bytes": write_bytes}.get(kind, write_text)


def whole_writer(kind: Kind) -> WriteAvro:
    """Return the writer of whole numbers in the range of a kind."""
    limit = 1 << INTEGER_BITS[kind] - 1

    def write(out: bytearray, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
            raise _no(kind, value)
        out += long_bytes(value)

    return write


def floating_writer(kind: Kind, avro_kind: str) -> WriteAvro:
    """Return the writer of numbers as Avro's float or double."""
    packed = _FLOAT if avro_kind == "float" else _DOUBLE

    def write(out: bytearray, value: object) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _no(kind, value)
        try:
            out += packed.pack(value)
        except OverflowError:
            raise _no(kind, value) from None

    return write


def write_boolean(out: bytearray, value: object) -> None:
    """Write a boolean."""
    if not isinstance(value, bool):
        raise _no("boolean", value)
    out += b"\1" if value else b"\0"


def write_text(out: bytearray, value: object) -> None:
    """Write a text."""
    if not isinstance(value, str):
        raise _no("string", value)
    try:
        found = value.encode()
    except UnicodeEncodeError:
        raise BadRecord("a text has half a surrogate pair, which UTF-8 can't hold") from None
    out += long_bytes(len(found))
    out += found


def write_bytes(out: bytearray, value: object) -> None:
    """Write bytes."""
    found = bytes_of(value)
    out += long_bytes(len(found))
    out += found


def bytes_of(value: object) -> bytes:
    """Return a value as bytes; raises BadRecord if it is none."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _no("bytes", value)
    return bytes(value)


def _no(kind: str, value: object) -> BadRecord:
    return BadRecord(f"{type(value).__name__} {str(value)[:40]!r} is no {kind}")
