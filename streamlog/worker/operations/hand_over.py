"""Hand-over: lets live workers continue where a history has ended, with no gap and no repetition.

One transaction writes everything: the state of each task (its changelog begins anew at `BASE_KEY`,
with the rows of the snapshot and the progress in terms of this log), the records that wait between
two stages, the staged rows, the group's offsets at the cut, and a note by which a repetition is
recognized. A process that is killed before the commit has done nothing; one that is killed after it
has done everything.

The order makes it safe:

1. The transactional id is taken over. An earlier attempt has ended now, committed or aborted.
2. Only then it is checked whether the hand-over was done before.
3. The group's offsets are added to the transaction. A worker that joins from now on waits for its
   end before it gets committed offsets.
4. Only then the group is checked for members: one that joined earlier has read other offsets.

Not done here: how a worker begins with the state (`state/restore`, `topics/version_log`), and the
snapshot itself (`snapshots/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
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
from streamlog.broker.coordinator.group.classic_group import IN_PROCESS_HOST
from streamlog.client.admin import NewTopic
from streamlog.client.consumer.subscription_state import known_id
from streamlog.client.offset_metadata import NO_EPOCH, GroupMetadata, OffsetAndMetadata
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.clock import Clock, SystemClock
from streamlog.errors import (
    LogError,
    OffsetOutOfRange,
    SourceLost,
    TopicExists,
    UsageError,
    quantity,
)
from streamlog.log import EMBEDDED, Log
from streamlog.processing.provenance import MARK, PROVENANCE, RECORD_BYTES, identity, source_of
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import Headers, TopicPartition
from streamlog.records.batch import split_batches
from streamlog.records.record_columns import FieldColumns
from streamlog.replace import replace
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
"""The result of a coroutine."""

SLICE_RECORDS: Final = 5_000
"""The number of rows that are read and written at a time."""
TIMEOUT_MS: Final = 60_000
TIMEOUT_MS_MAX: Final = 15 * 60_000
"""The largest transaction time-out that brokers allow by default."""
BYTES_PER_MS: Final = 1_000
"""The assumed speed of the transaction, lower than any disk's; it sets the time-out."""
VERSION_HINT: Final = ". Or hand over to a version next to the app: mode='blue_green'"
MARK_TIMES_BYTES: Final = 24
"""The size of the times in a mark's header, which precede the source."""


OnStep = Callable[[str], None]
"""Called with each step: `begun`, `states written`, `offsets sent`, `noted`, `committed`."""


