"""CoordinatorRuntime: runs the group coordinator on `__consumer_offsets`.

For each partition of that topic one `Shard`: append what it decides as one batch, replay it,
then send the answers, once what they rest on is committed (`serve_health`); on becoming the
partition's leader replay everything from the beginning (`led_shards`). If the append fails nothing
is replayed, and whoever was to be answered is refused, so no client takes for granted what is not
in the log.

This is the thin edge of the groups: it has the clock, and draws the names of members.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.coordinator.group.committed_offsets import offset_tombstone
from streamlog.broker.coordinator.group.group_coordinator import GroupCoordinator
from streamlog.broker.coordinator.led_shards import Led, LedShards
from streamlog.broker.coordinator.pending_requests import PendingRequests, Proofs, coordinator_error
from streamlog.broker.coordinator.shard import (
    Answer,
    Caller,
    CoordinatorRecord,
    Instant,
    ShardOutcome,
    refuse,
)
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.records.batch import RecordBatch, encode_batch
from streamlog.records.control_batches import COMMIT, MARKERS, marker_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from streamlog.broker.config.coordinators import GroupConfig
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
NOTHING = offset_tombstone("", "", -1)
"""A record that says nothing to any reader of such a log: nobody has ever committed that."""
CLIENT_ID_CHARACTERS_MAX = 255
"""Of a client's id that go into its member's name."""

_log = repeated.logger(__name__)


class CoordinatorRuntime:
    """The groups that this broker coordinates."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        config: GroupConfig,
        clock: Clock,
        overrides: Callable[[str], Mapping[str, str]],
    ) -> None:
        """`overrides` are the settings that a group has of its own."""
        self._config = config
        self._clock = clock
        self._shards: LedShards[GroupCoordinator] = LedShards(
            OFFSETS_TOPIC,
            partitions,
            make=lambda: GroupCoordinator(self._config, topics=partitions, overrides=overrides),
            replay=self._replay_batch,
        )
        self._answering = PendingRequests()
        self._proofs = Proofs(self._answering, NOTHING, self._instant)

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
        """Go on while anything that is led can be replayed. Raises what `lead` raises."""
        while self._shards.can_load:
            self._shards.load_on()

    def resign(self, index: int) -> None:
        """Another broker coordinates the groups of a partition from now on."""
        self._shards.resign(index)
        self._answering.resign(index)
        self._proofs.resign(index)

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
            return refuse(request, version, error.code)
        ticket, answer = self._answering.take(led.index, request, version)
        caller = Caller(
            ticket=ticket,
            version=version,
            client_id=client_id,
            client_host=client_host,
            fresh_member_id=f"{client_id[:CLIENT_ID_CHARACTERS_MAX]}-{uuid.uuid4()}",
        )
        self._deliver(led, led.shard.handle(request, caller, self._instant()))
        return answer.result() if answer.done() else answer

    def look(
        self,
        group_id: str,
        request: Message,
        version: int,
        told: Callable[[GroupCoordinator], Message],
    ) -> Message | asyncio.Future[Message]:
        """What is known of a group now, when it is proven that nobody knows better."""
        try:
            led = self._shards.of(group_id)
        except LogError as error:
            return refuse(request, version, error.code)
        ticket, answer = self._answering.take(led.index, request, version)
        self._proofs.give(led, (Answer(ticket, told(led.shard)),))
        return answer.result() if answer.done() else answer

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

    def on_deletion(self) -> None:
        """A topic was deleted: the next `tick` forgets all positions in it."""
        for led in self._shards:
            led.shard.on_deletion(self._clock.now_ms())

    def stop(self, reason: StreamlogError) -> None:
        """Nobody will be answered any more."""
        self._answering.stop(reason)

    # ---- time ----

    def tick(self) -> None:
        """Do what is due."""
        self._shards.load_on()
        at = self._instant()
        for led in self._shards:
            deadline_ms = led.shard.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= at.now_ms:
                self._deliver(led, led.shard.on_tick(at))
        self._answering.tick(at.now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        deadlines = [led.shard.next_deadline_ms() for led in self._shards]
        deadlines.append(self._shards.next_deadline_ms(self._clock.now_ms()))
        deadlines.append(self._answering.next_deadline_ms())
        return min((d for d in deadlines if d is not None), default=None)

    # ---- outcomes ----

    def _deliver(self, led: Led[GroupCoordinator], outcome: ShardOutcome) -> None:
        """Append, replay and answer, now or later.

        An answer that rests on what was appended before it waits for that, too.
        """
        answers = self._apply(led, outcome)
        self._answering.give(led.log, answers, self._clock.now_ms())

    def _apply(self, led: Led[GroupCoordinator], outcome: ShardOutcome) -> tuple[Answer, ...]:
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
            led.log.check_insync()
            led.log.append(batch, now_ms=at.now_ms, origin=AppendOrigin.COORDINATOR)
        except StreamlogError as error:
            _log.error("%s-%d: nothing was kept: %s", OFFSETS_TOPIC, led.index, error)
            code = _code(error, fenced=outcome.producer is not None)
            self._answering.refuse([answer.ticket for answer in outcome.answers], code)
            return ()
        for record in outcome.records:
            if outcome.producer is None:
                led.shard.replay(record, now_ms=at.now_ms)
            else:
                led.shard.stage(record, producer_id, now_ms=at.now_ms)
        return outcome.answers

    def _instant(self) -> Instant:
        return Instant(self._clock.now_ms(), self._clock.wall_ms())


def _code(error: StreamlogError, *, fenced: bool) -> ErrorCode:
    """Whether to come back, and where; not if the log has refused the producer."""
    if fenced and isinstance(error, LogError) and error.code == ErrorCode.INVALID_PRODUCER_EPOCH:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return coordinator_error(error)
