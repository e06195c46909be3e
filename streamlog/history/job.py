"""BackfillJob: the history of an app, from what was asked for to a snapshot of where it came to.

What to run is planned against the log when it is asked for first, and stays: what is appended later
is for the live workers. Rule of the file: nothing that others see changes before the run is over.
Not done here: which engine runs the plan (`local`), and what live workers do with the snapshot.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import uuid4
from zoneinfo import ZoneInfo

from streamlog.clock import Clock, SystemClock
from streamlog.dsl.topic import Topic
from streamlog.durations import When, when_ms
from streamlog.errors import ConfigError, UsageError
from streamlog.history import publication
from streamlog.history.bars import Bars
from streamlog.history.comparison import Comparison, Inputs, compared
from streamlog.history.finished import FinishedTask, summed
from streamlog.history.horizon import horizon
from streamlog.history.lineage import inputs_by
from streamlog.history.local import LocalRun, RunDeps, with_ends
from streamlog.history.lowering import Lower
from streamlog.history.plan import EngineName, Outputs, Plan, planned
from streamlog.history.readers import LogReader
from streamlog.history.source_logs import sourced
from streamlog.processing.inputs.record_queue import PartitionKey, TimeSpan
from streamlog.snapshots import Snapshot, SnapshotPlace, TaskEntry, default_place
from streamlog.snapshots.capture import finished
from streamlog.snapshots.manifest import MANIFEST_FILE
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.transport.security import Security
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS
from streamlog.worker.program import EXACTLY_ONCE, Program
from streamlog.worker.topics.app_topics import declare_topics

Since: TypeAlias = When | Literal["earliest"]
Until: TypeAlias = When | Literal["now"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What was asked for."""

    program: Program
    log_url: str
    security: Security | None
    since: Since
    until: Until
    engine: EngineName
    spark: object
    """Spark's session, if it is to be that one."""
    outputs: Outputs
    timezone: str
    """Of times that are given as text without one."""
    job_id: str | None
    directory: str | None
    progress: bool | None
    lower: Lower = "auto"


