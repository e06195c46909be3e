"""TransactionRuntime: runs the transaction coordinators on `__transaction_state`.

For each partition of that topic one shard: append what it decides, replay it, and go on when that
is on disk. What is prepared gets its markers then, in every partition of the transaction, the
offsets of groups included; when those are on disk, the shard is told, and whoever has asked for
the end is answered. A restart goes on with what was prepared before it.
A marker that a log can't take now is written later; one for a partition that is gone, or whose
producer a newer one has fenced, has nothing to decide.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.coordinator.led_shards import Led, LedShards
from streamlog.broker.coordinator.runtime import OFFSETS_TOPIC
from streamlog.broker.coordinator.shard import (
    Answer,
    Caller,
    CoordinatorRecord,
    Instant,
    Outcome,
)
from streamlog.broker.coordinator.transaction_coordinator import (
    Ending,
    Surroundings,
    TransactionCoordinator,
)
from streamlog.broker.storage.appends import Origin
from streamlog.broker.transaction_answers import code_answer
from streamlog.errors import LogError, StreamlogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.records.batch import RecordBatch, encode_batch
from streamlog.records.control import ABORT, COMMIT, Marker

if TYPE_CHECKING:
    from streamlog.broker.coordinator.producer_ids import ProducerIds
    from streamlog.broker.coordinator.runtime import CoordinatorRuntime
    from streamlog.broker.coordinator.transaction import Transaction
    from streamlog.broker.replication.group_flush import GroupFlush
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.broker.transaction_config import TransactionConfig
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

TRANSACTIONS_TOPIC = "__transaction_state"
TRANSACTIONS_PARTITIONS = 4
"""Of a new topic of transactions, for good; see `runtime.OFFSETS_PARTITIONS`."""
TRANSACTIONS_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(100 * 1024 * 1024),
    "max.message.bytes": str(16 * 1024 * 1024),
}
"""A transaction over very many partitions has to fit into one message."""
RETRY_MS = 1_000
"""Between two tries to write a marker where the disk has refused it."""

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A request that has not been answered."""

    number: int
    """Of its shard."""
    request: Message
    version: int
    answer: asyncio.Future[Message]


class _Retry(NamedTuple):
    due_ms: int
    led: Led[TransactionCoordinator]
    ending: Ending
    left: frozenset[tuple[str, int]]


