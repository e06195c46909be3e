"""Which partition a record goes to if the caller does not say.

With a key: murmur2 of the key, as in Kafka's own clients, so that producers in other languages
put the same key into the same partition. Without one: stay with a partition until its batch has
been sent or is full, then take the next (KIP-480): few large batches instead of many small ones.
The first partition of a topic is drawn, as Kafka's client does: of many programs that send one
record each, not all write to partition 0. Kafka draws every next one, too, and weighs them by load
(KIP-794); here they take turns. Pure: whoever makes it gives the chance.
"""

from __future__ import annotations

from typing import Protocol

from streamlog.chance import Random
from streamlog.records.murmur2 import murmur2, partitions_of_keys

__all__ = ["StickyPartitions", "murmur2", "partition_of_key", "partitions_of_keys"]


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of `key` in a topic with that many of them."""
    return partitions_of_keys((key,), partitions)[0]


class Closing(Protocol):
    """A batch, as far as this module knows it."""

    closed: bool
    """It takes no more records: it is full, or has been sent."""


class StickyPartitions:
    """The partition that records without a key go to at the moment, per topic."""

    def __init__(self, chance: Random) -> None:
        """`chance` draws the partition that a topic begins with."""
        self._chance = chance
        self._current: dict[str, int] = {}
        self._begun: dict[str, Closing] = {}
        """The batch that was begun in the current partition for such a record."""

    def choose(self, topic: str, partitions: int) -> int:
        """Where the next record without a key goes."""
        current = self._current.get(topic)
        if current is None:
            current = self._current[topic] = self._chance.randrange(partitions)
        batch = self._begun.get(topic)
        if batch is not None and batch.closed:
            del self._begun[topic]
            current = self._current[topic] = (current + 1) % partitions
        return current % partitions

    def begin(self, topic: str, batch: Closing) -> None:
        """A batch was begun for a record without a key: once it is closed, its turn is over."""
        self._begun[topic] = batch

    def turn(self, topic: str, partition: int, partitions: int) -> None:
        """A batch for `partition` is full: if it is the current one, the next one's turn comes."""
        current = self._current.get(topic)
        if current is not None and current % partitions == partition:
            self._current[topic] = (partition + 1) % partitions
            self._begun.pop(topic, None)
