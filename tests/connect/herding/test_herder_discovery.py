"""Herder: when a source is asked for its parts, and how new ones are dealt."""

from __future__ import annotations

import pytest

from streamlog.connect.herding import dealing
from streamlog.connect.herding.configs import TASK_PARTS, connector_record, task_records
from streamlog.connect.herding.herder import DISCOVER_EVERY, DISCOVER_MS
from streamlog.connect.herding.herder_requests import (
    DeleteConnector,
    Discover,
    PutConnector,
    Request,
    SetLevel,
    SetTarget,
)
from streamlog.connect.herding.lifecycle import ConnectorState, TargetState
from tests.connect.herding.herder_group import PARTS, SOURCE, group, state


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


def test_a_source_says_how_often_it_is_asked_for_its_parts() -> None:
    for text, due_ms in (("50", 50), ("50x", DISCOVER_MS), ("9" * 13, DISCOVER_MS)):
        made = group("w1")
        made.ask(1, PutConnector("x", {**SOURCE, DISCOVER_EVERY: text}))
        made.settle()
        made.tick(due_ms - 1)
        assert not made.discoveries
        made.tick(1)
        assert len(made.discoveries) == 1


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
