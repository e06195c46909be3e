"""StageTask: runs one task of a stage, from its inputs to its files in the snapshot's directory.

It is the same under every engine and on every machine: the engine provides the input readers and
takes the rows for repartition topics. State is in a store of its own during the run; the results
are files in the snapshot's directory, named by the attempt, so attempts at one task don't conflict,
and the results of any one can be used. Rule of the file: an attempt that fails leaves nothing that
counts.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from streamlog.agents.call import await_call
from streamlog.history.lowering import Lowering, NotLowered
from streamlog.history.plan import Plan, Stage
from streamlog.history.staging import SegmentWriter, StagedRows, write_segment
from streamlog.history.task_run import (
    Effects,
    FinishedTask,
    InputReader,
    OnRead,
    TaskRun,
    TaskRunFigures,
    unheard,
)
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.processing.joins.stream_table_join import GlobalTables
from streamlog.processing.outbox import CallResult, SinkBatch, TaskCall, assign_partitions
from streamlog.processing.provenance import ProvenanceMark
from streamlog.processing.task import Task, TaskId
from streamlog.processing.task_progress import INPUTS_SECTION
from streamlog.processing.windows.windowed_aggregate import FoldedWindow
from streamlog.snapshots import PendingRecords, SnapshotStore, StagedRecords
from streamlog.snapshots.capture import capture
from streamlog.tables.state.changelog import TaskProgress
from streamlog.tables.stores.store import Changes, KeyValueStore
from streamlog.windows.emit import Source

MERGE_BUFFER_BYTES = 1 << 40
"""No limit: staged records come in order, so only one batch of the upstream stage waits."""

OpenStore: TypeAlias = Callable[[str], KeyValueStore]


class Shuffled(Protocol):
    """Port: takes rows for repartition topics."""

    def write(self, batch: SinkBatch) -> None:
        """Write records of one source, or a mark."""

    def tell(self, source: Source, mark: ProvenanceMark) -> None:
        """Write a mark to all partitions of the topics that have this source."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a task, with all that it needs."""

    plan: Plan
    stage: Stage
    partition: int
    name: str
    """Distinguishes the attempts at one task."""
    snapshots: SnapshotStore
    """Directory of the snapshot that the history writes."""
    directory: Path
    """Holds the task's state and files during the run; removed at the end."""
    now_ms: int
    """Wall-clock time of the whole run, ms since 1970."""
    open_store: OpenStore
    """Creates the task's store in a directory that does not exist yet."""
    global_tables: GlobalTables
    on_read: OnRead = unheard

    @property
    def task_id(self) -> TaskId:
        """ID of the task: number of its sub-topology, and partition."""
        return TaskId(self.stage.number, self.partition)

    @property
    def folder(self) -> str:
        """Folder of its files in the snapshot's directory, as `capture` names it."""
        return f"{self.task_id}-{self.name}"


class StageTask:
    """Runs one task of a stage."""

    def __init__(self, attempt: Attempt, feeds: Sequence[InputReader], shuffled: Shuffled) -> None:
        """Prepare a run; `feeds` read all inputs of the task."""
        self._attempt = attempt
        self._feeds = feeds
        self._outputs = _Outputs(attempt)
        self._effects = _TaskEffects(attempt.plan, shuffled, self._outputs)

    def run(self) -> FinishedTask:
        """Run to the end and return the results; raises what `steps` raises."""
        found: list[FinishedTask] = [each for each in self.steps() if each is not None]
        return found[0]

    def steps(self) -> Iterator[FinishedTask | None]:
        """Run to the end in small steps; the last one yields the results, others None.

        Raises:
            ProcessingError: a record can't be read, or a function failed on it.
            StreamlogError: an input can't be read, or the disk refused.
        """
        attempt, sub = self._attempt, self._attempt.stage.subtopology
        path = attempt.directory / "state"
        store = None if sub.changelog_topic is None else attempt.open_store(str(path))
        task = Task(
            sub,
            attempt.task_id,
            partitions=attempt.plan.counts,
            store=store,
            progress=self.begun(),
            pause=_pause,
            global_tables=attempt.global_tables,
            history=attempt.plan.spans,
            merge_buffer_bytes=MERGE_BUFFER_BYTES,
            stamped={s.lowering.topic for s in attempt.plan.stages if s.lowering is not None},
        )
        run = self.run_of(task, self._effects)
        try:
            for _ in run.steps():
                yield None
            yield self._finished(task, store, run)
        finally:
            run.close()
            self._effects.close()
            task.close()
            shutil.rmtree(attempt.directory, ignore_errors=True)

    def begun(self) -> TaskProgress | None:
        """Return the progress with which the task starts; None: from the start of its inputs."""
        return None

    def run_of(self, task: Task, effects: Effects) -> TaskRun:
        """Return the run of the task over all of its inputs."""
        attempt = self._attempt
        return TaskRun(
            task,
            self._feeds,
            effects,
            until_ms=attempt.plan.until_ms,
            now_ms=attempt.now_ms,
            on_read=attempt.on_read,
        )

    def _finished(self, task: Task, store: KeyValueStore | None, run: TaskRun) -> FinishedTask:
        attempt, figures = self._attempt, run.figures
        return FinishedTask(
            entry=capture(task, store, attempt.snapshots, attempt=attempt.name),
            pending=tuple(self._pending(run)),
            staged=tuple(self._outputs.finish()),
            records=figures.records,
            rows=tuple(sorted(figures.rows.items())),
            drops=tuple((*which, count) for which, count in sorted(figures.drops.items())),
        )

    def _pending(self, run: TaskRun) -> Iterator[PendingRecords]:
        for (topic, partition), (position, pieces) in run.pending().items():
            name = f"{self._attempt.folder}/shuffles/{topic}/{partition}.batches"
            with self._attempt.snapshots.writing(name) as path:
                segment = write_segment(path, pieces)
            yield PendingRecords(
                name=name,
                size_bytes=segment.size_bytes,
                crc=segment.crc32c,
                topic=topic,
                partition=partition,
                records=segment.record_count,
                position=position,
            )


