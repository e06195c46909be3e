"""The program of docs/processors.md type-checks and behaves as described."""

from __future__ import annotations

import importlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
(PROGRAM,) = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/processors.md").read_text(), re.DOTALL
)


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "documented_watchdog.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_watchdog")
    start = datetime(2025, 1, 1, tzinfo=UTC)
    with module.app.test() as t:
        for device, minute in (("a", 0), ("b", 0), ("b", 4), ("b", 61)):
            beat = module.Beat(1.0)
            t.input(module.beats).send(beat, key=device, at=start + timedelta(minutes=minute))
        alarms = t.output(module.alarms).values
    assert alarms == [module.Alarm("a", 300.0), module.Alarm("b", 300.0)]
    assert capsys.readouterr().out == "2025-01-01 01:00:00+00:00 devices: 2\n"
