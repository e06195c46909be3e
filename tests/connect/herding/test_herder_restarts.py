"""Herder: what is started again after an error, or because a request says so."""

from __future__ import annotations

from typing import Any

import pytest

from streamlog.connect.herding.herder import DISCOVER_MS
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    ConnectRefusal,
    PutConnector,
    RequestAnswer,
    RestartConnector,
    RestartTask,
    SetTarget,
)
from streamlog.connect.herding.lifecycle import VERSION, ConnectorState, TargetState
from tests.connect.herding.herder_group import PARTS, SINK, SOURCE, group, state


def test_a_failed_task_is_started_again_after_its_wait() -> None:
    made = group()
    made.ask(1, PutConnector("y", SINK))
    made.settle()
    made.fail(ConnectorSlot("y", 1))
    assert state(made, "y", 1) is ConnectorState.FAILED
    made.tick(999)
    assert ConnectorSlot("y", 1) not in made.running()
    made.tick(1)
    assert ConnectorSlot("y", 1) in made.running()
    assert state(made, "y", 1) is ConnectorState.RUNNING


def test_an_error_that_lasts_waits_for_a_restart_of_what_failed() -> None:
    made = group()
    made.ask(1, PutConnector("y", SINK))
    made.settle()
    made.fail(ConnectorSlot("y", 1), may_pass=False)
    made.tick(10**9)
    assert ConnectorSlot("y", 1) not in made.running()
    made.ask(2, RestartConnector("y", include_tasks=True, only_failed=True))
    made.settle()
    assert ConnectorSlot("y", 1) in made.running()
    assert made.answers[2].status == 202
    made.ask(3, RestartConnector("y"))
    made.settle()
    assert made.answers[3].status == 204


def test_a_task_is_restarted_by_the_worker_that_has_it() -> None:
    made = group()
    made.ask(1, PutConnector("y", SINK))
    made.settle()
    made.ask(2, RestartTask(ConnectorSlot("y", 0)))
    assert made.answers[2].status == 204
    with pytest.raises(ConnectRefusal, match="another worker"):
        made.ask(3, RestartTask(ConnectorSlot("y", 1)))
    with pytest.raises(ConnectRefusal, match="Unknown task: y-3"):
        made.ask(4, RestartTask(ConnectorSlot("y", 3)))


@pytest.mark.parametrize("only_failed", [False, True])
@pytest.mark.parametrize("include_tasks", [False, True])
def test_a_restart_tells_what_it_restarts(*, include_tasks: bool, only_failed: bool) -> None:
    made = group("w1")
    made.ask(1, PutConnector("y", {**SINK, "tasks.max": "2"}))
    made.settle()
    made.fail(ConnectorSlot("y", 1), may_pass=False)
    made.ask(2, RestartConnector("y", include_tasks=include_tasks, only_failed=only_failed))
    made.settle()
    running = made.running()
    assert (ConnectorSlot("y", 1) in running) is include_tasks
    answer = made.answers[2]
    if not include_tasks and not only_failed:
        assert (answer.status, answer.body) == (204, None)
        return
    body: Any = answer.body
    assert answer.status == 202
    assert body["connector"]["state"] == ("RUNNING" if only_failed else "RESTARTING")
    states = ["RUNNING" if only_failed else "RESTARTING", "RESTARTING"]
    found = [each["state"] for each in body["tasks"]]
    assert found == (states if include_tasks else ["RUNNING", "FAILED"])


def test_a_connector_that_fails_to_start_counts_as_a_failure_and_tells_why() -> None:
    made = group("w1")
    herder = made.members["w1"].herder
    made.ask(1, PutConnector("y", SINK))
    made.ask(2, PutConnector("z", {"connector.class": "No"}))
    made.ask(3, PutConnector("x", SOURCE))
    while made.read("w1"):
        pass
    (_, asked) = made.discoveries.pop(0)
    made.perform("w1", herder.not_found("x", asked.settings, "no database", made.now_ms))
    made.settle()
    assert (herder.starts.attempts, herder.starts.successes, herder.starts.failures) == (3, 1, 2)
    failed = herder.status("x")["connector"]
    assert failed == {
        "state": "FAILED", "worker_id": "w1", "version": VERSION, "trace": "no database",
    }  # fmt: skip
    assert "version" not in str(herder.status("z")), "nobody knows it"
    # It is asked again by time, and counts no second time.
    made.tick(DISCOVER_MS - 1)
    assert not made.discoveries
    made.tick(1)
    made.tick(1)
    assert len(made.discoveries) == 1, "one question at a time"
    made.settle()
    assert made.readers("x") == list("abcde")
    assert (herder.starts.attempts, herder.starts.successes, herder.starts.failures) == (3, 1, 2)
    # What comes for settings of before, or for a connector that is stopped, is passed over.
    stale = {**asked.settings, "colour": "red"}
    assert not herder.found("x", stale, [{"p": "z"}], made.now_ms)
    assert not herder.not_found("x", stale, "late", made.now_ms)
    made.ask(4, SetTarget("x", TargetState.STOPPED))
    made.settle()
    assert not herder.found("x", asked.settings, PARTS, made.now_ms)


@pytest.mark.parametrize("value", [None, b"nonsense", b"{}"])
def test_a_wish_to_restart_that_says_nothing_restarts_nothing(value: bytes | None) -> None:
    made = group("w1")
    made.ask(1, PutConnector("y", SINK))
    made.settle()
    before = made.members["w1"].herder.own.starts.attempts
    made.log.append((b"restart-connector-y", value))
    made.settle()
    assert made.members["w1"].herder.own.starts.attempts == before


def test_a_task_is_restarted_by_its_worker_alone() -> None:
    made = group()
    made.ask(1, PutConnector("y", SINK))
    made.settle()
    (mine, *_), (theirs, *_) = (member.running for member in made.members.values())
    herder = made.members["w1"].herder
    before = herder.own.starts.attempts
    *restarted, answer = herder.asked(2, RestartTask(mine), 0)
    assert answer == RequestAnswer(2, 204)
    assert [type(each).__name__ for each in restarted] == ["StopTask", "WriteStatus", "StartTask"]
    assert herder.own.starts.attempts == before + 1
    for slot, why, status in (
        (theirs, "another worker has", 409),
        (ConnectorSlot("y", 3), "Unknown task: y-3", 404),
        (ConnectorSlot("z", 0), "Unknown connector: z", 404),
    ):
        with pytest.raises(ConnectRefusal, match=why) as refused:
            herder.asked(3, RestartTask(slot), 0)
        assert refused.value.status == status


@pytest.mark.parametrize(("only_failed", "has_failed"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_restart_plans_a_source_anew_unless_only_failed_ones_are_meant(
    only_failed: int, has_failed: int
) -> None:
    made = group("w1")
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    if has_failed:
        herder = made.members["w1"].herder
        made.perform("w1", herder.not_found("x", SOURCE, "why", made.now_ms))
    made.ask(2, RestartConnector("x", only_failed=bool(only_failed)))
    while made.read("w1"):
        pass
    assert len(made.discoveries) == (has_failed or not only_failed)
