"""CoordinatorRuntime: runs the group coordinator on `__consumer_offsets`.

For each partition of that topic one `Shard`: append what it decides as one batch, replay it,
then send the answers, once what they rest on is as durable as the broker keeps anything; on
becoming the partition's leader replay everything from the beginning (`led_shards`). If the append
fails nothing is replayed, and whoever was to be answered is refused, so no client takes for
granted what is not in the log.

This is the room's only shell: it has the clock, draws the names of members, and holds the
futures of those who wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from streamlog.broker.coordinator.group_coordinator import GroupCoordinator
from streamlog.broker.coordinator.led_shards import Led, LedShards
from streamlog.broker.coordinator.refusals import refuse
from streamlog.broker.coordinator.shard import (
    Answer,
    Caller,
    CoordinatorRecord,
    Instant,
    Outcome,
)
from streamlog.broker.storage.appends import Origin
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.records.batch import RecordBatch, encode_batch
from streamlog.records.control import COMMIT, MARKERS, marker_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamlog.broker.group_config import GroupConfig
    from streamlog.broker.replication.group_flush import GroupFlush
    from streamlog.broker.replication.partition import Partitions
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 4
"""Of a new offsets topic, for good: a group belongs to a partition by its name. Kafka's 50 are
for spreading groups over a cluster; on one node each is one more directory to open."""
OFFSETS_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(100 * 1024 * 1024),
    "max.message.bytes": str(16 * 1024 * 1024),
}
"""A group of `MEMBERS_MAX` members has to fit into one message."""
CLIENT_ID_CHARACTERS_MAX = 255
"""Of a client's id that go into its member's name."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that has not been answered."""

    index: int
    """Of its shard."""
    request: Message
    version: int
    answer: asyncio.Future[Message] | None = None


