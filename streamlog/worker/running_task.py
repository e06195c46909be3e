"""Running task: an open task of a worker, its input on the way, and where its inputs begin.

A task with state begins where its state says, and a task without state where the group's offsets
say. Inputs that the state does not know begin at the start of their topic. An input that was
created again or truncated begins anew, as `source_lost` says.

Not done here: opening and closing tasks (`tasks`), and the policy for lost sources
(`inputs/source_watch`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.errors import SourceLost
from streamlog.processing.task import Task, TaskId
from streamlog.processing.task_progress import InputRestart, restart_inputs
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.tables.state.changelog import SourceLog, TaskProgress, stored_progress
from streamlog.worker.engine import EngineThread
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.health.worker_health import HeldResult, TaskFigures
from streamlog.worker.inputs.assigned_partitions import StartOffset
from streamlog.worker.inputs.source_watch import SourceWatch
from streamlog.worker.state.restore import TaskState
from streamlog.worker.topics.lost_sources import LATEST, is_recreated


@dataclass(slots=True)
class RunningTask:
    """An open task of this worker."""

    task: Task
    state: TaskState | None
    """Its state; None for a task without state."""
    inputs: list[TopicPartition]
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """The last known end of each input."""
    arrived: dict[tuple[str, int], RecordColumns] = field(default_factory=dict)
    """Records that were polled and not processed yet."""
    marks: dict[tuple[str, int], list[TimeMark]] = field(default_factory=dict)
    """Time marks that were polled and not processed yet."""
    processed_ms: int = 0
    """When it processed last, by the worker's clock."""
    held: tuple[HeldResult, ...] = ()
    """The results that it held back when it processed last."""
    seen: dict[TopicPartition, int] = field(default_factory=dict)
    """Its positions when the engine was idle last; the task may not be read while it works."""

    def sight(self, high_watermark: Callable[[TopicPartition], int | None]) -> Sight:
        """Return its progress, for the watchdog."""
        ends = {part: high_watermark(part) or 0 for part in self.inputs}
        lags = {part: max(ends[part] - self.seen.get(part, 0), 0) for part in self.inputs}
        return Sight(self.seen, lags)

    @property
    def waited_for(self) -> list[str]:
        """The inputs without records that other inputs of the task wait for."""
        buffered = self.task.buffered
        empty = [part for part in self.inputs if not buffered[part]]
        return (
            [f"{part.topic}-{part.partition}" for part in empty] if any(buffered.values()) else []
        )

    def figures(self) -> TaskFigures:
        """Return its figures, for metrics and health."""
        positions = self.task.positions
        behind = [
            max(end - positions[part], 0)
            for part, end in list(self.ends.items())
            if part in positions
        ]
        return TaskFigures(
            task=str(self.task.id),
            lag_records=sum(behind),
            uncommitted_bytes=self.task.state_bytes,
            state_bytes=None if self.state is None else self.state.store.size_bytes,
            merge_waits=(*self.task.merge_waits,),
            held=self.held,
            nodes=(*self.task.node_figures,),
            source_times=(*self.task.source_times,),
            state_reads=None if self.state is None else self.task.state_reads,
        )


async def build_task(
    engine: EngineThread, task_id: TaskId, build: Callable[[], Task], state: TaskState | None
) -> Task:
    """Build a task on the engine thread, as the `init` of its processors may block.

    Raises:
        ProcessingError: an `init` failed; the state is closed.
    """
    # A list, so that `close` finds a task whose `write_again` has failed.
    made: list[Task] = []

    def make() -> None:
        made.append(build())
        if state is not None:
            made[0].write_again(state.late)

    def close() -> None:
        for task in made:
            task.close()
        if not made and state is not None:
            state.front.close()

    try:
        await engine.call(task_id, make)
    except BaseException:
        # The build failed or was cancelled: no other code knows the store, so it is closed here.
        if not engine.is_closed:
            await engine.call(task_id, close)
        raise
    return made[0]


def begin_inputs(running: RunningTask, starts: Mapping[TopicPartition, StartOffset]) -> None:
    """Set the start of a new task in inputs that its state does not know."""
    task = running.task
    task.start_at(_starts(running, starts), _start_times(running, starts))
    task.belong_to(_first_logs(running, starts))


