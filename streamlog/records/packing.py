"""Joins, searches and checks bytes, in the loops that do so for every key and every row.

In Cython, `a + b` of two bytes goes through the number protocol and then the buffer protocol, which
costs more than the copy. The rule of the file: `packing.pxd` has these functions in C, for compiled
callers to inline; change both or neither.
"""

from __future__ import annotations

import math
import struct

import msgspec

_STAMP = struct.Struct(">q")
_LONG_END = 2**63
_SHORT_LIST = 15  # up to here, MessagePack has type and count in one byte
_SHORT_LIST_TYPE = 9  # the upper half of that byte
_packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder().decode


def joined(first: bytes, second: bytes) -> bytes:
    """Return `first` followed by `second`.

    Raises:
        TypeError: an argument is not bytes.
    """
    return first + second


def stamped(time_ms: int, data: bytes) -> bytes:
    """Return a time in eight bytes, followed by the data.

    Raises:
        TypeError: the data are not bytes.
    """
    return _STAMP.pack(time_ms) + data


def stamped_numbers(time_ms: int, state: object) -> bytes | None:
    """Return a time in eight bytes, followed by a short list of integers in MessagePack.

    None if the state is not such a list, or a number has more than 64 bits.
    """
    if type(state) is not list or len(state) > _SHORT_LIST:
        return None
    # `type`, not `isinstance`: a bool is an int, but another type in MessagePack.
    if not all(type(number) is int and is_long(number) for number in state):
        return None
    return _STAMP.pack(time_ms) + _packed(state)


def stamped_longs(time_ms: int, numbers: list[int], count: int) -> bytes:
    """Return a time in eight bytes, followed by the first `count` numbers in MessagePack.

    Every number must have at most 64 bits.
    """
    return _STAMP.pack(time_ms) + _packed(numbers[:count])


def time_of(data: bytes) -> int:
    """Return the time in the first eight bytes, which have to be there."""
    time_ms: int = _STAMP.unpack_from(data)[0]
    return time_ms


def numbers_of(data: bytes) -> list[int] | None:
    """Return the numbers of data that `stamped_numbers` has written; None if the data are other."""
    if len(data) <= _STAMP.size or data[_STAMP.size] >> 4 != _SHORT_LIST_TYPE:
        return None
    try:
        state = _unpacked(data[_STAMP.size :])
    except (msgspec.MsgspecError, ValueError):
        return None
    # An unsigned number of 64 bits may be too large for `stamped_numbers`, which never writes it.
    return state if all(type(number) is int and is_long(number) for number in state) else None


def position_of(data: bytes, wanted: int, start: int, end: int) -> int:
    """Return where a byte comes first in `data[start:end]`; `end` if it does not.

    Does not check that the data go up to `end`.
    """
    found = data.find(wanted, start, end)
    return end if found < 0 else found


def count_of(data: bytes, wanted: int, end: int) -> int:
    """Return how often a byte is in `data[:end]`; does not check that the data go up to `end`."""
    return data.count(wanted, 0, end)


def is_ascii(data: bytes) -> bool:
    """Whether all bytes are below 128."""
    return data.isascii()


def is_ascii_text(text: str) -> bool:
    """Whether all characters are below 128."""
    return text.isascii()


def is_long(number: int) -> bool:
    """Whether the number fits into a signed 64-bit integer."""
    return -_LONG_END <= number < _LONG_END


def is_long_sum(first: int, second: int) -> bool:
    """Whether the sum of two 64-bit integers fits into a signed 64-bit integer."""
    return is_long(first + second)


def is_finite(number: float) -> bool:
    """Whether the number is neither infinite nor NaN."""
    return math.isfinite(number)
