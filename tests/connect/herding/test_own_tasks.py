"""Tasks of a worker: restarts that wait longer each time, and last commits over rounds."""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.connect.herding.configs import TASK_PARTS, ConnectConfigs
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    Effect,
    StartTask,
    WriteStatus,
)
from streamlog.connect.herding.lifecycle import ConnectorState, TargetState
from streamlog.connect.herding.own_tasks import (
    REFUSED_WAITS,
    RESTART_WAITS,
    SOUND_MS,
    OwnTasks,
    Restarts,
    restart_delay_ms,
)
from streamlog.connect.herding.statuses import ConnectStatuses, Status
from streamlog.replace import replace


def test_waits_double_up_to_their_limit() -> None:
    waits = [restart_delay_ms(failures) for failures in range(1, 12)]
    assert waits == [*(1_000 * 2**n for n in range(9)), 300_000, 300_000]
    assert restart_delay_ms(100_000) == 300_000
    waits = [restart_delay_ms(failures, REFUSED_WAITS) for failures in range(1, 7)]
    assert waits == [60_000, 120_000, 240_000, 480_000, 900_000, 900_000]


def test_a_task_that_never_runs_waits_longer_and_longer() -> None:
    restarts, now_ms = Restarts(), 0
    waits = []
    for _ in range(8):
        waits.append(restarts.failed(now_ms, REFUSED_WAITS))
        now_ms += waits[-1] or 0
    assert waits == [60_000, 120_000, 240_000, 480_000, *[900_000] * 4]


def test_a_task_that_ran_long_enough_starts_over_with_its_waits() -> None:
    restarts = Restarts()
    for now_ms in (0, 10, 20):
        restarts.failed(now_ms, RESTART_WAITS)
    assert restarts.due_ms == 4_020
    assert not restarts.is_due(4_019)
    assert restarts.is_due(4_020)
    restarts.began(5_000)
    assert restarts.due_ms is None
    restarts.failed(5_000 + SOUND_MS, RESTART_WAITS)
    assert restarts.due_ms == 6_000 + SOUND_MS


def test_an_error_that_lasts_waits_for_an_operator() -> None:
    restarts = Restarts()
    assert restarts.failed(0, None) is None
    assert not restarts.is_due(10**12)


def given(own: OwnTasks, slots: set[int], *, until: int, generation: int) -> frozenset[int]:
    """Carry out a round; returns the tasks that may still commit what they have read."""
    list(own.on_round({ConnectorSlot("s", at) for at in slots}, until, generation))
    return frozenset(slot.task for slot in own.confirmed)


def written(effects: Iterable[Effect]) -> list[WriteStatus]:
    return [each for each in effects if isinstance(each, WriteStatus)]


def dealt(own: OwnTasks, configs: ConnectConfigs, offset: int, *parts: str) -> None:
    configs.tasks["s"] = [{TASK_PARTS: each} for each in parts]
    own.dealt("s", offset)


def test_a_task_commits_last_only_while_no_other_task_has_its_parts() -> None:
    configs = ConnectConfigs(connectors={"s": {}})
    own = OwnTasks("here:1", configs, ConnectStatuses())
    dealt(own, configs, 5, "[1]", "[2]", "[3]")
    assert own.has_uncounted
    assert not own.is_counted("s")
    assert given(own, {0, 1, 2}, until=6, generation=1) == set(), "none ran before"
    assert own.is_counted("s")
    # Task 2 is given up: it has no owner until the next round.
    assert given(own, {0, 1}, until=6, generation=2) == {0, 1, 2}
    # Part 1 moves from task 0 to task 1, which another worker gets: both begin anew.
    dealt(own, configs, 9, "[4]", "[1]", "[3]")
    assert given(own, {0, 1}, until=9, generation=3) == {0, 1}, "not counted yet"
    assert given(own, {0}, until=10, generation=4) == set()
    # There is one task left, which has the parts that it had.
    dealt(own, configs, 12, "[4]")
    assert given(own, {0}, until=13, generation=5) == {0}


def test_no_dealing_counts_before_the_first_round() -> None:
    configs = ConnectConfigs(connectors={"s": {}})
    own = OwnTasks("here:1", configs, ConnectStatuses())
    assert own.is_counted("s")
    dealt(own, configs, 0, "[1]")
    assert own.has_uncounted
    assert not own.is_counted("s")


def test_a_task_that_runs_says_so_whatever_the_topic_says() -> None:
    """Generations begin at 1 again once the coordinator has forgotten the group."""
    configs, statuses = ConnectConfigs(connectors={"s": {}}), ConnectStatuses()
    own, slot = OwnTasks("here:1", configs, statuses), ConnectorSlot("s", 0)
    statuses.statuses["s", 0] = Status(
        state=ConnectorState.RUNNING, worker_id="there:1", generation=40
    )
    dealt(own, configs, 5, "[1]")
    list(own.on_round({slot}, 6, 1))
    states = [each.status.state for each in written(own.began(slot, 0))]
    assert states == [ConnectorState.RUNNING]
    # That it has none any more is not said over the task of another worker.
    assert not written(own.on_round((), 6, 2))


