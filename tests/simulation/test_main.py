"""`python -m simulation`: its report of many lives, and of a violation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulation import __main__ as program
from simulation.levels import LEVELS
from simulation.life import Life


def test_lives_are_counted_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert program.main(["echo", "--seeds", "3", "--jobs", "1", "--report", str(report)]) == 0
    assert "echo: 3 lives" in capsys.readouterr().out
    found = json.loads(report.read_text())
    assert found["levels"][0]["lives"] == 3
    assert found["levels"][0]["violations"] == {}
    assert found["seeds"] == {"first": 0, "count": 3}


def test_a_violation_names_the_seed_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bad(seed: int) -> Life:
        violations = ("a record is lost",) if seed == 2 else ()
        return Life(seed=seed, events=1, counts={}, violations=violations, story=("kill b0",))

    monkeypatch.setitem(LEVELS, "bad", bad)
    assert program.main(["bad", "--seeds", "4", "--jobs", "1"]) == 1
    found = capsys.readouterr().out
    assert "SEED=2 LEVELS=bad" in found
    assert "a record is lost" in found
    assert "kill b0" in found


def test_an_unknown_level_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["nothing"]) == 2
    assert "echo" in capsys.readouterr().out


def test_a_long_run_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "PROGRESS_MS", 0)
    assert program.main(["echo", "--seeds", "3", "--jobs", "1"]) == 0
    assert "echo: 2 of 3 lives so far, 0 with violations" in capsys.readouterr().out


def test_a_seed_is_lived_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lived: list[int] = []

    def told(seed: int) -> Life:
        lived.append(seed)
        return Life(seed=seed, events=1, counts={}, trace="abc")

    monkeypatch.setitem(LEVELS, "told", told)
    assert program.main(["told", "--seed", "7"]) == 0
    assert "trace abc" in capsys.readouterr().out
    assert lived == [7]
