"""The 61 bytes in front of a batch's records, read and placed; the same for both builds.

`RecordBatch` is made for every batch that a broker takes in, and its header is most of that.
The rule of the file: `header.pxd` says in C what is said here, for compiled callers to inline;
change both or neither. Both look at the end of the buffer before they read or write. What the
numbers mean, and which of them are too large, is decided in `batch`.
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
    """The numbers in the header at `position`, in the order of the format.

    Raises:
        struct.error: the buffer ends before the header does.
    """
    header: tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
    header = _HEADER.unpack_from(buffer, position)
    return header


def bytes_at(buffer: bytes | bytearray | memoryview, position: int, size: int) -> bytes:
    """So many bytes of the buffer; in C where they lie, as long as somebody holds the buffer.

    Raises:
        ValueError: the buffer ends before that.
    """
    if position < 0 or size < 0 or size > len(buffer) - position:
        raise ValueError(f"no {size} bytes at {position}")
    return bytes(memoryview(buffer)[position : position + size])


def write_place(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Set the two fields of the header at the beginning of `buffer` that no CRC covers.

    Raises:
        struct.error: there is no room for a header, or a number is too large for its field.
    """
    _BASE_OFFSET.pack_into(buffer, 0, base_offset)
    _LEADER_EPOCH.pack_into(buffer, _LEADER_EPOCH_AT, leader_epoch)
