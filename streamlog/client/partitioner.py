"""Which partition a record goes to if the caller does not say.

Pure. With a key: murmur2 of the key, as in Kafka's own clients, so that producers in other
languages put the same key into the same partition. Without one: stay with a partition until a
batch for it is full, then take the next (KIP-480): few large batches instead of many small ones.
Kafka draws the next partition at random and weighs it by load (KIP-794); here it goes round.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data`, as an unsigned 32-bit number.

    Example:
        >>> murmur2(b"foobar")
        3504634814
    """
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        word = (word * _MULTIPLIER) & _MASK
        word ^= word >> 24
        hashed = ((hashed * _MULTIPLIER) & _MASK) ^ ((word * _MULTIPLIER) & _MASK)
    if whole < length:
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = (hashed * _MULTIPLIER) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * _MULTIPLIER) & _MASK
    return hashed ^ (hashed >> 15)


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of `key` in a topic with that many of them."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitions:
    """The partition that records without a key go to at the moment, per topic."""

    def __init__(self) -> None:
        self._current: dict[str, int] = {}

    def current(self, topic: str, partitions: int) -> int:
        """Where the next record without a key goes."""
        return self._current.setdefault(topic, 0) % partitions

    def turn(self, topic: str, partition: int, partitions: int) -> None:
        """A batch for `partition` is full: if it is the current one, go on to the next."""
        if self.current(topic, partitions) == partition:
            self._current[topic] = (partition + 1) % partitions
