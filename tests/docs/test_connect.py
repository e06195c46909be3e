"""The programs of docs/connect.md behave as described; its connectors are as short as promised."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM, SOURCE, SINK, CHECKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/connect.md").read_text(), re.DOTALL
)
SOURCE_LINES_MAX, SINK_LINES_MAX = 40, 50


def code_lines(program: str) -> int:
    body = program[program.index("class ") :]
    return len([line for line in body.splitlines() if line.strip()])


def test_the_tests_of_the_page_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_connect.py").write_text(f"{PROGRAM}\n{SOURCE}\n{SINK}\n{CHECKS}")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_connect")
    module.test_hits()
    for name in ("lines", "hits"):
        (tmp_path / name).mkdir()
    # So that the leader finds both parts.
    for name in ("a.log", "b.log"):
        (tmp_path / "lines" / name).touch()
    module.test_every_line_is_read_once(tmp_path / "lines")
    module.test_every_hit_is_written_once(tmp_path / "hits")


def test_a_source_takes_forty_lines_and_a_sink_fifty() -> None:
    assert code_lines(SOURCE) <= SOURCE_LINES_MAX
    assert code_lines(SINK) <= SINK_LINES_MAX