class BackfillJob:
    """The history of an app, to be run; made by `App.backfill`."""

    def __init__(self, backfill: Backfill, *, clock: Clock | None = None) -> None:
        self._asked = backfill
        self._clock = clock or SystemClock()
        self._plan: Plan | None = None
        self._finished: list[FinishedTask] | None = None
        self._snapshot: Snapshot | None = None
        program = backfill.program
        self.id = backfill.job_id or f"{program.app_id}-{uuid4().hex[:12]}"
        """Of the job, and of its snapshot."""
        self._place = SnapshotPlace(
            backfill.directory or default_place(backfill.log_url, program.state_dir)
        )
        self._directory = Path(program.state_dir) / ".history" / program.app_id / self.id

    def __repr__(self) -> str:
        return f"<BackfillJob {self.id} of {self._asked.program.app_id}>"

    @property
    def plan(self) -> Plan:
        """What is run; asks the log the first time.

        Raises:
            TopologyError: a history of this app would not be what a live run gives.
            StreamlogError: the log can't be read.
        """
        if self._plan is None:
            with self._reader() as reader:
                self._plan = self._planned(reader)
        return self._plan

    def explain(self) -> str:
        """The plan as text: stages, what runs them, and what their rows will be equal to.

        Raises:
            TopologyError, StreamlogError: as `plan`.
        """
        return self.plan.explain()

    def run(self) -> Snapshot:
        """Run it; the snapshot is what live workers can go on from.

        A job that failed, or was killed, leaves nothing that counts, and may be run again.

        Raises:
            ProcessingError: a record can't be read, or a function failed on it; tells the topic,
                partition, offset and node.
            SourceLost: a topic was created again, or a log truncated, after it was planned.
            TopologyError: a history of this app would not be what a live run gives.
            UsageError: called by code that runs on an event loop.
            StreamlogError: the log can't be read, or the disk refused.
        """
        plan, place = self.plan, self._place / self.id
        try:
            tasks = self._ran(plan)
            with self._reader() as reader:
                entries = sourced((task.entry for task in tasks), plan, reader)
            snapshot = self._made(plan, tasks, entries, self._published(tasks))
        except BaseException:
            if not place.has(MANIFEST_FILE):
                place.remove()
            raise
        self._finished, self._snapshot = tasks, snapshot
        return snapshot

    @property
    def rows(self) -> dict[str, int]:
        """How many rows were written, by topic; of repartition topics, with their time marks.

        Raises:
            UsageError: the history has not been run.
        """
        return summed(count for task in self._tasks for count in task.rows)

    @property
    def drops(self) -> dict[tuple[str, str], int]:
        """Records that were left out, by operator and reason: "late", "null key", ...

        Raises:
            UsageError: the history has not been run.
        """
        found: dict[tuple[str, str], int] = {}
        for task in self._tasks:
            for node, reason, count in task.drops:
                found[node, reason] = found.get((node, reason), 0) + count
        return found

    def compare(self, topic: Topic[Any, Any], *, inputs: bool = True) -> Comparison:
        """The staged rows of a topic against those in the log, partition by partition.

        Args:
            topic: that the app writes.
            inputs: show the records that led to the first rows that differ. If any does, the
                history is run once more for it in this process, as far as the topic needs it.

        Raises:
            UsageError: nothing was staged, or the log has no such topic.
            StreamlogError: the log can't be read.
        """
        if self._asked.outputs != "stage" or self._snapshot is None:
            raise UsageError("no rows are staged: run the history with outputs='stage'")
        with self._reader() as reader:
            led = self._inputs_by(reader, topic) if inputs else None
            return compared(topic, self._snapshot, reader, led)

    @property
    def _tasks(self) -> list[FinishedTask]:
        if self._finished is None:
            raise UsageError("the history has not been run")
        return self._finished

    def _inputs_by(self, reader: LogReader, topic: Topic[Any, Any]) -> Inputs:
        now_ms = self._clock.wall_ms()
        return inputs_by(self.plan, reader, topic.spec, self._asked.program, now_ms=now_ms)

    def _reader(self) -> LogReader:
        return LogReader(self._asked.log_url, self._asked.security)

    def _planned(self, reader: LogReader) -> Plan:
        asked, program = self._asked, self._asked.program
        counts = {name: spec.partitions or 1 for name, spec in program.topics.items()}
        read = {topic for sub in program.topology.subtopologies for topic in sub.topics}
        if asked.outputs == "publish":
            outputs = {n: spec for n, spec in program.topics.items() if n not in read}
            reader.run(declare_topics(reader.log, outputs))
        there = reader.partitions()
        counts = {name: n for name, n in counts.items() if name not in read} | there
        since_ms, until_ms = UNKNOWN_MS, FAR_MS
        if asked.since != "earliest":
            since_ms = _moment_ms(asked.since, asked.timezone)
        if asked.until != "now":
            until_ms = _moment_ms(asked.until, asked.timezone)
        if since_ms >= until_ms:
            raise ConfigError(f"the history ends ({asked.until}) before it begins ({asked.since})")
        plan = planned(
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
        come_to = horizon(plan, reader)
        spans = {name: replace(span, until_ms=come_to.time_ms) for name, span in plan.spans.items()}
        return replace(plan, spans=spans, notes=(*plan.notes, f"until now: {come_to}"))

    def _ran(self, plan: Plan) -> list[FinishedTask]:
        asked, program = self._asked, self._asked.program
        total = sum(end - start for start, end in plan.ends.values())
        if asked.engine == "spark":
            with Bars(total, shown=asked.progress) as bars:
                return self._ran_in_spark(plan, bars)
        budget = RocksBudget(program.state_memory_bytes)
        with self._reader() as reader, Bars(total, shown=asked.progress) as bars:
            surroundings = RunDeps(
                reader=reader,
                directory=self._directory,
                place=self._place / self.id,
                now_ms=self._clock.wall_ms(),
                open_store=lambda path: RocksStore.open(path, budget=budget),
                on_read=bars.read,
            )
            return LocalRun(plan, surroundings).run()

    def _ran_in_spark(self, plan: Plan, bars: Bars) -> list[FinishedTask]:
        asked, program = self._asked, self._asked.program
        try:
            # By name: Spark is an extra that knows this package, and not the other way round.
            bridge = importlib.import_module("spark_bridge.spark_run")
        except ImportError as error:
            raise UsageError(
                f"Spark is not installed ({error}): pip install 'streamlog[spark]'"
            ) from error
        run = bridge.SparkRun(
            plan,
            asked.spark or bridge.session(f"history of {program.app_id}"),
            url=asked.log_url,
            security=asked.security,
            place=self._place / self.id,
            now_ms=self._clock.wall_ms(),
            state_memory_bytes=program.state_memory_bytes,
            on_read=bars.read if bars.is_shown else None,
        )
        tasks: list[FinishedTask] = run.run()
        return tasks

    def _published(self, tasks: Sequence[FinishedTask]) -> dict[PartitionKey, int]:
        """Where the rows end in their topics, if they are to be published."""
        if self._asked.outputs != "publish":
            return {}
        with self._reader() as reader:
            return publication.published(self.id, tasks, self._place / self.id, reader)

    def _made(
        self,
        plan: Plan,
        tasks: Sequence[FinishedTask],
        entries: Sequence[TaskEntry],
        outputs: Mapping[PartitionKey, int],
    ) -> Snapshot:
        is_published = plan.outputs == "publish"
        return finished(
            self._place / self.id,
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


def _moment_ms(at: When, timezone: str) -> int:
    """As `when_ms`; text without a time zone, such as a date, is in the app's.

    Raises:
        ConfigError: it is no time.
    """
    if isinstance(at, str):
        with suppress(ValueError):
            moment = datetime.fromisoformat(at.strip())
            return when_ms(moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(timezone)))
    return when_ms(at)
