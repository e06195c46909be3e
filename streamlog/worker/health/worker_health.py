"""Worker health: the state of a worker, dropped records and held results.

Dropped records are logged with at most one line per minute for each node and reason; a line about
errors shows the last one. Records dropped by `on_error.skip(log=False)` are only counted.

Rule: counts and describes, and changes nothing. Not done here: metrics (`worker_metrics`), and
stalls (`watchdog`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from streamlog.durations import duration_text
from streamlog.errors import quantity
from streamlog.processing.inputs.repartition_input import MergeWait
from streamlog.processing.node_figures import NodeFigures
from streamlog.processing.outbox import Drop
from streamlog.processing.task import Holdup
from streamlog.tables.state.store_transaction import StateReads

logger = logging.getLogger(__name__)

LOG_INTERVAL_MS = 60_000


class DropLog:
    """Counts the records that nodes dropped, and logs them at a bounded rate."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._late_by_ms_max: dict[str, int] = {}
        self._last: dict[tuple[str, str], str] = {}
        """Node and reason to the description of the last dropped record."""
        self._logged_ms: dict[tuple[str, str], int] = {}

    def count(self, drops: Iterable[Drop]) -> None:
        """Count drops until the next log line."""
        for drop in drops:
            self._counts[drop.node, drop.reason] += drop.count
            latest = max(self._late_by_ms_max.get(drop.node, 0), drop.late_by_ms_max)
            self._late_by_ms_max[drop.node] = latest
            if drop.message:
                self._last[drop.node, drop.reason] = drop.message

    def warn(self, task: str, waits: Iterable[MergeWait], now_ms: int) -> None:
        """Log the merges of a task whose buffer fills up, before they emit records out of order."""
        for wait in waits:
            # Such a key can't meet one of a drop: a partition number is no reason.
            key = (wait.topic, f"{wait.partition}")
            logged_ms = self._logged_ms.get(key)
            if wait.is_much and (logged_ms is None or now_ms - logged_ms >= LOG_INTERVAL_MS):
                self._logged_ms[key] = now_ms
                logger.warning("task %s: %s", task, wait.describe())

    def log(self, now_ms: int) -> None:
        """Log the counts, at most once a minute for each node and reason."""
        for key in [*self._counts]:
            logged_ms = self._logged_ms.get(key)
            if logged_ms is None or now_ms - logged_ms >= LOG_INTERVAL_MS:
                self._logged_ms[key] = now_ms
                self._log_count(*key, self._counts.pop(key))

    def _log_count(self, node: str, reason: str, count: int) -> None:
        last = self._last.pop((node, reason), "")
        records = quantity(count, "record")
        match reason:
            case "out of order":
                logger.warning("%s: %s processed out of order", node, records)
            case "late":
                late_by = duration_text(self._late_by_ms_max.pop(node, 0))
                logger.warning("%s: %s dropped: late (by up to %s)", node, records, late_by)
            case "error" | "dead letter" if last:
                text = "%s: %s dropped: %s; the last one: %s"
                logger.warning(text, node, records, reason, last)
            # An error without a text: its policy asked for no log line.
            case "duplicate" | "error":
                logger.debug("%s: %s dropped: %s", node, records, reason)
            case _:
                logger.warning("%s: %s dropped: %s", node, records, reason)


TELL_AFTER_MS = 9_000
"""How long a result is held back before it is logged. Time marks of quiet partitions arrive
earlier."""
TELL_AGAIN_MS = 60_000


class HeldResult(NamedTuple):
    """A result that is held back."""

    holdup: Holdup
    lasts_ms: int
    """The time since it was held back, in milliseconds."""


