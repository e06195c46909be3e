"""Faults and changes of a PostgreSQL server while it is read: the tables are equal behind them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg
import pytest

from streamlog.connect import Retriable
from tests.connectors.postgres_cdc.test_table_capture import (
    Log,
    Shop,
    live,
    read_on,
    reading_of,
    shop,
)
from tests.connectors.runs import on_loop
from tests.servers.postgres import PostgresServer
from tests.worker.commit_steps import IS_THOROUGH

__all__ = ["shop"]
pytestmark = pytest.mark.skipif(not IS_THOROUGH, reason="restarts servers, and reads 100 MB")


def insert(key: int, item: str) -> str:
    return f"INSERT INTO orders VALUES ({key}, '{item}', 1)"  # noqa: S608 - the test's own texts


@on_loop
async def test_a_value_of_100_mb(shop: Shop) -> None:
    shop.run("ALTER TABLE orders ALTER item SET STORAGE EXTERNAL")
    source, log = shop.source(), Log()
    await live(shop, source, log, until=[])
    shop.run("INSERT INTO orders VALUES (1, repeat('0123456789', 10000000), 1)")
    await live(shop, source, log, until=shop.rows())
    # The server does not send it again, as it did not change: it is read by the key.
    shop.run("UPDATE orders SET price = 2", "INSERT INTO orders VALUES (2, 'b', 1)")
    await live(shop, source, log, until=shop.rows())
    assert len(log.table[1]["item"]) == 100_000_000


@on_loop
async def test_a_server_that_stops_in_the_middle_of_transactions() -> None:
    with PostgresServer() as server:
        shop, log = Shop(server), Log()
        source = shop.source()
        shop.insert(1, 10)
        await live(shop, source, log, until=shop.rows())
        for number, again in enumerate((server.restart, server.kill_and_restart) * 2):
            first = 100 * number + 100
            name = f"prepared {number}"
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(server.dsn(shop.name)) as open_,
            ):
                open_.execute("INSERT INTO orders VALUES (%s, 'lost with it', 1)", (first,))
                shop.run(
                    "BEGIN", insert(first + 1, "prepared"),
                    "SAVEPOINT s", insert(first + 2, "undone"),
                    "ROLLBACK TO s", f"PREPARE TRANSACTION '{name}'",
                )  # fmt: skip
                shop.insert(first + 10, first + 20)
                async with reading_of(shop, source, log) as reading:
                    log.take(await anext(reading))
                    restarted = asyncio.create_task(asyncio.to_thread(again))
                    with pytest.raises(Retriable):
                        await read_on(reading, log)
                    await restarted
            shop.connect()
            shop.run(f"COMMIT PREPARED '{name}'")
            await live(shop, source, log, until=shop.rows())
            assert first not in log.table
            assert log.table[first + 1]["item"] == "prepared"
        shop.db.close()


@on_loop
async def test_columns_that_are_dropped_and_made_again_with_another_type(shop: Shop) -> None:
    source, log = shop.source(), Log()
    shop.insert(1, 4)
    await live(shop, source, log, until=shop.rows())
    # All in one go, so that a reader meets the old rows long after the columns have changed.
    shop.run(
        "UPDATE orders SET item = 'text' WHERE id = 1",
        "ALTER TABLE orders DROP COLUMN item",
        "ALTER TABLE orders ADD COLUMN item INT",
        "UPDATE orders SET item = 7 WHERE id = 1",
        "ALTER TABLE orders ALTER price TYPE TEXT USING 'p' || price",
        "UPDATE orders SET price = price || '!' WHERE id IN (1, 2)",
        "ALTER TABLE orders RENAME COLUMN price TO cost",
        "UPDATE orders SET cost = cost || '?' ",
        "ALTER TABLE orders ADD COLUMN size INT[] DEFAULT '{1,2}'",
        "UPDATE orders SET size = '{3}' WHERE id = 3",
    )
    await live(shop, source, log, until=[(1, "p1.00!?", 7), (2, "p1.00!?", None), shop.rows()[-1]])
    assert log.table[1] == {"id": 1, "cost": "p1.00!?", "item": 7}
    assert log.table[3] == {"id": 3, "cost": "p1.00?", "item": None, "size": [3]}
    texts = [each["item"] for each in log.values if each and each["id"] == 1]
    assert texts == ["x", "text", 7, 7, 7]
