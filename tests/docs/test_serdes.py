"""The programs of docs/serdes.md type-check (in `tests/typed`) and read older data."""

from __future__ import annotations

import importlib
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from streamlog import Windowed
from streamlog.serdes import serde_for

ROOT = Path(__file__).parent.parent.parent
WINDOWED, REGISTERED, BY_HAND, PROGRAM = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/serdes.md").read_text(), re.DOTALL
)


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_till.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_till")
    assert serde_for(module.Total).loads(b'{"cents":150}') == module.Total(1.5)
    with module.app.test() as t:
        t.input(module.sales).send(250, key="a")
        assert t.table(module.totals) == {"a": module.Total(2.5, 1)}


def test_windowed_keys_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_report.py").write_text(WINDOWED)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_report")
    nine = datetime(2025, 1, 1, 9, tzinfo=UTC)
    with module.app.test() as t:
        t.input(module.hourly).send(4, key=Windowed("till", nine, nine + timedelta(hours=1)))
        assert t.output(module.lines).pop().value == "4 from 09:00 to 10:00"


def test_a_topic_with_a_schema_needs_no_registry_in_a_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "documented_invoices.py").write_text(REGISTERED)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_invoices")
    invoice = module.Invoice("n-1", datetime(2025, 1, 1, tzinfo=UTC), Decimal("12.50"))
    with module.app.test() as t:
        t.input(module.invoices).send(invoice, key="n-1")
        assert t.output(module.invoices).values == [invoice]


def test_a_schema_by_hand_describes_dicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_orders_by_hand.py").write_text(BY_HAND)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_orders_by_hand")
    order = {"id": "o-1", "lines": [{"sku": "a", "price": 1.5}, {"sku": "b", "price": 2.0}]}
    with module.app.test() as t:
        t.input(module.orders).send(order, key="o-1")
        assert t.output(module.amounts).values == [3.5]


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (PROGRAM, "till"),
        (WINDOWED, "report"),
        (REGISTERED, "invoices"),
        (BY_HAND, "orders_by_hand"),
    ],
)
def test_the_programs_type_check(program: str, name: str) -> None:
    assert program in (ROOT / f"tests/typed/accepted/{name}.py").read_text()
