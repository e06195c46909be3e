"""The state of a worker, and whether it is ready."""

from __future__ import annotations

import pytest

from streamlog.processing.inputs.repartition_input import MergeWait
from streamlog.replace import replace
from streamlog.worker.health.worker_health import (
    HealthPhase,
    TaskFigures,
    TaskHealth,
    WorkerState,
    phase_of,
)

OPEN, OPENING = TaskFigures(task="0_0"), TaskFigures(task="0_1", is_open=False)


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (WorkerState(), HealthPhase.STARTING),
        (WorkerState(tasks=(OPEN,)), HealthPhase.STARTING),
        (WorkerState(has_begun=True, tasks=(OPEN,)), HealthPhase.REBALANCING),
        (
            WorkerState(is_assigned=True, has_begun=True, tasks=(OPEN, OPENING)),
            HealthPhase.RESTORING,
        ),
        (WorkerState(is_assigned=True, has_begun=True, tasks=(OPEN,)), HealthPhase.RUNNING),
        (WorkerState(is_assigned=True, has_begun=True), HealthPhase.RUNNING),
    ],
)
def test_a_worker_is_ready_when_all_its_tasks_run(state: WorkerState, phase: HealthPhase) -> None:
    assert phase_of(state) is phase
    report = TaskHealth(lambda: state).ready()
    assert report.is_well is (phase is HealthPhase.RUNNING)
    assert report.facts["state"] == phase.value


def test_readiness_counts_restored_tasks() -> None:
    left = TaskFigures(task="0_1", is_open=False, restore_left_records=70)
    state = WorkerState(is_assigned=True, tasks=(OPEN, left))
    facts = TaskHealth(lambda: state).ready().facts
    assert facts["tasks"] == {"running": 1, "of": 2}
    assert facts["restoring"] == {"0_1": {"records_left": 70}}


def test_a_stall_is_reported_and_keeps_the_worker_ready() -> None:
    state = WorkerState(is_assigned=True, tasks=(OPEN,), stalled_ms={"task 0_0": 42_000})
    assert TaskHealth(lambda: state).ready().is_well
    live = TaskHealth(lambda: state).live()
    assert live.is_well
    assert live.facts["stalled"] == {"task 0_0": {"for_ms": 42_000}}


def test_a_filling_merge_is_reported_with_the_partition_it_waits_for() -> None:
    little = MergeWait(
        topic="by-repartition",
        partition=0,
        size_bytes=10,
        bound_bytes=100,
        behind=("orders", 2),
        behind_ms=1_000,
        ahead=("orders", 0),
        ahead_ms=61_000,
    )
    much = replace(little, size_bytes=60)
    tasks = (TaskFigures(task="1_0", merge_waits=(little,)), TaskFigures(task="1_1"))
    assert "waiting" not in TaskHealth(lambda: WorkerState(tasks=tasks)).live().facts
    tasks = (TaskFigures(task="1_0", merge_waits=(little, much)), TaskFigures(task="1_1"))
    live = TaskHealth(lambda: WorkerState(tasks=tasks)).live()
    assert live.is_well
    assert live.facts["waiting"] == {"1_0": [much.describe()]}
