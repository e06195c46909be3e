"""FinishedTask: what is left of a task when its history is over, for whoever goes on from there.

Plain data. Rule of the file: nothing here says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlog.history.staging import Segment
from streamlog.history.task_run import TaskFigures
from streamlog.processing.record_queue import TopicPartition
from streamlog.processing.task import TaskId
from streamlog.snapshots import PendingRecords, TaskEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTask:
    """A task whose history is over."""

    task_id: TaskId
    entry: TaskEntry
    """Its state, as the snapshot has it."""
    cuts: Mapping[TopicPartition, int]
    """Of each topic of the log the first offset that was not taken."""
    pending: tuple[PendingRecords, ...]
    """Records of repartition topics whose turn had not come: a source, mostly a window that is
    open, may still send an earlier one."""
    figures: TaskFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A history that is over."""

    tasks: tuple[FinishedTask, ...]
    """In the order of stages and partitions."""
    outputs: Mapping[TopicPartition, tuple[Segment, ...]] = field(default_factory=dict)
    """What was staged of each partition written to, a file for each task that did; its records
    are in order."""

    @property
    def cuts(self) -> dict[TopicPartition, int]:
        """Of each partition of the log that was read the first offset that was not taken."""
        return {place: offset for task in self.tasks for place, offset in task.cuts.items()}
