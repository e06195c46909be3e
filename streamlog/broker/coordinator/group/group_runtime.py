"""CoordinatorRuntime: runs the group coordinator on `__consumer_offsets`.

Each partition of that topic is one `Shard`. The runtime appends what the shard decides as one
batch, replays it, and sends the responses once the records are committed (`pending_requests`). When
this broker becomes the leader of a partition, it first replays the partition (`led_shards`). If an
append fails, nothing is replayed and the requests get an error, so no client relies on anything
that is not in the log.

This is the shell of the groups: it has the clock, and generates member ids.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.coordinator.group.committed_offsets import offset_tombstone
from streamlog.broker.coordinator.group.group_coordinator import GroupCoordinator
from streamlog.broker.coordinator.led_shards import LedShard, LedShards
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
"""The partitions of a new offsets topic.

The number never changes, because a group's name decides its partition. Kafka's 50 spread groups
over a cluster; on one node each is one more directory to open.
"""
OFFSETS_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": str(100 * 1024 * 1024),
    "max.message.bytes": str(16 * 1024 * 1024),
}
"""A group of the largest size has to fit into one message."""
NOTHING = offset_tombstone("", "", -1)
"""A record without meaning to any reader: no group commits under an empty name."""
CLIENT_ID_CHARACTERS_MAX = 255
"""Characters of a client id that its member id begins with."""

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
        """`overrides` returns the settings of a single group."""
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
        """Use other settings; delays that have begun do not change."""
        self._config = config
        for led in self._shards:
            led.shard.configure(config)

    # Loading.

    def lead(self, index: int) -> None:
        """Serve the groups of a partition once `tick` has replayed it to its end.

        Raises:
            CorruptData: a record is malformed.
        """
        self._shards.lead(index)

    def load(self) -> None:
        """Load as long as something can be replayed. Raises what `lead` raises."""
        while self._shards.can_load:
            self._shards.load_on()

    def resign(self, index: int) -> None:
        """Stop serving the groups of a partition, because another broker leads it."""
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
        # The log's rebalances are history; those that are counted begin once it is replayed.
        shard.rebalances.clear()

    # Requests.

    def begin(
        self, group_id: str, request: Message, *, version: int, client_id: str, client_host: str
    ) -> Message | asyncio.Future[Message]:
        """Pass a request to its group; return the response, or a future of it."""
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
        response_of: Callable[[GroupCoordinator], Message],
    ) -> Message | asyncio.Future[Message]:
        """Read the state of a group; the response waits for proof that it is current (`Proofs`)."""
        try:
            led = self._shards.of(group_id)
        except LogError as error:
            return refuse(request, version, error.code)
        ticket, answer = self._answering.take(led.index, request, version)
        self._proofs.give(led, (Answer(ticket, response_of(led.shard)),))
        return answer.result() if answer.done() else answer

    def groups_of(self, group_id: str) -> GroupCoordinator:
        """Return the shard of a group.

        Raises:
            LogError: with the error code for the client, the shard is not here, or not loaded yet.
        """
        return self._shards.of(group_id).shard

    def shards(self) -> list[GroupCoordinator]:
        """Return all shards of this broker.

        Raises:
            LogError: COORDINATOR_LOAD_IN_PROGRESS, some shards are not loaded yet.
        """
        # A list without the groups of a shard that is loading would look complete.
        if self._shards.is_loading:
            raise error_for(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "not all groups are loaded yet")
        return [led.shard for led in self._shards]

    def served(self) -> list[GroupCoordinator]:
        """Return the shards that serve requests, without those that are still loading."""
        return [led.shard for led in self._shards]

    def partition_of(self, group_id: str) -> tuple[str, int]:
        """Return topic and number of the partition that holds the offsets of a group.

        Raises:
            LogError: COORDINATOR_NOT_AVAILABLE, the topic does not exist yet.
        """
        return OFFSETS_TOPIC, self._shards.index_of(group_id)

    def check_marker(self, index: int) -> None:
        """Check that a marker in a partition of the offsets topic can be applied now.

        Raises:
            LogError: COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
        """
        self._shards.at(index)

    def on_marker(self, index: int, producer_id: int, *, committed: bool) -> None:
        """Apply the end of a producer's transaction in a partition of the offsets topic."""
        self._shards.at(index).shard.end_transaction(producer_id, committed=committed)

    def on_deletion(self) -> None:
        """Note that a topic was deleted: the next `tick` deletes its committed offsets."""
        for led in self._shards:
            led.shard.on_deletion(self._clock.now_ms())

    def stop(self, reason: StreamlogError) -> None:
        """Fail all requests that have no response yet."""
        self._answering.stop(reason)

    # Time.

    def tick(self) -> None:
        """Load a slice, run deadlines that have passed, and time out responses."""
        self._shards.load_on()
        at = self._instant()
        for led in self._shards:
            deadline_ms = led.shard.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= at.now_ms:
                self._deliver(led, led.shard.on_tick(at))
        self._answering.tick(at.now_ms)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for never."""
        deadlines = [led.shard.next_deadline_ms() for led in self._shards]
        deadlines.append(self._shards.next_deadline_ms(self._clock.now_ms()))
        deadlines.append(self._answering.next_deadline_ms())
        return min((d for d in deadlines if d is not None), default=None)

    # Outcomes.

    def _deliver(self, led: LedShard[GroupCoordinator], outcome: ShardOutcome) -> None:
        """Append and replay an outcome, and answer, now or when the records are committed.

        A response may also rest on records appended before, so it waits for those too.
        """
        answers = self._apply(led, outcome)
        self._answering.give(led.log, answers, self._clock.now_ms())

    def _apply(self, led: LedShard[GroupCoordinator], outcome: ShardOutcome) -> tuple[Answer, ...]:
        """Append and replay an outcome; return the answers that may be sent then."""
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
            # As with acks=all: without enough replicas in sync, refuse before the append, and not
            # after it.
            led.log.check_insync()
            led.log.append(batch, now_ms=at.now_ms, origin=AppendOrigin.COORDINATOR)
        except StreamlogError as error:
            _log.error("%s-%d: records could not be appended: %s", OFFSETS_TOPIC, led.index, error)
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
    """Return the error code for a failed append; fencing of a producer is passed on."""
    if fenced and isinstance(error, LogError) and error.code == ErrorCode.INVALID_PRODUCER_EPOCH:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return coordinator_error(error)