def test_a_deleted_connector_has_no_dealing_that_waits() -> None:
    configs = ConnectConfigs(connectors={"s": {}})
    own = OwnTasks("here:1", configs, ConnectStatuses())
    dealt(own, configs, 5, "[1]")
    own.forget("s")
    assert own.is_counted("s")
    assert not own.has_uncounted


def test_a_task_that_fails_before_a_pause_starts_again_paused() -> None:
    configs = ConnectConfigs(connectors={"s": {}})
    own = OwnTasks("here:1", configs, ConnectStatuses())
    slot = ConnectorSlot("s", 0)
    dealt(own, configs, 5, "[1]")
    list(own.on_round({slot}, 6, 7))
    list(own.began(slot, 0))
    list(own.failed(slot, "why", 0, None))
    for target, is_paused in ((TargetState.PAUSED, True), (TargetState.STARTED, False)):
        configs.targets["s"] = target
        # One that has failed has nothing to pause or to resume.
        assert [*own.settle("s")] == []
        *_, last = own.restart(slot)
        assert last == StartTask(slot, configs.tasks["s"][0], is_paused)
        list(own.failed(slot, "why", 0, None))


def test_a_failed_task_tells_when_it_starts_again() -> None:
    configs = ConnectConfigs(connectors={"s": {}})
    own = OwnTasks("here:1", configs, ConnectStatuses())
    slot = ConnectorSlot("s", 0)
    assert own.restart_in_ms(slot, 0) is None
    dealt(own, configs, 5, "[1]")
    list(own.on_round({slot}, 6, 7))
    list(own.began(slot, 0))
    assert own.restart_in_ms(slot, 0) is None
    list(own.failed(slot, "why", 100, RESTART_WAITS))
    assert own.restart_in_ms(slot, 101) == RESTART_WAITS.first_ms - 1
    assert [*own.tick(99 + RESTART_WAITS.first_ms)] == []
    assert StartTask(slot, configs.tasks["s"][0], False) in [
        *own.tick(100 + RESTART_WAITS.first_ms)
    ]


def test_a_status_that_a_former_owner_writes_late_is_written_over() -> None:
    configs = ConnectConfigs(connectors={"s": {}})
    own = OwnTasks("here:1", configs, ConnectStatuses())
    slot = ConnectorSlot("s", 0)
    dealt(own, configs, 5, "[1]")
    list(own.on_round({slot}, 6, 7))
    list(own.began(slot, 0))
    late = Status(state=ConnectorState.UNASSIGNED, worker_id="there:1", generation=6)
    (again,) = own.contradicted(slot, late)
    ours = Status(state=ConnectorState.RUNNING, worker_id="here:1", generation=7)
    written = Status(
        state=ConnectorState.RUNNING, worker_id="here:1", generation=7, version="4.4.0"
    )
    assert again == WriteStatus(slot, written)
    # Its own is read back, a later owner's holds, and a task of another worker is not ours to tell.
    assert not [*own.contradicted(slot, ours)]
    later = Status(state=ConnectorState.RUNNING, worker_id="there:1", generation=8)
    assert not [*own.contradicted(slot, later)]
    # What the former owner tells of the round that took the task from it is past, too.
    assert [*own.contradicted(slot, replace(late, generation=7))] == [again]
    assert not [*own.contradicted(ConnectorSlot("s", 1), late)]
    list(own.on_round((), 6, 8))
    assert not [*own.contradicted(slot, late)]


def test_ten_minutes_without_a_failure_are_long_enough() -> None:
    for ran_ms, wait_ms in ((599_999, 2_000), (600_000, 1_000)):
        restarts = Restarts()
        restarts.failed(0, RESTART_WAITS)
        restarts.began(1_000)
        assert restarts.failed(1_000 + ran_ms, RESTART_WAITS) == wait_ms


def test_dealings_that_no_round_needs_any_more_take_no_memory() -> None:
    configs = ConnectConfigs(connectors={"s": {}})
    own = OwnTasks("here:1", configs, ConnectStatuses())
    for offset in range(20):
        dealt(own, configs, offset, f"[{offset}]")
    given(own, {0}, until=15, generation=1)
    # The last one that counts, and the five that wait for the next round.
    assert [at for at, _ in own._dealings["s"]] == [*range(14, 20)]
    assert own.has_uncounted
    given(own, {0}, until=20, generation=2)
    assert [at for at, _ in own._dealings["s"]] == [19]
    assert not own.has_uncounted
