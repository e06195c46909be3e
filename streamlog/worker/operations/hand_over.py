"""Hand-over: live workers are to go on where a history has ended, with no gap and no repeat.

All of it is one transaction: per task the changelog begins anew (`BASE_KEY`) with the rows of the
snapshot and the progress as it reads in this log; records that wait between two stages and rows
that were staged are written; the group's offsets are set to the cut; and what was done is noted, in
the topic by which a repetition is known. Who is killed in the middle has done nothing; who is
killed behind it, everything. The order within is the safety: (1) the producer's name is taken, so
an earlier attempt is over, whatever became of it; (2) only then it is asked whether it was done;
(3) the group's offsets are staged, so a worker that joins from now on waits for them; (4) only then
it is asked whether the group has members, who would go on from other offsets. Not done here: how a
worker begins with it (`restore`, `version_log`), and making the snapshot (`snapshots`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, TypeVar

from streamlog import repeated
from streamlog.agents.offsets import (
    TASK,
    AgentPosition,
    metadata_of,
    noted_of,
    offset_of,
    positions_of,
)
from streamlog.client.admin import NewTopic
from streamlog.client.consumer.subscription_state import known_id
from streamlog.client.offset_metadata import NO_EPOCH, GroupMetadata, OffsetAndMetadata
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.clock import Clock, SystemClock
from streamlog.errors import LogError, OffsetOutOfRange, SourceLost, TopicExists, UsageError
from streamlog.log import EMBEDDED, Log
from streamlog.processing.provenance import MARK, PROVENANCE, RECORD_BYTES, identity, source_of
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import Headers, TopicPartition
from streamlog.records.batch import split_batches
from streamlog.records.record_columns import FieldColumns
from streamlog.snapshots import Manifest, Snapshot, SourceEntry, StagedRecords, TaskEntry
from streamlog.snapshots.manifest import Landing
from streamlog.tables.state.changelog import BASE_KEY, PROGRESS_KEY, SourceLog
from streamlog.topology import Topology
from streamlog.transport.security import Security
from streamlog.worker.program import EXACTLY_ONCE, Program
from streamlog.worker.state.changelog_reader import offload
from streamlog.worker.state.restore import OWNER_KEY
from streamlog.worker.topics.app_topics import BROKER_DEFAULT, ensure_topics
from streamlog.worker.topics.lost_sources import (
    Present,
    TruncatedSource,
    describe_loss,
    is_recreated,
)
from streamlog.worker.topics.version_log import (
    CONFIGS,
    HandOver,
    Promotion,
    TaskBase,
    VersionChange,
    VersionLog,
    hand_over_topic,
    read_hand_overs,
)
from streamlog.worker.topics.version_log import version_topic as versions_topic_of

logger = repeated.logger(__name__)

Mode: TypeAlias = Literal["replace", "blue_green", "promote"]

T = TypeVar("T")
"""What a coroutine gives."""

SLICE_RECORDS: Final = 5_000
"""Read and written at a time."""
TIMEOUT_MS: Final = 60_000
TIMEOUT_MS_MAX: Final = 15 * 60_000
"""Brokers allow no transaction to be open for longer."""
BYTES_PER_MS: Final = 1_000
"""Slower than any disk: so long the transaction of a large snapshot may take."""
BESIDE: Final = ". Or hand over beside them: mode='blue_green'"
MARK_TIMES_BYTES: Final = 24
"""Of a mark's header, in front of the source."""


OnStep = Callable[[str], None]
"""Told how far it is: `begun`, `states written`, `offsets sent`, `noted`, `committed`."""


