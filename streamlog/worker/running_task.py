"""RunningTask: an open task of a worker, with what has arrived for it and where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from streamlog.processing.task import Task, TaskId
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.worker.engine import EngineThread
from streamlog.worker.health.holdups import HeldResult
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.health.worker_figures import TaskFigures
from streamlog.worker.state.restore import TaskState


@dataclass(slots=True)
class RunningTask:
    """A task that is open, and takes part."""

    task: Task
    state: TaskState | None
    inputs: list[TopicPartition]
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    arrived: dict[tuple[str, int], RecordColumns] = field(default_factory=dict)
    marks: dict[tuple[str, int], list[TimeMark]] = field(default_factory=dict)
    processed_ms: int = 0
    held: tuple[HeldResult, ...] = ()
    """Its results that are held back, as of when it was at work last."""
    seen: dict[TopicPartition, int] = field(default_factory=dict)
    """Where it stood when it was looked at last and was not at work."""

    def sight(self, high_watermark: Callable[[TopicPartition], int | None]) -> Sight:
        """The same, for the watchdog."""
        ends = {part: high_watermark(part) or 0 for part in self.inputs}
        lags = {part: max(ends[part] - self.seen.get(part, 0), 0) for part in self.inputs}
        return Sight(self.seen, lags)

    @property
    def waited_for(self) -> list[str]:
        """The inputs that others of it wait for."""
        buffered = self.task.buffered
        empty = [part for part in self.inputs if not buffered[part]]
        return (
            [f"{part.topic}-{part.partition}" for part in empty] if any(buffered.values()) else []
        )

    def figures(self) -> TaskFigures:
        """Where it stands."""
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
        )


async def built(
    engine: EngineThread, task_id: TaskId, build: Callable[[], Task], state: TaskState | None
) -> Task:
    """A task whose processors have begun; their `init` may block, as all functions may.

    Raises:
        ProcessingError: an `init` has failed; the state is closed.
    """
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
        # Given up meanwhile, or it has failed: nobody else closes its store.
        if not engine.is_closed:
            await engine.call(task_id, close)
        raise
    return made[0]