def start_of(running: RunningTask, part: TopicPartition, start: StartOffset) -> OffsetAndMetadata:
    """Return where to read from: the task's position, or an agent's if it is smaller."""
    offset = running.task.positions[part]
    log = running.task.logs.get(part, start.log)
    # The consumer has one position for all readers of a partition: the one that is furthest behind
    # decides.
    if start.has_agent and start.committed < offset:
        return start.start
    return OffsetAndMetadata(offset, "", log.leader_epoch, log.topic_id or ZERO_UUID)


def logs_of(task: Task, consumer: Consumer) -> dict[tuple[str, int], SourceLog]:
    """Return the logs of a task's positions, with the leader epochs there."""
    assigned, logs = consumer.assignment(), task.logs
    found: dict[tuple[str, int], SourceLog] = {}
    for part, offset in task.positions.items():
        log, partition = logs.get(part), TopicPartition(*part)
        if log is not None and partition in assigned:
            epoch = consumer.offset_and_metadata(partition, offset).leader_epoch
            # The consumer may have forgotten the epoch of an old offset: keep the last known one.
            found[part] = log if epoch == NO_EPOCH else log._replace(leader_epoch=epoch)
    return found


def progress_of(
    state: TaskState,
    inputs: Collection[TopicPartition],
    starts: Mapping[TopicPartition, StartOffset],
    sources: SourceWatch,
) -> TaskProgress | None:
    """Return the progress in a state, with new positions for inputs whose logs were replaced.

    Raises:
        SourceLost: `source_lost` is "fail"; the state is closed.
    """
    progress = stored_progress(state.front)
    if progress is None:
        return None
    try:
        return _restart_inputs(progress, inputs, starts, sources)
    except SourceLost:
        state.front.close()
        raise


def _restart_inputs(
    progress: TaskProgress,
    inputs: Collection[TopicPartition],
    starts: Mapping[TopicPartition, StartOffset],
    sources: SourceWatch,
) -> TaskProgress:
    restarts: dict[tuple[str, int], InputRestart] = {}
    for part in inputs:
        offset, start = progress.offsets.get(part), starts.get(part)
        # An input that the state does not know has no lost log; `begin_inputs` sets its start.
        if offset is None or start is None:
            continue
        log = progress.logs.get(part, SourceLog())
        if start.cut is not None or is_recreated(log, start.present.topic_id):
            restarts[part] = sources.judge(part, offset, log, start.present, start.cut)
        elif log.cuts < start.log.cuts and sources.policy(part.topic) == LATEST:
            # 1. A worker found the log truncated, and committed that the group continues at its
            #    end. 2. It stopped before the state had followed. 3. At the state's old position,
            #    the loss would be found again, and what was written since would be skipped.
            restarts[part] = InputRestart(start.committed, start.log)
    return restart_inputs(progress, restarts) if restarts else progress


def _starts(
    running: RunningTask, starts: Mapping[TopicPartition, StartOffset]
) -> dict[tuple[str, int], int]:
    """Return the first offsets of a new task, for inputs that its state does not know.

    A task with state starts at the beginning of such an input: the group's offsets may belong to
    state that was deleted.
    """
    known = running.task.positions
    return {
        part: starts[part].begin if running.state is not None else starts[part].task_at.position
        for part in running.inputs
        if part not in known
    }


def _start_times(
    running: RunningTask, starts: Mapping[TopicPartition, StartOffset]
) -> dict[tuple[str, int], int]:
    """Return the committed stream times of inputs, for a task without state of its own."""
    times = {part: starts[part].task_at.time_ms for part in running.inputs}
    return {part: ms for part, ms in times.items() if ms is not None and running.state is None}


def _first_logs(
    running: RunningTask, starts: Mapping[TopicPartition, StartOffset]
) -> dict[tuple[str, int], SourceLog]:
    """Return the logs of inputs that the progress of a new task does not name."""
    known = running.task.logs
    found: dict[tuple[str, int], SourceLog] = {}
    for part in running.inputs:
        log = starts[part].log
        if part not in known or not known[part].topic_id:
            # The group's epoch belongs to the group's offset, where a task with state doesn't
            # begin.
            epoch = log.leader_epoch if running.state is None else NO_EPOCH
            cuts = known[part].cuts if part in known else log.cuts
            found[part] = SourceLog(log.topic_id, epoch, cuts)
    return found
