"""How a worker is, for those who watch it from outside: a pure function of where it stands.

It starts, reads its global tables, and waits for the group; it restores its tasks, n of m; it runs;
the group forms anew; or somebody in it does not get on (`watchdog`). Rule of the file: ready means
that it does all of its share now, so that traffic and the next step of a rolling restart may come;
a stall is told and does not make it unready, since taking its traffic away would help nobody. What
fails ends the process. Not done here: answering (`web/pages`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from streamlog.worker.health.worker_figures import WorkerState


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
        task.task: [wait.told() for wait in task.merge_waits if wait.is_much]
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