class TransactionRuntime:
    """All transactional ids of this broker."""

    def __init__(
        self,
        partitions: Partitions,
        groups: CoordinatorRuntime,
        producer_ids: ProducerIds,
        *,
        config: TransactionConfig,
        clock: Clock,
        flush: GroupFlush,
    ) -> None:
        self.partitions = partitions
        self.clock = clock
        self._groups = groups
        self._config = config
        self._flush = flush
        self.producer_ids = producer_ids
        self._around = Surroundings(producer_ids.take, partitions.exists, groups.partition_of)
        self._shards: LedShards[TransactionCoordinator] = LedShards(
            TRANSACTIONS_TOPIC,
            partitions,
            make=lambda: TransactionCoordinator(self._config, self._around),
            replay=self._replay_batch,
        )
        self._waiting: dict[int, _Waiting] = {}
        self._retries: list[_Retry] = []
        self._tickets = itertools.count(1)
        self._loaded: list[int] = []
        """Shards that have something to go on with, maybe, from before they were led here."""

    def configure(self, config: TransactionConfig) -> None:
        """Go on with other settings."""
        self._config = config
        for led in self._shards:
            led.shard.configure(config)

    # ---- loading ----

    def lead(self, index: int) -> None:
        """Serve the transactional ids of a partition, once all of it has been replayed.

        What was prepared before goes on with the next tick.

        Raises:
            CorruptData: a record is not what it claims to be.
        """
        if self._shards.lead(index):
            self._loaded.append(index)

    def load(self) -> None:
        """Go on until all that is led has been replayed. Raises what `lead` raises."""
        while self._shards.is_loading:
            self._loaded += self._shards.load_on()

    def resign(self, index: int) -> None:
        """Another broker coordinates the ids of a partition: it goes on with what was prepared."""
        self._shards.resign(index)
        self._retries = [retry for retry in self._retries if retry.led.index != index]
        for ticket in [ticket for ticket, each in self._waiting.items() if each.number == index]:
            self._send((self._refusal(ticket, ErrorCode.NOT_COORDINATOR),))

    def _replay_batch(self, batch: RecordBatch, shard: TransactionCoordinator) -> None:
        now_ms = self.clock.now_ms()
        for record in batch.records():
            stored = CoordinatorRecord(record.key or b"", record.value)
            shard.replay(stored, now_ms=now_ms)

    # ---- requests ----

    def begin(
        self, transactional_id: str, request: Message, *, version: int, connection: int = 0
    ) -> Message | asyncio.Future[Message]:
        """Hand a request to its transactional id: the answer, or where it will be."""
        try:
            led = self._shards.of(transactional_id)
        except LogError as error:
            return code_answer(request, version, ErrorCode(error.code))
        caller = Caller(next(self._tickets), version, "", "", "", connection)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[caller.ticket] = _Waiting(led.index, request, version, answer)
        outcome = led.shard.handle(request, caller, self._instant())
        self._deliver(led, outcome, caller.ticket)
        return answer.result() if answer.done() else answer

    def verify(
        self, transactional_id: str, producer: tuple[int, int], place: tuple[str, int]
    ) -> ErrorCode:
        """Whether a producer may write to a partition in its transaction now."""
        if not self.partitions.partitions(TRANSACTIONS_TOPIC):
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        try:
            shard = self._shards.of(transactional_id).shard
        except LogError as error:
            return ErrorCode(error.code)
        return shard.verify(transactional_id, producer, place)

    def transaction(self, transactional_id: str) -> Transaction | None:
        """What is known of a transactional id.

        Raises:
            LogError: with the code that the one who asks is to be told, nothing here (yet).
        """
        if not self.partitions.partitions(TRANSACTIONS_TOPIC):
            return None
        return self._shards.of(transactional_id).shard.transaction(transactional_id)

    def transactions(self) -> Iterable[Transaction]:
        """Every transactional id that is coordinated here.

        Raises:
            LogError: COORDINATOR_LOAD_IN_PROGRESS, there will be more.
        """
        if self._shards.is_loading:
            what = "not all transactional ids are known yet"
            raise error_for(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, what)
        return itertools.chain.from_iterable(led.shard.transactions() for led in self._shards)

    def stop(self, reason: StreamlogError) -> None:
        """Nobody will be answered any more."""
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(reason)
        self._waiting.clear()

    # ---- time ----

    def tick(self) -> None:
        """Do what is due."""
        at = self._instant()
        self._loaded += self._shards.load_on()
        loaded, self._loaded = self._loaded, []
        for led in self._shards:
            if led.index in loaded:
                self._end_prepared(led)
            deadline_ms = led.shard.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= at.now_ms:
                self._deliver(led, led.shard.on_tick(at))
        due = [retry for retry in self._retries if retry.due_ms <= at.now_ms]
        self._retries = [retry for retry in self._retries if retry.due_ms > at.now_ms]
        for retry in due:
            self._write_markers(retry.led, retry.ending, retry.left)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        now_ms = self.clock.now_ms()
        if self._loaded:
            return now_ms
        deadlines = [led.shard.next_deadline_ms() for led in self._shards]
        deadlines.append(self._shards.next_deadline_ms(now_ms))
        deadlines += [retry.due_ms for retry in self._retries]
        return min((each for each in deadlines if each is not None), default=None)

    # ---- markers ----

    def write_marker(
        self, place: tuple[str, int], producer: tuple[int, int], marker: Marker
    ) -> Partition:
        """End a producer's transaction in one partition.

        Raises:
            UnknownTopicOrPartition: it is gone.
            LogError: a newer instance of the producer, or a newer coordinator, has taken over.
            LogDirectoryError: the disk refused.
        """
        at, (topic, index) = self._instant(), place
        partition = self.partitions.get(topic, index)
        if topic == OFFSETS_TOPIC:
            self._groups.check_marker(index)
        partition.end_transaction(*producer, marker, now_ms=at.now_ms, wall_ms=at.wall_ms)
        if topic == OFFSETS_TOPIC:
            self._groups.on_marker(index, producer[0], committed=marker.kind == COMMIT)
        return partition

    def when_durable(
        self, partitions: Iterable[Partition], then: Callable[[StreamlogError | None], None]
    ) -> None:
        """Call when all that these partitions have by now may be told of."""
        if all(each.may_acknowledge(each.log.log_end_offset) for each in partitions):
            then(None)
        else:
            self._flush.then(then)

    def _end_prepared(self, led: Led[TransactionCoordinator]) -> None:
        """Once what was decided is on disk, write the markers."""
        for ending in led.shard.take_endings():
            self.when_durable([led.log], partial(self._on_prepared, led, ending))

    def _on_prepared(
        self, led: Led[TransactionCoordinator], ending: Ending, failure: StreamlogError | None
    ) -> None:
        if failure is None:
            self._write_markers(led, ending, ending.partitions)

    def _write_markers(
        self, led: Led[TransactionCoordinator], ending: Ending, places: frozenset[tuple[str, int]]
    ) -> None:
        if not self._shards.has(led):
            return
        coordinator_epoch = led.log.log.epochs.current
        marker = Marker(COMMIT if ending.committed else ABORT, coordinator_epoch)
        producer = (ending.producer_id, ending.producer_epoch)
        written: list[Partition] = []
        left: set[tuple[str, int]] = set()
        for place in sorted(places):
            try:
                written.append(self.write_marker(place, producer, marker))
            except UnknownTopicOrPartition:
                continue
            except LogError as error:
                if error.retriable:
                    left.add(place)
                else:
                    _log.warning("%s-%d: no marker is needed: %s", *place, error)
            except StreamlogError as error:
                _log.error("%s-%d: a marker is written later: %s", *place, error)
                left.add(place)
        if left:
            due_ms = self.clock.now_ms() + RETRY_MS
            self._retries.append(_Retry(due_ms, led, ending, frozenset(left)))
        else:
            self.when_durable(written, partial(self._on_written, led, ending))

    def _on_written(
        self, led: Led[TransactionCoordinator], ending: Ending, failure: StreamlogError | None
    ) -> None:
        if failure is None and self._shards.has(led):
            outcome = led.shard.on_ended(ending, self._instant())
            # That it is complete need not be on disk: a restart would write the markers again.
            self._send(self._apply(led, outcome))

    # ---- outcomes ----

    def _deliver(self, led: Led[TransactionCoordinator], outcome: Outcome, ticket: int = 0) -> None:
        """Append, replay, and go on from there when it is on disk."""
        answers = self._apply(led, outcome, ticket)
        if answers:
            self.when_durable([led.log], partial(self._send_durable, answers))
        self._end_prepared(led)

    def _apply(
        self, led: Led[TransactionCoordinator], outcome: Outcome, ticket: int = 0
    ) -> tuple[Answer, ...]:
        """Append and replay; what may be said then."""
        if not outcome.records:
            return outcome.answers
        at = self._instant()
        batch = encode_batch([(at.wall_ms, r.key, r.value, ()) for r in outcome.records])
        try:
            led.log.append(batch, now_ms=at.now_ms, origin=Origin.COORDINATOR)
        except StreamlogError as error:
            _log.error("%s-%d: nothing was kept: %s", TRANSACTIONS_TOPIC, led.index, error)
            led.shard.forget_ticket(ticket)
            refused = {answer.ticket for answer in outcome.answers} | ({ticket} - {0})
            return tuple(map(self._refusal, refused))
        for record in outcome.records:
            led.shard.replay(record, now_ms=at.now_ms)
        return outcome.answers

    def _send_durable(self, answers: tuple[Answer, ...], failure: StreamlogError | None) -> None:
        waiting = tuple(answer for answer in answers if answer.ticket in self._waiting)
        if failure is not None:
            waiting = tuple(self._refusal(answer.ticket) for answer in waiting)
        self._send(waiting)

    def _refusal(
        self, ticket: int, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE
    ) -> Answer:
        waiting = self._waiting[ticket]
        return Answer(ticket, code_answer(waiting.request, waiting.version, code))

    def _send(self, answers: tuple[Answer, ...]) -> None:
        for answer in answers:
            waiting = self._waiting.pop(answer.ticket, None)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(answer.response)

    def _instant(self) -> Instant:
        return Instant(self.clock.now_ms(), self.clock.wall_ms())
