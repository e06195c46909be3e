"""Writes texts and numbers as JSON into a buffer that has room for them, as msgspec writes them.

The rule of the file: `json_writes.pxd` has these functions in C, for compiled callers to inline;
change both or neither. They do not check the end of the buffer: `json_text_room` says how many
bytes a text needs, and a number needs at most `NUMBER_ROOM`.
"""

from __future__ import annotations

import msgspec

from streamlog.records import buffer_writes, packing

NUMBER_ROOM = 20
"""The most bytes of a number of 64 bits: 19 digits and a sign."""
_QUOTES = 2
_encode = msgspec.json.Encoder().encode


def json_text_room(text: str) -> int:
    """Return how many bytes a text needs at most.

    Raises:
        UnicodeEncodeError: the text has half of a surrogate pair.
    """
    size_bytes = len(text.encode())
    written = len(_encode(text))
    # What has escapes gets room for six bytes each, as their number is not counted in C.
    return written if written == size_bytes + _QUOTES else 6 * size_bytes + _QUOTES


def put_json_text(data: bytearray, position: int, text: str, room: int) -> int:
    """Write a text with its quotes, given its `json_text_room`; return the position behind it."""
    del room
    return buffer_writes.put_bytes(data, position, _encode(text))


def put_json_number(data: bytearray, position: int, number: int) -> int:
    """Write a number; return the position behind it, -1 if it has more than 64 bits."""
    if not packing.is_long(number):
        return -1
    return buffer_writes.put_bytes(data, position, b"%d" % number)


def put_part(data: bytearray, position: int, content: bytes, start: int, end: int) -> int:
    """Write `content[start:end]`, which has to be there; return the position behind it."""
    return buffer_writes.put_bytes(data, position, content[start:end])