class _Outputs:
    """Writes rows for output topics to files."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._keeps = attempt.plan.outputs != "discard"
        self._writers: dict[PartitionKey, SegmentWriter] = {}

    def write(self, batches: Iterable[SinkBatch]) -> None:
        if not self._keeps:
            return
        for partition, columns in assign_partitions(batches, self._attempt.plan.counts).items():
            if partition not in self._writers:
                path = self._attempt.directory / "outputs" / partition[0] / str(partition[1])
                self._writers[partition] = SegmentWriter(path)
            self._writers[partition].append(columns)

    def finish(self) -> Iterator[StagedRecords]:
        attempt = self._attempt
        for (topic, partition), writer in sorted(self._writers.items()):
            segment: StagedRows = writer.finish()
            name = f"{attempt.folder}/outputs/{topic}/{partition}.batches"
            with attempt.snapshots.writing(name) as path:
                shutil.move(segment.path, path)
            yield StagedRecords(
                name=name,
                size_bytes=segment.size_bytes,
                crc=segment.crc32c,
                topic=topic,
                partition=partition,
                records=segment.record_count,
            )


class _TaskEffects:
    """Routes a task's results to the next stage, to output files and to its store."""

    def __init__(self, plan: Plan, shuffled: Shuffled, outputs: _Outputs) -> None:
        self._internal = {name for name, spec in plan.topology.topics.items() if spec.internal}
        self._shuffled = shuffled
        self._outputs = outputs
        self._changes = 0
        self._runner: asyncio.Runner | None = None

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """See `Effects.write`."""
        for batch in batches:
            if batch.topic in self._internal and batch.keys:
                self._shuffled.write(batch)
        self._outputs.write(batch for batch in batches if batch.topic not in self._internal)

    def tell(self, source: Source, mark: ProvenanceMark) -> None:
        """See `Effects.tell`."""
        self._shuffled.tell(source, mark)

    def commit(self, task: Task, changes: Changes) -> None:
        """See `Effects.commit`; there is no changelog, so its offsets are counted here."""
        self._changes += len(changes)
        task.committed(changes, next_offset=self._changes)

    def answers(self, calls: Sequence[TaskCall]) -> list[CallResult]:
        """Await calls of async functions concurrently."""
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(_awaited(calls))

    def close(self) -> None:
        """Close the event loop of the async calls."""
        if self._runner is not None:
            self._runner.close()


async def _awaited(calls: Iterable[TaskCall]) -> list[CallResult]:
    return list(await asyncio.gather(*map(await_call, calls)))


def _pause(backoff_ms: int) -> None:
    Event().wait(backoff_ms / 1000)


COMMIT_ROWS = 50_000
"""Rows of windows between two commits to the store."""


class SourceEnd(NamedTuple):
    """How far one source has come in a partition of a repartition topic, once all is read."""

    records: int
    marks: int
    position: int
    """Position of its last record in the source; -1: no record."""
    nth: int
    """Index of its last record among those with the same position."""
    record_ms: int
    """Its time at its last record; UNKNOWN_MS: no record."""
    time_ms: int
    turn_ms: int
    quiet_ms: int
    """See `ProvenanceMark`."""
    marked_ms: int
    nulls: int
    """Records without a value, which are not aggregated."""
    late: int
    """Late records, counted once per window that was closed to them."""


