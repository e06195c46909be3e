"""Herder: what a group of workers decides about its connectors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.herding import dealing
from streamlog.connect.herding import herder as herder_module
from streamlog.connect.herding.configs import (
    TASK_PARTS,
    ConnectConfigs,
    connector_record,
    task_records,
)
from streamlog.connect.herding.herder import (
    DISCOVER_EVERY,
    DISCOVER_MS,
    REQUEST_TIMEOUT_MS,
    REQUESTS_MAX,
    Herder,
)
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    ConnectRefusal,
    DeleteConnector,
    Discover,
    PatchConnector,
    PutConnector,
    Request,
    RequestAnswer,
    RestartConnector,
    RestartTask,
    SetLevel,
    SetTarget,
)
from streamlog.connect.herding.lifecycle import VERSION, ConnectorState, TargetState
from streamlog.connect.herding.own_tasks import StartCounts
from streamlog.connect.herding.statuses import status_record
from streamlog.replace import replace
from tests.connect.herding.herder_group import HerderGroup, PluginsOfTests

SOURCE = {"connector.class": "Source", "tasks.max": "2", "name": "x"}
SINK = {"connector.class": "Sink", "tasks.max": "3", "name": "y"}
PARTS = [{"p": each} for each in "abcde"]


def group(*names: str) -> HerderGroup:
    made = HerderGroup(names or ("w1", "w2"), {"x": PARTS})
    made.round()
    return made


def state(made: HerderGroup, name: str, task: int | None = None) -> ConnectorState | None:
    found = made.members[made.leader].herder.statuses.statuses.get((name, task))
    return None if found is None else found.state


def test_a_created_source_is_dealt_evenly_and_every_part_has_one_reader() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE, is_new=True))
    made.settle()
    assert made.answers[1].status == 201
    assert made.answers[1].body == {"name": "x", "config": SOURCE, "tasks": [], "type": "source"}
    assert made.readers("x") == list("abcde")
    assert [len(member.running) for member in made.members.values()] == [1, 1]
    assert [state(made, "x", task) for task in (None, 0, 1)] == [ConnectorState.RUNNING] * 3


def test_a_task_that_no_longer_exists_leaves_no_status() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    made.ask(2, PutConnector("x", {**SOURCE, "tasks.max": "1"}))
    made.settle()
    assert [state(made, "x", task) for task in (0, 1)] == [ConnectorState.RUNNING, None]


def test_a_request_is_answered_only_once_its_records_are_read_back() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE))
    assert made.answers == {}
    made.tick(REQUEST_TIMEOUT_MS)
    assert made.answers[1].status == 500


def test_a_sink_has_as_many_tasks_as_it_may_have() -> None:
    made = group()
    made.ask(1, PutConnector("y", SINK))
    made.settle()
    assert sorted(made.running()) == [ConnectorSlot("y", task) for task in range(3)]


def test_a_status_that_a_former_owner_writes_late_is_written_over() -> None:
    made = group()
    made.ask(1, PutConnector("y", SINK))
    made.settle()
    known = made.members["w1"].herder.statuses.statuses
    assert {each.generation for each in known.values()} == {1, made.generation}
    made.ask(2, PutConnector("z", SINK))
    made.settle()
    assert known["z", None].generation == 2
    (slot, *_), before = made.members["w1"].running, dict(known)
    late = replace(before[slot], worker_id="gone", state=ConnectorState.UNASSIGNED, generation=0)
    made.read_status(status_record(*slot, late))
    assert known == {**before, slot: replace(before[slot], generation=made.generation)}
    # A connector's own status, a deletion, and what is none are the end of it.
    for record in (
        status_record("y", None, replace(late, generation=made.generation)),
        status_record(*slot, None),
        (b"status-", b"{"),
    ):
        assert made.members["w1"].herder.status_replayed(*record) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2", 2), (" 4 ", 4), ("0", 0), ("999999999", 5), ("1000000000", 1), ("9999999999", 1),
        ("", 1), ("-3", 1), ("many", 1), ("\u00b2", 1),
    ],
)  # fmt: skip
def test_a_number_of_tasks_that_validation_has_not_seen_is_one_or_at_its_limit(
    monkeypatch: pytest.MonkeyPatch, text: str, count: int
) -> None:
    monkeypatch.setattr(herder_module, "TASKS_MAX", 5)
    made = group("w1")
    made.log.append(connector_record("y", {**SINK, "tasks.max": text}))
    made.settle()
    assert len(made.running()) == count


def test_new_parts_are_found_by_time_and_dealt_with_few_moves() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    before = [dict(member.running) for member in made.members.values()]
    made.parts["x"] = [*PARTS, {"p": "f"}]
    made.tick(30_000)
    made.settle()
    assert made.readers("x") == list("abcdef")
    kept = [
        member.running == was for member, was in zip(made.members.values(), before, strict=True)
    ]
    assert sorted(kept) == [False, True]


@pytest.mark.parametrize("malformed", ["nonsense", '{"p":"a"}', "[1]", "[" * 100_000])
def test_a_dealing_of_malformed_parts_is_made_anew(malformed: str) -> None:
    made = group("w1")
    made.log += [
        connector_record("x", SOURCE),
        *task_records("x", [{**SOURCE, TASK_PARTS: malformed}]),
    ]
    while made.read("w1"):
        pass
    made.discover()
    made.round()
    assert made.readers("x") == list("abcde")


def test_pause_resume_and_stop_need_no_new_dealing_of_the_others() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE))
    made.ask(2, PutConnector("y", SINK))
    made.settle()
    made.ask(3, SetTarget("x", TargetState.PAUSED))
    made.settle()
    assert [is_paused for slot, is_paused in made.running().items() if slot.connector == "x"] == [
        True,
        True,
    ]
    assert state(made, "x") is state(made, "x", 0) is ConnectorState.PAUSED
    made.ask(4, SetTarget("x", TargetState.STOPPED))
    made.settle()
    assert {slot.connector for slot in made.running()} == {"y"}
    assert [state(made, "x"), state(made, "x", 0)] == [ConnectorState.STOPPED, None]
    made.ask(5, SetTarget("x", TargetState.STARTED))
    made.settle()
    assert made.readers("x") == list("abcde")
    assert [made.answers[number].status for number in (3, 4, 5)] == [202, 204, 202]
    assert [made.answers[number].body for number in (3, 4, 5)] == [None] * 3


def test_a_connector_created_as_stopped_has_no_task() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE, target=TargetState.STOPPED))
    made.settle()
    assert made.running() == {}
    assert state(made, "x") is ConnectorState.STOPPED


def test_a_deleted_connector_leaves_no_task_and_no_status() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    made.ask(2, DeleteConnector("x"))
    made.settle()
    assert made.answers[2].status == 204
    assert made.running() == {}
    assert made.members["w1"].herder.statuses.statuses == {}


def test_a_new_dealing_counts_from_the_next_round_on() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    made.ask(2, PutConnector("x", {**SOURCE, "tasks.max": "1"}))
    while made.read("w1"):
        pass
    made.discover()
    # Only the leader reads the dealing that gives all parts to its task 0.
    while made.read("w1"):
        assert made.readers("x") == list("abcde")
    made.round()
    assert made.readers("x") == list("abcde")
    assert list(made.running()) == [ConnectorSlot("x", 0)]


def test_a_connector_that_is_created_again_runs_by_its_new_settings_only() -> None:
    made = group("w1")
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    made.ask(2, DeleteConnector("x"))
    made.read("w1")
    made.ask(3, PutConnector("x", {**SOURCE, "colour": "red"}))
    while made.read("w1"):
        assert made.running() == {}
    made.settle()
    settings = [each for each, _ in made.members["w1"].running.values()]
    assert [each["colour"] for each in settings] == ["red", "red"]


def test_changed_settings_reach_every_task() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    made.ask(2, PatchConnector("x", {"colour": "red", "name": None}))
    made.settle()
    assert made.answers[2].status == 200
    settings = [each[0] for member in made.members.values() for each in member.running.values()]
    assert [(each.get("colour"), each.get("name")) for each in settings] == [("red", None)] * 2


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


@pytest.mark.parametrize(
    ("request_of", "status", "why"),
    [
        (PutConnector("y", SINK, is_new=True), 409, "Connector y already exists"),
        (PutConnector("z", {**SINK, "bad": ""}), 400, r"contains the following 1 error\(s\)"),
        (PutConnector("z", {"text": "x" * 300_000}), 400, "262144"),
        (PatchConnector("z", {}), 404, "Connector z not found"),
        (DeleteConnector("z"), 404, "Connector z not found"),
        (SetTarget("z", TargetState.PAUSED), 404, "Unknown connector z"),
        (RestartConnector("z"), 404, "Unknown connector: z"),
        (RestartTask(ConnectorSlot("z", 0)), 404, "Unknown connector: z"),
    ],
)
def test_a_refusal_says_why_as_kafka_connect_does(
    request_of: Request, status: int, why: str
) -> None:
    made = group()
    made.ask(1, PutConnector("y", SINK))
    made.settle()
    with pytest.raises(ConnectRefusal, match=why) as refused:
        made.ask(2, request_of)
    assert refused.value.status == status


def test_only_the_leader_writes() -> None:
    made = group()
    with pytest.raises(ConnectRefusal, match="does not lead") as refused:
        made.members["w2"].herder.asked(1, PutConnector("x", SOURCE), 0)
    assert refused.value.status == 409


def test_waiting_requests_are_bounded() -> None:
    made = group("w1")
    for number in range(REQUESTS_MAX):
        made.ask(
            number, SetTarget("x", TargetState.PAUSED) if number else PutConnector("x", SOURCE)
        )
        if not number:
            made.settle()
    made.ask(REQUESTS_MAX, SetTarget("x", TargetState.PAUSED))
    with pytest.raises(ConnectRefusal, match="256 requests wait"):
        made.ask(REQUESTS_MAX + 1, SetTarget("x", TargetState.PAUSED))


def test_a_class_that_is_not_installed_fails_the_connector_with_its_name() -> None:
    made = group()
    made.ask(1, PutConnector("z", {"connector.class": "io.debezium.MySql"}))
    made.settle()
    failed = made.members["w1"].herder.statuses.statuses["z", None]
    assert failed.state is ConnectorState.FAILED
    assert "io.debezium.MySql" in (failed.trace or "")


def test_a_leader_that_ended_before_it_dealt_is_made_up_for() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE))
    made.read("w1")
    made.discoveries.clear()
    made.kill("w1")
    made.round()
    made.settle()
    assert made.readers("x") == list("abcde")


def test_only_a_stopped_connector_whose_tasks_have_ended_is_at_rest() -> None:
    made = group()
    herder = made.members["w1"].herder
    assert not herder.is_at_rest("x")
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    assert not herder.is_at_rest("x")
    made.ask(2, SetTarget("x", TargetState.STOPPED))
    while made.read("w1"):
        assert not herder.is_at_rest("x"), "another worker may still commit"
    made.settle()
    assert herder.is_at_rest("x")
    assert not made.members["w1"].herder.slot_counts()
    made.ask(3, SetTarget("x", TargetState.STARTED))
    made.settle()
    assert not herder.is_at_rest("x")
    assert herder.slot_counts() == {"x": 2}


def test_a_status_is_shown_as_kafka_connect_shows_it() -> None:
    made = group("w1")
    made.ask(1, PutConnector("y", {**SINK, "tasks.max": "2"}))
    made.settle()
    made.fail(ConnectorSlot("y", 1), may_pass=False)
    running = {"state": "RUNNING", "worker_id": "w1", "version": VERSION}
    failed = {
        **running,
        "state": "FAILED",
        "trace": "why\nTask 1: it stays FAILED until `streamlog connectors restart y --failed`",
    }
    herder = made.members["w1"].herder
    assert herder.status("y") == {
        "name": "y",
        "connector": running,
        "tasks": [{"id": 0, **running}, {"id": 1, **failed}],
        "type": "sink",
    }
    assert herder.info("y") == {
        "name": "y",
        "config": {**SINK, "tasks.max": "2"},
        "tasks": [{"connector": "y", "task": 0}, {"connector": "y", "task": 1}],
        "type": "sink",
    }
    for ask in (herder.status, herder.info):
        with pytest.raises(ConnectRefusal, match="z") as refused:
            ask("z")
        assert refused.value.status == 404


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


def test_a_source_says_how_often_it_is_asked_for_its_parts() -> None:
    for text, due_ms in (("50", 50), ("50x", DISCOVER_MS), ("9" * 13, DISCOVER_MS)):
        made = group("w1")
        made.ask(1, PutConnector("x", {**SOURCE, DISCOVER_EVERY: text}))
        made.settle()
        made.tick(due_ms - 1)
        assert not made.discoveries
        made.tick(1)
        assert len(made.discoveries) == 1


def test_a_group_has_so_many_connectors_tasks_and_bytes_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for limit, value in (("CONNECTORS_MAX", 2), ("TASKS_MAX", 4), ("CONNECTOR_BYTES_MAX", 150)):
        monkeypatch.setattr(herder_module, limit, value)
    made = group("w1")
    herder = made.members["w1"].herder
    made.ask(1, PutConnector("y", SINK))
    made.settle()
    made.ask(2, PutConnector("z", {**SINK, "tasks.max": "2"}))
    made.settle()
    assert herder.slot_counts() == {"y": 3}
    assert "more than 4 tasks" in str(herder.status("z")["connector"])
    made.ask(3, PutConnector("z", {**SINK, "tasks.max": "1"}))
    made.settle()
    assert herder.slot_counts() == {"y": 3, "z": 1}
    assert herder.slot_counts() is herder.slot_counts(), "counted once for each record"
    with pytest.raises(ConnectRefusal, match="2 connectors, its limit"):
        made.ask(4, PutConnector("x", SOURCE))
    # Those that there are may change at the limit.
    made.ask(8, PatchConnector("z", {"text": "x"}))
    made.settle()
    answer = made.answers[8]
    assert (answer.status, answer.body) == (200, herder.info("z"))
    assert herder.configs.connectors["z"] == {**SINK, "tasks.max": "1", "text": "x"}
    base = len(connector_record("z", {**SINK, "text": ""})[1] or b"")
    made.ask(5, PutConnector("z", {**SINK, "text": "x" * (150 - base)}))
    with pytest.raises(ConnectRefusal, match="has 151 bytes; the limit is 150"):
        made.ask(6, PutConnector("z", {**SINK, "text": "x" * (151 - base)}))
    with pytest.raises(ConnectRefusal, match="no connector type"):
        made.ask(7, PutConnector("z", {"name": "z"}))
    with pytest.raises(ConnectRefusal, match="no connector type"):
        made.ask(7, PatchConnector("z", {"connector.class": None}))


def test_levels_hold_on_workers_that_come_later() -> None:
    made = group("w1")
    made.ask(1, SetLevel("a.b", "DEBUG"))
    made.settle()
    assert made.answers[1].status == 204
    made.log.append((b"logger-cluster-a.c", b"[]"))
    made.settle()
    made.join("w2")
    made.round()
    assert made.levels == {"w1": {"a.b": "DEBUG"}, "w2": {"a.b": "DEBUG"}}
    made.log.append((b"logger-cluster-a.b", None))
    made.settle()
    assert made.levels["w1"] == {"a.b": "DEBUG"}, "Kafka Connect resets none either"


def test_requests_of_a_leader_of_before_are_answered() -> None:
    made = group()
    made.ask(1, PutConnector("x", SOURCE))
    herder = made.members["w1"].herder
    effects = herder.on_round((), until=0, generation=9, is_leader=False, now_ms=0)
    (answer,) = [each for each in effects if isinstance(each, RequestAnswer)]
    assert (answer.request, answer.status) == (1, 409)
    assert "another leader" in str(answer.body)
    assert not [e for e in herder.tick(REQUEST_TIMEOUT_MS) if isinstance(e, RequestAnswer)]


def test_a_worker_decides_nothing_before_its_first_round() -> None:
    herder = Herder("w1", PluginsOfTests())
    assert (herder.is_leader, herder.generation, herder.starts) == (False, 0, StartCounts())
    assert (herder.slot_counts(), herder.tick(10**9)) == ({}, [])
    dealt = [connector_record("y", SINK), *task_records("y", [SINK])]
    for record in (*dealt, (b"logger-cluster-a", b'{"level":"DEBUG"}')):
        assert herder.replayed(*record, 0, 0) == []
    with pytest.raises(ConnectRefusal, match="does not lead"):
        herder.asked(1, DeleteConnector("y"), 0)


def test_a_source_with_more_parts_than_the_limit_fails_and_keeps_its_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dealing, "PARTS_MAX", 5)
    made = group("w1")
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    herder = made.members["w1"].herder
    assert (herder.starts.successes, herder.starts.failures) == (1, 0)
    made.parts["x"] = [*PARTS, {"p": "f"}]
    made.tick(DISCOVER_MS)
    made.settle()
    assert state(made, "x") is ConnectorState.FAILED
    assert "6 parts are more than 5" in str(herder.status("x")["connector"])
    assert made.readers("x") == list("abcde")
    assert (herder.starts.successes, herder.starts.failures) == (1, 0), "it has started before"
    made.parts["x"] = PARTS[:2]
    made.tick(DISCOVER_MS)
    made.settle()
    assert (state(made, "x"), made.readers("x")) == (ConnectorState.RUNNING, ["a", "b"])


def test_a_connector_may_change_its_tasks_at_the_limit_of_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(herder_module, "TASKS_MAX", 4)
    made = group("w1")
    for number, count in enumerate("34414"):
        made.ask(number, PutConnector("y", {**SINK, "tasks.max": count}))
        made.settle()
        assert len(made.running()) == int(count)
        assert state(made, "y") is ConnectorState.RUNNING


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


def test_the_state_that_a_request_names_is_that_of_a_new_connector_alone() -> None:
    made = group("w1")
    herder = made.members["w1"].herder
    made.ask(1, PutConnector("y", SINK, target=TargetState.PAUSED))
    made.settle()
    assert set(made.running().values()) == {True}
    for number, target in enumerate((TargetState.STOPPED, None, TargetState.STARTED), 2):
        made.ask(number, PutConnector("y", {**SINK, "n": str(number)}, target=target))
        made.settle()
        assert herder.configs.target("y") is TargetState.PAUSED
        assert made.answers[number].status == 200
    made.ask(5, PutConnector("z", SINK, target=None))
    made.settle()
    assert (herder.configs.target("z"), made.answers[5].status) == (TargetState.STARTED, 201)


def test_a_request_and_a_discovery_wait_for_half_a_minute() -> None:
    made = group("w1")
    made.ask(1, SetLevel("a", "DEBUG"))
    made.tick(29_999)
    assert made.answers == {}
    made.tick(1)
    assert made.answers[1].status == 500
    made.ask(2, PutConnector("x", SOURCE))
    made.settle()
    made.tick(29_999)
    assert not made.discoveries
    made.tick(1)
    assert len(made.discoveries) == 1


@pytest.mark.parametrize("request_", [DeleteConnector("x"), SetTarget("x", TargetState.STOPPED)])
def test_a_source_that_is_gone_or_stopped_is_asked_no_more(request_: Request) -> None:
    made = group("w1")
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    made.ask(2, request_)
    made.settle()
    made.tick(DISCOVER_MS)
    assert not made.discoveries


steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 2)),
        st.tuples(st.just("discover"), st.just(0)),
        st.tuples(st.just("round"), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 2)),
        st.tuples(st.just("join"), st.integers(0, 2)),
        st.tuples(st.just("parts"), st.integers(0, 5)),
        st.tuples(st.just("tick"), st.sampled_from([500, 40_000])),
        st.tuples(st.just("put"), st.integers(1, 4)),
        st.tuples(st.just("delete"), st.just(0)),
        st.tuples(st.just("target"), st.integers(0, 2)),
        st.tuples(st.just("fail"), st.integers(0, 3)),
        st.tuples(st.just("restart"), st.integers(0, 1)),
        st.tuples(st.just("compact"), st.just(0)),
    ),
    max_size=40,
)


def test_a_leader_of_before_asks_no_source_for_its_parts() -> None:
    made = group("w1")
    made.ask(1, PutConnector("x", SOURCE))
    made.settle()
    herder = made.members["w1"].herder
    for is_leader in (False, True):
        until = made.members["w1"].position
        round_ = {"until": until, "generation": 7, "now_ms": 0}
        list(herder.on_round((), is_leader=is_leader, **round_))
        asked = [each for each in herder.tick(DISCOVER_MS) if isinstance(each, Discover)]
        # A leader asks in the round that makes it one, and waits for the answer.
        assert asked == []


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


def test_settings_that_are_put_again_keep_their_tasks_over_a_compaction() -> None:
    made = group()
    for number in range(2):
        made.ask(number, PutConnector("x", SOURCE, is_new=not number))
        made.settle()
    was = dict(made.running())
    made.compact()
    made.kill("w2")
    made.join("w3")
    made.round()
    made.settle()
    assert made.readers("x") == list("abcde")
    assert made.running() == was


def test_a_dealing_of_fewer_tasks_is_whole_after_a_compaction() -> None:
    made = group("w1")
    for number, tasks in enumerate("31"):
        made.ask(number, PutConnector("x", {**SOURCE, "tasks.max": tasks}))
        made.settle()
    made.compact()
    length = len(made.log)
    made.kill("w1")
    made.join("w2")
    made.round()
    made.settle()
    assert made.readers("x") == list("abcde")
    assert len(made.log) == length, "it is not dealt again"


@given(steps)
def test_in_every_life_parts_have_at_most_one_reader_and_exactly_one_in_the_end(
    life: list[tuple[str, int]],
) -> None:
    made = group("w0", "w1", "w2")
    for number, (what, by) in enumerate(life):
        step(made, number, what, by)
        read = made.readers("x")
        assert len(read) == len(set(read)), "a part has two readers"
    made.round()
    made.tick(400_000)
    made.settle()
    made.tick(400_000)
    made.settle()
    herder = made.members[made.leader].herder
    target = herder.configs.target("x")
    is_there = "x" in herder.configs.connectors and target is not TargetState.STOPPED
    assert made.readers("x") == (sorted(part["p"] for part in made.parts["x"]) if is_there else [])
    assert all(is_paused == (target is TargetState.PAUSED) for is_paused in made.running().values())
    made.compact()
    newcomer = ConnectConfigs()
    for offset, record in enumerate(made.log):
        if record is not None:
            newcomer.replay(*record, offset)
    assert newcomer.tasks.get("x", []) == herder.configs.tasks.get("x", [])
    assert (newcomer.connectors, newcomer.targets) == (
        herder.configs.connectors,
        herder.configs.targets,
    )
    assert not newcomer.inconsistent & newcomer.connectors.keys()


def step(made: HerderGroup, number: int, what: str, by: int) -> None:  # noqa: C901, PLR0912 - a case for each event
    """One event of a life; what is not possible at the moment is left out."""
    name = f"w{by}"
    herder = made.members[made.leader].herder if made.leader in made.members else None
    try:
        match what:
            case "read" if name in made.members:
                made.read(name)
            case "discover" if made.discoveries:
                made.discover()
            case "round":
                made.round()
            case "kill" if name in made.members and len(made.members) > 1:
                made.kill(name)
                made.wants_round = True
                if name == made.leader:
                    made.round()
            case "join" if name not in made.members:
                made.join(name)
                made.wants_round = True
            case "compact":
                made.compact()
            case "parts":
                made.parts["x"] = PARTS[:by]
            case "tick":
                made.tick(by)
            case "put" if herder:
                made.ask(number, PutConnector("x", {**SOURCE, "tasks.max": str(by)}))
            case "delete" if herder:
                made.ask(number, DeleteConnector("x"))
            case "target" if herder:
                made.ask(number, SetTarget("x", list(TargetState)[by]))
            case "fail":
                made.fail(ConnectorSlot("x", by))
            case "restart" if herder:
                made.ask(number, RestartConnector("x", include_tasks=True, only_failed=bool(by)))
            case _:
                pass
    except ConnectRefusal:
        pass
