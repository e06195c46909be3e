"""The names that docs/coming-from.md promises exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import streamlog

TEXT = (Path(__file__).parent.parent.parent / "docs/coming-from.md").read_text()
ROWS = [line.split("|")[2] for line in TEXT.splitlines() if line.startswith("| ")]
NAMES = sorted(
    {name for row in ROWS for name in re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)?)`", row)}
)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "streamlog"])
def test_a_promised_name_exists(name: str) -> None:
    owner, _, member = name.partition(".")
    if member:
        assert hasattr(getattr(streamlog, owner), member)
    else:
        assert hasattr(streamlog, owner)


def test_the_app_in_faust_works_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "visits.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("visits")
    with module.app.test() as t:
        for page in ("home", "cart", "home"):
            t.input(module.visits).send(module.Visit(page, 3), key="ann")
        assert t.table(module.counts) == {"home": 2, "cart": 1}
        t.advance("30s")
        assert sorted(capsys.readouterr().out.splitlines()) == ["cart 1", "home 2"]
        t.advance("1d")
        assert t.table(module.counts) == {"home": 0, "cart": 1}
