"""The program of docs/topics-by-pattern.md, and its test, run as they stand there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs/topics-by-pattern.md"
PROGRAM, TEST = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_program_passes_the_test_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "documented_patterns.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_patterns")
    exec(TEST, vars(module))  # noqa: S102 - the page's own lines
    assert capsys.readouterr().out.splitlines() == ["orders-eu ann 5", "orders-us ann 2"]
