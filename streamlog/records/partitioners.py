"""Partitioners: the functions with which clients map a key to a partition.

A look-up by key must use the partitioner of the topic's producers, and these differ: Java's
clients, ours and most others use murmur2; librdkafka (kcat, confluent-kafka and most clients built
on it) uses CRC32 by default; sarama (Go) uses FNV-1a. Not done here: records without a key
(`client/producer/accumulator`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias
from zlib import crc32

from streamlog.records.murmur2 import partitions_of_keys

PartitionerName: TypeAlias = Literal["murmur2", "crc32", "fnv1a"]
Partitioner: TypeAlias = PartitionerName | Callable[[bytes, int], int]
"""A name, or a function of the key's bytes and the number of partitions."""

DEFAULT: Final = "murmur2"
_PRIME = 0x01000193
_BASIS = 0x811C9DC5
_MASK = 0xFFFFFFFF
_SIGN = 0x80000000


def fnv1a(key: bytes) -> int:
    """Return FNV-1a in 32 bits as sarama and librdkafka use it: the absolute signed value."""
    number = _BASIS
    for byte in key:
        number = ((number ^ byte) * _PRIME) & _MASK
    return (-number & _MASK) if number & _SIGN else number


def _by_murmur2(key: bytes, count: int) -> int:
    return partitions_of_keys((key,), count)[0]


# Each gives the partition of the clients that use it, so the remainders are theirs as well:
# murmur2 clears the sign bit, crc32 is unsigned, and FNV-1a takes the absolute value.
_NAMED: Mapping[str, Callable[[bytes, int], int]] = {
    "murmur2": _by_murmur2,
    "crc32": lambda key, count: crc32(key) % count,
    "fnv1a": lambda key, count: fnv1a(key) % count,
}
PARTITIONERS: Final[tuple[PartitionerName, ...]] = ("murmur2", "crc32", "fnv1a")
"""The names of all partitioners."""


def partition_by(partitioner: Partitioner, key: bytes, count: int) -> int:
    """Return the partition of a key in a topic with `count` partitions."""
    find = partitioner if callable(partitioner) else _NAMED[partitioner]
    return find(key, count)


def partitions_by(
    partitioner: Partitioner, keys: Iterable[bytes], count: int, tail_bytes: int = 0
) -> list[int]:
    """Return the partition of each key; `tail_bytes` at the end of a key are not hashed."""
    if partitioner == DEFAULT:
        return partitions_of_keys(keys, count, tail_bytes)
    return [partition_by(partitioner, key[: max(len(key) - tail_bytes, 0)], count) for key in keys]


def matching_partitioners(
    key_partitions: Iterable[tuple[bytes, int]], count: int
) -> dict[str, int]:
    """Return partitioner name to the number of keys whose partition it explains.

    Args:
        key_partitions: keys with the partitions that hold them. Empty keys are skipped:
            librdkafka puts them into any partition.
        count: the topic's number of partitions.
    """
    known = [(key, partition) for key, partition in key_partitions if key]
    return {
        name: sum(find(key, count) == partition for key, partition in known)
        for name, find in _NAMED.items()
    }


def partitioner_name(partitioner: Partitioner) -> str:
    """Return the name of a partitioner, for messages."""
    if callable(partitioner):
        return f"the function {getattr(partitioner, '__qualname__', type(partitioner).__name__)}"
    return partitioner
