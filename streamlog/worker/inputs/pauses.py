"""Pauses: which partitions are held back, by whom.

A partition may be read by a task and by agents, and each of them may ask for a pause: while
it is being opened, or while it has more than it can take. It is read only if nobody objects.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.client.consumer import Consumer
from streamlog.record import TopicPartition


class Pauses:
    """Who holds back which partition of a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._holders: dict[TopicPartition, set[object]] = {}

    def hold(self, who: object, partitions: Iterable[TopicPartition]) -> None:
        """Read nothing from these until `who` lets go of them."""
        for partition in partitions:
            self._holders.setdefault(partition, set()).add(who)
            self._consumer.pause(partition)

    def let_go(self, who: object, partitions: Iterable[TopicPartition]) -> None:
        """`who` takes records of these again; harmless if it never held them."""
        for partition in partitions:
            holders = self._holders.get(partition, set())
            holders.discard(who)
            if not holders and self._holders.pop(partition, None) is not None:
                self._consumer.resume(partition)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are not read here any more."""
        for partition in partitions:
            self._holders.pop(partition, None)

    def __len__(self) -> int:
        return len(self._holders)
