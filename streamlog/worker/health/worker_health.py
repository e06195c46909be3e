"""Drops: what nodes left out, counted, and told at a bounded rate; and what waits for too long.

A line per node and reason at most once a minute, however many records there are; of errors the
last one is shown. What is left out with `on_error.skip(log=False)` is counted only. Not done here:
the counters that are scraped (`figures`).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from streamlog.processing.inputs.repartition_input import MergeWait
from streamlog.processing.outbox import Drop, SinkBatch
from streamlog.processing.task import Holdup

logger = logging.getLogger(__name__)

LOG_INTERVAL_MS = 60_000


class DropLog:
    """Counts what nodes left out, and says so once in a while."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._late_by_ms_max: dict[str, int] = {}
        self._told: dict[tuple[str, str], str] = {}
        self._told_ms: dict[tuple[str, str], int] = {}

    def count(self, drops: Iterable[Drop]) -> None:
        """Take note."""
        for drop in drops:
            self._counts[drop.node, drop.reason] += drop.count
            latest = max(self._late_by_ms_max.get(drop.node, 0), drop.late_by_ms_max)
            self._late_by_ms_max[drop.node] = latest
            if drop.message:
                self._told[drop.node, drop.reason] = drop.message

    def warn(self, task: str, waits: Iterable[MergeWait], now_ms: int) -> None:
        """Say which merges of a task fill up, before they have to let records go early."""
        for wait in waits:
            place = (wait.topic, f"{wait.partition}")
            told_ms = self._told_ms.get(place)
            if wait.is_much and (told_ms is None or now_ms - told_ms >= LOG_INTERVAL_MS):
                self._told_ms[place] = now_ms
                logger.warning("task %s: %s", task, wait.describe())

    def tell(self, now_ms: int) -> None:
        """One line per node and reason, at most once a minute each."""
        for key in [*self._counts]:
            told_ms = self._told_ms.get(key)
            if told_ms is None or now_ms - told_ms >= LOG_INTERVAL_MS:
                self._told_ms[key] = now_ms
                self._tell(*key, self._counts.pop(key))

    def _tell(self, node: str, reason: str, count: int) -> None:
        last = self._told.pop((node, reason), "")
        match reason:
            case "out of order":
                logger.warning("%s: %d records taken before their turn", node, count)
            case "late":
                late_ms = self._late_by_ms_max.pop(node, 0)
                logger.warning(
                    "%s: %d records left out: late (by up to %d ms)", node, count, late_ms
                )
            case "error" | "dead letter" if last:
                text = "%s: %d records left out: %s; the last one: %s"
                logger.warning(text, node, count, reason, last)
            case "duplicate" | "error":
                logger.debug("%s: %d records left out: %s", node, count, reason)
            case _:
                logger.warning("%s: %d records left out: %s", node, count, reason)


TELL_AFTER_MS = 9_000
"""Held back for so long, a result is worth a line: a quiet partition is brought on before."""
TELL_AGAIN_MS = 60_000


class HeldResult(NamedTuple):
    """A result that is held back, and for how long."""

    holdup: Holdup
    lasts_ms: int


class Holdups:
    """What is held back in the tasks of a worker."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[int, int]] = {}
        """By task and node: the event time that is waited for, and since when it is."""
        self._told_ms: dict[str, int] = {}
        """By node: tasks of one node are told of in one line."""

    def note(self, task: str, found: Sequence[Holdup], now_ms: int) -> tuple[HeldResult, ...]:
        """This is held back in a task now; says so if it lasts."""
        nodes = {holdup.node for holdup in found}
        self._end(task, nodes)
        held: list[HeldResult] = []
        for holdup in found:
            due_ms, since_ms = self._since.get((task, holdup.node), (holdup.due_ms, now_ms))
            if due_ms != holdup.due_ms:
                since_ms = now_ms
            self._since[task, holdup.node] = (holdup.due_ms, since_ms)
            held.append(HeldResult(holdup, now_ms - since_ms))
            told_ms = self._told_ms.get(holdup.node)
            is_due = told_ms is None or now_ms - told_ms >= TELL_AGAIN_MS
            if now_ms - since_ms >= TELL_AFTER_MS and is_due:
                self._told_ms[holdup.node] = now_ms
                logger.warning("task %s: %s", task, holdup.describe())
        return (*held,)

    def forget(self, task: str) -> None:
        """The task is not run here any more."""
        self._end(task, ())

    def _end(self, task: str, but: Collection[str]) -> None:
        over = [key for key in self._since if key[0] == task and key[1] not in but]
        for key in over:
            del self._since[key]


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


class HealthPhase(StrEnum):
    """What a worker is at."""

    STARTING = "starting"
    """The group has not told it yet what is its own."""
    READING = "reading"
    """It has not read its global tables, and so has not joined its group."""
    REBALANCING = "rebalancing"
    """It had a share, and the group forms anew."""
    RESTORING = "restoring"
    """Some of its tasks do not run yet."""
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """An answer to "are you well?"."""

    is_well: bool
    facts: Mapping[str, object]


def phase_of(standing: WorkerState) -> HealthPhase:
    """What it is at."""
    if any(standing.global_left_records.values()):
        return HealthPhase.READING
    if not standing.is_assigned:
        return HealthPhase.REBALANCING if standing.has_begun else HealthPhase.STARTING
    if all(task.is_open for task in standing.tasks):
        return HealthPhase.RUNNING
    return HealthPhase.RESTORING


def _waiting(standing: WorkerState) -> dict[str, list[str]]:
    """By task: merges that fill up, and for whom they wait."""
    told = {
        task.task: [wait.describe() for wait in task.merge_waits if wait.is_much]
        for task in standing.tasks
    }
    return {task: texts for task, texts in told.items() if texts}


class TaskHealth:
    """A worker is ready when the group has given it its share and every task of it runs."""

    def __init__(self, standing: Callable[[], WorkerState]) -> None:
        self._standing = standing

    def live(self) -> HealthReport:
        """It answers, so its loop runs; what fails ends the process.

        A task that hangs is told and is no reason: whether a worker is to end for it, the app
        says (`watchdog_exit`).
        """
        facts: dict[str, object] = {"live": True}
        if stalled := self._standing().stalled_ms:
            facts["stalled"] = {who: {"for_ms": still_ms} for who, still_ms in stalled.items()}
        if waiting := _waiting(self._standing()):
            facts["waiting"] = waiting
        return HealthReport(is_well=True, facts=facts)

    def ready(self) -> HealthReport:
        """Whether all tasks run, and how many of how many do."""
        standing = self._standing()
        phase = phase_of(standing)
        running = sum(task.is_open for task in standing.tasks)
        facts: dict[str, object] = {
            "ready": phase is HealthPhase.RUNNING,
            "state": phase.value,
            "assigned": standing.is_assigned,
            "tasks": {"running": running, "of": len(standing.tasks)},
        }
        if phase is HealthPhase.READING:
            facts["reading"] = {
                topic: {"records_left": left}
                for topic, left in standing.global_left_records.items()
                if left
            }
        if running < len(standing.tasks):
            facts["restoring"] = {
                task.task: {"records_left": task.restore_left_records}
                for task in standing.tasks
                if not task.is_open
            }
        return HealthReport(phase is HealthPhase.RUNNING, facts)
