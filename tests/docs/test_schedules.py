"""The program of docs/schedules.md behaves as described."""

from __future__ import annotations

import importlib
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
(PROGRAM,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/schedules.md").read_text(), re.DOTALL)


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "documented_shop.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_shop")
    with module.app.test(start=datetime(2025, 1, 1, 1, 29, 10, tzinfo=UTC)) as t:
        t.advance("1m")
    assert capsys.readouterr().out.splitlines() == [
        "once in each worker, when it begins to work",
        "every 30 seconds, on one worker",
        "the day that ended before 2025-01-01 02:30:00+01:00",
        "on each worker",
        "every 30 seconds, on one worker",
    ]
