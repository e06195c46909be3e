"""What docs/joins.md shows type-checks, and does what it says."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
(PROGRAM,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/joins.md").read_text(), re.DOTALL)


def test_the_program_type_checks(tmp_path: Path) -> None:
    path = tmp_path / "checkout.py"
    path.write_text(PROGRAM)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", path],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stdout


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_checkout.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_checkout")
    with module.app.test() as t:
        t.input(module.rates).send(module.Rate(2.0), key="a", at=1_000)
        t.input(module.rates).send(module.Rate(3.0), key="a", at=9_000)
        t.input(module.orders).send(module.Order(10), key="a", at=5_000)
        t.input(module.orders).send(module.Order(20), key="b", at=6_000)
        t.input(module.payments).send(module.Payment(10), key="a", at=7_000)
        assert t.output(module.outcomes).values == ["paid"]
        t.input(module.orders).send(module.Order(30), key="c", at=6_000 + 16 * 60_000 + 1)
        assert t.output(module.outcomes).values == ["paid", "open"]
        assert t.output(module.valued).values == [20.0, 20.0, 30.0]
