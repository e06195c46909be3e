"""Framing: how the bytes of a key or value name the schema that they were written with.

| Where | Bytes |
|---|---|
| before the value | `0x00`, the id in 4 bytes (Confluent's wire format) |
| in a header | `0x01`, the GUID in 16 bytes, in `__value_schema_id` or `__key_schema_id` |

In Protobuf, message indexes follow the id or GUID. Both forms are read in both places.

Rule: inside streamlog, a value is whole: what stands in a header is put before the value when a
record is read, and is taken off when it is written. So bytes in state, changelogs and internal
topics always name their schema, and nothing below has to carry a header along.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from streamlog.record import Headers
from streamlog.serdes.erased_types import AnySerde
from streamlog.serdes.serde import unreadable_error

BY_ID: Final = 0
"""The first byte before an id."""
BY_GUID: Final = 1
"""The first byte before a GUID."""
ID_BYTES: Final = 5
GUID_BYTES: Final = 17
"""The sizes of both, first byte included."""
KEY_HEADER: Final = "__key_schema_id"
VALUE_HEADER: Final = "__value_schema_id"
INDEXES_MAX: Final = 100
"""The deepest message that indexes may name."""
_MORE: Final = 0x80
"""The bit of a byte after which a zigzag number continues; the 7 bits below it are the number."""
_SHIFT_MAX: Final = 35
"""A number of 32 bits ends in its fifth byte."""
_ID = struct.Struct(">BI")
SCHEMA_HEADERS: Final = frozenset((KEY_HEADER, VALUE_HEADER))


class SchemaKey(NamedTuple):
    """What names a schema: an id, or a GUID as 32 hexadecimal digits."""

    id: int | None
    guid: str | None = None

    def __str__(self) -> str:
        """Return it as messages show it."""
        return f"id {self.id}" if self.guid is None else f"GUID {self.guid}"


def id_head(schema_id: int) -> bytes:
    """Return the bytes that name a schema by its id."""
    return _ID.pack(BY_ID, schema_id)


def guid_head(guid: str) -> bytes:
    """Return the bytes that name a schema by its GUID."""
    return bytes((BY_GUID,)) + bytes.fromhex(guid.replace("-", ""))


def read_key(data: bytes, expected: str) -> SchemaKey:
    """Return what names the schema of some bytes.

    Args:
        data: the bytes.
        expected: the type of the value, for the message.

    Raises:
        SerdeError: they do not begin with an id or a GUID.
    """
    first = data[0] if data else -1
    if first == BY_ID and len(data) >= ID_BYTES:
        return SchemaKey(_ID.unpack_from(data)[1])
    if first == BY_GUID and len(data) >= GUID_BYTES:
        return SchemaKey(None, data[1:GUID_BYTES].hex())
    raise unreadable_error(
        expected,
        data,
        "it names no schema: it begins neither with 0x00 and an id nor 0x01 and a"
        " GUID, and has no header with one",
    )


def head_size(data: bytes) -> int:
    """Return the size of the id or GUID that bytes begin with."""
    return GUID_BYTES if data[:1] == b"\x01" else ID_BYTES


def index_bytes(indexes: Sequence[int]) -> bytes:
    """Return message indexes as zigzag numbers; the first message, `[0]`, is one zero byte."""
    if [*indexes] == [0]:
        return b"\0"
    return b"".join(map(_zigzag, (len(indexes), *indexes)))


def after_indexes(data: bytes, start: int) -> int:
    """Return where the value begins behind the message indexes.

    Raises:
        ValueError: the indexes are cut off or too many.
    """
    count, at = _read_zigzag(data, start)
    if not 0 <= count <= INDEXES_MAX:
        raise ValueError(f"it has {count} message indexes")
    for _ in range(count):
        _, at = _read_zigzag(data, at)
    return at


def read_indexes(data: bytes) -> list[int]:
    """Return message indexes; one zero byte is the first message.

    Raises:
        ValueError: the indexes are cut off.
    """
    count, at = _read_zigzag(data, 0)
    found = []
    for _ in range(count):
        index, at = _read_zigzag(data, at)
        found.append(index)
    return found or [0]


def schema_keys(
    serde: AnySerde, column: Iterable[bytes | None], headers: Iterable[Headers] | None, name: str
) -> set[SchemaKey]:
    """Return what names the schemas of a column of keys or values.

    Bytes that name none are left out: reading them finds the error.

    Args:
        serde: the column's serde.
        column: the keys or values.
        headers: the headers of the records; None if there are none.
        name: `KEY_HEADER` or `VALUE_HEADER`.
    """
    if not getattr(serde, "needs_writer_schema", False):
        return set()
    # Most columns have one schema: the distinct heads are few, whatever the number of records.
    heads = {
        data[:GUID_BYTES] if data[:1] == b"\x01" else data[:ID_BYTES] for data in column if data
    }
    if headers is not None:
        heads.update(
            value[:GUID_BYTES]
            for each in headers
            for header, value in each
            if header == name and value is not None
        )
    # Anything else names no schema: plain JSON begins with 0x7b, for instance. Reading such a value
    # raises an error that the policy of its record handles.
    found = set()
    for head in heads:
        if len(head) == ID_BYTES and head[0] == BY_ID:
            found.add(SchemaKey(_ID.unpack(head)[1]))
        elif len(head) == GUID_BYTES and head[0] == BY_GUID:
            found.add(SchemaKey(None, head[1:].hex()))
    return found


RawRecord = tuple[bytes | None, bytes | None, Headers]
"""The key, the value and the headers of a record."""


def absorb_header(key: AnySerde, value: AnySerde, record: RawRecord) -> RawRecord:
    """Return a record whose key and value begin with what its headers say about their schemas."""
    raw_key, raw_value, headers = record
    left = []
    for name, data in headers:
        # A tombstone has no bytes that a schema could describe: its header is dropped.
        if name == KEY_HEADER and is_registered(key):
            raw_key = raw_key if data is None or raw_key is None else data + raw_key
        elif name == VALUE_HEADER and is_registered(value):
            raw_value = raw_value if data is None or raw_value is None else data + raw_value
        else:
            left.append((name, data))
    return raw_key, raw_value, tuple(left)


def absorb_value_header(value: bytes | None, headers: Headers) -> bytes | None:
    """Return a value that begins with what its headers say about its schema."""
    found = next((data for name, data in headers if name == VALUE_HEADER), None)
    return value if found is None or value is None else found + value


def is_registered(serde: AnySerde) -> bool:
    """Return whether a registry keeps the schemas of a serde."""
    return getattr(serde, "ids_in_headers", None) is not None


def writes_headers(serde: AnySerde) -> bool:
    """Return whether records name the schema of a serde in a header."""
    return getattr(serde, "ids_in_headers", None) is True


def split_header(key: AnySerde, value: AnySerde, record: RawRecord) -> RawRecord:
    """Return a record as it is written: with ids in headers where the topic's serdes say so."""
    # 1. A value that this app wrote: its own head goes into the header. 2. A value that was passed
    # on unchanged: the head it came with, by an id perhaps, goes there too, and readers take both.
    raw_key, raw_value, headers = record
    if raw_key is not None and writes_headers(key):
        size = key.head_size(raw_key)  # type: ignore[attr-defined]
        headers = (*headers, (KEY_HEADER, raw_key[:size]))
        raw_key = raw_key[size:]
    if raw_value is not None and writes_headers(value):
        size = value.head_size(raw_value)  # type: ignore[attr-defined]
        headers = (*headers, (VALUE_HEADER, raw_value[:size]))
        raw_value = raw_value[size:]
    return raw_key, raw_value, headers


def _zigzag(number: int) -> bytes:
    # Indexes are never negative, so the sign, which is the lowest bit, is always 0.
    value, found = number << 1, bytearray()
    while value >= _MORE:
        found.append(value & _MORE - 1 | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > _SHIFT_MAX:
            raise ValueError("its message indexes are cut off")
        byte = data[at]
        value |= (byte & _MORE - 1) << shift
        at, shift = at + 1, shift + 7
        if byte < _MORE:
            return (value >> 1) ^ -(value & 1), at
