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
_DIGITS_MAX = 18
_TRUTHS = {b"t": b"true", b"f": b"false"}
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


def put_plain_text(data: bytearray, position: int, content: bytes, start: int, end: int) -> int:
    """Write `content[start:end]` as a text; return the position behind it.

    -1 if it is anything but ASCII that JSON has as it is.
    """
    text = content[start:end]
    if not text.isascii() or len(_encode(text.decode())) != len(text) + _QUOTES:
        return -1
    return buffer_writes.put_bytes(data, position, b'"%b"' % text)


def put_plain_number(data: bytearray, position: int, content: bytes, start: int, end: int) -> int:
    """Write `content[start:end]` as a number; return the position behind it.

    -1 if it is none, or may have more than 64 bits, or JSON has it in other digits.
    """
    text = content[start:end]
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > _DIGITS_MAX or b"%d" % int(text) != text:
        return -1
    return buffer_writes.put_bytes(data, position, text)


def put_plain_truth(data: bytearray, position: int, content: bytes, start: int, end: int) -> int:
    """Write `content[start:end]`, t or f, as a truth value; return the position behind it.

    -1 if it is anything else.
    """
    written = _TRUTHS.get(content[start:end])
    return -1 if written is None else buffer_writes.put_bytes(data, position, written)
