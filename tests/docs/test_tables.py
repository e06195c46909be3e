"""The programs of docs/tables.md type-check and behave as described."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM, SHOP = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tables.md").read_text(), re.DOTALL)


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_sales.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_sales")
    with module.app.test() as t:
        t.input(module.orders).send(module.Order("c1", 5), key="o1")
        t.input(module.customers).send(module.Customer("Ann", "Rome"), key="c1")
        t.input(module.limits).send(100, key="c1")
        t.input(module.orders).send(module.Order("c1", 7), key="o2")
        t.input(module.orders).send(module.Order("c2", 5), key="o1")
        assert t.output(module.labels).values == [
            "5 for somebody", "5 for Ann", "7 for Ann", "5 for somebody",
        ]  # fmt: skip
        assert t.table(module.limited) == {"c1": "Ann up to 100"}
        assert t.table(module.sums) == {"c1": module.Sum(1, 7), "c2": module.Sum(1, 5)}


def test_the_program_that_writes_a_table_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "documented_tally.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_tally")
    with module.app.test() as t:
        t.input(module.sales).send(250, key="pen")
        t.input(module.sales).send(50, key="pen")
        t.advance("1h")
        assert t.table(module.totals) == {"pen": 300, "reported": 1}
    assert capsys.readouterr().out == "pen 300\n"
