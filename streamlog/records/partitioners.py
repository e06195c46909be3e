"""Partitioners: which partition a key belongs to, as the clients that write a topic decide it.

A key has to be looked for where its producer put it, and producers differ: Java's clients, ours
and most others hash with murmur2; librdkafka (kcat, confluent-kafka, most clients built on it)
hashes with CRC32 unless told otherwise; sarama (Go) hashes with FNV-1a. Pure. Not done here:
records without a key (`client/producer/accumulator`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias
from zlib import crc32

from streamlog.records.murmur2 import partitions_of_keys

PartitionerName: TypeAlias = Literal["murmur2", "crc32", "fnv1a"]
Partitioner: TypeAlias = PartitionerName | Callable[[bytes, int], int]
"""By name, or a function of the key's bytes and the number of partitions."""

DEFAULT: Final = "murmur2"
_PRIME = 0x01000193
_BASIS = 0x811C9DC5
_MASK = 0xFFFFFFFF
_SIGN = 0x80000000


def fnv1a(key: bytes) -> int:
    """FNV-1a, 32 bits, as sarama and librdkafka take it: the absolute value of a signed number."""
    number = _BASIS
    for byte in key:
        number = ((number ^ byte) * _PRIME) & _MASK
    return (-number & _MASK) if number & _SIGN else number


def _by_murmur2(key: bytes, count: int) -> int:
    return partitions_of_keys((key,), count)[0]


_NAMED: Mapping[str, Callable[[bytes, int], int]] = {
    "murmur2": _by_murmur2,
    "crc32": lambda key, count: crc32(key) % count,
    "fnv1a": lambda key, count: fnv1a(key) % count,
}
PARTITIONERS: Final[tuple[PartitionerName, ...]] = ("murmur2", "crc32", "fnv1a")
"""The names of those that there are."""


def partition_by(partitioner: Partitioner, key: bytes, count: int) -> int:
    """The partition of a key in a topic with that many of them."""
    find = partitioner if callable(partitioner) else _NAMED[partitioner]
    return find(key, count)


def partitions_by(
    partitioner: Partitioner, keys: Iterable[bytes], count: int, tail_bytes: int = 0
) -> list[int]:
    """The partition of each key; so many bytes at the end of each key do not count."""
    if partitioner == DEFAULT:
        return partitions_of_keys(keys, count, tail_bytes)
    return [partition_by(partitioner, key[: max(len(key) - tail_bytes, 0)], count) for key in keys]


def matching_partitioners(places: Iterable[tuple[bytes, int]], count: int) -> dict[str, int]:
    """How many of these keys, each with the partition that it lies in, every partitioner explains.

    Empty keys tell nothing: librdkafka puts them anywhere.
    """
    known = [(key, partition) for key, partition in places if key]
    return {
        name: sum(find(key, count) == partition for key, partition in known)
        for name, find in _NAMED.items()
    }


def partitioner_name(partitioner: Partitioner) -> str:
    """What messages call a partitioner."""
    if callable(partitioner):
        return f"the function {getattr(partitioner, '__qualname__', type(partitioner).__name__)}"
    return partitioner