def progress_of(partition: PartitionKey, ends: Mapping[Source, SourceEnd]) -> TaskProgress:
    """Return the progress of a task that has read all records of its sources and closed no window.

    It equals the progress of a `MergedInput` that has processed all of its records.

    Raises:
        NotLowered: a record has to wait for a source that is behind, so it is in no window yet.
    """
    count = sum(end.records + end.marks for end in ends.values())
    # The merge waits for each source that has not reported that it is quiet (`quiet_ms` < 0).
    waited_for = [end.turn_ms for end in ends.values() if end.quiet_ms < 0]
    turn_ms = min(waited_for) if waited_for else max(end.turn_ms for end in ends.values())
    # 1. The last record of source A is at 10:05. Source B has come to 10:00, and is not quiet.
    # 2. A task would hold A's record until B has reached 10:05: it belongs to no window yet.
    # 3. The engine has folded it already, so the folded windows are not the task's windows.
    if waited_for and any(end.records and end.turn_ms > turn_ms for end in ends.values()):
        raise NotLowered(
            f"records of {partition[0]}-{partition[1]} wait for a source that is behind"
        )
    record_ms = max(end.record_ms for end in ends.values())
    data: dict[str, object] = {
        "time_ms": _time_ms([*ends.values()], record_ms),
        "turn_ms": turn_ms,
        "reached_ms": record_ms,
        # Rows of `MergedInput.to_data`. The merge holds no record, so each has the end, `count`.
        "sources": [
            [*source, e.position, e.nth, e.time_ms, e.quiet_ms, count, e.turn_ms]
            for source, e in ends.items()
        ],
        "marked": [[*source, end.marked_ms] for source, end in ends.items()],
        "sequence": sum(end.records for end in ends.values()),
    }
    return TaskProgress(offsets={partition: count}, sections={INPUTS_SECTION: {partition[0]: data}})


def _time_ms(ends: Sequence[SourceEnd], record_ms: int) -> int:
    """Return the time that a `MergedInput` has after all of its records, the last at `record_ms`.

    See docs/decisions/012, rules 6 and 7.
    """
    # Source A ends at 10:00. Source B is cut: it is at 10:02, and not at its end.
    # 1. A record of A at 09:58 is the last one: there, B counts with its merge key, the time of the
    #    cut, so time is 09:58.
    # 2. The last record is one of B at 10:02: A holds time back at 10:00.
    at_records_ms = min([record_ms, *(end.turn_ms for end in ends if end.quiet_ms >= 0)])
    # 3. Without records, time is what the marks state: 10:00.
    # Rule 6 needs the largest time of any source, and that of a busy one is not known here: it has
    # more records behind the cut.
    is_ended = all(end.quiet_ms >= 0 for end in ends)
    reached_ms = max([record_ms, *(end.time_ms for end in ends if is_ended)])
    at_marks_ms = min(
        end.time_ms if end.quiet_ms < 0 else max(end.time_ms, min(end.turn_ms, reached_ms))
        for end in ends
    )
    return max(at_records_ms, at_marks_ms)


class FoldedStageTask(StageTask):
    """Runs one task of a lowered stage: the engine has folded its records into windows."""

    def __init__(
        self,
        attempt: Attempt,
        ends: Mapping[Source, SourceEnd],
        windows: Iterable[FoldedWindow],
        shuffled: Shuffled,
    ) -> None:
        """Prepare a run.

        Args:
            attempt: the attempt at the task.
            ends: how far each source has come.
            windows: all windows, in the order of their ends.
            shuffled: takes rows for repartition topics.
        """
        super().__init__(attempt, [], shuffled)
        lowering = attempt.stage.lowering
        if lowering is None:
            raise NotLowered(f"stage {attempt.stage.number} is not lowered")
        self._going, self._lowering = attempt, lowering
        self._ends, self._folded = ends, windows

    def begun(self) -> TaskProgress:
        """Return a progress after all records of the sources, with no window closed."""
        return progress_of((self._lowering.topic, self._going.partition), self._ends)

    def run_of(self, task: Task, effects: Effects) -> FoldedRun:
        """Return the run that closes the windows and processes their rows."""
        ends, node = self._ends.values(), self._lowering.node
        figures = TaskRunFigures(sum(end.records + end.marks for end in ends))
        late, nulls = sum(end.late for end in ends), sum(end.nulls for end in ends)
        figures.drops += Counter({(node, "late"): late, (node, "null value"): nulls})
        return FoldedRun(
            task,
            effects,
            self._lowering,
            windows=self._folded,
            figures=figures,
            until_ms=self._going.plan.until_ms,
            now_ms=self._going.now_ms,
        )


class FoldedRun(TaskRun):
    """Runs a task that gets folded windows instead of records."""

    def __init__(
        self,
        task: Task,
        effects: Effects,
        lowering: Lowering,
        *,
        windows: Iterable[FoldedWindow],
        figures: TaskRunFigures,
        until_ms: int,
        now_ms: int,
    ) -> None:
        """Prepare a run.

        Args:
            task: the task, started with `progress_of` its sources.
            effects: receives the results.
            lowering: names the aggregation of the windows.
            windows: all windows, in the order of their ends.
            figures: the numbers of the folded records.
            until_ms: the event time at which the history ends, ms since 1970.
            now_ms: the wall-clock time of the whole run, ms since 1970.
        """
        super().__init__(task, [], effects, until_ms=until_ms, now_ms=now_ms)
        self.figures = figures
        self._lowering = lowering
        self._folded = windows
        # Without inputs, the task has reached its ends from the start.
        self._ends = dict(task.positions)

    def steps(self) -> Iterator[None]:
        """See `TaskRun.steps`."""
        adopted = 0
        for window in self._folded:
            self._handle(self._task.adopt(self._lowering.node, window))
            adopted += len(window.raws)
            if adopted >= COMMIT_ROWS:
                self._commit()
                adopted = 0
            yield
        yield from super().steps()
