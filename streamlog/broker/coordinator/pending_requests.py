"""PendingRequests: the requests that a coordinator has accepted and not yet answered.

A response rests on records of one partition, so it leaves when those are committed: on disk, and
on the disks of all in-sync replicas. If they may be lost, the client gets an error that sends it
back to FindCoordinator.

`Proofs` covers responses that rest on memory alone. A coordinator that another broker has replaced
may not know it yet, and would answer from an old image. Such a response waits for a record that is
appended after the request came and changes nothing. Once that record is committed, no other broker
led the partition when the request came.

Not done here: which partition a request belongs to (`led_shards`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from streamlog.broker.coordinator.shard import Answer, refuse
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.records.batch import encode_batch

if TYPE_CHECKING:
    from streamlog.broker.coordinator.led_shards import Led
    from streamlog.broker.coordinator.shard import CoordinatorRecord, Instant
    from streamlog.broker.replication.partition import Partition
    from streamlog.broker.replication.partition_replica import Committed
    from streamlog.protocol.schema import Message


COMMIT_TIMEOUT_MS = 5_000
"""Nobody waits longer for followers, as by Kafka's `offsets.commit.timeout.ms`: what was appended
stays, and may be committed yet."""


class _Waiting(NamedTuple):
    """A request that has not been answered."""

    shard: int
    """Its number."""
    request: Message
    version: int
    answer: asyncio.Future[Message]


class PendingRequests:
    """The requests of one kind of coordinator, by ticket."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._overdue: deque[tuple[int, tuple[Answer, ...]]] = deque()
        """What waits for followers, and for how long, the earliest first."""
        self._tickets = itertools.count(1)

    def take(
        self, index: int, request: Message, version: int
    ) -> tuple[int, asyncio.Future[Message]]:
        """A request for a shard: its ticket, and where its answer will be."""
        ticket = next(self._tickets)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = _Waiting(index, request, version, answer)
        return ticket, answer

    def give(self, log: Partition, answers: tuple[Answer, ...], now_ms: int) -> None:
        """Send answers once everything is committed that the log has by now."""
        end_offset = log.log.log_end_offset
        if not answers or log.may_acknowledge(end_offset):
            self.send(answers)
            return
        if not log.is_alone:
            self.limit(answers, now_ms)
        log.when_committed(end_offset, partial(self.settle, answers))

    def limit(self, answers: tuple[Answer, ...], now_ms: int) -> None:
        """Followers are not waited for without end: after a while those who wait are refused."""
        self._overdue.append((now_ms + COMMIT_TIMEOUT_MS, answers))

    def settle(self, answers: tuple[Answer, ...], failure: StreamlogError | None) -> None:
        """What answers rest on is committed, or why that can't be said."""
        if failure is None:
            self.send(answers)
        else:
            self.refuse([each.ticket for each in answers], coordinator_error(failure))

    def awaited(self, answers: Iterable[Answer]) -> tuple[Answer, ...]:
        """Those of them that somebody still waits for."""
        return tuple(each for each in answers if each.ticket in self._waiting)

    def send(self, answers: Iterable[Answer]) -> None:
        """Answer those who still wait."""
        for ticket, response in [(each.ticket, each.response) for each in answers]:
            waiting = self._waiting.pop(ticket, None)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(response)

    def refuse(self, tickets: Iterable[int], code: ErrorCode) -> None:
        """Tell those who still wait nothing but why they get no answer."""
        for ticket in tickets:
            waiting = self._waiting.get(ticket)
            if waiting is not None:
                response = refuse(waiting.request, waiting.version, code)
                self.send([Answer(ticket, response)])

    def resign(self, index: int) -> None:
        """Another broker coordinates from now on what belongs to a shard."""
        left = [ticket for ticket, each in self._waiting.items() if each.shard == index]
        self.refuse(left, ErrorCode.NOT_COORDINATOR)

    def stop(self, reason: StreamlogError) -> None:
        """Nobody will be answered any more."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.answer.done():
                each.answer.set_exception(reason)

    def tick(self, now_ms: int) -> None:
        """Give up on followers that are too slow."""
        while self._overdue and self._overdue[0][0] <= now_ms:
            _, answers = self._overdue.popleft()
            self.refuse([each.ticket for each in answers], ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        overdue = self._overdue
        while overdue and not any(each.ticket in self._waiting for each in overdue[0][1]):
            overdue.popleft()
        return overdue[0][0] if overdue else None


def coordinator_error(failure: StreamlogError) -> ErrorCode:
    """What is told to who asks a coordinator whose log has not taken, or not kept, a record.

    As in Kafka: to look for the coordinator, to come again, or not to if the record itself is
    what the log does not take.
    """
    if not isinstance(failure, LogError):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if failure.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NOT_COORDINATOR
    if failure.retriable:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_SERVER_ERROR


def when_all_committed(logs: Iterable[Partition], then: Committed) -> None:
    """Call once all is committed that these partitions have by now, or why that can't be said."""
    ends = [(log, log.log.log_end_offset) for log in logs]
    waiting = {
        number: each for number, each in enumerate(ends) if not each[0].may_acknowledge(each[1])
    }
    failures: list[StreamlogError] = []

    def on_one(number: int, failure: StreamlogError | None) -> None:
        waiting.pop(number, None)
        if failure is not None:
            failures.append(failure)
        if not waiting:
            then(next(iter(failures), None))

    if not waiting:
        then(None)
    for number, (log, end_offset) in list(waiting.items()):
        log.when_committed(end_offset, partial(on_one, number))


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """What can be planted."""

    tells_from_memory: bool = False
    """Whoever asks is told what is known once that is committed, as Kafka's coordinators do."""