class Holdups:
    """Follows the results that the tasks of a worker hold back."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[int, int]] = {}
        """Task and node to the event time that the result waits for, and the start of the wait."""
        self._logged_ms: dict[str, int] = {}
        """Node to the time of its last log line; all tasks of a node share one line."""

    def note(self, task: str, found: Sequence[Holdup], now_ms: int) -> tuple[HeldResult, ...]:
        """Note the results that a task holds back now, and log those that last."""
        nodes = {holdup.node for holdup in found}
        self._end(task, nodes)
        held: list[HeldResult] = []
        for holdup in found:
            due_ms, since_ms = self._since.get((task, holdup.node), (holdup.due_ms, now_ms))
            # The node waits for another time now: the result before was emitted.
            if due_ms != holdup.due_ms:
                since_ms = now_ms
            self._since[task, holdup.node] = (holdup.due_ms, since_ms)
            held.append(HeldResult(holdup, now_ms - since_ms))
            logged_ms = self._logged_ms.get(holdup.node)
            is_due = logged_ms is None or now_ms - logged_ms >= TELL_AGAIN_MS
            if now_ms - since_ms >= TELL_AFTER_MS and is_due:
                self._logged_ms[holdup.node] = now_ms
                logger.warning("task %s: %s", task, holdup.describe())
        return (*held,)

    def forget(self, task: str) -> None:
        """Drop a task that no longer runs here."""
        self._end(task, ())

    def _end(self, task: str, kept: Collection[str]) -> None:
        ended = [key for key in self._since if key[0] == task and key[1] not in kept]
        for key in ended:
            del self._since[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFigures:
    """The figures of one task."""

    task: str
    lag_records: int | None = None
    """The records up to the ends of its inputs; None while unknown."""
    uncommitted_bytes: int = 0
    """The estimated size of state changes that wait for a commit."""
    state_bytes: int | None = None
    """The size of the state on disk and in memory; None without state."""
    snapshot_age_ms: int | None = None
    """The age of its newest snapshot in object storage; None: there is none."""
    restore_left_records: int | None = None
    """For a task that restores, the changelog records left to read; None if unknown."""
    restored_records: int | None = None
    """For a task that restores, the changelog records that it has read."""
    nodes: tuple[NodeFigures, ...] = ()
    """What its nodes have done since it began."""
    source_times: tuple[tuple[tuple[str, int], int], ...] = ()
    """Source to the event time, in milliseconds, that the task has reached in it."""
    state_reads: StateReads | None = None
    """Look-ups in its state; None without state."""
    is_open: bool = True
    merge_waits: tuple[MergeWait, ...] = ()
    """Records of repartition topics that wait for sources that lag."""
    held: tuple[HeldResult, ...] = ()
    """Results that are due by one source and held back by another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The state of a worker."""

    is_assigned: bool = False
    """Whether the group has assigned partitions to it, perhaps none."""
    has_begun: bool = False
    """Whether it ever had an assignment."""
    global_left_records: Mapping[str, int] = field(default_factory=dict)
    """Topic of a global table to the number of records left to read before tasks may start."""
    tasks: tuple[TaskFigures, ...] = field(default=())
    """Its tasks, those that are being opened included."""
    stalled_ms: dict[str, int] = field(default_factory=dict)
    """Stalled tasks and agents with the time without progress, in milliseconds."""
    now_ms: int | None = None
    """The wall-clock time of this state; None: not known."""
    lag_records: dict[tuple[str, int], int] = field(default_factory=dict)
    """Partition to the number of records between the readers' position and its end."""


class HealthPhase(StrEnum):
    """The phase that a worker is in."""

    STARTING = "starting"
    """It waits for its first assignment."""
    READING = "reading"
    """It reads its global tables, and has not joined its group."""
    REBALANCING = "rebalancing"
    """It had an assignment, and waits for the next one."""
    RESTORING = "restoring"
    """Some of its tasks do not run yet."""
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The answer to a health check."""

    is_well: bool
    facts: Mapping[str, object]
    """The content of the answer, as JSON."""


def phase_of(state: WorkerState) -> HealthPhase:
    """Return the phase of a worker."""
    # First, as the worker joins its group only after it has read these tables.
    if any(state.global_left_records.values()):
        return HealthPhase.READING
    if not state.is_assigned:
        return HealthPhase.REBALANCING if state.has_begun else HealthPhase.STARTING
    # Also without tasks: there may be more workers than tasks.
    if all(task.is_open for task in state.tasks):
        return HealthPhase.RUNNING
    return HealthPhase.RESTORING


def _waiting(state: WorkerState) -> dict[str, list[str]]:
    """Return the merges of each task whose buffer fills up, and the sources that they wait for."""
    found = {
        task.task: [wait.describe() for wait in task.merge_waits if wait.is_much]
        for task in state.tasks
    }
    return {task: texts for task, texts in found.items() if texts}


class TaskHealth:
    """The health of a worker: ready when it has an assignment and all its tasks run."""

    def __init__(self, state: Callable[[], WorkerState]) -> None:
        self._state = state

    def live(self) -> HealthReport:
        """Report that the worker is alive: the event loop answers, and errors end the process.

        A stalled task is reported, but the worker counts as alive; `watchdog_exit` decides whether
        it ends for that reason.
        """
        facts: dict[str, object] = {"live": True}
        if stalled := self._state().stalled_ms:
            facts["stalled"] = {who: {"for_ms": still_ms} for who, still_ms in stalled.items()}
        if waiting := _waiting(self._state()):
            facts["waiting"] = waiting
        return HealthReport(is_well=True, facts=facts)

    def ready(self) -> HealthReport:
        """Report whether all tasks run, with their number."""
        state = self._state()
        phase = phase_of(state)
        running = sum(task.is_open for task in state.tasks)
        facts: dict[str, object] = {
            "ready": phase is HealthPhase.RUNNING,
            "state": phase.value,
            "assigned": state.is_assigned,
            "tasks": {"running": running, "of": len(state.tasks)},
        }
        if phase is HealthPhase.READING:
            facts["reading"] = {
                topic: {"records_left": left}
                for topic, left in state.global_left_records.items()
                if left
            }
        if running < len(state.tasks):
            facts["restoring"] = {
                task.task: {"records_left": task.restore_left_records}
                for task in state.tasks
                if not task.is_open
            }
        return HealthReport(phase is HealthPhase.RUNNING, facts)
