"""What docs/serdes.md shows type-checks (with those of `tests/typed`), and reads what was there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from streamlog.serdes import serde_for

ROOT = Path(__file__).parent.parent.parent
(PROGRAM,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/serdes.md").read_text(), re.DOTALL)


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_till.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_till")
    assert serde_for(module.Total).loads(b'{"cents":150}') == module.Total(1.5)
    with module.app.test() as t:
        t.input(module.sales).send(250, key="a")
        assert t.table(module.totals) == {"a": module.Total(2.5, 1)}


def test_the_program_type_checks() -> None:
    accepted = ROOT / "tests/typed/accepted/till.py"
    assert PROGRAM in accepted.read_text()
