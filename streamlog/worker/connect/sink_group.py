"""Sink group: one task of a sink as a member of the sink's consumer group.

The group is named `<app>-<connector>`, so lag tools show a sink as they show Kafka Connect's. Its
members are cooperative: a rebalance stops only the partitions that move, after a last commit.

Rule: the consumer is polled at short intervals whatever the target does, as rebalances run inside
of polls; while the target does not answer, all partitions are paused. Not done here: the calls of
the connector (`connect_tasks/sink_task`).
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import random
from typing import Final

from streamlog import repeated
from streamlog.assignors import CooperativeStickyAssignor
from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.connect.connector_errors import Fenced
from streamlog.connect.declared_connectors import SinkConnector
from streamlog.connect.row_schema import Schema
from streamlog.connect_tasks.carried import SinkCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.sink_task import GroupPosition, OnStep, SinkRunner
from streamlog.errors import (
    DamagedBatch,
    LogError,
    OffsetOutOfRange,
    ProcessingError,
    RebalanceInProgress,
    SerdeError,
    UnknownMember,
)
from streamlog.log import Log
from streamlog.nodes.topic_spec import SourceLostPolicy, TopicSpec
from streamlog.processing.outbox import SinkBatch
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.records.record_columns import RecordColumns
from streamlog.serdes import BytesSerde, declared_by
from streamlog.serdes.erased_types import AnySerde
from streamlog.worker.commit.commit import SinkWriter
from streamlog.worker.connect.source_slots import LoopClock
from streamlog.worker.topics.lost_sources import FAIL, LATEST

logger = repeated.logger(__name__)

POLL_MS: Final = 100
IDLE_POLL_MS: Final = 2_000
"""The longest poll of a task that has nothing to flush, and waits for nothing but records."""
FETCH_WAIT_MS: Final = 5_000
"""How long a broker may hold back the answer to a fetch; records end the wait."""
PATTERN_LOOK_MS: Final = 5_000
METADATA_MAX_AGE_MS: Final = 300_000
MARKS_WAIT_MS: Final = 500
"""The same for a sink that flushes by time marks, which a broker writes when it is asked again."""
SESSION_TIMEOUT_MS: Final = 15_000
HEARTBEAT_INTERVAL_MS: Final = 3_000
REBALANCE_TIMEOUT_MS: Final = 90_000
MAX_POLL_INTERVAL_MS: Final = 2**31 - 1
"""No limit: a target that blocks would block another member as well."""
SET_FOR_TOPIC: Final = "topic"
"""The source of a setting that a topic has itself."""
FENCED_MS: Final = 10_000
"""How long a fenced task waits for the group to take its partitions before it claims them again."""
CLAIMS_MAX: Final = 3
"""How often a task claims its partitions within `CLAIMS_MS` before it fails."""
CLAIMS_MS: Final = 600_000
CLOSE_WAIT_MS: Final = 30_000
"""How long the last flush of a sink may take."""
POLL_RECORDS_MAX: Final = 5_000
_GONE: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
)


def schema_of(serde: AnySerde) -> Schema | None:
    """Return the schema of a topic's type; None for bytes, and for types that have none."""
    declared = declared_by(serde)
    if declared is None or isinstance(serde, BytesSerde):
        return None
    try:
        return Schema.of(declared)
    except SerdeError:
        return None


def schemas_of(topics: Sequence[TopicSpec]) -> dict[str, tuple[Schema | None, Schema | None]]:
    """Return the schemas of keys and values, by topic."""
    return {spec.name: (schema_of(spec.key), schema_of(spec.value)) for spec in topics}


_TOPIC: Final = re.compile(r"(?:(streamlog:.+),|streamlog:)topic=([0-9a-f]{32})")


def name_topic(metadata: str, topic_id: bytes) -> str:
    """Return the metadata of an offset with the id of its topic, if the brokers have ids."""
    if topic_id in (b"", ZERO_UUID):
        return metadata
    return f"{metadata or 'streamlog:'}{',' if metadata else ''}topic={topic_id.hex()}"


