"""The program of docs/keys-and-partitions.md runs and finds its rows."""

from __future__ import annotations

import asyncio
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
(PROGRAM,) = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/keys-and-partitions.md").read_text(), re.DOTALL
)


def test_the_program_finds_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_keys.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_keys")
    with module.app.test(partitions=4) as t:
        t.input(module.users).send("Ada", key="u0")
        assert asyncio.run(module.by_name.fetch("u0")) == "Ada"
