"""Reads and writes the 61-byte header in front of a batch's records.

A broker makes a `RecordBatch` for every batch that it appends, and reading the header is most of
its cost. The rule of the file: `header.pxd` has these functions in C, for compiled callers to
inline; change both or neither. Both check the end of the buffer before they read or write. Not done
here: the meaning and the limits of the numbers (`batch`).
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_AT = 12


def read_header(
    buffer: bytes | bytearray | memoryview, position: int
) -> tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]:
    """Return the numbers of the header at `position`, in the order of the format.

    Raises:
        struct.error: the buffer ends before the header does.
    """
    header: tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
    header = _HEADER.unpack_from(buffer, position)
    return header


def bytes_at(buffer: bytes | bytearray | memoryview, position: int, size: int) -> bytes:
    """Return `size` bytes of the buffer from `position` on.

    In C this is a pointer into the buffer, which is valid only while the caller holds the buffer.

    Raises:
        ValueError: the buffer ends before that.
    """
    if position < 0 or size < 0 or size > len(buffer) - position:
        raise ValueError(f"{size} bytes at {position} are not in a buffer of {len(buffer)} bytes")
    return bytes(memoryview(buffer)[position : position + size])


def write_offset_and_epoch(
    buffer: bytearray | memoryview, base_offset: int, leader_epoch: int
) -> None:
    """Set the base offset and the leader epoch in the header at the start of `buffer`.

    These are the two fields that the CRC does not cover.

    Raises:
        struct.error: the buffer is too short for a header, or a number too large for its field.
    """
    _BASE_OFFSET.pack_into(buffer, 0, base_offset)
    _LEADER_EPOCH.pack_into(buffer, _LEADER_EPOCH_AT, leader_epoch)
