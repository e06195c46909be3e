"""Bytes put together and looked over, in the loops that do it for every key and every row.

`a + b` of two bytes goes through the protocol for numbers and then that for buffers, which costs
more than the copy. The rule of the file: `packing.pxd` says in C what is said here, for compiled
callers to inline; change both or neither.
"""

from __future__ import annotations

import math
import struct

_STAMP = struct.Struct(">q")
_LONG_END = 2**63


def joined(first: bytes, second: bytes) -> bytes:
    """The one behind the other.

    Raises:
        TypeError: one of them is something else.
    """
    return first + second


def stamped(time_ms: int, data: bytes) -> bytes:
    """A time in eight bytes, and the data behind it.

    Raises:
        TypeError: the data are something else.
    """
    return _STAMP.pack(time_ms) + data


def is_ascii(data: bytes) -> bool:
    """Whether all bytes are below 128."""
    return data.isascii()


def is_ascii_text(text: str) -> bool:
    """Whether all characters are below 128."""
    return text.isascii()


def is_long(number: int) -> bool:
    """Whether it fits into 64 bits, its sign included."""
    return -_LONG_END <= number < _LONG_END


def is_finite(number: float) -> bool:
    """Whether it is neither infinite nor no number at all."""
    return math.isfinite(number)
