"""BackfillJob: plans and runs the history of an app, and writes a snapshot of its end.

The plan is made against the log on first use and does not change: records appended later are for
the live workers. Rule of the file: nothing becomes visible outside before the run has finished. Not
done here: running the plan (`local_run`, `spark_bridge`), and the start of live workers from the
snapshot (`worker.operations.hand_over`).
"""

from __future__ import annotations

import importlib
import logging
import mmap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import uuid4
from zoneinfo import ZoneInfo

import msgspec

from streamlog.clock import Clock, SystemClock
from streamlog.dsl.topic import Topic
from streamlog.durations import When, moment, when_ms
from streamlog.errors import ConfigError, UsageError
from streamlog.history.comparison import Comparison, Inputs, compare_topic
from streamlog.history.job_report import JobProgress, JobReport
from streamlog.history.lineage import inputs_by
from streamlog.history.local_run import LocalRun, RunDeps, add_source_logs, with_ends
from streamlog.history.lowering import Lower
from streamlog.history.plan import EngineName, Outputs, Plan, plan_history
from streamlog.history.readers import LogReader
from streamlog.history.stored_schemas import read_stored_schemas
from streamlog.history.task_run import FinishedTask, OnRead, Read, sum_by_name
from streamlog.metrics.build_info import install_command
from streamlog.nodes.stream_nodes import Source
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.error_handling import DamagedInputs
from streamlog.processing.inputs.cut_input import CutInput, TimeSpan
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.record import TopicPartition
from streamlog.records.staged_segment import StagedSegment
from streamlog.replace import replace
from streamlog.serdes import serde_for
from streamlog.snapshots import (
    Snapshot,
    SnapshotStore,
    StagedRecords,
    TaskEntry,
)
from streamlog.snapshots.capture import finish_snapshot
from streamlog.snapshots.job_notes import JobNote
from streamlog.snapshots.manifest import MANIFEST_FILE
from streamlog.snapshots.noted_jobs import JobNotes
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.transport.security import Security
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS
from streamlog.worker.program import EXACTLY_ONCE, Program
from streamlog.worker.topics.app_topics import declare_topics
from streamlog.worker.topics.topic_schemas import has_schemas

if TYPE_CHECKING:
    from streamlog.log import Log

logger = logging.getLogger(__name__)


class Horizon(msgspec.Struct, frozen=True):
    """The event time that all streams have reached, which is the end of a history until now."""

    time_ms: int
    """Milliseconds since 1970; FAR_MS: no stream has a record."""
    behind: TopicPartition | None = None
    """The partition whose time this is: the smallest one."""

    def __str__(self) -> str:
        if self.behind is None:
            return "no stream has a record yet"
        topic, partition = self.behind
        return f"{topic}-{partition} ends at {moment(self.time_ms).isoformat()}, the earliest"


def horizon(plan: Plan, reader: LogReader) -> Horizon:
    """Return the event time that all streams of a plan have reached; reads them whole.

    A history up to the latest offsets would end at a different time in each partition, and its rows
    could not equal a live worker's rows. So it ends at the smallest time that a partition has
    reached. Partitions without records don't count, nor do tables, whose topics may be quiet for
    any time.

    Raises:
        ProcessingError: a time can't be read from a value.
        StreamlogError: the log can't be read.
    """
    streams = {node.topic.name for node in plan.topology.nodes if isinstance(node, Source)}
    found: list[tuple[int, TopicPartition]] = []
    damaged = DamagedInputs(plan.topology)
    for (topic, number), (start, end) in plan.ends.items():
        if streams and topic not in streams:
            continue
        partition = TopicPartition(topic, number)
        time_ms = _come_to(reader, plan.topology.topics[topic], partition, (start, end), damaged)
        if time_ms > UNKNOWN_MS:
            found.append((time_ms, partition))
    return Horizon(*min(found)) if found else Horizon(FAR_MS)


def _come_to(
    reader: LogReader,
    topic: TopicSpec,
    partition: TopicPartition,
    bounds: tuple[int, int],
    damaged: DamagedInputs,
) -> int:
    if topic.timestamp is None:
        # Event time is record time here, so keys and values need no decoding.
        raw = serde_for(bytes)
        topic = replace(topic, key=raw, value=raw)
    entry = CutInput(topic, partition.partition, 0, span=TimeSpan())
    for records, marks, *_ in reader.read(partition, *bounds, damaged):
        entry.arrive(records, marks)
        while entry.head() is not None:
            entry.take(None, None)
    return entry.time_ms


