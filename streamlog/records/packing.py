"""Bytes put together and looked over, in the loops that do it for every key and every row.

`a + b` of two bytes goes through the protocol for numbers and then that for buffers, which costs
more than the copy. The rule of the file: `packing.pxd` says in C what is said here, for compiled
callers to inline; change both or neither.
"""

from __future__ import annotations

import math
import struct

import msgspec

_STAMP = struct.Struct(">q")
_LONG_END = 2**63
_SHORT_LIST = 15
_packed = msgspec.msgpack.Encoder().encode


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


def stamped_numbers(time_ms: int, state: object) -> bytes | None:
    """A time in eight bytes, and a short list of whole numbers behind it, as MessagePack has it.

    None: the state is something else, or a number has more than 64 bits.
    """
    if type(state) is not list or len(state) > _SHORT_LIST:
        return None
    if not all(type(number) is int and is_long(number) for number in state):
        return None
    return _STAMP.pack(time_ms) + _packed(state)


def stamped_longs(time_ms: int, numbers: list[int], count: int) -> bytes:
    """As `stamped_numbers`, of the first few of numbers within 64 bits."""
    return _STAMP.pack(time_ms) + _packed(numbers[:count])


def is_ascii(data: bytes) -> bool:
    """Whether all bytes are below 128."""
    return data.isascii()


def is_ascii_text(text: str) -> bool:
    """Whether all characters are below 128."""
    return text.isascii()


def is_long(number: int) -> bool:
    """Whether it fits into 64 bits, its sign included."""
    return -_LONG_END <= number < _LONG_END


def is_long_sum(first: int, second: int) -> bool:
    """Whether the sum of two such fits as well."""
    return is_long(first + second)


def is_finite(number: float) -> bool:
    """Whether it is neither infinite nor no number at all."""
    return math.isfinite(number)
