"""StagedOffsets: positions that are in a transaction, until it is known whether they count.

Pure. Where a position is committed twice, by a transaction or without one, the later record
counts, as it does for compaction: so what a restart finds is what was told before, whichever of
the records are left then. A staged position that was overtaken by another record is forgotten.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from streamlog.broker.coordinator.records import OffsetChange
from streamlog.protocol.messages.coordination import OffsetCommitKey

Place = tuple[str, str, int]
"""Group, topic and partition."""


class _Staged(NamedTuple):
    number: int
    change: OffsetChange


class StagedOffsets:
    """The positions of all open transactions of one shard."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[Place, _Staged]] = {}
        self._numbers = itertools.count()

    def __contains__(self, place: object) -> bool:
        return any(place in staged for staged in self._by_producer.values())

    def stage(self, producer_id: int, change: OffsetChange) -> None:
        """The next record of the log is in a transaction of this producer."""
        staged = _Staged(next(self._numbers), change)
        self._by_producer.setdefault(producer_id, {})[_place(change.key)] = staged

    def overtake(self, key: OffsetCommitKey) -> None:
        """The next record of the log is about the same position, and counts at once."""
        if self._by_producer:
            self._forget(_place(key), next(self._numbers))

    def decide(self, producer_id: int, *, committed: bool) -> list[OffsetChange]:
        """The transaction has ended; returns what counts from now on."""
        staged = self._by_producer.pop(producer_id, {})
        if not committed:
            return []
        for place, each in staged.items():
            self._forget(place, each.number)
        return [each.change for each in staged.values()]

    def _forget(self, place: Place, before: int) -> None:
        for staged in self._by_producer.values():
            known = staged.get(place)
            if known is not None and known.number < before:
                del staged[place]


def _place(key: OffsetCommitKey) -> Place:
    return key.group, key.topic, key.partition
