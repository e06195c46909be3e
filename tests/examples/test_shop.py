"""The shop: its app on the test driver, and the whole demonstration with real servers."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from examples.shop.app import Product, app, lines, minutes, products, purchases
from tests.servers.server_process import program

ROOT = Path(__file__).parent.parent.parent
OPENING = datetime(2026, 11, 28, 9, tzinfo=UTC)


def line(at_s: int, product: int, quantity: int) -> bytes:
    at = OPENING + timedelta(seconds=at_s)
    fields = {
        "id": f"{at_s}",
        "time_s": at.timestamp(),
        "product": product,
        "quantity": quantity,
    }
    return msgspec.json.encode(fields)


def test_a_purchase_has_the_price_of_its_time_although_the_change_comes_late() -> None:
    with app.test() as t:
        t.input(products).send(Product(1, "tea", Decimal("2.00")), key=1, at=OPENING)
        t.source("nginx").give(line(10, 1, 3), line(20, 1, 1))
        changed = Product(1, "tea", Decimal("2.50"))
        t.input(products).send(changed, key=1, at=OPENING + timedelta(seconds=15))
        # Later purchases end the wait of the first two.
        t.source("nginx").give(line(40, 1, 0), line(80, 1, 0))
        assert len(t.output(purchases).values) == 4
        row = t.output(minutes).values[-1]
        assert (row.purchases, row.pieces, row.revenue) == (3, 4, Decimal("8.50"))
        assert t.sink("report").values[-1] == row
    assert lines.name == "access-log"


@pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough",
    reason="a minute of clients who buy: with STREAMLOG_PROFILE=thorough, or `make demo-connect`",
)
def test_the_demonstration_is_right_over_kills_of_the_worker_and_the_database(
    tmp_path: Path,
) -> None:
    program("nginx", "nginx")
    program("initdb", "postgresql")
    result = subprocess.run(
        [sys.executable, "-m", "examples.shop", "--chaos", "--seconds", "20"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "150"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 kills of the worker, 1 crash of PostgreSQL" in result.stdout
    assert "of the report equal DuckDB's" in result.stdout