def ignore_step(_step: str) -> None:
    """An `OnStep` that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverResult:
    """What came of a hand-over."""

    app_id: str
    """Whose workers go on: its group, its state."""
    snapshot: str
    offsets: Mapping[tuple[str, int], int]
    """Where they go on, by partition."""
    rows: int
    """Of state."""
    is_repeated: bool
    """It was done before; nothing was done now."""


async def hand_over(
    program: Program,
    snapshot: Snapshot,
    *,
    log: Log,
    mode: Mode = "replace",
    promotion: Promotion | None = None,
    rewind: bool = False,
    is_embedded: bool = True,
    clock: Clock | None = None,
    on_step: OnStep = ignore_step,
) -> HandOverResult:
    """Let the workers of a program begin with a snapshot. None may be at work.

    Args:
        program: that goes on; its id and topology decide which topics and which group that is.
        snapshot: made by the same program, under this id or another one.
        log: that the snapshot's offsets are of.
        mode: for the note of it.
        promotion: the same, if the snapshot is that of a version that is promoted.
        rewind: also if the program has gone further than the snapshot, whose rows from there on
            are in the output topics and will be there once more.
        is_embedded: topics that are missing may be made.
        clock: tells the time on the wall.
        on_step: told how far it is.

    Raises:
        TopologyError: the snapshot is of another program, or topics have other partition counts.
        UsageError: workers of the program are running, or it has gone further than the snapshot.
        SourceLost: the log is not the one that the snapshot was made of (any more).
        OffsetOutOfRange: the log does not hold what comes behind the snapshot.
        CorruptData: a file of the snapshot is missing or damaged.
        TransactionAborted, ProducerFenced: somebody else has done it at the same time, or the log
            was lost: nothing was changed.
    """
    handing = _HandOverRun(
        program,
        snapshot,
        log,
        clock=clock or SystemClock(),
        mode=mode,
        promotion=promotion,
        on_step=on_step,
    )
    required = () if is_embedded else program.sources
    return await handing.run(required=required, rewind=rewind)


def run_hand_over(
    program: Program,
    snapshot: Snapshot,
    *,
    log_url: str,
    security: Security | None = None,
    mode: Mode = "replace",
    rewind: bool = False,
    on_step: OnStep = ignore_step,
) -> HandOverResult:
    """`hand_over` for who has neither a loop nor an open log.

    Raises:
        UsageError: there is a loop, whom this would block.
        StreamlogError: as `hand_over`.
    """

    async def work() -> HandOverResult:
        is_embedded = log_url.startswith(EMBEDDED)
        async with Log.open(log_url, security=security) as log:
            return await hand_over(
                program,
                snapshot,
                log=log,
                mode=mode,
                rewind=rewind,
                is_embedded=is_embedded,
                on_step=on_step,
            )

    return run_alone(work, "app.hand_over")


def run_alone(work: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    """Run it on a loop of its own.

    Raises:
        UsageError: this thread has one already.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    raise UsageError(
        f"{name} waits for the log: in async code call `await asyncio.to_thread({name}, ...)`"
    )


async def refuse_members(log: Log, app_id: str, remedy: str = "") -> None:
    """Make sure that no worker of an app is running.

    Raises:
        UsageError: one is; `remedy` tells what else may be done.
    """
    try:
        (group,) = await log.admin().describe_groups([app_id])
    except LogError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if group.members:
        hosts = ", ".join(sorted({member.client_host for member in group.members}))
        raise UsageError(
            f"{len(group.members)} workers of {app_id!r} are running (on {hosts}): stop them "
            f"first; nothing was changed{remedy}"
        )


