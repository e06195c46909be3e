"""`python -m simulation`: what it tells of many lives, and of one that has gone wrong."""

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
    told = json.loads(report.read_text())
    assert told["levels"][0]["lives"] == 3
    assert told["levels"][0]["violations"] == {}
    assert told["seeds"] == {"first": 0, "count": 3}


def test_a_violation_names_the_seed_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bad(seed: int) -> Life:
        violations = ("a record is lost",) if seed == 2 else ()
        return Life(seed=seed, events=1, counts={}, violations=violations, story=("kill b0",))

    monkeypatch.setitem(LEVELS, "bad", bad)
    assert program.main(["bad", "--seeds", "4", "--jobs", "1"]) == 1
    told = capsys.readouterr().out
    assert "SEED=2 LEVELS=bad" in told
    assert "a record is lost" in told
    assert "kill b0" in told


def test_a_level_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["nothing"]) == 2
    assert "echo" in capsys.readouterr().out