def ignore_step(_step: str) -> None:
    """Do nothing; the default `OnStep`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverResult:
    """The result of a hand-over."""

    app_id: str
    """The id of the app whose workers continue."""
    snapshot: str
    """The id of the snapshot."""
    offsets: Mapping[tuple[str, int], int]
    """Partition to the offset at which the workers continue."""
    rows: int
    """The number of rows of state."""
    is_repeated: bool
    """Whether the hand-over was done before, so this one changed nothing."""


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
    """Let the workers of a program begin with a snapshot.

    Args:
        program: the program that continues; its id and topology name the group and the topics.
        snapshot: a snapshot of this program, under this id or another one.
        log: the log that the snapshot was built from.
        mode: the mode, for the note.
        promotion: the promotion, for the note, if the snapshot is that of a promoted version.
        rewind: hand over even if the program has read beyond the snapshot. Rows that it wrote from
            there on are in the output topics, and will be written again.
        is_embedded: whether missing sources may be created.
        clock: by default the system's.
        on_step: called with each step.

    Raises:
        TopologyError: the snapshot is of another program, or topics have other partition counts.
        UsageError: workers of the program are running, or it has read beyond the snapshot.
        SourceLost: the log is not, or no longer, the one that the snapshot was built from.
        OffsetOutOfRange: the log no longer holds all records that follow the snapshot.
        CorruptData: a file of the snapshot is missing or damaged.
        TransactionAborted, ProducerFenced: another hand-over ran at the same time, or the log was
            lost; nothing was changed.
    """
    run = _HandOverRun(
        program,
        snapshot,
        log,
        clock=clock or SystemClock(),
        mode=mode,
        promotion=promotion,
        on_step=on_step,
    )
    required = () if is_embedded else program.sources
    return await run.run(required=required, rewind=rewind)


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
    """Open the log and call `hand_over`, from code without an event loop.

    Raises:
        UsageError: the caller runs on an event loop, which this call would block.
        StreamlogError: `hand_over` raised it.
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
    """Run a coroutine on an event loop of its own; `name` is the caller's, for the message.

    Raises:
        UsageError: this thread runs an event loop already.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    raise UsageError(
        f"{name} waits for the log: in async code call `await asyncio.to_thread({name}, ...)`"
    )


async def refuse_members(log: Log, app_id: str, remedy: str = "") -> None:
    """Raise if workers of an app are running.

    Raises:
        UsageError: they are; the message ends with `remedy`.
    """
    try:
        (group,) = await log.admin().describe_groups([app_id])
    except LogError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return
    if group.members:
        # A worker that runs the embedded log is connected to it without a socket.
        found = {member.client_host for member in group.members}
        hosts = ", ".join(sorted(found)).replace(IN_PROCESS_HOST, "this machine")
        raise UsageError(
            f"app {app_id!r} has {quantity(len(group.members), 'running worker')} (on {hosts}): "
            f"stop every worker first; nothing was changed{remedy}"
        )


class _HandOverRun:
    """The run of one hand-over."""

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
        """Check the snapshot and the log, then write the transaction; see `hand_over`."""
        manifest = self._manifest
        # Before anything is created in the log; the partition counts are checked once the topics
        # exist.
        manifest.check(self._topology, {}, origin=self._program.origin)
        if await self._is_done():
            return self._result(is_repeated=True)
        # A damaged file is found here, and not in the middle of the transaction.
        await offload(self._snapshot.verify)
        counts = await ensure_topics(
            self._log, self._topology, self._program.topics, required=required
        )
        manifest.check(self._topology, counts, origin=self._program.origin)
        self._counts = counts
        for topic in (hand_over_topic(self._app_id), versions_topic_of(self._app_id)):
            await self._create(topic)
        await self._check_logs()
        await self._check_reach()
        await refuse_members(self._log, self._app_id, VERSION_HINT)
        if not rewind:
            await self._refuse_rewinding()
        timeout_ms = min(TIMEOUT_MS + manifest.size_bytes // BYTES_PER_MS, TIMEOUT_MS_MAX)
        async with self._log.producer(
            linger_ms=0,
            transactional_id=f"{self._app_id}-hand-over",
            transaction_timeout_ms=timeout_ms,
        ) as producer:
            # Opening the producer has fenced off an earlier attempt, which may have committed.
            if await self._is_done():
                return self._result(is_repeated=True)
            await self._write(producer)
        self._on_step("committed")
        return self._result(is_repeated=False)

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
            # After the offsets. 1. Checked before them, the group is empty. 2. A worker joins and
            # reads the old offsets. 3. The hand-over commits: the worker continues at the old ones,
            # with the new state. Checked now, such a worker is seen, and later ones have to wait.
            await refuse_members(self._log, self._app_id, VERSION_HINT)
            await self._note(producer, tasks, change)
            self._on_step("noted")

    async def _is_done(self) -> bool:
        """Return whether the app's state has begun with this snapshot before."""
        found = await read_hand_overs(self._log, self._app_id)
        return any(each.snapshot == self._snapshot.id for each in found)

    async def _create(self, topic: str) -> None:
        try:
            await self._log.admin().create_topics(
                [NewTopic(topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)]
            )
        except TopicExists:
            logger.debug("topic %s exists", topic)

    async def _check_logs(self) -> None:
        """Check that the log is the one that the snapshot was built from.

        Raises:
            SourceLost: a topic was created again, or its log was truncated.
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
            # The snapshot knows no leader epochs here, so a truncation can't be found (KIP-320).
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
            f"{describe_loss(at, offset, log, now, cut)}, and snapshot {self._snapshot.id!r} ends"
            " there. Nothing was changed: create the snapshot again",
            topic=at.topic,
            partition=at.partition,
            position=offset,
            ids=(log.topic_id, now.topic_id or log.topic_id),
        )

    async def _check_reach(self) -> None:
        """Check that the log holds every record that follows the snapshot.

        Raises:
            OffsetOutOfRange: a partition begins later, or ends earlier.
        """
        offsets = self._manifest.offsets
        parts = [TopicPartition(*part) for part in offsets]
        async with self._log.consumer() as consumer:
            begins, ends = await consumer.begin_offsets(parts), await consumer.end_offsets(parts)
        for part in sorted(parts):
            offset, begin, end = offsets[part], begins[part], ends[part]
            if not begin <= offset <= end:
                raise OffsetOutOfRange(
                    f"snapshot {self._snapshot.id!r} ends at offset {offset} of {part.topic}-"
                    f"{part.partition}, which "
                    + (
                        f"starts at {begin}: records in between were removed; create the snapshot "
                        "again"
                        if offset < begin
                        else f"ends at {end}: the snapshot is of another log"
                    ),
                )

    async def _refuse_rewinding(self) -> None:
        """Check that the program has not read beyond the snapshot.

        Raises:
            UsageError: it has, so rows that it wrote since may be written again.
        """
        cuts = self._manifest.offsets
        committed = await self._log.admin().group_offsets(
            self._app_id, [TopicPartition(*part) for part in cuts]
        )
        for part, offset in sorted(committed.items()):
            if offset > cuts[part]:
                raise UsageError(
                    f"{self._app_id!r} has read {part.topic}-{part.partition} up to offset "
                    f"{offset}, but snapshot {self._snapshot.id!r} ends at {cuts[part]}: rows that "
                    "it has written since would be written again. Hand over to a version next to "
                    "it (mode='blue_green'), or accept that with rewind=True"
                )

    async def _offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's new offsets: tasks continue at the cut, agents at their positions."""
        cuts, times, sources = self._manifest.offsets, self._manifest.times, self._sources()
        parts = [TopicPartition(*part) for part in cuts]
        async with self._log.consumer(group_id=self._app_id) as consumer:
            stored = await consumer.committed_metadata(parts)
        agents: dict[str, list[str]] = {}
        for agent in self._program.agents:
            agents.setdefault(agent.topic.name, []).append(agent.name)
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for part in parts:
            subs = self._topology.subtopologies_of(part.topic)
            # A task with state keeps its stream time in its progress instead.
            is_kept = any(sub.changelog_topic is None for sub in subs)
            readers = {TASK: AgentPosition(cuts[part], time_ms=times[part] if is_kept else None)}
            before = stored[part]
            if before is not None and agents.get(part.topic):
                self._check_agents(part, before, sources.get(part, SourceLog()))
                ahead = positions_of(before.offset, before.metadata)
                # Agents are no part of a history: each continues where it was.
                for name in agents.get(part.topic, ()):
                    readers[name] = ahead.get(name, AgentPosition(before.offset))
            at = offset_of(readers)
            log = sources.get(part, SourceLog())
            # An agent that is behind the cut moves the offset, and the epoch there is unknown.
            epoch = log.leader_epoch if at == cuts[part] else NO_EPOCH
            metadata = metadata_of(at, readers, log)
            found[part] = OffsetAndMetadata(at, metadata, epoch, log.topic_id or ZERO_UUID)
        return found

    def _sources(self) -> dict[TopicPartition, SourceLog]:
        """Return the logs that the offsets of the cut belong to."""
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
        """Check that agents have read the log that tasks continue in.

        Raises:
            SourceLost: their position belongs to a topic that was deleted.
        """
        handled = noted_of(before.offset, before.metadata).log
        if is_recreated(handled, log.topic_id):
            loss = describe_loss(at, before.offset, handled, Present(log.topic_id, 0, 0), None)
            raise SourceLost(
                f"{loss} for agents of {self._app_id!r}. Nothing was changed: start its workers"
                " once, so that they apply source_lost, and stop them before the hand-over",
                topic=at.topic,
                partition=at.partition,
                position=before.offset,
                ids=(handled.topic_id, log.topic_id),
            )

    async def _write_pending(self, producer: Producer) -> dict[TopicPartition, int]:
        """Write the records between stages; returns the start offset in each repartition topic."""
        landing = self._landing({}, VersionChange(before=None, blueprint=self._manifest.blueprint))
        parts = sorted(
            TopicPartition(topic, partition)
            for sub in self._topology.subtopologies
            for topic, spec in sub.topics.items()
            for partition in range(self._counts[topic] if spec.internal else 0)
        )
        async with self._log.consumer() as consumer:
            # Records that the topic holds from before the hand-over are skipped.
            positions = await consumer.end_offsets(parts) if parts else {}
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
        """Write the records of a file to a partition; returns the offset of the first one."""
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
                # `offset` is that of the batch's last record.
                first = (await sent).offset - len(records) + 1
        # The batches of a partition keep their order, so all are acknowledged with the last one.
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
        """Write one task's changelog: base and fence, rows, and the progress last."""
        sub = self._topology.subtopologies[entry.subtopology]
        changelog = sub.changelog_topic
        before = await offload(lambda: self._snapshot.progress(entry))
        if changelog is None or before is None:
            raise UsageError(f"task {entry.task} has state in the snapshot, but not in the program")
        logs = {(each.topic, each.partition): source_log(each) for each in entry.sources}
        # The manifest names the logs of sources that the progress itself does not name.
        before = replace(before, logs={**logs, **before.logs})
        wall_ms = self._clock.wall_ms()
        # The base makes a replay drop all rows before it. The fence makes what a former owner
        # writes later void.
        head = _records([(BASE_KEY, self._snapshot.id.encode()), (OWNER_KEY, b"")], wall_ms)
        fence = await (await producer.send_batch(changelog, entry.partition, head))
        rows = self._snapshot.rows(entry)
        while some := await offload(lambda: list(islice(rows, SLICE_RECORDS))):
            sent = await producer.send_batch(changelog, entry.partition, _records(some, wall_ms))
            _consume_error(sent)
        progress = landing.rebased(before, entry.partition, sub.inputs).encode()
        # Last: a store that is filled from the snapshot's files continues at this record
        # (`Base.adopt`).
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
        """Record the hand-over, for repetitions and for the workers that begin with it."""
        # In this transaction, so that no worker finds the new state under the old version.
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

    def _result(self, *, is_repeated: bool) -> HandOverResult:
        return HandOverResult(
            app_id=self._app_id,
            snapshot=self._snapshot.id,
            offsets=self._manifest.offsets,
            rows=self._manifest.rows,
            is_repeated=is_repeated,
        )


def source_log(entry: SourceEntry) -> SourceLog:
    """Return the log of a snapshot's source."""
    return SourceLog(bytes.fromhex(entry.topic_id), entry.epoch, entry.cuts)


def _records(rows: list[tuple[bytes, bytes]], wall_ms: int) -> FieldColumns:
    columns = FieldColumns()
    columns.extend([wall_ms] * len(rows), [key for key, _ in rows], [value for _, value in rows])
    return columns


def _consume_error(sent: asyncio.Future[RecordMetadata]) -> None:
    """Mark the error of a send as retrieved; the transaction's commit raises it."""
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())


def _rename_sources(headers: Headers, landing: Landing) -> Headers:
    """Return the headers of a repartition record with the source's name in this log."""
    return tuple(
        (name, None if data is None else _replace_source(name, data, landing))
        for name, data in headers
    )


def _replace_source(name: str, data: bytes, landing: Landing) -> bytes:
    cut = {PROVENANCE: RECORD_BYTES, MARK: MARK_TIMES_BYTES}.get(name)
    if cut is None:
        return data
    topic, partition = source_of(data[cut:])
    # The source is the end of the header; the bytes before it stay.
    return data[:cut] + identity((landing.name(topic), partition))
