"""What a worker is at, and whether it is ready."""

from __future__ import annotations

import pytest

from streamlog.worker.figures import Standing, TaskFigures
from streamlog.worker.health import Phase, TaskHealth, phase_of

OPEN, OPENING = TaskFigures(task="0_0"), TaskFigures(task="0_1", is_open=False)


@pytest.mark.parametrize(
    ("standing", "phase"),
    [
        (Standing(), Phase.STARTING),
        (Standing(tasks=(OPEN,)), Phase.STARTING),
        (Standing(has_begun=True, tasks=(OPEN,)), Phase.REBALANCING),
        (Standing(is_assigned=True, has_begun=True, tasks=(OPEN, OPENING)), Phase.RESTORING),
        (Standing(is_assigned=True, has_begun=True, tasks=(OPEN,)), Phase.RUNNING),
        (Standing(is_assigned=True, has_begun=True), Phase.RUNNING),
    ],
)
def test_a_worker_is_ready_when_it_does_all_of_its_share(standing: Standing, phase: Phase) -> None:
    assert phase_of(standing) is phase
    report = TaskHealth(lambda: standing).ready()
    assert report.is_well is (phase is Phase.RUNNING)
    assert report.facts["state"] == phase.value


def test_it_tells_how_many_of_how_many_are_restored() -> None:
    left = TaskFigures(task="0_1", is_open=False, restore_left_records=70)
    standing = Standing(is_assigned=True, tasks=(OPEN, left))
    facts = TaskHealth(lambda: standing).ready().facts
    assert facts["tasks"] == {"running": 1, "of": 2}
    assert facts["restoring"] == {"0_1": {"records_left": 70}}


def test_a_stall_is_told_and_takes_no_traffic_away() -> None:
    standing = Standing(is_assigned=True, tasks=(OPEN,), stalled_ms={"task 0_0": 42_000})
    assert TaskHealth(lambda: standing).ready().is_well
    live = TaskHealth(lambda: standing).live()
    assert live.is_well
    assert live.facts["stalled"] == {"task 0_0": {"for_ms": 42_000}}