class Proofs:
    """Answers that say what is known, each until it is certain that nobody knows better."""

    rules: ClassVar[CoordinatorRules] = CoordinatorRules()

    def __init__(
        self, answering: PendingRequests, nothing: CoordinatorRecord, now: Callable[[], Instant]
    ) -> None:
        """`nothing` is a record of the partition by which nothing becomes different."""
        self._answering = answering
        self._nothing = nothing
        self._now = now
        self._waiting: dict[int, list[Answer]] = {}
        """What is told after the next proof, by the number of the shard."""
        self._under_way: dict[int, Led[Any]] = {}
        """The shards whose proof has been appended, and is not committed."""

    def give(self, led: Led[Any], answers: tuple[Answer, ...]) -> None:
        """Send what was answered from memory just now, once that is proven to be the last word."""
        now_ms = self._now().now_ms
        if not answers:
            return
        if led.log.is_alone or self.rules.tells_from_memory:
            self._answering.give(led.log, answers, now_ms)
            return
        try:
            # A proof on its way may never be committed then, and who waits behind it would pile up.
            led.log.check_insync()
        except StreamlogError as error:
            self._answering.refuse([each.ticket for each in answers], coordinator_error(error))
            return
        self._answering.limit(answers, now_ms)
        self._waiting.setdefault(led.index, []).extend(answers)
        if led.index not in self._under_way:
            self._begin(led)

    def resign(self, index: int) -> None:
        """Another broker leads the shard: whoever waited was told so."""
        self._waiting.pop(index, None)
        self._under_way.pop(index, None)

    def _begin(self, led: Led[Any]) -> None:
        """Append a proof for all who wait now; those who come later wait for the next one."""
        answers = self._answering.awaited(self._waiting.pop(led.index, ()))
        if not answers:
            return
        at = self._now()
        proof = encode_batch([(at.wall_ms, self._nothing.key, self._nothing.value, ())])
        try:
            led.log.check_insync()
            led.log.append(proof, now_ms=at.now_ms, origin=AppendOrigin.COORDINATOR)
        except StreamlogError as error:
            self._answering.refuse([each.ticket for each in answers], coordinator_error(error))
            return
        self._under_way[led.index] = led
        led.log.when_committed(
            led.log.log.log_end_offset, partial(self._on_committed, led, answers)
        )

    def _on_committed(
        self, led: Led[Any], answers: tuple[Answer, ...], failure: StreamlogError | None
    ) -> None:
        is_last = self._under_way.get(led.index) is led
        if is_last:
            del self._under_way[led.index]
        if is_last and failure is not None:
            # A proof of a later epoch would not say who has led since they came.
            answers += tuple(self._waiting.pop(led.index, ()))
        self._answering.settle(answers, failure)
        if is_last:
            self._begin(led)
