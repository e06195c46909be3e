"""Values of a snapshot and of the stream, held against the rows as psycopg reads them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import psycopg
import pytest
from psycopg.types.json import Jsonb

from streamlog.connectors.postgres_cdc import PostgresCdc
from tests.connectors.postgres_cdc.test_table_capture import Log, Shop, reading_of
from tests.connectors.runs import on_loop
from tests.servers.postgres import PostgresServer

TABLE = """
    CREATE TABLE orders (
        name TEXT, part SMALLINT, number BIGINT, flag BOOL, note TEXT, fixed CHAR(5), data BYTEA,
        tags TEXT[], grid INT[], amount NUMERIC, ratio FLOAT8, doc JSONB, at TIMESTAMPTZ,
        PRIMARY KEY (name, part))"""
PIECES = ["\t", "\n", "\r", "\r\n", "\\", "\\N", "\\.", "\\\\n", '"', "'", "''", ",", "{", "}",
          " ", "\b", "\f", "\v", "\x01", "\x7f", "%s", "$1", "NULL", "n", "ä", "😀",
          "x" * 300]  # fmt: skip
"""What COPY, arrays and quotes each escape in a way of their own."""


def text_of(chance: random.Random) -> str:
    return "".join(chance.choices(PIECES, k=chance.choice((0, 1, 1, 2, 5))))


def row_of(chance: random.Random, part: int) -> tuple[object, ...]:
    def maybe(value: object) -> object:
        return None if chance.random() < 0.2 else value

    return (
        text_of(chance),
        part,
        maybe(chance.choice((0, -1, 2**63 - 1, -(2**63), 10**18, 10**18 - 1, 1 - 10**18))),
        maybe(chance.random() < 0.5),
        maybe(text_of(chance)),
        maybe(chance.choice(("", "a", "\\N", "\t\\\n"))),
        maybe(chance.randbytes(chance.choice((0, 1, 40)))),
        maybe([maybe(text_of(chance)) for _ in range(chance.randrange(4))]),
        maybe([[1, None], [-3, 4]]),
        maybe(Decimal(chance.choice(("NaN", "-0.10", "0", "1e40", "123456789012345678.5")))),
        maybe(chance.choice((float("nan"), float("inf"), -0.0, 1e-300, 0.1))),
        maybe(Jsonb({"text": text_of(chance), "list": [None, 1.5, True]})),
        maybe(datetime(2026, 2, 28, 23, 59, 59, chance.randrange(10**6), tzinfo=UTC)),
    )


def comparable(row: tuple[object, ...]) -> tuple[object, ...]:
    """Return a row that equals itself: NaN does not, and -0.0 equals 0.0."""
    return tuple(repr(each) if isinstance(each, float | Decimal) else each for each in row)


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[Shop]:
    made = Shop(postgres, TABLE)
    yield made
    made.db.close()


async def read_values(shop: Shop, source: PostgresCdc, log: Log, count: int) -> list[object]:
    """Return the values of the next `count` records."""
    log.values.clear()
    async with reading_of(shop, source, log) as reading:
        while len(log.values) < count:
            log.take(await anext(reading))
    return log.values


@pytest.mark.parametrize("form", ["rows", "changes"])
@on_loop
async def test_values_are_those_that_psycopg_reads(
    shop: Shop, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Keys with quotes and backslashes go back to the server, as where the next chunk begins.
    monkeypatch.setattr("streamlog.connectors.postgres_cdc.chunked_snapshot.CHUNK_ROWS", 40)
    chance = random.Random(5)
    rows = [row_of(chance, part) for part in range(200)]
    with shop.db.cursor() as cursor:
        marks = b", ".join([b"%s"] * len(rows[0]))
        cursor.executemany(b"INSERT INTO orders VALUES (%b)" % marks, rows)
    log, source = Log(), shop.source(form=form)
    for operation in ("r", "u"):
        found = await read_values(shop, source, log, len(rows))
        if form == "changes":
            assert {each["op"] for each in found} == {operation}
            found = [each["after"] for each in found]
        wanted = rows_by_part(shop.db)
        assert {each["part"]: comparable(tuple(each.values())) for each in found} == wanted
        assert (len(found), len(wanted)) == (len(rows), len(rows))
        # Once more, by the stream.
        shop.run("UPDATE orders SET flag = NOT flag, note = note || E'\\\\\\t'")


def rows_by_part(db: psycopg.Connection) -> dict[object, tuple[object, ...]]:
    db.execute("SET TimeZone = 'UTC'")
    return {row[1]: comparable(row) for row in db.execute("SELECT * FROM orders").fetchall()}
