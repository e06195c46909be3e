"""MarkerQueue: decides which marker of a decided transaction goes to which broker, and when again.

A state machine without I/O: jobs and the results of tries go in, tries come out. Rule of this
module: of each marker, at most one attempt to write it is open. A second one could reach the leader
when the producer is in its next transaction, and end that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from streamlog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from streamlog.broker.coordinator.transaction.coordinated_transaction import (
        Ending,
        TransactionPartition,
    )

RETRY_MS = 50
"""The pause before the second attempt to write a marker; it doubles with each attempt,"""
RETRY_MS_MAX = 1_000
"""up to this limit."""
NEEDLESS = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.POLICY_VIOLATION,
    }
)
"""Nothing is left to decide: a newer instance of the producer, or of its coordinator, has written
already; or the topic has become a mirror, and the cluster that it follows has decided."""

LeaderOf: TypeAlias = "Callable[[TransactionPartition], int | None]"
"""Returns the leader of a partition; negative if there is none, None if the partition is gone."""


class MarkerJob(NamedTuple):
    """A decided transaction, and the coordinator that decided it."""

    ending: Ending
    shard: int
    """The coordinator's partition of `__transaction_state`."""
    coordinator_epoch: int


class Try(NamedTuple):
    """The markers of one job that go to one broker."""

    number: int
    """The number of the job."""
    job: MarkerJob
    node_id: int
    partitions: tuple[TransactionPartition, ...]


@dataclass(slots=True)
class _Attempt:
    """When a marker is attempted next, and how many attempts it had."""

    at_ms: int
    tries: int = 0


@dataclass(slots=True)
class _OpenJob:
    """A job with the partitions that are not done."""

    job: MarkerJob
    due: dict[TransactionPartition, _Attempt]
    in_flight: dict[TransactionPartition, _Attempt] = field(default_factory=dict)


class MarkerQueue:
    """All markers that this broker, as a coordinator, has to have written."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenJob] = {}
        self._numbers = 0

    def __len__(self) -> int:
        """The number of incomplete transactions."""
        return len(self._open)

    def add(self, job: MarkerJob, now_ms: int) -> None:
        """Add a transaction whose decision is durable."""
        self._numbers += 1
        partitions = sorted(job.ending.partitions)
        self._open[self._numbers] = _OpenJob(
            job, {partition: _Attempt(now_ms) for partition in partitions}
        )

    def forget(self, index: int) -> None:
        """Drop the jobs of a partition, because another coordinator takes over and starts again."""
        self._open = {n: each for n, each in self._open.items() if each.job.shard != index}

    def take(self, leader_of: LeaderOf, now_ms: int) -> list[Try]:
        """Take the markers to write now.

        Each try must be followed by `on_code` for each partition.
        """
        return [
            each for number in list(self._open) for each in self._tries(number, leader_of, now_ms)
        ]

    def on_code(self, number: int, partition: TransactionPartition, code: int, now_ms: int) -> None:
        """Note the result of a try; REQUEST_TIMED_OUT if it is unknown."""
        known = self._open.get(number)
        if known is None:
            return  # The job was dropped.
        due = known.in_flight.pop(partition)
        if code != ErrorCode.NONE and code not in NEEDLESS:
            self._put_off(known, partition, due, now_ms)

    def take_complete(self) -> list[MarkerJob]:
        """Take the jobs that are complete."""
        done = [n for n, each in self._open.items() if not each.due and not each.in_flight]
        return [self._open.pop(number).job for number in done]

    def next_deadline_ms(self) -> int | None:
        """When `take` has something to do; None if it never has without other events."""
        waiting = (due.at_ms for each in self._open.values() for due in each.due.values())
        return min(waiting, default=None)

    def _tries(self, number: int, leader_of: LeaderOf, now_ms: int) -> list[Try]:
        known = self._open[number]
        # A marker that is under way is in `in_flight` and not in `due`, so it is never attempted
        # twice at the same time.
        partitions: dict[int, list[TransactionPartition]] = {}
        for partition in [partition for partition, due in known.due.items() if due.at_ms <= now_ms]:
            due = known.due.pop(partition)
            leader = leader_of(partition)
            if leader is None:
                continue  # The partition was deleted: nothing to end there.
            if leader < 0:
                self._put_off(known, partition, due, now_ms)
                continue
            known.in_flight[partition] = due
            partitions.setdefault(leader, []).append(partition)
        return [Try(number, known.job, node_id, tuple(own)) for node_id, own in partitions.items()]

    def _put_off(
        self, known: _OpenJob, partition: TransactionPartition, due: _Attempt, now_ms: int
    ) -> None:
        # Doubles from 50 ms to 1 s; the shift is bounded so that the number stays small.
        pause_ms = min(RETRY_MS << min(due.tries, 10), RETRY_MS_MAX)
        known.due[partition] = _Attempt(now_ms + pause_ms, due.tries + 1)
