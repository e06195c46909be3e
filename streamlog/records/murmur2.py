"""Kafka's murmur2 hash, which maps a key to a partition.

Java's producers and most others use this hash, so that equal keys are in one partition whichever
program has written them. The rule of the file: it may be compiled; every number is masked to 32
bits before it is used, so that both builds compute equal results. Not done here: the partition of
records without a key (`client/producer/open_batches`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["hashed", "murmur2", "partition_of_key", "partitions_of_keys"]

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 of `data`, as an unsigned 32-bit number.

    Example:
        >>> murmur2(b"foobar")
        3504634814
    """
    return hashed(data, 0, len(data))


def hashed(data: bytes, start: int, length: int) -> int:
    """Return the murmur2 of `length` bytes from `start` on; does not check the end of the data."""
    number = (_SEED ^ length) & _MASK
    end = start + length - length % 4
    for at in range(start, end, 4):
        # Little-endian words, as in Kafka.
        word = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24)
        word = (word * _MULTIPLIER) & _MASK
        word = ((word ^ (word >> 24)) * _MULTIPLIER) & _MASK
        number = ((number * _MULTIPLIER) & _MASK) ^ word
    # The last one to three bytes form a word of their own, without the mixing above.
    if length % 4:
        word = 0
        for at in range(start + length - 1, end - 1, -1):
            word = (word << 8) | data[at]
        number = ((number ^ word) * _MULTIPLIER) & _MASK
    number = ((number ^ (number >> 13)) * _MULTIPLIER) & _MASK
    return number ^ (number >> 15)


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition of `key` in a topic with `partitions` partitions, 1 or more."""
    # The sign bit is cleared, as by Kafka's `toPositive`; a negated or unsigned hash would give
    # other partitions than the Java client.
    count = max(partitions, 1)
    return (hashed(key, 0, len(key)) & _POSITIVE) % count


def partitions_of_keys(keys: Iterable[bytes], partitions: int, tail_bytes: int = 0) -> list[int]:
    """Return the partition of each key.

    Args:
        keys: the keys.
        partitions: the topic's number of partitions, 1 or more.
        tail_bytes: bytes at the end of each key that are not hashed.
    """
    count = max(partitions, 1)
    found: list[int] = []
    for key in keys:
        length = max(len(key) - tail_bytes, 0)
        found.append((hashed(key, 0, length) & _POSITIVE) % count)
    return found
