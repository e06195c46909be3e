"""PendingRequests: the requests that a coordinator has accepted and not yet answered.

A response rests on records of one partition, so it is sent when they are committed: on disk, and on
the disks of all in-sync replicas. If they may be lost, the client gets an error that sends it back
to FindCoordinator.

`Proofs` covers responses that rest on memory alone. A coordinator that another broker has replaced
may not know it yet, and would answer from an old state. Such a response waits for a record that is
appended after the request arrived and changes nothing. Once that record is committed, no other
broker led the partition when the request arrived.

Not done here: which partition a request belongs to (`led_shards`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from streamlog.broker.coordinator.shard import Answer, refuse
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.records.batch import encode_batch

if TYPE_CHECKING:
    from streamlog.broker.coordinator.led_shards import LedShard
    from streamlog.broker.coordinator.shard import CoordinatorRecord, Instant
    from streamlog.broker.replication.partition import Partition
    from streamlog.broker.replication.partition_replica import Committed
    from streamlog.protocol.schema import Message


COMMIT_TIMEOUT_MS = 5_000
"""The longest wait for followers, as Kafka's `offsets.commit.timeout.ms`.

Records that were appended stay, and may still be committed.
"""


class _Waiting(NamedTuple):
    """A request without a response yet."""

    shard: int
    """The number of its shard."""
    request: Message
    version: int
    answer: asyncio.Future[Message]


class PendingRequests:
    """The requests of one kind of coordinator, by ticket."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._overdue: deque[tuple[int, tuple[Answer, ...]]] = deque()
        """Answers that wait for followers, and until when, the earliest first."""
        self._tickets = itertools.count(1)

    def take(
        self, index: int, request: Message, version: int
    ) -> tuple[int, asyncio.Future[Message]]:
        """Register a request for a shard; return its ticket, and the future of its response."""
        ticket = next(self._tickets)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = _Waiting(index, request, version, answer)
        return ticket, answer

    def give(self, log: Partition, answers: tuple[Answer, ...], now_ms: int) -> None:
        """Send answers once everything in the log is committed."""
        end_offset = log.log.log_end_offset
        if not answers or log.may_acknowledge(end_offset):
            self.send(answers)
            return
        if not log.is_alone:
            self.limit(answers, now_ms)
        log.when_committed(end_offset, partial(self.settle, answers))

    def limit(self, answers: tuple[Answer, ...], now_ms: int) -> None:
        """Limit the wait of answers: after `COMMIT_TIMEOUT_MS` the requests get an error."""
        self._overdue.append((now_ms + COMMIT_TIMEOUT_MS, answers))

    def settle(self, answers: tuple[Answer, ...], failure: StreamlogError | None) -> None:
        """Send answers whose records are committed, or an error if they may be lost."""
        if failure is None:
            self.send(answers)
        else:
            self.refuse([each.ticket for each in answers], coordinator_error(failure))

    def still_waiting(self, answers: Iterable[Answer]) -> tuple[Answer, ...]:
        """Return the answers whose requests still wait."""
        return tuple(each for each in answers if each.ticket in self._waiting)

    def send(self, answers: Iterable[Answer]) -> None:
        """Send answers to requests that still wait."""
        for ticket, response in [(each.ticket, each.response) for each in answers]:
            waiting = self._waiting.pop(ticket, None)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(response)

    def refuse(self, tickets: Iterable[int], code: ErrorCode) -> None:
        """Answer requests that still wait with an error."""
        for ticket in tickets:
            waiting = self._waiting.get(ticket)
            if waiting is not None:
                response = refuse(waiting.request, waiting.version, code)
                self.send([Answer(ticket, response)])

    def resign(self, index: int) -> None:
        """Answer the requests of a shard with an error, because another broker leads it."""
        left = [ticket for ticket, each in self._waiting.items() if each.shard == index]
        self.refuse(left, ErrorCode.NOT_COORDINATOR)

    def stop(self, reason: StreamlogError) -> None:
        """Fail all requests that have no response yet."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.answer.done():
                each.answer.set_exception(reason)

    def tick(self, now_ms: int) -> None:
        """Answer requests that have waited for followers for too long with an error."""
        while self._overdue and self._overdue[0][0] <= now_ms:
            _, answers = self._overdue.popleft()
            self.refuse([each.ticket for each in answers], ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for never."""
        overdue = self._overdue
        while overdue and not any(each.ticket in self._waiting for each in overdue[0][1]):
            overdue.popleft()
        return overdue[0][0] if overdue else None