def split_topic(metadata: str) -> tuple[str, bytes]:
    """Return the metadata without the id of the topic, and the id; empty if it names none."""
    found = _TOPIC.fullmatch(metadata)
    return (metadata, b"") if found is None else (found[1] or "", bytes.fromhex(found[2]))


class SinkGroupOffsets:
    """The group of a sink and its dead letters; a `SinkLog`.

    Offsets are committed with the id of their topic: a topic that was created again is another one.
    """

    def __init__(self, consumer: Consumer, producer: Producer) -> None:
        self._consumer, self._producer = consumer, producer
        self.topic_ids: dict[str, bytes] = {}

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets with metadata.

        Raises:
            Fenced: the group has given the partitions to another member.
        """
        named = {
            at: OffsetAndMetadata(offset, name_topic(metadata, self.topic_ids.get(at.topic, b"")))
            for at, (offset, metadata) in offsets.items()
        }
        with _as_member():
            await self._consumer.commit(named)

    async def with_offsets(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions for which the group has an offset of the present topic.

        Raises:
            Fenced: the group does not know this member.
        """
        with _as_member():
            found = await self._consumer.committed_metadata(partitions)
        return {
            at
            for at, each in found.items()
            if each is not None and self.is_of_topic(at, split_topic(each.metadata)[1])
        }

    def is_of_topic(self, partition: TopicPartition, topic_id: bytes) -> bool:
        """Return whether an offset that names a topic by its id is of the one that there is now."""
        return topic_id in (b"", self.topic_ids.get(partition.topic, b""))

    async def write_letters(self, letters: Sequence[SinkBatch]) -> None:
        """Write dead letters, and wait until they are acknowledged."""
        # Outside of any transaction: the target's commit is none of the log's.
        writer = SinkWriter(self._producer)
        await writer.write(letters)
        await writer.flush()
        for refused in writer.take_refusals():
            raise refused.error


@contextmanager
def _as_member() -> Iterator[None]:
    """Turn the errors of a member that the group has gone on without into `Fenced`."""
    try:
        yield
    except (RebalanceInProgress, UnknownMember) as error:
        raise Fenced(str(error)) from error
    except LogError as error:
        if error.code in _GONE:
            raise Fenced(str(error)) from error
        raise


