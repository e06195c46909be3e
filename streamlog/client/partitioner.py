"""Which partition a record goes to if the caller does not say.

Pure. With a key: murmur2 of the key, as in Kafka's own clients, so that producers in other
languages put the same key into the same partition. Without one: stay with a partition until a
batch for it is full, then take the next (KIP-480): few large batches instead of many small ones.
Kafka draws the next partition at random and weighs it by load (KIP-794); here it goes round.
"""

from __future__ import annotations

from streamlog.records.murmur2 import murmur2, partitions_of_keys

__all__ = ["StickyPartitions", "murmur2", "partition_of_key", "partitions_of_keys"]


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of `key` in a topic with that many of them."""
    return partitions_of_keys((key,), partitions)[0]


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
