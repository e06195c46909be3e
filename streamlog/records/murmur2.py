"""Kafka's murmur2 of keys: which partition a record with a key goes to.

The one hash that producers in all languages agree on, so that the same key lies in the same
partition whoever wrote it. The rule of the file: it may be compiled; every number is cut to 32
bits before it is used on, so that both builds count alike. Records without a key have no place
here: who chooses for them is `client/producer/accumulator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["hashed", "murmur2", "partitions_of_keys"]

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data`, as an unsigned 32-bit number.

    Example:
        >>> murmur2(b"foobar")
        3504634814
    """
    return hashed(data, 0, len(data))


def hashed(data: bytes, start: int, length: int) -> int:
    """The same of `length` bytes from `start` on; nobody looks at the end of the data here."""
    number = (_SEED ^ length) & _MASK
    end = start + length - length % 4
    for at in range(start, end, 4):
        word = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24)
        word = (word * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & _MASK
        number = ((number * _MULTIPLIER) & _MASK) ^ word
    if length % 4:
        word = 0
        for at in range(start + length - 1, end - 1, -1):
            word = (word << 8) | data[at]
        number = ((number ^ word) * _MULTIPLIER) & _MASK
    number = ((number ^ (number >> 13)) * _MULTIPLIER) & _MASK
    return number ^ (number >> 15)


def partitions_of_keys(keys: Iterable[bytes], partitions: int, tail_bytes: int = 0) -> list[int]:
    """The partition of each key in a topic with that many of them, 1 or more.

    So many bytes at the end of each key do not count.
    """
    count = max(partitions, 1)
    found: list[int] = []
    for key in keys:
        length = max(len(key) - tail_bytes, 0)
        found.append((hashed(key, 0, length) & _POSITIVE) % count)
    return found
