"""The programs of docs/joins.md type-check and behave as described."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM, NAMED = re.findall(r"```python\n(.*?)```", (ROOT / "docs/joins.md").read_text(), re.DOTALL)


def test_the_stream_join_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_global_table_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_named.py").write_text(NAMED)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_named")
    with module.app.test() as t:
        t.input(module.airlines).send("United", key="UA")
        t.input(module.flights).send("UA1545", key="N14228")
        t.input(module.flights).send("XX1", key="N1")
        assert t.output(module.named).values == ["UA1545 (United)", "XX1 (unknown)"]