class _HandOverRun:
    """One hand-over."""

    def __init__(
        self,
        program: Program,
        snapshot: Snapshot,
        log: Log,
        *,
        clock: Clock,
        mode: Mode,
        promotion: Promotion | None,
        on_step: OnStep,
    ) -> None:
        self._program = program
        self._app_id = program.app_id
        self._topology: Topology = program.topology
        self._snapshot = snapshot
        self._manifest: Manifest = snapshot.manifest
        self._log = log
        self._clock = clock
        self._mode = mode
        self._promotion = promotion
        self._on_step = on_step
        self._counts: Mapping[str, int] = {}

    async def run(self, *, required: Collection[str], rewind: bool) -> HandOverResult:
        manifest = self._manifest
        manifest.check(self._topology, {}, origin=self._program.origin)
        if await self._is_done():
            return self._told(is_repeated=True)
        await offload(self._snapshot.verify)
        counts = await ensure_topics(
            self._log, self._topology, self._program.topics, required=required
        )
        manifest.check(self._topology, counts, origin=self._program.origin)
        self._counts = counts
        for topic in (hand_over_topic(self._app_id), versions_topic_of(self._app_id)):
            await self._make(topic)
        await self._check_logs()
        await self._check_reach()
        await refuse_members(self._log, self._app_id, BESIDE)
        if not rewind:
            await self._refuse_rewinding()
        timeout_ms = min(TIMEOUT_MS + manifest.size_bytes // BYTES_PER_MS, TIMEOUT_MS_MAX)
        async with self._log.producer(
            linger_ms=0,
            transactional_id=f"{self._app_id}-hand-over",
            transaction_timeout_ms=timeout_ms,
        ) as producer:
            # An attempt that was under way is over by now.
            if await self._is_done():
                return self._told(is_repeated=True)
            await self._write(producer)
        self._on_step("committed")
        return self._told(is_repeated=False)

    async def _write(self, producer: Producer) -> None:
        change = await VersionLog(self._log, self._topology).compare()
        offsets = await self._offsets()
        async with producer.transaction() as transaction:
            self._on_step("begun")
            positions = await self._write_pending(producer)
            for staged in self._manifest.staged:
                name = self._program.renamed.get(staged.topic, staged.topic)
                await self._write_file(producer, staged, name)
            tasks = await self._write_states(producer, positions, change)
            self._on_step("states written")
            group = GroupMetadata(group_id=self._app_id)
            offsets |= {at: OffsetAndMetadata(offset) for at, offset in positions.items()}
            await transaction.send_offsets(offsets, group)
            self._on_step("offsets sent")
            await refuse_members(self._log, self._app_id, BESIDE)
            await self._note(producer, tasks, change)
            self._on_step("noted")

    async def _is_done(self) -> bool:
        """Whether the state has begun with this snapshot already."""
        found = await read_hand_overs(self._log, self._app_id)
        return any(each.snapshot == self._snapshot.id for each in found)

    async def _make(self, topic: str) -> None:
        try:
            await self._log.admin().create_topics(
                [NewTopic(topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)]
            )
        except TopicExists:
            logger.debug("topic %s is there", topic)

    async def _check_logs(self) -> None:
        """The log must be the one that the snapshot was made of.

        Raises:
            SourceLost: a topic was created again, or a log lost records.
        """
        marks = {
            (TopicPartition(each.topic, each.partition), offset): each
            for entry in self._manifest.tasks
            for topic, partition, offset in entry.offsets
            for each in entry.sources
            if (each.topic, each.partition) == (topic, partition)
        }
        admin = self._log.admin()
        names = {at.topic for at, _ in marks}
        ids = {each.name: each.topic_id for each in await admin.find_topics(names)}
        for (at, offset), each in sorted(marks.items(), key=lambda mark: mark[0]):
            log, now = source_log(each), known_id(ids.get(at.topic, ZERO_UUID)) or b""
            if is_recreated(log, now):
                raise self._lost(at, offset, log, Present(now, 0, 0), None)
            if each.epoch_start < 0:
                continue
            chain = ((each.epoch, each.epoch_start),)
            found = await admin.divergences({at: (offset, chain)})
            if at in found:
                async with self._log.consumer() as consumer:
                    end = (await consumer.end_offsets([at]))[at]
                raise self._lost(at, offset, log, Present(now, 0, end), TruncatedSource(found[at]))

    def _lost(
        self,
        at: TopicPartition,
        offset: int,
        log: SourceLog,
        now: Present,
        cut: TruncatedSource | None,
    ) -> SourceLost:
        return SourceLost(
            f"{describe_loss(at, offset, log, now, cut)}, as snapshot {self._snapshot.id!r} ends"
            " there. Nothing was changed: make the snapshot again",
            topic=at.topic,
            partition=at.partition,
            position=offset,
            ids=(log.topic_id, now.topic_id or log.topic_id),
        )

    async def _check_reach(self) -> None:
        """The log must hold everything behind the snapshot.

        Raises:
            OffsetOutOfRange: it begins later, or ends before.
        """
        offsets = self._manifest.offsets
        places = [TopicPartition(*place) for place in offsets]
        async with self._log.consumer() as consumer:
            begins, ends = await consumer.begin_offsets(places), await consumer.end_offsets(places)
        for place in sorted(places):
            offset, begin, end = offsets[place], begins[place], ends[place]
            if not begin <= offset <= end:
                raise OffsetOutOfRange(
                    f"snapshot {self._snapshot.id!r} ends before offset {offset} of {place.topic}-"
                    f"{place.partition}, which holds {begin} up to {end}: "
                    + (
                        "records between them were removed; make the snapshot again"
                        if offset < begin
                        else "it is of another log"
                    ),
                )

    async def _refuse_rewinding(self) -> None:
        """What the program has written from the cut on would be written again.

        Raises:
            UsageError: there may be such rows.
        """
        cuts = self._manifest.offsets
        there = await self._log.admin().group_offsets(
            self._app_id, [TopicPartition(*place) for place in cuts]
        )
        for place, offset in sorted(there.items()):
            if offset > cuts[place]:
                raise UsageError(
                    f"{self._app_id!r} has read {place.topic}-{place.partition} up to {offset}, "
                    f"and snapshot {self._snapshot.id!r} ends at {cuts[place]}: rows that it has "
                    "written since would be written again. Hand over beside it "
                    "(mode='blue_green'), or all the same: rewind=True"
                )

    async def _offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where the group goes on: tasks at the cut, agents where they are."""
        cuts, times, sources = self._manifest.offsets, self._manifest.times, self._sources()
        places = [TopicPartition(*place) for place in cuts]
        async with self._log.consumer(group_id=self._app_id) as consumer:
            stored = await consumer.committed_metadata(places)
        agents: dict[str, list[str]] = {}
        for agent in self._program.agents:
            agents.setdefault(agent.topic.name, []).append(agent.name)
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for place in places:
            subs = self._topology.subtopologies_of(place.topic)
            # A task with state has its times there.
            is_kept = any(sub.changelog_topic is None for sub in subs)
            readers = {TASK: AgentPosition(cuts[place], time_ms=times[place] if is_kept else None)}
            before = stored[place]
            if before is not None and agents.get(place.topic):
                self._check_agents(place, before, sources.get(place, SourceLog()))
                ahead = positions_of(before.offset, before.metadata)
                for name in agents.get(place.topic, ()):
                    readers[name] = ahead.get(name, AgentPosition(before.offset))
            at = offset_of(readers)
            log = sources.get(place, SourceLog())
            epoch = log.leader_epoch if at == cuts[place] else NO_EPOCH
            metadata = metadata_of(at, readers, log)
            found[place] = OffsetAndMetadata(at, metadata, epoch, log.topic_id or ZERO_UUID)
        return found

    def _sources(self) -> dict[TopicPartition, SourceLog]:
        """The logs that the offsets of the cut belong to."""
        cuts = self._manifest.offsets
        return {
            TopicPartition(each.topic, each.partition): source_log(each)
            for entry in self._manifest.tasks
            for topic, partition, offset in entry.offsets
            for each in entry.sources
            if (each.topic, each.partition) == (topic, partition)
            and cuts.get((topic, partition)) == offset
        }

    def _check_agents(self, at: TopicPartition, before: OffsetAndMetadata, log: SourceLog) -> None:
        """What agents have handled must be of the log that tasks continue in.

        Raises:
            SourceLost: it is of a topic that was deleted.
        """
        handled = noted_of(before.offset, before.metadata).log
        if is_recreated(handled, log.topic_id):
            what = describe_loss(at, before.offset, handled, Present(log.topic_id, 0, 0), None)
            raise SourceLost(
                f"{what} by agents of {self._app_id!r}. Nothing was changed: start its workers"
                " once, which go by source_lost, and stop them before the hand-over",
                topic=at.topic,
                partition=at.partition,
                position=before.offset,
                ids=(handled.topic_id, log.topic_id),
            )

    async def _write_pending(self, producer: Producer) -> dict[TopicPartition, int]:
        """What waits between the stages; returns where each repartition topic is read on."""
        landing = self._landing({}, VersionChange(before=None, blueprint=self._manifest.blueprint))
        places = sorted(
            TopicPartition(topic, partition)
            for sub in self._topology.subtopologies
            for topic, spec in sub.topics.items()
            for partition in range(self._counts[topic] if spec.internal else 0)
        )
        async with self._log.consumer() as consumer:
            positions = await consumer.end_offsets(places) if places else {}
        for pending in self._manifest.pending:
            name = landing.name(pending.topic)
            first = await self._write_file(producer, pending, name, landing)
            positions[TopicPartition(name, pending.partition)] = first
        return positions

    async def _write_file(
        self,
        producer: Producer,
        file: StagedRecords,
        topic: str,
        landing: Landing | None = None,
    ) -> int:
        """Write what a file holds to a partition; returns the offset of the first record."""
        data = await offload(lambda: self._snapshot.read(file))
        sent = None
        first = -1
        for batch in split_batches(data):
            columns = batch.columns()
            records = FieldColumns()
            headers = columns.headers
            if headers is not None and landing is not None:
                headers = [_rename_sources(each, landing) for each in headers]
            records.extend(columns.timestamps, columns.keys, columns.values, headers)
            sent = await producer.send_batch(topic, file.partition, records)
            if first < 0:
                first = (await sent).offset - len(records) + 1
        if sent is not None:
            await sent
        return first

    async def _write_states(
        self, producer: Producer, positions: Mapping[TopicPartition, int], change: VersionChange
    ) -> dict[str, TaskBase]:
        landing = self._landing(positions, change)
        return {
            entry.task: await self._write_state(producer, entry, landing)
            for entry in self._manifest.tasks
            if entry.progress is not None
        }

    async def _write_state(
        self, producer: Producer, entry: TaskEntry, landing: Landing
    ) -> TaskBase:
        """One task's changelog, from its base to its progress."""
        sub = self._topology.subtopologies[entry.subtopology]
        changelog = sub.changelog_topic
        before = await offload(lambda: self._snapshot.progress(entry))
        if changelog is None or before is None:
            raise UsageError(
                f"task {entry.task} of the snapshot has state, and none in the program"
            )
        logs = {(each.topic, each.partition): source_log(each) for each in entry.sources}
        before = replace(before, logs={**logs, **before.logs})
        wall_ms = self._clock.wall_ms()
        head = _records([(BASE_KEY, self._snapshot.id.encode()), (OWNER_KEY, b"")], wall_ms)
        fence = await (await producer.send_batch(changelog, entry.partition, head))
        rows = self._snapshot.rows(entry)
        while some := await offload(lambda: list(islice(rows, SLICE_RECORDS))):
            sent = await producer.send_batch(changelog, entry.partition, _records(some, wall_ms))
            _consume_error(sent)
        progress = landing.rebased(before, entry.partition, sub.inputs).encode()
        last = _records([(PROGRESS_KEY, progress)], wall_ms)
        done = await (await producer.send_batch(changelog, entry.partition, last))
        return TaskBase(fence=fence.offset, progress=done.offset)

    def _landing(self, positions: Mapping[TopicPartition, int], change: VersionChange) -> Landing:
        return Landing(
            app_id=self._manifest.app_id,
            new_id=self._app_id,
            positions={(at.topic, at.partition): offset for at, offset in positions.items()},
            era=change.era.number,
            merges=self._program.guarantee == EXACTLY_ONCE,
        )

    async def _note(
        self, producer: Producer, tasks: dict[str, TaskBase], change: VersionChange
    ) -> None:
        """Say what was done, for who repeats it and who begins with it."""
        if not change.is_settled:
            sent = await producer.send(
                versions_topic_of(self._app_id), change.encode(), partition=0
            )
            await sent
        note = HandOver(
            snapshot=self._snapshot.id,
            url=self._snapshot.url,
            wall_ms=self._clock.wall_ms(),
            cut_ms=self._manifest.cut_ms,
            mode=self._mode,
            fingerprint=self._manifest.fingerprint,
            tasks=tasks,
            promotion=self._promotion,
        )
        await (await producer.send(hand_over_topic(self._app_id), note.encode(), partition=0))

    def _told(self, *, is_repeated: bool) -> HandOverResult:
        return HandOverResult(
            app_id=self._app_id,
            snapshot=self._snapshot.id,
            offsets=self._manifest.offsets,
            rows=self._manifest.rows,
            is_repeated=is_repeated,
        )


def source_log(entry: SourceEntry) -> SourceLog:
    """A log as progress and groups have it."""
    return SourceLog(bytes.fromhex(entry.topic_id), entry.epoch, entry.cuts)


def _records(rows: list[tuple[bytes, bytes]], wall_ms: int) -> FieldColumns:
    columns = FieldColumns()
    columns.extend([wall_ms] * len(rows), [key for key, _ in rows], [value for _, value in rows])
    return columns


def _consume_error(sent: asyncio.Future[RecordMetadata]) -> None:
    """Its error is that of the transaction."""
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())


def _rename_sources(headers: Headers, landing: Landing) -> Headers:
    """The headers of a record of a repartition topic, its source named as in this log."""
    return tuple(
        (name, None if data is None else _replace_source(name, data, landing))
        for name, data in headers
    )


def _replace_source(name: str, data: bytes, landing: Landing) -> bytes:
    cut = {PROVENANCE: RECORD_BYTES, MARK: MARK_TIMES_BYTES}.get(name)
    if cut is None:
        return data
    topic, partition = source_of(data[cut:])
    return data[:cut] + identity((landing.name(topic), partition))
