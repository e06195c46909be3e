"""Workload: random changes of two tables that have a column of each type.

`plain` has the default replica identity, so its updates have no row before; `whole` has FULL.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import psycopg

TYPES: Final = {
    "small": ("SMALLINT", ["-32768", "0", "7"]),
    "number": ("INTEGER", ["-2147483648", "42"]),
    "large": ("BIGINT", ["9223372036854775807", "-1"]),
    "price": ("NUMERIC(9, 2)", ["12.50", "-0.01", "9999999.99"]),
    "rate": ("NUMERIC", ["0.125", "-1234567890123456789.5", "100"]),
    "single": ("REAL", ["1.5", "-0.25"]),
    "precise": ("DOUBLE PRECISION", ["0.1", "-1e300"]),
    "word": ("TEXT", ["''", "'w\u00f6rd \U0001f600'", "'a\\nb'"]),
    "short": ("VARCHAR(20)", ["'abc'"]),
    "padded": ("CHAR(5)", ["'ab'"]),
    "flag": ("BOOLEAN", ["true", "false"]),
    "data": ("BYTEA", ["'\\x00ff10'", "''"]),
    "day": ("DATE", ["'2026-01-02'", "'1969-12-31'", "'0001-01-01'"]),
    "clock": ("TIME", ["'03:04:05.678901'", "'00:00'"]),
    "clock3": ("TIME(3)", ["'03:04:05.678'"]),
    "moment": ("TIMESTAMP", ["'2026-01-02 03:04:05.678901'", "'1960-01-01'"]),
    "moment3": ("TIMESTAMP(3)", ["'2026-01-02 03:04:05.678'"]),
    "zoned": ("TIMESTAMPTZ", ["'2026-01-02 03:04:05.678901+02'", "'2026-01-02 03:04:05Z'"]),
    "id2": ("UUID", ["'123e4567-e89b-12d3-a456-426614174000'"]),
    "document": ("JSON", ["""'{"a": [1, null]}'"""]),
    "binary_document": ("JSONB", ["""'{"b": {"c": 1.50}}'"""]),
    "numbers": ("INTEGER[]", ["'{1,NULL,-3}'", "'{}'"]),
    "words": ("TEXT[]", ["""'{"a b",NULL,""}'"""]),
    "mood": ("mood", ["'happy'", "'sad'"]),
    "address": ("INET", ["'10.0.0.1/8'"]),
    "wrapped": ("positive", ["7"]),
}  # fmt: skip
PREPARATION: Final = (
    "CREATE TYPE mood AS ENUM ('happy', 'sad')",
    "CREATE DOMAIN positive AS INTEGER CHECK (VALUE > 0)",
    "CREATE TABLE plain (id INTEGER PRIMARY KEY, {columns})",
    "CREATE TABLE whole (id INTEGER, part TEXT, {columns}, PRIMARY KEY (id, part))",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
)
END: Final = -1
"""The id of the last row of each table, behind which nothing follows."""


def assignments(chance: Random) -> dict[str, str]:
    """Return columns with random values as SQL has them."""
    names = chance.sample(sorted(TYPES), chance.randint(1, len(TYPES)))
    return {
        name: "NULL" if chance.random() < 0.2 else chance.choice(TYPES[name][1]) for name in names
    }


def statements(chance: Random, count: int) -> Iterator[str]:
    """Yield statements that change the tables."""
    for _ in range(count):
        table, key = chance.choice(["plain", "whole"]), chance.randint(1, 30)
        values = assignments(chance)
        own = {"id": f"{key}", **({"part": f"'p{key % 3}'"} if table == "whole" else {})}
        kind = chance.choice(["insert"] * 4 + ["update"] * 3 + ["delete", "move"])
        if kind == "insert":
            row = {**own, **values}
            # Names and values are those above.
            yield (
                f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(row.values())}) "
                "ON CONFLICT DO NOTHING"
            )
        elif kind == "delete":
            yield f"DELETE FROM {table} WHERE id = {key}"
        else:
            changes = ", ".join(f"{name} = {value}" for name, value in values.items())
            moved = f", id = id + {chance.randint(100, 10**6)}" if kind == "move" else ""
            yield f"UPDATE {table} SET {changes}{moved} WHERE id = {key}"


def work(database: psycopg.Connection, chance: Random, count: int) -> None:
    """Change the tables, in transactions of some statements of which some roll back."""
    todo = list(statements(chance, count))
    while todo:
        size = chance.choice([1, 1, 3, 20])
        now, todo = todo[:size], todo[size:]
        with database.transaction(force_rollback=chance.random() < 0.1):
            for each in now:
                with database.transaction(force_rollback=chance.random() < 0.1):
                    database.execute(each.encode())


def prepare(database: psycopg.Connection) -> None:
    """Create the tables."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    for each in PREPARATION:
        database.execute(each.format(columns=columns).encode())


def end(database: psycopg.Connection) -> None:
    """Write the last row of each table."""
    database.execute(b"INSERT INTO plain (id) VALUES (-1)")
    database.execute(b"INSERT INTO whole (id, part) VALUES (-1, 'end')")


def row_count(database: psycopg.Connection) -> int:
    """Return the number of rows of both tables."""
    query = b"SELECT (SELECT count(*) FROM plain) + (SELECT count(*) FROM whole)"
    found: int = database.execute(query).fetchall()[0][0]
    return found
