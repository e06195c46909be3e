"""Writes numbers and fields of a record into a buffer that has room for them.

The rule of the file: `buffer_writes.pxd` has these functions in C, for compiled callers to inline;
change both or neither. They do not check the end of the buffer: the caller has computed the room
that it needs, and passes only `bytes` or None.
"""

from __future__ import annotations

from streamlog.records.varint import varint_size

varint_bytes = varint_size

AHEAD = 32
"""Number of contents that are prefetched into the processor's cache at a time."""
_NULL_BYTE = 1  # -1 as a varint
_CONTINUES = 0x80
_LOW_BITS = 0x7F


def resize(out: bytearray, size_bytes: int) -> None:
    """Shorten or extend the buffer; the content of an extension is undefined."""
    del out[size_bytes:]
    out.extend(bytes(size_bytes - len(out)))


def bring_near(contents: list[bytes | None], start: int) -> None:
    """Prefetch the next contents into the processor's cache; does nothing if not compiled."""


def plain_bytes(contents: list[bytes | None], start: int, stop: int) -> int:
    """Return the total size of these contents; -1 if one of them is neither `bytes` nor None."""
    size_bytes = 0
    for content in contents[start:stop]:
        if type(content) is bytes:
            size_bytes += len(content)
        elif content is not None:
            return -1
    return size_bytes


def content_bytes(content: bytes | None) -> int:
    """Return the size of a content, which may be any kind of buffer; 0 for None."""
    return len(content) if content else 0


def put_varint(data: bytearray, position: int, value: int) -> int:
    """Write a number of at most 64 bits as a varint; return the position behind it."""
    # Zigzag, without -value: the least 64-bit number has no positive counterpart in C.
    raw = value << 1 if value >= 0 else -(value + 1) << 1 | 1
    while raw >= _CONTINUES:
        data[position] = (raw & _LOW_BITS) | _CONTINUES
        raw >>= 7
        position += 1
    data[position] = raw
    return position + 1


def put_bytes(data: bytearray, position: int, content: bytes) -> int:
    """Write the bytes; return the position behind them."""
    end = position + len(content)
    data[position:end] = content
    return end


def text_bytes(text: str) -> int:
    """Return the size of a text as UTF-8; raises UnicodeEncodeError if it has none."""
    return len(text.encode())


def put_text(data: bytearray, position: int, text: str) -> int:
    """Write a text as UTF-8; return the position behind it."""
    return put_bytes(data, position, text.encode())


def put_field(data: bytearray, position: int, content: bytes | None) -> int:
    """Write a length and the bytes, or -1 for None; return the position behind them."""
    if content is None:
        data[position] = _NULL_BYTE
        return position + 1
    return put_bytes(data, put_varint(data, position, len(content)), content)


def field_bytes(content: bytes | None) -> int:
    """Return the number of bytes that `put_field` writes."""
    return 1 if content is None else varint_bytes(len(content)) + len(content)
