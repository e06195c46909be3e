"""Herder: what a group of workers decides about its connectors."""

from __future__ import annotations

import pytest

from streamlog.connect.herding import herder as herder_module
from streamlog.connect.herding.configs import connector_record, task_records
from streamlog.connect.herding.herder import REQUEST_TIMEOUT_MS, REQUESTS_MAX, Herder
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    ConnectRefusal,
    DeleteConnector,
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
from tests.connect.herding.herder_group import SINK, SOURCE, PluginsOfTests, group, state


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
