"""The program of docs/windows.md type-checks and behaves as described."""

from __future__ import annotations

import importlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/windows.md").read_text(), re.DOTALL)
MINUTE = timedelta(minutes=1)


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_thermometers.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_thermometers")
    start = datetime(2025, 3, 29, 23, tzinfo=UTC)
    with module.app.test() as t:
        for minute in (1, 6, 11, 3, 1_379, 1_441):
            reading = module.Reading(float(minute))
            t.input(module.readings).send(reading, key="hall", at=start + minute * MINUTE)
        first = [
            ((r.key.start - start) // MINUTE, r.value.readings, r.value.highest)
            for r in t.output(module.moving).records[:6]
        ]
        # After 2 minutes two have changed, and one closes at 6; after 8 two more, and one closes.
        assert first == [
            (-5, 1, 1.0), (0, 1, 1.0), (-5, 1, 1.0), (0, 2, 6.0), (5, 1, 6.0), (0, 2, 6.0)
        ]  # fmt: skip
        late = [(each.value.celsius, each.late_by) for each in t.output(module.too_late).values]
        assert late == [(3.0, 5 * MINUTE), (3.0, timedelta(0))]
        # The day on which clocks go forward has 23 hours.
        (day,) = t.output(module.daily).records
        assert (day.key.start, day.key.end) == (start, start + timedelta(hours=23))
        assert day.value == 5
