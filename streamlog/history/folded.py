"""FoldedRun: a task whose windows an engine has folded: rows in, and the rest as ever.

Instead of the records of its one input the task is given what came of them: how far each source has
come, and the rows of all windows. It closes those that time has passed, hands on, and keeps the
others open, so that what it leaves is what `TaskRun` leaves that took every record itself. Rule of
the file: the order of rows is that in which windows close, so memory is that of a window, and of
those that are open in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from streamlog.history.lowering import Lowering, NotLowered
from streamlog.history.stage_task import Attempt, Shuffled, StageTask
from streamlog.history.task_run import Effects, TaskRun, TaskRunFigures
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.processing.task import Task
from streamlog.processing.task_progress import INPUTS_SECTION
from streamlog.processing.windows.windowed_aggregate import FoldedWindow
from streamlog.tables.state.changelog import TaskProgress
from streamlog.windows.emit import Source

COMMIT_ROWS = 50_000
"""After so many rows those that are still open go into the store."""


class SourceEnd(NamedTuple):
    """How far one source has come in a partition of a repartition topic, when all is read."""

    records: int
    marks: int
    position: int
    """Of its last record, -1: there is none; of those with that position, which it is."""
    nth: int
    time_ms: int
    turn_ms: int
    quiet_ms: int
    """See `Mark`."""
    marked_ms: int
    nulls: int
    """Records without a value, which are not folded."""
    late: int
    """Records that came too late, once for each window that was closed to them."""


def progress_of(place: PartitionKey, ends: Mapping[Source, SourceEnd]) -> TaskProgress:
    """The progress of a task that has taken all records of these sources, and closed nothing.

    `MergedInput` keeps the same, when the turn of all its records has come.

    Raises:
        NotLowered: a record's turn had not come, so that it belongs to no window yet.
    """
    count = sum(end.records + end.marks for end in ends.values())
    waited_for = [end.turn_ms for end in ends.values() if end.quiet_ms < 0]
    turn_ms = min(waited_for) if waited_for else max(end.turn_ms for end in ends.values())
    if waited_for and any(end.records and end.turn_ms > turn_ms for end in ends.values()):
        raise NotLowered(f"records of {place[0]}-{place[1]} wait for a source that is behind")
    data: dict[str, object] = {
        "time_ms": min(end.time_ms for end in ends.values()),
        "turn_ms": turn_ms,
        "sources": [
            [*source, e.position, e.nth, e.time_ms, e.quiet_ms, count, e.turn_ms]
            for source, e in ends.items()
        ],
        "marked": [[*source, end.marked_ms] for source, end in ends.items()],
        "sequence": sum(end.records for end in ends.values()),
    }
    return TaskProgress(offsets={place: count}, sections={INPUTS_SECTION: {place[0]: data}})


class FoldedStageTask(StageTask):
    """One task of a stage that is lowered, at work."""

    def __init__(
        self,
        attempt: Attempt,
        ends: Mapping[Source, SourceEnd],
        windows: Iterable[FoldedWindow],
        shuffled: Shuffled,
    ) -> None:
        """A task that has not begun.

        Args:
            attempt: at which task.
            ends: how far each of its sources has come.
            windows: all of them, in the order of their ends.
            shuffled: where what goes through repartition topics goes.
        """
        super().__init__(attempt, [], shuffled)
        lowering = attempt.stage.lowering
        if lowering is None:
            raise NotLowered(f"stage {attempt.stage.number} is not lowered")
        self._going, self._lowering = attempt, lowering
        self._ends, self._folded = ends, windows

    def begun(self) -> TaskProgress:
        """All of its sources, and no window closed."""
        return progress_of((self._lowering.topic, self._going.partition), self._ends)

    def run_of(self, task: Task, effects: Effects) -> FoldedRun:
        """The rows, and what follows from them."""
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
    """A task that is given rows of windows."""

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
        """A run that has not begun.

        Args:
            task: that began with `progress_of` its sources.
            effects: where what comes of it goes.
            lowering: which aggregation the rows are of.
            windows: all of them, in the order of their ends.
            figures: of the records that were folded.
            until_ms: where its history ends.
            now_ms: the time on the wall.
        """
        super().__init__(task, [], effects, until_ms=until_ms, now_ms=now_ms)
        self.figures = figures
        self._lowering = lowering
        self._folded = windows
        self._ends = dict(task.positions)

    def steps(self) -> Iterator[None]:
        """See `TaskRun.steps`."""
        adopted = 0
        for window in self._folded:
            self._took(self._task.adopt(self._lowering.node, window))
            adopted += len(window.raws)
            if adopted >= COMMIT_ROWS:
                self._commit()
                adopted = 0
            yield
        yield from super().steps()
