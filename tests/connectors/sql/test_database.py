"""Which errors of a database may pass."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from streamlog.connect import Retriable
from streamlog.connectors.sql.database import Database, open_database


def opened(path: Path, *pragmas: str) -> Database:
    database = open_database(f"sqlite:///{path}", None, None)
    database.connect()
    for each in pragmas:
        database.execute(f"pragma {each}")
    return database


@pytest.mark.parametrize("pragma", ["max_page_count = 2", "query_only = on"])
def test_a_full_or_read_only_disk_may_pass(tmp_path: Path, pragma: str) -> None:
    opened(tmp_path / "db", "page_size = 512").execute("create table t (v text)")
    database = opened(tmp_path / "db", pragma)
    with pytest.raises(Retriable), database.guarded(), database.transaction():
        database.insert("t", ["v"], [("x" * 1_000,)] * 100)
    database.execute("pragma query_only = off")
    assert database.execute("select count(*) from t").fetchall() == [(0,)]


def test_the_fault_of_a_row_does_not_pass(tmp_path: Path) -> None:
    database = opened(tmp_path / "db")
    database.execute("create table t (v text not null)")
    with pytest.raises(sqlite3.IntegrityError), database.guarded(), database.transaction():
        database.insert("t", ["v"], [(None,)])