class CoordinatorRuntime:
    """The groups that this broker coordinates."""

    def __init__(
        self, partitions: Partitions, *, config: GroupConfig, clock: Clock, flush: GroupFlush
    ) -> None:
        self._flush = flush
        self._config = config
        self._clock = clock
        self._shards: LedShards[GroupCoordinator] = LedShards(
            OFFSETS_TOPIC,
            partitions,
            make=lambda: GroupCoordinator(self._config, topics=partitions),
            replay=self._replay_batch,
        )
        self._waiting: dict[int, _Waiting] = {}
        self._tickets = itertools.count(1)

    def configure(self, config: GroupConfig) -> None:
        """Go on with other settings; delays that have begun stay as they are."""
        self._config = config
        for led in self._shards:
            led.shard.configure(config)

    # ---- loading ----

    def lead(self, index: int) -> None:
        """Serve the groups of a partition, once all of it has been replayed: `tick` goes on.

        Raises:
            CorruptData: a record is not what it claims to be.
        """
        self._shards.lead(index)

    def load(self) -> None:
        """Go on until all that is led has been replayed. Raises what `lead` raises."""
        while self._shards.is_loading:
            self._shards.load_on()

    def resign(self, index: int) -> None:
        """Another broker coordinates the groups of a partition from now on."""
        self._shards.resign(index)
        code = ErrorCode.NOT_COORDINATOR
        left = [ticket for ticket, each in self._waiting.items() if each.index == index]
        self._send(tuple(self._refusal(ticket, code) for ticket in left))

    def _replay_batch(self, batch: RecordBatch, shard: GroupCoordinator) -> None:
        now_ms = self._clock.now_ms()
        if batch.is_control:
            marker = marker_of(batch)
            if marker is not None and marker.kind in MARKERS:
                shard.end_transaction(batch.producer_id, committed=marker.kind == COMMIT)
            return
        for record in batch.records():
            stored = CoordinatorRecord(record.key or b"", record.value)
            if batch.is_transactional:
                shard.stage(stored, batch.producer_id, now_ms=now_ms)
            else:
                shard.replay(stored, now_ms=now_ms)

    # ---- requests ----

    def begin(
        self, group_id: str, request: Message, *, version: int, client_id: str, client_host: str
    ) -> Message | asyncio.Future[Message]:
        """Hand a request to its group: the answer, or where it will be once others have come."""
        try:
            led = self._shards.of(group_id)
        except LogError as error:
            return refuse(request, error.code)
        caller = Caller(
            ticket=next(self._tickets),
            version=version,
            client_id=client_id,
            client_host=client_host,
            fresh_member_id=f"{client_id[:CLIENT_ID_CHARACTERS_MAX]}-{uuid.uuid4()}",
        )
        self._waiting[caller.ticket] = _Waiting(led.index, request, version)
        outcome = led.shard.handle(request, caller, self._instant())
        response = self._deliver(led, outcome, caller.ticket)
        if response is not None:
            return response
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[caller.ticket] = _Waiting(led.index, request, version, future)
        return future

    def groups_of(self, group_id: str) -> GroupCoordinator:
        """The shard to ask about a group.

        Raises:
            LogError: with the code that the one who asks is to be told, there is none here (yet).
        """
        return self._shards.of(group_id).shard

    def shards(self) -> list[GroupCoordinator]:
        """All shards that answer here.

        Raises:
            LogError: COORDINATOR_LOAD_IN_PROGRESS, there will be more.
        """
        if self._shards.is_loading:
            raise error_for(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "not all groups are known yet")
        return [led.shard for led in self._shards]

    def partition_of(self, group_id: str) -> tuple[str, int]:
        """Topic and number of the partition that holds the offsets of a group.

        Raises:
            LogError: COORDINATOR_NOT_AVAILABLE, the topic is not there yet.
        """
        return OFFSETS_TOPIC, self._shards.index_of(group_id)

    def check_marker(self, index: int) -> None:
        """Whether a marker in a partition of the offsets topic can be taken into account now.

        Raises:
            LogError: COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR, it can't.
        """
        self._shards.at(index)

    def on_marker(self, index: int, producer_id: int, *, committed: bool) -> None:
        """A producer's transaction has ended in a partition of the offsets topic."""
        self._shards.at(index).shard.end_transaction(producer_id, committed=committed)

    def forget_topic(self, name: str) -> None:
        """A topic was deleted: forget all positions in it."""
        for led in self._shards:
            self._deliver(led, led.shard.forget_topic(name))

    def stop(self, reason: StreamlogError) -> None:
        """Nobody will be answered any more."""
        for waiting in self._waiting.values():
            if waiting.answer is not None and not waiting.answer.done():
                waiting.answer.set_exception(reason)
        self._waiting.clear()

    # ---- time ----

    def tick(self) -> None:
        """Do what is due."""
        self._shards.load_on()
        at = self._instant()
        for led in self._shards:
            deadline_ms = led.shard.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= at.now_ms:
                self._deliver(led, led.shard.on_tick(at))

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        deadlines = [led.shard.next_deadline_ms() for led in self._shards]
        deadlines.append(self._shards.next_deadline_ms(self._clock.now_ms()))
        return min((d for d in deadlines if d is not None), default=None)

    # ---- outcomes ----

    def is_durable(self) -> bool:
        """Whether everything that groups know may be told."""
        return all(led.log.may_acknowledge(led.log.log.log_end_offset) for led in self._shards)

    def _deliver(
        self, led: Led[GroupCoordinator], outcome: Outcome, own_ticket: int = 0
    ) -> Message | None:
        """Append, replay and answer, now or later; the answer to `own_ticket` if it is now.

        An answer that rests on what was appended before it waits for that, too.
        """
        answers = self._apply(led, outcome)
        if led.log.may_acknowledge(led.log.log.log_end_offset):
            return self._send(answers, own_ticket)
        if answers:
            self._flush.then(partial(self._send_durable, answers))
        return None

    def _send_durable(self, answers: tuple[Answer, ...], failure: StreamlogError | None) -> None:
        waiting = tuple(answer for answer in answers if answer.ticket in self._waiting)
        if failure is not None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            waiting = tuple(self._refusal(answer.ticket, code) for answer in waiting)
        self._send(waiting)

    def _apply(self, led: Led[GroupCoordinator], outcome: Outcome) -> tuple[Answer, ...]:
        """Append and replay; what may be said then."""
        if not outcome.records:
            return outcome.answers
        at = self._instant()
        producer_id, producer_epoch = outcome.producer or (-1, -1)
        batch = encode_batch(
            [(at.wall_ms, r.key, r.value, ()) for r in outcome.records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=outcome.producer is not None,
        )
        try:
            led.log.append(batch, now_ms=at.now_ms, origin=Origin.COORDINATOR)
        except StreamlogError as error:
            _log.error("%s-%d: nothing was kept: %s", OFFSETS_TOPIC, led.index, error)
            code = _code(error, fenced=outcome.producer is not None)
            return tuple(self._refusal(answer.ticket, code) for answer in outcome.answers)
        for record in outcome.records:
            if outcome.producer is None:
                led.shard.replay(record, now_ms=at.now_ms)
            else:
                led.shard.stage(record, producer_id, now_ms=at.now_ms)
        return outcome.answers

    def _refusal(self, ticket: int, code: ErrorCode) -> Answer:
        waiting = self._waiting[ticket]
        return Answer(ticket, refuse(waiting.request, code))

    def _send(self, answers: tuple[Answer, ...], own_ticket: int = 0) -> Message | None:
        """Answer those who wait; the answer to `own_ticket`, if there is one, is returned."""
        own = None
        for answer in answers:
            future = self._waiting.pop(answer.ticket).answer
            if answer.ticket == own_ticket:
                own = answer.response
            elif future is not None and not future.done():
                future.set_result(answer.response)
        return own

    def _instant(self) -> Instant:
        return Instant(self._clock.now_ms(), self._clock.wall_ms())


def _code(error: StreamlogError, *, fenced: bool) -> ErrorCode:
    """Whether to come back: not if the log has refused the bytes themselves, or the producer."""
    if fenced and isinstance(error, LogError) and error.code == ErrorCode.INVALID_PRODUCER_EPOCH:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if isinstance(error, LogError) and not error.retriable:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