def publish_rows(
    job_id: str, tasks: Iterable[FinishedTask], snapshots: SnapshotStore, reader: LogReader
) -> dict[PartitionKey, int]:
    """Publish the rows that tasks have staged; return the offset after them in each partition.

    A single broker of streamlog stores the files invisibly, then one request makes all of them
    visible. Other logs get the rows in one transaction. Both identify the job by its ID, so running
    a job again whose outcome is unknown publishes nothing twice.

    Raises:
        LogError: the log refused; no row is visible.
        UsageError: the job's ID is the name of a consumer group; no row is visible.
        RequestTimedOut: the outcome is unknown; run the job again under the same ID.
    """
    staged = [part for task in tasks for part in task.staged]
    return reader.run(_publish(reader.log, job_id, staged, snapshots))


async def _publish(
    log: Log, job_id: str, staged: Iterable[StagedRecords], snapshots: SnapshotStore
) -> dict[PartitionKey, int]:
    parts = {part.name.replace("/", "."): part for part in staged}
    segments = [
        StagedSegment(part.topic, part.partition, name, part.size_bytes, part.records, part.crc)
        for name, part in parts.items()
    ]
    admin = log.admin()
    if await admin.can_publish():
        for name, part in parts.items():
            await admin.stage(job_id, name, _content(part, snapshots))
    done = await log.publish(job_id, segments, read=lambda name: _content(parts[name], snapshots))
    return {(at.topic, at.partition): end for at, end in done.ends.items()}


def _content(part: StagedRecords, snapshots: SnapshotStore) -> memoryview:
    """Map a staged file into memory; the mapping ends with its last reference."""
    with snapshots.checked(part) as path, open(path, "rb") as file:  # noqa: PTH123 - paths are text in all of the engine
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


