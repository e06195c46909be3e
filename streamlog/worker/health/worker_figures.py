"""Figures: what a worker has done and where it stands, as plain numbers.

The worker counts, whoever serves the numbers reads them (`web/metrics`). Rule of the file:
counting costs an addition per batch, and nothing here knows how the figures are shown, so a
worker without a server pays nothing for them. Counters only grow, from the worker's start;
what stands now (`TaskFigures`) is looked up when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from streamlog.processing.inputs.repartition_input import MergeWait
from streamlog.processing.outbox import Drop, SinkBatch
from streamlog.worker.health.holdups import HeldResult

COMMIT_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Upper ends of the classes that commits are counted in."""


class Durations:
    """How long something took: how often within each bound, and in sum."""

    def __init__(self, bounds_ms: tuple[int, ...]) -> None:
        self.bounds_ms = bounds_ms
        self.counts = [0] * (len(bounds_ms) + 1)
        """Per bound those that it holds and no smaller one does; the last is of all above."""
        self.sum_ms = 0

    def add(self, took_ms: int) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds_ms, took_ms)] += 1
        self.sum_ms += took_ms


class Figures:
    """What a worker has done since it started."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        """Records that were taken in, by task."""
        self.written: Counter[str] = Counter()
        """Records that tasks have handed to the producer, by topic."""
        self.dropped: Counter[tuple[str, str]] = Counter()
        """Records that nodes left out, by node and reason."""
        self.passed_batches: Counter[tuple[str, int]] = Counter()
        """Batches that can't be read and were passed by `on_error`, by topic and partition."""
        self.answered: Counter[str] = Counter()
        """Questions for rows of tables, by who answered: "task" or "standby"."""
        self.restored = 0
        """Records of changelogs that were read."""
        self.commits = Durations(COMMIT_BOUNDS_MS)

    def wrote(self, batches: Iterable[SinkBatch]) -> None:
        """A task has given these to be written."""
        for batch in batches:
            self.written[batch.topic] += len(batch.values)

    def left_out(self, drops: Iterable[Drop]) -> None:
        """A task has left these out."""
        for drop in drops:
            self.dropped[drop.node, drop.reason] += drop.count


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFigures:
    """Where one task stands."""

    task: str
    lag_records: int | None = None
    """Behind the ends of its inputs; None while that is not known."""
    uncommitted_bytes: int = 0
    """Changes of state that wait for a commit, by estimate."""
    state_bytes: int | None = None
    """What the state takes on disk and in memory; None without state."""
    restore_left_records: int | None = None
    """Of a task that is being opened: what is still to be replayed, as far as it is known."""
    is_open: bool = True
    merge_waits: tuple[MergeWait, ...] = ()
    """What waits behind repartition topics for sources that are behind."""
    held: tuple[HeldResult, ...] = ()
    """Results that are due by one source and held back by another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """Where a worker stands."""

    is_assigned: bool = False
    """Whether the group has told it what is its own."""
    has_begun: bool = False
    """Whether it ever had a share."""
    global_left_records: Mapping[str, int] = field(default_factory=dict)
    """By topic of a global table: what is to be read before tasks may start."""
    tasks: tuple[TaskFigures, ...] = field(default=())
    """Those that run here, and those that are being opened."""
    stalled_ms: dict[str, int] = field(default_factory=dict)
    """Tasks and agents that have something to do and have not moved for so long."""
    lag_records: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition: how far tasks and agents are behind the end."""