class AdminOwnLog:
    """The groups and topics of a log, asked for by its admin requests."""

    def __init__(self, log: Log) -> None:
        """Look at a log that is open."""
        self._log = log

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups."""
        return [each.group_id for each in await self._log.admin().list_groups()]

    async def group_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, str]]:
        """Return what a group has committed for these partitions, with its metadata."""
        found = await self._log.admin().group_offsets_and_metadata(group, partitions)
        return {at: (each.offset, each.metadata) for at, each in found.items()}

    async def topic_settings(self, topic: str) -> Mapping[str, str]:
        """Return the settings that a topic has itself."""
        found = await self._log.admin().describe_configs(topic)
        return {
            name: each.value
            for name, each in found.items()
            if each.source == SET_FOR_TOPIC and each.value is not None
        }

    async def partition_counts(self, topics: Collection[str]) -> Mapping[str, int]:
        """Return the number of partitions of the topics that exist."""
        return {each.name: each.partitions for each in await self._log.admin().find_topics(topics)}


class SinkGroup:
    """One task of a sink: a consumer, and the runner of the connector."""

    def __init__(
        self,
        connector: SinkConnector,
        number: int,
        *,
        app_id: str,
        log: Log,
        producer: Producer,
        clock: Clock,
        instance_id: str | None,
        count: Callable[[str, str, int], None],
        on_step: OnStep,
        source_lost: Mapping[str, SourceLostPolicy] | None = None,
    ) -> None:
        """Create a task that has not joined yet.

        `source_lost` has the policies that the program sets, by topic; see `SinkRunner` for
        `on_step`.
        """
        self._source_lost = source_lost or {}
        self.connector, self.number = connector, number
        name = connector.name
        self._log, self._producer, self._clock = log, producer, clock
        self._stop = asyncio.Event()
        self._fenced_ms: int | None = None
        self._claims_ms: deque[int] = deque(maxlen=CLAIMS_MAX)
        """When the last claims were."""
        takes_marks = connector.sink.flush.stream_time is not None
        self._consumer = log.consumer(
            group_id=f"{app_id}-{name}",
            auto_offset_reset="none",
            isolation_level="read_committed",
            time_marks=takes_marks,
            # In a service with a hundred quiet sinks, fetches were a third of its CPU.
            fetch_max_wait_ms=MARKS_WAIT_MS if takes_marks else FETCH_WAIT_MS,
            # New topics of a pattern, and new partitions, are found this often.
            metadata_max_age_ms=PATTERN_LOOK_MS if connector.pattern else METADATA_MAX_AGE_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            assignor=CooperativeStickyAssignor(),
            group_instance_id=instance_id and f"{instance_id}-{name}-{number}",
        )

        def add(what: str, by: int) -> None:
            count(name, what, by)

        task_clock = LoopClock(clock)
        self._offsets = SinkGroupOffsets(self._consumer, producer)
        self.runner = SinkRunner(
            connector.sink,
            ConnectorContext(name, number, task_clock, count=add, own_log=AdminOwnLog(log)),
            SinkCarrier(connector, number),
            self._offsets,
            task_clock,
            chance=random,
            schemas=schemas_of(connector.topics),
            on_step=on_step,
        )

    @property
    def partitions(self) -> int:
        """The number of partitions that it reads."""
        return len(self._consumer.assignment())

    def lags(self) -> dict[TopicPartition, int]:
        """Return the records between what was reached (see `SinkRunner.reached`) and the ends."""
        found, assigned = {}, self._consumer.assignment()
        for part, reached in self.runner.reached.items():
            # In the middle of a rebalance the consumer may have given up what the runner still has.
            end = self._consumer.high_watermark(part) if part in assigned else None
            if end is not None:
                found[part] = max(end - reached, 0)
        return found

    def stop(self) -> None:
        """Make `run` commit, leave the group and return."""
        self._stop.set()
        self._consumer.wakeup()

    async def run(self) -> None:
        """Carry records until `stop` is called.

        Raises:
            ProcessingError: the connector failed, or a record did and the policy is `FAIL`.
            StreamlogError: the log can't be read.
        """
        async with self._consumer as consumer:
            await consumer.subscribe(
                self.connector.pattern or [spec.name for spec in self.connector.topics],
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                on_lost=self._on_lost,
            )
            try:
                while not self._stop.is_set():
                    await self._round(consumer)
                await self._leave(consumer)
            finally:
                await self.runner.close()

    async def _leave(self, consumer: Consumer) -> None:
        """Commit once more and leave the group, within a limited time."""
        try:
            async with asyncio.timeout(CLOSE_WAIT_MS / 1000):
                await consumer.close(leave_group=True)
        except TimeoutError:
            # What is not committed is read again; the end of the worker does not wait for a target.
            logger.warning("sink %r: its last flush was not done in time", self.connector.name)

    async def _round(self, consumer: Consumer) -> None:
        self._choose(consumer)
        try:
            polled = await consumer.poll_columns(
                timeout_ms=self._poll_ms(), max_records=self._records_max()
            )
        except DamagedBatch as damaged:
            polled = self._pass_damaged(consumer, damaged)
        except OffsetOutOfRange as error:
            raise ProcessingError(
                f"sink {self.connector.name!r}: the log no longer has the records from where its "
                f"group {self.connector.name!r} continues: {error}. They are lost for the target; "
                "to continue with what the log has, run: streamlog groups reset-offsets"
                f" {self.connector.name} --to-earliest --execute --log URL",
                node=self.connector.name,
            ) from error
        # Positions, not records: they also pass markers and aborted batches, which have no records.
        marks = consumer.time_marks()
        for part, position in consumer.positions().items():
            columns = polled.get(part) or RecordColumns()
            await self.runner.take(part, columns, position, marks.get(part, ()))
        await self._work()

    async def _work(self) -> None:
        try:
            # From the range to the group's offset in one generation, as the worker's transactions.
            # Between two generations the group refuses offsets; the next poll ends that.
            with self._consumer.staying() as is_staying:
                if is_staying:
                    await self.runner.work()
        except Fenced as error:
            logger.info("sink %r: %s", self.connector.name, error)
            self._fenced_ms = self._clock.now_ms()
        self._apply_seeks()
        if self._fenced_ms is not None:
            await self._wait_for_group(self._fenced_ms)

    async def _wait_for_group(self, fenced_ms: int) -> None:
        """Claim the partitions again if the group leaves them with this task for long enough.

        Raises:
            ProcessingError: they were claimed too often already: others write them as well.
        """
        # 1. A worker is suspended in `recover`, and the group gives its partitions to this task.
        # 2. It wakes, and its `recover` fences this task in the target. 3. The group refuses its
        # commits, so no task would write the partitions. 4. This task claims them, and fences it.
        now_ms, claims_ms = self._clock.now_ms(), self._claims_ms
        if not self._consumer.assignment():
            self._fenced_ms = None
            return
        if now_ms - fenced_ms <= FENCED_MS:
            return
        if len(claims_ms) == CLAIMS_MAX and now_ms - claims_ms[0] <= CLAIMS_MS:
            raise ProcessingError(
                f"sink {self.connector.name!r}: the target belongs to another task, but the group "
                f"gives its partitions to this one, which has claimed them {CLAIMS_MAX} times: "
                "another app or service writes as a connector of this name; give one of them "
                "another name",
                node=self.connector.name,
            )
        with self._consumer.staying() as is_staying:
            # Between two generations a round of the group decides; the next poll takes part in it.
            if not is_staying or not await self._is_owner():
                return
            logger.warning(
                "sink %r: another task has fenced this one in the target, but the group gives the "
                "partitions to this one: it claims them again",
                self.connector.name,
            )
            claims_ms.append(now_ms)
            await self._on_assigned(frozenset())

    async def _is_owner(self) -> bool:
        """Return whether the group counts on this task; a task that stood still can't know."""
        committed = await self._consumer.committed_metadata(self._consumer.assignment())
        try:
            # As they are: the group takes offsets from members of the present generation only.
            await self._consumer.commit({at: each for at, each in committed.items() if each})
        except (RebalanceInProgress, UnknownMember):
            return False
        except LogError as error:
            if error.code in _GONE:
                return False
            raise
        return True

    def _pass_damaged(
        self, consumer: Consumer, damaged: DamagedBatch
    ) -> dict[TopicPartition, RecordColumns]:
        if [*self.connector.policy.chain][-1].action == "fail":
            raise ProcessingError(
                f"sink {self.connector.name!r}: a batch of {damaged.topic}-{damaged.partition}"
                f" can't be read: {damaged}",
                topic=damaged.topic,
                partition=damaged.partition,
                offset=damaged.offset,
                node=self.connector.name,
            ) from damaged
        logger.error("sink %r skips a batch that can't be read: %s", self.connector.name, damaged)
        part = TopicPartition(damaged.topic, damaged.partition)
        consumer.seek(part, damaged.next_offset)
        return {}

    def _choose(self, consumer: Consumer) -> None:
        """Pause the partitions whose records have to wait, and resume the others."""
        # Compared with what is paused already, as each resume wakes the fetcher.
        paused, assigned = consumer.paused(), consumer.assignment()
        wanted = self.runner.wanted(assigned)
        if resumed := wanted & paused:
            consumer.resume(*resumed)
        consumer.pause(*(assigned - wanted - paused))

    def _poll_ms(self) -> int:
        # Records, marks and the request to stop end a poll early. In a service with a hundred quiet
        # sinks, short polls were half of its CPU.
        if self.runner.is_idle and self._consumer.assignment():
            return IDLE_POLL_MS
        wait_ms = self.runner.retry_in_ms
        return POLL_MS if wait_ms is None else min(POLL_MS, max(wait_ms, 1))

    def _records_max(self) -> int:
        return min(POLL_RECORDS_MAX, max(self.connector.sink.flush.records, 1))

    def _apply_seeks(self) -> None:
        assigned = self._consumer.assignment()
        for part, offset in self.runner.seeks.items():
            if part in assigned:
                self._seek(part, offset)
        self.runner.seeks.clear()

    def _seek(self, part: TopicPartition, offset: int) -> None:
        # With the id, a topic that is created again while this task runs is noticed.
        topic_id = self._offsets.topic_ids.get(part.topic, b"")
        self._consumer.seek(part, offset, topic_id=topic_id)

    async def _on_assigned(self, added: frozenset[TopicPartition]) -> None:
        partitions = sorted(added)
        if self._fenced_ms is not None:
            # A round of the group says who has what: whatever was fenced begins anew.
            partitions, self._fenced_ms = sorted(self._consumer.assignment()), None
        if not partitions:
            return
        # Read in the callback: behind the round no earlier owner can commit any more.
        committed = await self._consumer.committed_metadata(partitions)
        for topic in dict.fromkeys(part.topic for part in partitions):
            self._offsets.topic_ids[topic] = await self._consumer.topic_id(topic)
        begins = await self._consumer.begin_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        offsets: dict[TopicPartition, GroupPosition] = {}
        for part in partitions:
            policy = self._source_lost.get(part.topic, FAIL)
            begin = ends[part] if policy == LATEST else begins[part]
            position = GroupPosition(begin, is_committed=False, begins_anew=policy != FAIL)
            if (found := committed.get(part)) is not None:
                metadata, topic_id = split_topic(found.metadata)
                if self._offsets.is_of_topic(part, topic_id):
                    position = GroupPosition(found.offset, metadata)
                else:
                    logger.warning(
                        "sink %r: topic %s was deleted and created again; its group had %s-%d up "
                        "to offset %d of the former one",
                        *(self.connector.name, part.topic, *part, found.offset),
                    )
            offsets[part] = position
            # Paused until `recover` has said where the target is.
            self._seek(part, position.offset)
            self._consumer.pause(part)
        self.runner.assign(offsets)

    async def _on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        try:
            await self.runner.revoke(partitions, is_lost=False)
        except Fenced as error:
            logger.info("sink %r: %s", self.connector.name, error)
            self._fenced_ms = self._clock.now_ms()
        self._apply_seeks()

    async def _on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        await self.runner.revoke(partitions, is_lost=True)
        self._apply_seeks()


PURGE_MS: Final = 60_000
"""How often records are removed."""


async def purge_once(log: Log, app_id: str, sinks: Sequence[SinkConnector]) -> None:
    """Remove from the own topics of sinks what their targets have, once.

    Only up to the group's offset, as a sink never reads before it.
    """
    admin = log.admin()
    for sink in sinks:
        topics = {spec.name for spec in sink.topics}
        committed = await admin.group_offsets(f"{app_id}-{sink.name}")
        ends = {part: offset for part, offset in committed.items() if part.topic in topics}
        if ends:
            await admin.delete_records(ends)


async def purge_until_cancelled(
    log: Log, app_id: str, sinks: Sequence[SinkConnector], *, is_due: Callable[[], bool]
) -> None:
    """Remove what the targets have, every minute if it is due; a refusal is only logged."""
    while True:
        await asyncio.sleep(PURGE_MS / 1000)
        try:
            if is_due():
                await purge_once(log, app_id, sinks)
        except LogError as error:
            logger.warning("the topics of sinks can't be purged: %s", error)
