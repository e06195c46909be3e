"""Numbers and fields of a record put into a buffer that has room for them; the same in both builds.

The rule of the file: `writing.pxd` says in C what is said here, for compiled callers to inline;
change both or neither. Nobody looks at the end of the buffer here: the caller has counted what it
needs, and gives nothing but `bytes` or None.
"""

from __future__ import annotations

from streamlog.records.varint import varint_size

varint_bytes = varint_size

AHEAD = 32
"""So many at a time are brought near."""
_NULL_BYTE = 1  # -1 as a varint
_CONTINUES = 0x80
_LOW_BITS = 0x7F


def resize(out: bytearray, size_bytes: int) -> None:
    """Cut the buffer, or make room at its end: what is there has no meaning."""
    del out[size_bytes:]
    out.extend(bytes(size_bytes - len(out)))


def bring_near(contents: list[bytes | None], start: int) -> None:
    """The next of what is to be written may lie far from the processor: compiled, that is told."""


def plain_bytes(contents: list[bytes | None], start: int, stop: int) -> int:
    """What those contents take together; -1 if one of them is neither `bytes` nor None."""
    size_bytes = 0
    for content in contents[start:stop]:
        if type(content) is bytes:
            size_bytes += len(content)
        elif content is not None:
            return -1
    return size_bytes


def content_bytes(content: bytes | None) -> int:
    """What a content takes; also of another kind of buffer."""
    return len(content) if content else 0


def put_varint(data: bytearray, position: int, value: int) -> int:
    """Write a number of 64 bits at most; returns the position behind it."""
    raw = value << 1 if value >= 0 else -(value + 1) << 1 | 1
    while raw >= _CONTINUES:
        data[position] = (raw & _LOW_BITS) | _CONTINUES
        raw >>= 7
        position += 1
    data[position] = raw
    return position + 1


def put_bytes(data: bytearray, position: int, content: bytes) -> int:
    """Write the bytes as they are."""
    end = position + len(content)
    data[position:end] = content
    return end


def put_field(data: bytearray, position: int, content: bytes | None) -> int:
    """Write a length and that many bytes, or what stands for None."""
    if content is None:
        data[position] = _NULL_BYTE
        return position + 1
    return put_bytes(data, put_varint(data, position, len(content)), content)


def field_bytes(content: bytes | None) -> int:
    """What `put_field` writes."""
    return 1 if content is None else varint_bytes(len(content)) + len(content)