def coordinator_error(failure: StreamlogError) -> ErrorCode:
    """Return the error code for a request whose records were not appended, or may be lost.

    As in Kafka: the client looks for the coordinator, retries, or gives up if the log does not
    accept the record itself.
    """
    if not isinstance(failure, LogError):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if failure.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NOT_COORDINATOR
    if failure.retriable:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_SERVER_ERROR


def when_all_committed(logs: Iterable[Partition], then: Committed) -> None:
    """Call `then` once everything in these partitions is committed, or with an error."""
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


class CoordinatorRules(msgspec.Struct, frozen=True):
    """Faults that a test can plant."""

    tells_from_memory: bool = False
    """Answer from memory once that state is committed, without a proof, as Kafka does."""


class Proofs:
    """Delays responses from memory until it is certain that they are current."""

    rules: ClassVar[CoordinatorRules] = CoordinatorRules()

    def __init__(
        self, answering: PendingRequests, nothing: CoordinatorRecord, now: Callable[[], Instant]
    ) -> None:
        """`nothing` is a record of the partition that changes nothing."""
        self._answering = answering
        self._nothing = nothing
        self._now = now
        self._waiting: dict[int, list[Answer]] = {}
        """The answers for the next proof, by shard number."""
        self._in_flight: dict[int, LedShard[Any]] = {}
        """The shards whose proof is appended and not committed yet."""

    def give(self, led: LedShard[Any], answers: tuple[Answer, ...]) -> None:
        """Send answers from memory once a proof shows that this broker was the coordinator."""
        now_ms = self._now().now_ms
        if not answers:
            return
        # 1. Broker A coordinates group g and is cut off; B takes over, and a commit moves g to 200.
        # 2. A client asks A for the committed offset. 3. A would answer 100, from memory. 4. With a
        # proof, A appends a record, which its followers don't acknowledge, as they follow B: the
        # client gets an error and finds B.
        if led.log.is_alone or self.rules.tells_from_memory:
            self._answering.give(led.log, answers, now_ms)
            return
        try:
            # The proof may never be committed then, and the requests behind it would accumulate.
            led.log.check_insync()
        except StreamlogError as error:
            self._answering.refuse([each.ticket for each in answers], coordinator_error(error))
            return
        self._answering.limit(answers, now_ms)
        self._waiting.setdefault(led.index, []).extend(answers)
        if led.index not in self._in_flight:
            self._begin(led)

    def resign(self, index: int) -> None:
        """Drop the shard's answers, because another broker leads it; the requests got an error."""
        self._waiting.pop(index, None)
        self._in_flight.pop(index, None)

    def _begin(self, led: LedShard[Any]) -> None:
        """Append a proof for all answers that wait now; later ones wait for the next proof."""
        answers = self._answering.still_waiting(self._waiting.pop(led.index, ()))
        # Not for answers that came after the append: their request may be younger than the proof.
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
        self._in_flight[led.index] = led
        led.log.when_committed(
            led.log.log.log_end_offset, partial(self._on_committed, led, answers)
        )

    def _on_committed(
        self, led: LedShard[Any], answers: tuple[Answer, ...], failure: StreamlogError | None
    ) -> None:
        is_last = self._in_flight.get(led.index) is led
        if is_last:
            del self._in_flight[led.index]
        if is_last and failure is not None:
            # A proof of a later epoch would not show who led when these requests arrived.
            answers += tuple(self._waiting.pop(led.index, ()))
        self._answering.settle(answers, failure)
        if is_last:
            self._begin(led)
