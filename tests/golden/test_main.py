"""The command on cases of this file: results, reports, and runs on workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.__main__ import main

COUNT = [
    {"id": "s", "op": "stream", "topic": "in"},
    {"id": "g", "op": "group_by", "of": "s", "by": {"fn": "value_as_key"}},
    {"id": "w", "op": "window", "of": "g", "type": "tumbling", "size": 10, "grace": 2},
    {"id": "c", "op": "count", "of": "w", "emit": "on_close"},
    {"id": "o", "op": "sink", "of": "c", "topic": "out"},
]


def input_of(value: str | None, ts: int, topic: str = "in") -> dict[str, Any]:
    return {"topic": topic, "key": "k", "value": value, "ts": ts}


def row(value: Any, ts: int, after: int, **more: Any) -> dict[str, Any]:
    return {"key": "a", "value": value, "ts": ts, "after": after, **more}


def case(name: str, outputs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a case that counts windows on close, with a restart before the first closes."""
    inputs = [
        input_of("a", 1),
        input_of("a", 9),
        input_of("b", 11),
        {"control": "restart"},
        input_of("a", 12),
    ]
    return {
        "id": name,
        "category": "ours",
        "strictness": "core",
        "emit": "on_update",
        "topology": COUNT,
        "inputs": [*inputs, input_of("b", 5), input_of("a", 30)],
        "expect": {"outputs": outputs, "order": "per_key", "min_order": "per_key"},
        **more,
    }


CLOSED = [
    row(2, 9, 4, window=[0, 10]),
    row(1, 12, 6, window=[10, 20]),
    {"key": "b", "value": 1, "ts": 11, "after": 6, "window": [10, 20]},
]


def write_cases(path: Path, *cases: dict[str, Any]) -> str:
    path.write_text(json.dumps({"cases": cases}))
    return str(path)


@pytest.mark.parametrize("runner", ["driver", "worker"])
def test_a_case_with_a_restart_passes_on_both_runners(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runner: str
) -> None:
    path = write_cases(tmp_path / "cases.json", case("closed", CLOSED))
    assert main([path, "--runner", runner]) == 0, capsys.readouterr().out
    assert "1 passed, 0 core and 0 quirk cases did not" in capsys.readouterr().out


def test_a_failed_core_case_is_reported_and_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = case("wrong", [row(3, 9, 4, window=[0, 10]), *CLOSED[1:]])
    path = write_cases(tmp_path / "cases.json", case("right", CLOSED), wrong)
    assert main([path]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ours/wrong failed: wanted [out: 'a'@0-10 = 3 at 9 after input 4]")
    assert lines[1].split() == ["ours", "core", "1", "passed,", "1", "failed"]
    assert main([path, "--id", "right"]) == 0


def test_a_failed_quirk_case_is_named_but_does_not_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = case("other", CLOSED[1:], strictness="quirk", quirks=["diamond-duplicates"])
    assert main([write_cases(tmp_path / "cases.json", other)]) == 0
    assert "ours/other [quirk: diamond-duplicates] failed" in capsys.readouterr().out


def test_an_unknown_operation_is_missing_and_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = case("unknown", CLOSED, topology=[{"id": "x", "op": "shuffle", "of": "s"}])
    assert main([write_cases(tmp_path / "cases.json", unknown)]) == 1
    assert "ours/unknown missing: operation 'shuffle'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"kind": "moon_phase", "queries": []}, "fact 'moon_phase'"),
        ({"queries": []}, "without the field 'kind'"),
        ({"kind": "murmur2"}, "without the field 'queries'"),
        ({"kind": "murmur2", "queries": [{"key": "21"}]}, "without the field 'hash'"),
        ({"kind": "murmur2", "queries": [{"hash": 1}]}, "without the field 'key'"),
        ({"kind": "config", "queries": [{"spec": "moon", "valid": True}]}, "'config' of 'moon'"),
        ({"kind": "config", "queries": [{"spec": "session", "valid": True}]}, "the field 'gap'"),
        ({"kind": "window_close", "queries": [{"window": [0, 9], "size": 9}]}, "'stream_time'"),
        ({"kind": "windows_for", "queries": [{"type": "moon", "ts": 1}]}, "moon windows"),
        ({"kind": "windowed_key_bytes", "queries": [{"type": "session"}]}, "the field 'end'"),
    ],
)
def test_an_unknown_fact_is_missing_and_known_ones_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fact: dict[str, Any], message: str
) -> None:
    more = {"category": "facts", "strictness": "core"}
    known = {"kind": "murmur2", "queries": [{"key": "21", "hash": -973932308}]}
    path = write_cases(
        tmp_path / "cases.json",
        {"id": "unknown", "fact": fact, **more},
        {"id": "known", "fact": known, **more},
    )
    assert main([path]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("facts/unknown missing: ")
    assert message in lines[0]
    assert lines[1].split() == ["facts", "core", "1", "passed,", "1", "missing"]


def test_facts_are_checked_by_the_public_api(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = [
        {"size": 10, "grace": 3, "window": [0, 10], "stream_time": 12, "closed": False},
        {"size": 10, "grace": 3, "window": [0, 10], "stream_time": 13, "closed": True},
    ]
    fact = {"kind": "window_close", "type": "tumbling", "queries": queries}
    more = {"category": "facts", "strictness": "core"}
    sliding = {"difference": 10, "grace": 3, "window": [0, 10]}
    session = {"gap": 5, "grace": 3, "window": [0, 10]}
    more_queries = [
        {"type": "sliding", **sliding, "stream_time": 13, "closed": False},
        {"type": "sliding", **sliding, "stream_time": 14, "closed": True},
        {"type": "session", **session, "stream_time": 18, "closed": False},
        {"type": "session", **session, "stream_time": 19, "closed": True},
    ]
    graces = [(3, 5, True), (6, 5, False), (1, None, False)]
    configured = [
        {"spec": "stream_table_grace", "grace": grace, "valid": valid}
        | ({} if history is None else {"history": history})
        for grace, history, valid in graces
    ]
    configured += [
        {"spec": "join_window", "before": -3, "after": 3, "grace": 0, "valid": True},
        {"spec": "join_window", "before": -4, "after": 3, "grace": 0, "valid": False},
        {"spec": "join_window", "before": 3, "after": 3, "grace": -1, "valid": False},
        {"spec": "join_partitions", "left": 2, "right": 2, "valid": True},
        {"spec": "join_partitions", "left": 2, "right": 3, "valid": False},
        {"spec": "sliding", "difference": -1, "grace": 0, "valid": False},
        {"spec": "session", "gap": 5, "grace": 0, "valid": True},
        {"spec": "session", "gap": -5, "grace": 0, "valid": False},
    ]
    hashed = {"kind": "murmur2", "queries": [{"key": "21", "hash": -973932308}]}
    path = write_cases(
        tmp_path / "cases.json",
        {"id": "close", "fact": fact, **more},
        {"id": "more", "fact": {"kind": "window_close", "queries": more_queries}, **more},
        {"id": "config", "fact": {"kind": "config", "queries": configured}, **more},
        {"id": "hash", "fact": hashed, **more},
    )
    assert main([path]) == 0, capsys.readouterr().out
