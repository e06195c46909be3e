"""Herder: what a group of workers decides about its connectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.herding.configs import ConnectConfigs
from streamlog.connect.herding.herder import REQUEST_TIMEOUT_MS, REQUESTS_MAX
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    ConnectRefusal,
    DeleteConnector,
    PatchConnector,
    PutConnector,
    Request,
    RestartConnector,
    RestartTask,
    SetTarget,
)
from streamlog.connect.herding.lifecycle import ConnectorState, TargetState
from tests.connect.herding.herder_group import HerderGroup

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
    with pytest.raises(ConnectRefusal, match="Unknown task: y-7"):
        made.ask(4, RestartTask(ConnectorSlot("y", 7)))


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
