"""Databases to test against: SQLite in a file, a real PostgreSQL and a real MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest

from streamlog.connect import Batch, Schema, TopicPartition
from streamlog.connectors.sql.database import Database, open_database
from streamlog.record import Record

T = TypeVar("T")
KINDS = ("sqlite", "postgres", "mariadb")
NOW = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
PLACE = TopicPartition("orders", 0)


def url_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    server = request.getfixturevalue(kind)
    found: str = server.url(server.create_database())
    return found


def connected(url: str) -> Database:
    database = open_database(url, None, None)
    database.connect()
    return database


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    """Return the rows of a query."""
    database = connected(url)
    try:
        return [tuple(row) for row in database.execute(statement).fetchall()]
    finally:
        database.close()


def run(url: str, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    database = connected(url)
    for each in statements:
        with database.transaction():
            database.execute(each)
    database.close()


def batch(
    values: Sequence[tuple[object, object]],
    first: int = 0,
    schema: Schema | None = None,
    key_schema: Schema | None = None,
    place: TopicPartition = PLACE,
) -> Batch[object, object]:
    """Return a batch of keys and values with offsets from `first` on."""
    records = [
        Record(key, value, NOW, topic=place.topic, partition=place.partition, offset=first + at)
        for at, (key, value) in enumerate(values)
    ]
    following = first + len(records)
    return Batch(place, records, next_offset=following, schema=schema, key_schema=key_schema)


class Surroundings:
    """What a connector gets from its runtime: a name, a clock, a thread."""

    name = "orders-out"
    task = 0

    def now(self) -> datetime:
        return NOW

    async def in_thread(self, fn: Callable[..., T], *args: object) -> T:
        return fn(*args)

    def count(self, what: str, by: int = 1) -> None:
        pass