Since: TypeAlias = When | Literal["earliest"]
Until: TypeAlias = When | Literal["now"]


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `App.backfill`."""

    program: Program
    log_url: str
    security: Security | None
    since: Since
    until: Until
    engine: EngineName
    spark: object
    """The Spark session to use; None: a new one."""
    outputs: Outputs
    timezone: str
    """Time zone of times that are given as text without one."""
    job_id: str | None
    directory: str | None
    progress: bool | None
    lower: Lower = "auto"


class BackfillJob:
    """Runs the history of an app; made by `App.backfill`."""

    def __init__(self, backfill: Backfill, *, clock: Clock | None = None) -> None:
        self._asked = backfill
        self._clock = clock or SystemClock()
        self._plan: Plan | None = None
        self._finished: list[FinishedTask] | None = None
        self._snapshot: Snapshot | None = None
        program = backfill.program
        program.refuse_patterns("a history")
        self.id = backfill.job_id or f"{program.app_id}-{uuid4().hex[:12]}"
        """ID of the job and of its snapshot."""
        self._snapshot_store = SnapshotStore(
            backfill.directory or program.histories_url(backfill.log_url)
        )
        self._notes = JobNotes(self._snapshot_store)
        self._directory = Path(program.state_dir) / ".history" / program.app_id / self.id

    def __repr__(self) -> str:
        return f"<BackfillJob {self.id} of {self._asked.program.app_id}>"

    @property
    def plan(self) -> Plan:
        """The plan of the run; made against the log on first use.

        Raises:
            TopologyError: a history of this app could not equal a live run.
            StreamlogError: the log can't be read.
        """
        if self._plan is None:
            with self._reader() as reader:
                self._plan = self._planned(reader)
        return self._plan

    def explain(self) -> str:
        """Return the plan as text: its stages, their engine, and how their rows equal a live run's.

        Raises:
            TopologyError, StreamlogError: as `plan`.
        """
        return self.plan.explain()

    def run(self) -> Snapshot:
        """Run the history; return the snapshot from which live workers can start.

        A job that failed or was killed leaves nothing visible, and can be run again.

        Raises:
            ProcessingError: a record can't be read, or a function failed on it; has its topic,
                partition, offset and node.
            SourceLost: a topic was created again, or a log truncated, after the plan was made.
            TopologyError: a history of this app could not equal a live run.
            UsageError: the caller runs on an event loop.
            StreamlogError: the log can't be read, or the disk refused.
        """
        plan = self.plan
        with JobReport(self._notes, self._first_note(plan), self._clock) as report:
            snapshot = self._run(plan, report)
            # Rows that one stage writes for another are no output of the app.
            between = {t for sub in plan.topology.subtopologies for t in sub.repartition_topics}
            rows = {topic: count for topic, count in self.rows.items() if topic not in between}
            report.done(rows, sum(self.drops.values()))
        return snapshot

    def _run(self, plan: Plan, report: JobReport) -> Snapshot:
        snapshots = self._snapshot_store / self.id
        try:
            tasks = self._run_tasks(plan, report)
            # Before the publication: it raises if a log was replaced while the tasks ran.
            with self._reader() as reader:
                entries = add_source_logs((task.entry for task in tasks), plan, reader)
            snapshot = self._finish(plan, tasks, entries, self._publish(tasks))
        except BaseException:
            # With a manifest, the directory is a complete snapshot, of an earlier run of the job.
            if not snapshots.has(MANIFEST_FILE):
                snapshots.remove()
            raise
        self._finished, self._snapshot = tasks, snapshot
        return snapshot

    def _first_note(self, plan: Plan) -> JobNote:
        now_ms = self._clock.wall_ms()
        return JobNote(
            id=self.id,
            app_id=self._asked.program.app_id,
            engine=plan.engine,
            outputs=plan.outputs,
            plan=plan.explain(),
            state="running",
            began_ms=now_ms,
            at_ms=now_ms,
            total=_offsets(plan),
        )

    @property
    def rows(self) -> dict[str, int]:
        """The number of rows written, by topic; time marks count in repartition topics.

        Raises:
            UsageError: the history has not been run.
        """
        return sum_by_name(count for task in self._tasks for count in task.rows)

    @property
    def drops(self) -> dict[tuple[str, str], int]:
        """The number of records that were dropped, by operator and reason ("late", "null key").

        Raises:
            UsageError: the history has not been run.
        """
        found: dict[tuple[str, str], int] = {}
        for task in self._tasks:
            for node, reason, count in task.drops:
                found[node, reason] = found.get((node, reason), 0) + count
        return found

    def compare(self, topic: Topic[Any, Any], *, inputs: bool = True) -> Comparison:
        """Compare the staged rows of a topic with those in the log, partition by partition.

        Args:
            topic: an output topic of the app.
            inputs: show the input records of the first rows that differ. If any row differs, the
                stages that the topic needs run once more in this process.

        Raises:
            UsageError: no rows are staged, or the log has no such topic.
            StreamlogError: the log can't be read.
        """
        if self._asked.outputs != "stage" or self._snapshot is None:
            raise UsageError("no rows are staged: run the history with outputs='stage'")
        with self._reader() as reader:
            led = self._inputs_by(reader, topic) if inputs else None
            found = compare_topic(topic, self._snapshot, reader, led)
        self._notes.compared(self.id, found.note(self._clock.wall_ms()))
        return found

    @property
    def _tasks(self) -> list[FinishedTask]:
        if self._finished is None:
            raise UsageError("the history has not run yet: call run() first")
        return self._finished

    def _inputs_by(self, reader: LogReader, topic: Topic[Any, Any]) -> Inputs:
        now_ms = self._clock.wall_ms()
        return inputs_by(self.plan, reader, topic.spec, self._asked.program, now_ms=now_ms)

    def _reader(self) -> LogReader:
        return LogReader(self._asked.log_url, self._asked.security)

    def _planned(self, reader: LogReader) -> Plan:
        asked, program = self._asked, self._asked.program
        if program.schema_registry is None and has_schemas(program.topics):
            stored = reader.run(read_stored_schemas(reader.log, program.app_id))
            program.schemas.use(stored)
        counts = {name: spec.partitions or 1 for name, spec in program.topics.items()}
        read = {topic for sub in program.topology.subtopologies for topic in sub.topics}
        if asked.outputs == "publish":
            outputs = {n: spec for n, spec in program.topics.items() if n not in read}
            reader.run(declare_topics(reader.log, outputs))
        # Topics that are read must exist in the log. Output topics may not exist yet, so their
        # declared numbers of partitions count.
        there = reader.partitions()
        counts = {name: n for name, n in counts.items() if name not in read} | there
        since_ms, until_ms = UNKNOWN_MS, FAR_MS
        if asked.since != "earliest":
            since_ms = _moment_ms(asked.since, asked.timezone)
        if asked.until != "now":
            until_ms = _moment_ms(asked.until, asked.timezone)
        if since_ms >= until_ms:
            raise ConfigError(f"the history ends ({asked.until}) before it begins ({asked.since})")
        plan = plan_history(
            program.topology,
            counts,
            span=TimeSpan(since_ms=since_ms, until_ms=until_ms),
            engine=asked.engine,
            outputs=asked.outputs,
            agents=[agent.name for agent in program.agents],
            arrival_order=program.guarantee != EXACTLY_ONCE,
            lower=asked.lower,
        )
        plan = with_ends(plan, reader)
        if asked.until != "now":
            return plan
        logger.info("history %s: reading the streams for the time that all have reached", self.id)
        # After `with_ends`: the time is what the streams have reached at the planned ends.
        come_to = horizon(plan, reader)
        spans = {name: replace(span, until_ms=come_to.time_ms) for name, span in plan.spans.items()}
        return replace(plan, spans=spans, notes=(*plan.notes, f"until now: {come_to}"))

    def _run_tasks(self, plan: Plan, report: JobReport) -> list[FinishedTask]:
        asked, program = self._asked, self._asked.program
        total = _offsets(plan)
        if asked.engine == "spark":
            with JobProgress(self.id, total, shown=asked.progress) as progress:
                return self._run_in_spark(plan, progress, report)
        budget = RocksBudget(program.state_memory_bytes)
        with (
            self._reader() as reader,
            JobProgress(self.id, total, shown=asked.progress) as progress,
        ):
            deps = RunDeps(
                reader=reader,
                directory=self._directory,
                snapshots=self._snapshot_store / self.id,
                now_ms=self._clock.wall_ms(),
                open_store=lambda path: RocksStore.open(path, budget=budget),
                on_read=_both(progress, report),
            )
            return LocalRun(plan, deps).run()

    def _run_in_spark(
        self, plan: Plan, progress: JobProgress, report: JobReport
    ) -> list[FinishedTask]:
        asked, program = self._asked, self._asked.program
        try:
            # By name: the package does not depend on its Spark extra.
            bridge = importlib.import_module("spark_bridge.spark_run")
        except ImportError as error:
            raise UsageError(
                f"Spark is not installed ({error}): {install_command('spark')}"
            ) from error
        # Rows between stages pass Java one by one, those of a lowered stage in pieces.
        shuffled = [stage for stage in plan.stages if stage.subtopology.feeders]
        is_light = all(stage.lowering is not None for stage in shuffled)
        run = bridge.SparkRun(
            plan,
            asked.spark or bridge.session(f"history of {program.app_id}", is_light=is_light),
            url=asked.log_url,
            security=asked.security,
            snapshots=self._snapshot_store / self.id,
            now_ms=self._clock.wall_ms(),
            state_memory_bytes=program.state_memory_bytes,
            # Executors report by files, once a second: `progress=False` spares them that.
            on_read=None if asked.progress is False else _both(progress, report),
        )
        tasks: list[FinishedTask] = run.run()
        return tasks

    def _publish(self, tasks: Sequence[FinishedTask]) -> dict[PartitionKey, int]:
        """Publish the rows if the job asks for it; return the offset after them per partition."""
        if self._asked.outputs != "publish":
            return {}
        with self._reader() as reader:
            return publish_rows(self.id, tasks, self._snapshot_store / self.id, reader)

    def _finish(
        self,
        plan: Plan,
        tasks: Sequence[FinishedTask],
        entries: Sequence[TaskEntry],
        outputs: Mapping[PartitionKey, int],
    ) -> Snapshot:
        is_published = plan.outputs == "publish"
        return finish_snapshot(
            self._snapshot_store / self.id,
            entries,
            topology=plan.topology,
            partitions=plan.counts,
            cut_ms=plan.until_ms if plan.until_ms < FAR_MS else None,
            created_ms=self._clock.wall_ms(),
            pending=[records for task in tasks for records in task.pending],
            outputs=outputs,
            reads=plan.ends,
            since_ms=plan.since_ms,
            staged=[] if is_published else [rows for task in tasks for rows in task.staged],
        )


def _offsets(plan: Plan) -> int:
    return sum(end - start for start, end in plan.ends.values())


def _both(progress: JobProgress, report: JobReport) -> OnRead:
    def on_read(read: Read) -> None:
        progress.read(read)
        report.read(read)

    return on_read


def _moment_ms(at: When, timezone: str) -> int:
    """Return a time in ms since 1970; text without a time zone is in the app's time zone.

    Raises:
        ConfigError: the value is not a time.
    """
    if isinstance(at, str):
        with suppress(ValueError):
            moment = datetime.fromisoformat(at.strip())
            return when_ms(moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(timezone)))
    return when_ms(at)
