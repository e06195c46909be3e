"""SparkRun: runs the plan of a history in Spark.

Each stage is one `mapInArrow` over as many partitions as it has tasks; rows for repartition topics
are repartitioned by task and sorted (`shuffles`). All stages are one job, unless two stages read
the rows of another: these are kept on disk. Rule of the file: what Spark repeats changes nothing; a
final failure is one line with the record's coordinates, without Java's traces. Not done here: the
plan, which is the same for every engine (`streamlog.history.plan`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql

from spark_bridge.partial_aggregation.foldable_rows import BEFORE_ALL_MS
from spark_bridge.python_failures import first_line
from spark_bridge.shuffles import COLUMNS, ORDER, SEED
from spark_bridge.spark_session import session
from spark_bridge.stage_function import (
    ERRORS,
    TASKS,
    ErrorReport,
    ProgressWatch,
    StageFunction,
    StageWork,
    TaskInput,
)
from streamlog.errors import CorruptData, ProcessingError, StreamlogError
from streamlog.history.lowering import NotLowered
from streamlog.history.plan import Plan, Stage, without_lowering
from streamlog.history.task_run import FinishedTask, OnRead
from streamlog.snapshots import SnapshotStore
from streamlog.transport.security import Security

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkRun", "session"]

logger = logging.getLogger(__name__)

EMBEDDED = "embedded:"


class SparkRun:
    """Runs a plan in Spark."""

    def __init__(
        self,
        plan: Plan,
        spark: SparkSession,
        *,
        url: str,
        security: Security | None,
        snapshots: SnapshotStore,
        now_ms: int,
        state_memory_bytes: int,
        on_read: OnRead | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            plan: the plan, with its offsets.
            spark: the session on whose executors it runs.
            url: the log. The directory of an embedded log is read as files, so all executors must
                share it.
            security: the settings for connections to brokers.
            snapshots: directory of the snapshot; all executors must share it.
            now_ms: wall-clock time of the whole run, ms since 1970.
            state_memory_bytes: memory for the state of each task.
            on_read: called by a thread after tasks have read records; None: no progress is shown.
        """
        self.plan = plan
        """The plan. It has no lowered stages after records did not meet the conditions of one."""
        self._spark = spark
        self._snapshots = snapshots
        self._now_ms = now_ms
        if url.startswith(EMBEDDED):
            # An executor of a cluster has another working directory.
            url = EMBEDDED + str(Path(url.removeprefix(EMBEDDED)).absolute())
        self._log = (url, security)
        self._state_memory_bytes = state_memory_bytes
        self._on_read = on_read
        self._run = ""
        self._reported = Counter[TaskInput]()
        """Records reported to `on_read`, including a first run that was repeated."""

    def run(self) -> list[FinishedTask]:
        """Run all stages; return the results of their tasks.

        Raises:
            ProcessingError: a task failed; has the record's coordinates.
            CorruptData: the driver lacks the reports of tasks: their directory is not shared.
            StreamlogError: Spark could not run the plan; has the reason that Spark gives.
        """
        try:
            return self._run_plan()
        except NotLowered as error:
            logger.warning("%s: its stage runs again, record by record", error)
            self.plan = without_lowering(self.plan, str(error))
            # The files of the first run are of another plan: start from an empty directory.
            self._snapshots.remove()
            return self._run_plan()

    def _run_plan(self) -> list[FinishedTask]:
        self._run = uuid4().hex[:12]
        frames: dict[int, DataFrame] = {}
        read_by = self._readers()
        for stage in self.plan.stages:
            frame = self._frame(stage, frames)
            # Spark computes a frame again for each of its readers, unless it is kept.
            if read_by[stage.number] > 1:
                frame = frame.persist(StorageLevel.DISK_ONLY)
            frames[stage.number] = frame
        leaves = [frames[s.number] for s in self.plan.stages if not read_by[s.number]]
        try:
            # A union of the leaves is one job, in which Spark runs independent stages concurrently.
            whole = leaves[0]
            for leaf in leaves[1:]:
                whole = whole.unionByName(leaf)
            with self._progress_watch():
                whole.collect()
        except PySparkException as error:
            logger.debug("Spark says: %s", error)
            raise self._explained(error) from None
        finally:
            for number, frame in frames.items():
                if read_by[number] > 1:
                    frame.unpersist()
        return self._finished()

    def _progress_watch(self) -> AbstractContextManager[object]:
        """Return a context that reports the progress of tasks in its block."""
        if self._on_read is None:
            return nullcontext()
        return ProgressWatch(self._snapshots, self._on_read, self._reported)

    def _readers(self) -> Counter[int]:
        """Return the number of stages that read the rows of each stage."""
        found: Counter[int] = Counter()
        for stage in self.plan.stages:
            written = {*stage.subtopology.repartition_topics}
            found[stage.number] = sum(
                bool(written & {*other.subtopology.inputs}) for other in self.plan.stages
            )
        return found

    def _frame(self, stage: Stage, frames: Mapping[int, DataFrame]) -> DataFrame:
        sub = stage.subtopology
        url, security = self._log
        work = StageWork(
            plan=self.plan,
            stage=stage,
            snapshots=self._snapshots,
            directory=url.removeprefix(EMBEDDED) if url.startswith(EMBEDDED) else None,
            url=url,
            security=security,
            now_ms=self._now_ms,
            state_memory_bytes=self._state_memory_bytes,
            run=self._run,
            is_watched=self._on_read is not None,
        )
        rows = self._seeds(stage)
        above = [
            frames[other.number]
            for other in self.plan.stages
            if {*other.subtopology.repartition_topics} & {*sub.inputs}
        ]
        if above:
            for frame in above:
                rows = rows.unionByName(frame.where(sql.col("stage") == stage.number))
            rows = rows.repartitionById(stage.tasks, "task").sortWithinPartitions(*ORDER)
        return rows.mapInArrow(StageFunction(work), COLUMNS)

    def _seeds(self, stage: Stage) -> DataFrame:
        """Return one row per task, in a partition of its own, so that every task runs."""
        null, zero = sql.lit(None), sql.lit(0)
        return self._spark.range(0, stage.tasks, 1, stage.tasks).select(
            sql.lit(stage.number).alias("stage"),
            sql.col("id").cast("int").alias("task"),
            sql.lit(BEFORE_ALL_MS).cast("bigint").alias("turn"),
            zero.alias("input"),
            zero.alias("rank"),
            zero.cast("bigint").alias("number"),
            sql.lit(SEED).alias("kind"),
            zero.cast("bigint").alias("timestamp"),
            *(null.cast("binary").alias(name) for name in ("key", "value", "own", "headers")),
        )

    def _finished(self) -> list[FinishedTask]:
        """Return the results of the tasks: for each, the report of any one attempt."""
        found: dict[tuple[int, int], FinishedTask] = {}
        for data in self._reports(TASKS):
            task = FinishedTask.decode(data)
            # Any attempt that has a report is valid; the files of the others are swept below.
            found.setdefault((task.entry.subtopology, task.entry.partition), task)
        wanted = [(s.number, partition) for s in self.plan.stages for partition in range(s.tasks)]
        if missing := [at for at in wanted if at not in found]:
            raise CorruptData(
                f"{self._snapshots.url} has no report of task {missing[0][0]}_{missing[0][1]}: the "
                "executors write elsewhere; give a directory= that all machines share"
            )
        (self._snapshots / TASKS).remove()
        self._sweep(list(found.values()))
        return [found[at] for at in wanted]

    def _reports(self, folder: str) -> Iterator[bytes]:
        """Yield the complete reports: a task killed while it writes leaves files of other names."""
        reports = self._snapshots / folder / self._run
        return (reports.read(name) for name in reports.names() if name.endswith(".json"))

    def _sweep(self, tasks: Sequence[FinishedTask]) -> None:
        """Remove the files of attempts that don't count."""
        kept = {part.name for task in tasks for part in (*task.pending, *task.staged)}
        for task in tasks:
            progress = () if task.entry.progress is None else (task.entry.progress,)
            kept |= {part.name for part in (*task.entry.files, *progress)}
        # A directory in which no file counts is removed as a whole.
        directories = {name.partition("/")[0] for name in kept}
        for name in self._snapshots.names():
            if name not in directories:
                (self._snapshots / name).remove()

    def _explained(self, error: PySparkException) -> StreamlogError:
        """Return the error that a task has reported, or else one with Spark's most telling line."""
        # Spark's own text is a Java trace around the Python error: the report has the coordinates.
        for data in self._reports(ERRORS):
            report = msgspec.json.decode(data, type=ErrorReport)
            if not report.lowered:
                return NotLowered(report.message)
            return ProcessingError(
                report.message,
                topic=report.topic,
                partition=report.partition,
                offset=report.offset,
                node=report.node,
            )
        return StreamlogError(f"Spark could not run the history: {first_line(str(error))}")
