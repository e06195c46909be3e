"""Markers: what is still to be written to end transactions, and to which broker it goes.

Pure. A transaction that is decided needs a marker in each of its partitions, written by that one's
leader, and goes on needing it until the leader has said that it is committed, or the partition is
gone. Who leads is asked anew for every try: leaders move, and a marker follows them.
Rule of the file: of one transaction there is never more than one try under way in a partition. A
second one could come to the leader when the producer is in its next transaction, and end that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from streamlog.broker.coordinator.transaction import TopicPartition
from streamlog.broker.coordinator.transaction_coordinator import Ending
from streamlog.protocol.error_codes import ErrorCode

RETRY_MS = 50
"""Before the second try to write a marker; each time it takes twice as long,"""
RETRY_MS_MAX = 1_000
"""but no longer than this."""
NEEDLESS = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""There is nothing left to decide: a newer instance of the producer, or of its coordinator, was
faster."""

LeaderOf = Callable[[TopicPartition], int | None]
"""Who leads a partition: negative if nobody does, None if it is gone."""


class Job(NamedTuple):
    """A transaction that is decided, and by whom."""

    ending: Ending
    shard: int
    """The coordinator's partition."""
    coordinator_epoch: int


class Try(NamedTuple):
    """Markers that go to one broker."""

    number: int
    """Of the job."""
    job: Job
    node_id: int
    places: tuple[TopicPartition, ...]


@dataclass(slots=True)
class _Due:
    """When a marker is tried next, and how often it was tried."""

    at_ms: int
    tries: int = 0


@dataclass(slots=True)
class _Open:
    """What is left of a job."""

    job: Job
    due: dict[TopicPartition, _Due]
    under_way: dict[TopicPartition, _Due] = field(default_factory=dict)


class MarkerQueue:
    """All markers that this broker has to see to."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._numbers = 0

    def __len__(self) -> int:
        """How many transactions are not complete."""
        return len(self._open)

    def add(self, job: Job, now_ms: int) -> None:
        """A transaction was decided, durably."""
        self._numbers += 1
        places = sorted(job.ending.partitions)
        self._open[self._numbers] = _Open(job, {place: _Due(now_ms) for place in places})

    def forget(self, index: int) -> None:
        """Another coordinator sees to the transactions of a partition: it begins anew."""
        self._open = {n: each for n, each in self._open.items() if each.job.shard != index}

    def take(self, leader_of: LeaderOf, now_ms: int) -> list[Try]:
        """What is to be tried now; each try ends with `on_code` for each of its places."""
        return [
            each for number in list(self._open) for each in self._tries(number, leader_of, now_ms)
        ]

    def on_code(self, number: int, place: TopicPartition, code: int, now_ms: int) -> None:
        """What has become of a try; what was not heard of may be REQUEST_TIMED_OUT."""
        known = self._open.get(number)
        if known is None:
            return  # The job was forgotten.
        due = known.under_way.pop(place)
        if code != ErrorCode.NONE and code not in NEEDLESS:
            self._put_off(known, place, due, now_ms)

    def take_done(self) -> list[Job]:
        """The jobs of which nothing is left, and were not taken before."""
        done = [n for n, each in self._open.items() if not each.due and not each.under_way]
        return [self._open.pop(number).job for number in done]

    def next_deadline_ms(self) -> int | None:
        """When `take` has something to do; None while nothing waits for time to pass."""
        waiting = (due.at_ms for each in self._open.values() for due in each.due.values())
        return min(waiting, default=None)

    def _tries(self, number: int, leader_of: LeaderOf, now_ms: int) -> list[Try]:
        known = self._open[number]
        places: dict[int, list[TopicPartition]] = {}
        for place in [place for place, due in known.due.items() if due.at_ms <= now_ms]:
            due = known.due.pop(place)
            leader = leader_of(place)
            if leader is None:
                continue
            if leader < 0:
                self._put_off(known, place, due, now_ms)
                continue
            known.under_way[place] = due
            places.setdefault(leader, []).append(place)
        return [Try(number, known.job, node_id, tuple(own)) for node_id, own in places.items()]

    def _put_off(self, known: _Open, place: TopicPartition, due: _Due, now_ms: int) -> None:
        pause_ms = min(RETRY_MS << min(due.tries, 10), RETRY_MS_MAX)
        known.due[place] = _Due(now_ms + pause_ms, due.tries + 1)
