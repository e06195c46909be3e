"""Values that a column would round are refused, and no others; the databases say which."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Dialect

from streamlog.connect import BadRecord
from streamlog.connectors.sql.column_adapters import Adapter, adapt_rows, adapter_of
from streamlog.connectors.sql.table_columns import TableColumns, read_columns
from tests.connectors.sql.databases import KINDS, connected, url_of

COLUMNS = {
    "whole": "BIGINT",
    "small": "NUMERIC(30, 2)",
    "scaled": "NUMERIC(30, 9)",
    "single": "REAL",
    "wide": "DOUBLE PRECISION",
}


def some_values(seed: int) -> list[Any]:
    """Return integers and decimals of all lengths, and texts that spell them."""
    chosen = random.Random(seed)
    integers = [sign * (2**bits + more) for bits in (0, 23, 24, 25, 52, 53, 54)
                for more in (-1, 0, 1) for sign in (1, -1)]  # fmt: skip
    integers += [chosen.getrandbits(10) << chosen.randrange(42) for _ in range(10)]
    decimals = [Decimal(chosen.randrange(10**9)).scaleb(-chosen.randrange(14)) for _ in range(40)]
    decimals += [Decimal(each) for each in ("0", "-0.00", "1.500", "0.1", "1E+3", "1.00E-2")]
    return [*integers, *decimals, *map(str, decimals)]


def takes(name: str, table: TableColumns, dialect: Dialect, value: Any) -> bool:
    adapter = adapter_of(name, table.types[name], dialect)
    if type(value) in adapter.passes:
        return True
    try:
        adapter.adapt(value)
    except BadRecord as error:
        return f"column {name} (" not in str(error)
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_refused_if_the_database_would_store_another(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database = connected(url_of(kind, request, tmp_path))
    columns = ", ".join(f"{name} {text}" for name, text in COLUMNS.items())
    with database.transaction():
        database.execute(f"CREATE TABLE numbers (id INTEGER, {columns})")
    table = read_columns(database, "numbers", None)
    assert table is not None
    dialect, values = database.engine.dialect, some_values(0)
    for name in COLUMNS:
        # COPY reads text, so PostgreSQL itself refuses a fraction in a column of integers.
        if kind == "postgres" and name == "whole":
            continue
        with database.transaction():
            database.execute("DELETE FROM numbers")
            database.insert("numbers", ("id", name), [(at, str(v)) for at, v in enumerate(values)])
        found = database.execute(f"SELECT {name} FROM numbers ORDER BY id").fetchall()  # noqa: S608
        for value, (stored,) in zip(values, found, strict=True):
            held = Decimal(repr(stored) if isinstance(stored, float) else stored)
            is_exact, is_taken = held == Decimal(value), takes(name, table, dialect, value)
            # A float of 4 bytes is exact for some numbers of more than six digits.
            is_strict = name == "single" and not is_taken
            assert is_taken == is_exact or is_strict, (name, value, stored)
    database.close()


def test_only_columns_that_need_it_are_adapted() -> None:
    rows = [(1, "a", None), (2, "b", 3)]
    as_is = Adapter(str, frozenset({int, str}))
    assert adapt_rows(rows, [as_is, as_is, as_is]) is rows
    assert adapt_rows(rows, [as_is, as_is, Adapter(str)]) == [(1, "a", None), (2, "b", "3")]
