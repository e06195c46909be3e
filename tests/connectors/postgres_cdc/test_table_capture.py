"""PostgresCdc against a real server: the log's table is the database's, whatever ends a reader."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import psycopg
import pytest

from streamlog.connect import ConnectError, Read, Retriable
from streamlog.connectors.postgres_cdc import PostgresCdc
from streamlog.connectors.postgres_cdc.chunked_snapshot import TableChunk
from streamlog.connectors.postgres_cdc.wal_stream import TableQueries
from streamlog.errors import ConfigError
from tests.connectors.runs import RealContext, on_loop
from tests.servers.postgres import PostgresServer
from tests.servers.server_process import wait_until

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, item TEXT, price NUMERIC(9, 2))"
UPSERT = """
    INSERT INTO orders VALUES (%s, 'new', %s) ON CONFLICT (id) DO UPDATE SET item = 'newer'"""


class Shop:
    """A database with a table, and a source that reads it."""

    db: psycopg.Connection | None = None

    def __init__(self, server: PostgresServer, table: str = ORDERS) -> None:
        self.server = server
        self.name = server.create_database()
        self.connect()
        self.run(table)

    def connect(self) -> None:
        if self.db is not None:
            self.db.close()
        self.db = psycopg.connect(self.server.dsn(self.name), autocommit=True)

    def run(self, *statements: str) -> None:
        for each in statements:
            self.db.execute(each.encode())

    def source(self, **settings: object) -> PostgresCdc:
        given = {"url": self.server.url(self.name), "tables": ("public.orders",), "slot": self.name}
        return PostgresCdc(**{**given, "status_interval": "100ms", **settings})

    def insert(self, start: int, stop: int) -> None:
        """Insert rows in one transaction."""
        query = "INSERT INTO orders SELECT n, 'x', 1 FROM generate_series(%s::int, %s) n"
        self.db.execute(query, (start, stop - 1))

    def is_free(self) -> bool:
        """Whether no process of the server reads the slot; the last one ends a moment later."""
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        return (True,) not in self.db.execute(query, (self.name,)).fetchall()

    def rows(self) -> list[tuple[object, ...]]:
        return self.db.execute("SELECT * FROM orders ORDER BY id").fetchall()

    def confirmed(self) -> str:
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        return str(self.db.execute(query, (self.name,)).fetchall()[0][0])


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[Shop]:
    made = Shop(postgres)
    yield made
    made.db.close()


class Log:
    """What the log has of a source, over several lives."""

    def __init__(self) -> None:
        self.offset: dict[str, object] | None = None
        self.table: dict[object, object] = {}
        self.values: list[object] = []
        self.context = RealContext()

    def take(self, read: Read) -> None:
        for record in read.records(datetime.now(UTC)):
            self.values.append(record.value)
            # Of form "changes", a key is a dict; these tests ask for its values alone then.
            if record.value is None:
                self.table.pop(record.key if isinstance(record.key, int) else 0, None)
            else:
                self.table[record.key if isinstance(record.key, int) else 0] = record.value
        self.offset = msgspec.json.decode(msgspec.json.encode(read.offset))
        if read.committed is not None:
            read.committed()

    def rows(self) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for _, row in sorted(self.table.items())]


def reading_of(shop: Shop, source: PostgresCdc, log: Log) -> aclosing:
    """Return one life of the source, behind what the log has."""
    wait_until(shop.is_free, "the end of the life before")
    return aclosing(source.read({}, log.offset, log.context))


async def live(
    shop: Shop, source: PostgresCdc, log: Log, *, until: object, reads: int = 1_000
) -> None:
    """Read until the log has the rows, `reads` times at most."""
    async with reading_of(shop, source, log) as reading:
        for _ in range(reads):
            if log.offset is not None and log.rows() == until and is_copied(log):
                return
            log.take(await anext(reading))


async def read_on(reading: AsyncIterator[Read], log: Log) -> None:
    """Read without end."""
    async for read in reading:
        log.take(read)


def is_copied(log: Log) -> bool:
    assert log.offset is not None
    return "public.orders" in log.offset["snapshot"]["done"]


@on_loop
async def test_rows_then_changes_are_the_table(shop: Shop) -> None:
    shop.run("INSERT INTO orders SELECT n, 'item ' || n, n / 4.0 FROM generate_series(1, 7) n")
    log = Log()
    await live(shop, shop.source(), log, until=shop.rows())
    assert log.table[2] == {"id": 2, "item": "item 2", "price": Decimal("0.50")}
    shop.run(
        "UPDATE orders SET item = 'new' WHERE id < 3",
        "DELETE FROM orders WHERE id = 4",
        "UPDATE orders SET id = 40 WHERE id = 5",
        "INSERT INTO orders VALUES (41, NULL, NULL)",
    )
    await live(shop, shop.source(), log, until=shop.rows())
    assert log.rows() == shop.rows()


@on_loop
async def test_lives_that_end_anywhere_lose_and_repeat_nothing(shop: Shop) -> None:
    """With form "changes", every change is a value: none may be missing, none come twice."""
    chance = random.Random(7)
    source = shop.source(form="changes", snapshot="never")
    log = Log()
    await live(shop, source, log, until=None, reads=1)
    number = 0
    for _ in range(8):
        for _ in range(chance.randrange(4)):
            count = chance.choice([1, 3, 2_500])
            shop.insert(number, number + count)
            number += count
        async with reading_of(shop, source, log) as reading:
            for _ in range(chance.randrange(4)):
                if len(log.values) >= number:
                    break
                read = await anext(reading)
                if chance.random() < 0.3:
                    # Killed before its transaction counts.
                    break
                log.take(read)
    async with reading_of(shop, source, log) as reading:
        while len(log.values) < number:
            log.take(await anext(reading))
    assert [value["after"]["id"] for value in log.values] == list(range(number))


@on_loop
async def test_a_table_that_changes_while_it_is_copied(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlog.connectors.postgres_cdc.chunked_snapshot.CHUNK_ROWS", 20)
    shop.run("INSERT INTO orders SELECT n, 'old', 1 FROM generate_series(1, 200) n")
    chance, log, source = random.Random(3), Log(), shop.source()
    for _ in range(40):
        async with reading_of(shop, source, log) as reading:
            for _ in range(chance.randrange(1, 4)):
                key = chance.randrange(1, 220)
                shop.db.execute(UPSERT, (key, key))
                shop.db.execute("DELETE FROM orders WHERE id = %s", (chance.randrange(1, 220),))
                log.take(await anext(reading))
        if is_copied(log):
            break
    await live(shop, source, log, until=shop.rows())
    assert log.rows() == shop.rows()


@on_loop
async def test_the_next_rows_are_read_while_the_log_takes_the_last_ones(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlog.connectors.postgres_cdc.chunked_snapshot.CHUNK_ROWS", 20)
    shop.run("INSERT INTO orders SELECT n, 'old', 1 FROM generate_series(1, 60) n")
    read_chunk, done = TableQueries.read_chunk, threading.Semaphore(0)

    def noted(queries: TableQueries, *arguments: Any) -> TableChunk:
        found = read_chunk(queries, *arguments)
        done.release()
        return found

    monkeypatch.setattr(TableQueries, "read_chunk", noted)
    log = Log()
    async with reading_of(shop, shop.source(), log) as reading:
        while not log.table:
            log.take(await anext(reading))
        assert len(log.table) == 20
        # Nobody asks the source for more, and the second chunk comes all the same.
        for _ in range(2):
            assert await asyncio.to_thread(done.acquire, timeout=30)
        # It is older than these, as its marks stand before them.
        shop.run(
            "UPDATE orders SET item = 'new' WHERE id % 2 = 0", "DELETE FROM orders WHERE id = 31"
        )
        log.take(await anext(reading))
    await live(shop, shop.source(), log, until=shop.rows())
    assert log.rows() == shop.rows()


@on_loop
async def test_a_chunk_whose_connection_breaks_is_told_at_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("INSERT INTO orders SELECT n, 'old', 1 FROM generate_series(1, 20) n")
    read_chunk = TableQueries.read_chunk

    def cut(queries: TableQueries, *arguments: Any) -> TableChunk:
        shop.run(f"SELECT pg_terminate_backend({queries.connection.info.backend_pid})")
        return read_chunk(queries, *arguments)

    log = Log()
    with monkeypatch.context() as patch:
        patch.setattr(TableQueries, "read_chunk", cut)
        # Long before the stream would wake up for its next status.
        source = shop.source(status_interval="30s")
        async with asyncio.timeout(20), reading_of(shop, source, log) as reading:
            with pytest.raises(Retriable, match="the database"):
                await read_on(reading, log)
    await live(shop, shop.source(), log, until=shop.rows())
    assert log.rows() == shop.rows()


@on_loop
async def test_the_slot_keeps_what_the_log_has_not(shop: Shop) -> None:
    source, log = shop.source(snapshot="never"), Log()
    async with reading_of(shop, source, log) as reading:
        log.take(await anext(reading))
        before = shop.confirmed()
        shop.run("INSERT INTO orders VALUES (1, 'a', 1)")
        read = await anext(reading)
        while not read.records(datetime.now(UTC)):
            log.take(read)
            read = await anext(reading)
        assert log.offset is not None
        held = log.offset["lsn"]
        shop.run("INSERT INTO orders VALUES (2, 'b', 1)")
        await anext(reading)
        assert before <= shop.confirmed() <= str(held)
    await live(shop, source, log, until=[(1, "a", Decimal("1.00")), (2, "b", Decimal("1.00"))])


@on_loop
async def test_values_out_of_line_are_never_null(shop: Shop) -> None:
    long = "x" * 10_000
    shop.run("ALTER TABLE orders ALTER item SET STORAGE EXTERNAL")
    shop.db.execute("INSERT INTO orders VALUES (1, %s, 1)", (long,))
    log = Log()
    await live(shop, shop.source(), log, until=shop.rows())
    shop.run("UPDATE orders SET price = 2 WHERE id = 1")
    await live(shop, shop.source(), log, until=shop.rows())
    assert log.table[1]["item"] == long
    shop.run("UPDATE orders SET price = 3 WHERE id = 1")
    await live(shop, shop.source(toast="mark"), log, until=[(1, "__unchanged", Decimal("3.00"))])
    shop.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    shop.run("UPDATE orders SET price = 4 WHERE id = 1")
    await live(shop, shop.source(toast="mark"), log, until=shop.rows())
    assert log.table[1]["item"] == long


@on_loop
async def test_changes_have_debeziums_envelope(shop: Shop) -> None:
    shop.run("ALTER TABLE orders REPLICA IDENTITY FULL", "INSERT INTO orders VALUES (1, 'a', 1)")
    source, log = shop.source(form="changes", on_truncate="event"), Log()
    async with reading_of(shop, source, log) as reading:
        while len(log.values) < 1:
            log.take(await anext(reading))
        shop.run(
            "UPDATE orders SET item = 'b'",
            "UPDATE orders SET id = 2",
            "DELETE FROM orders",
            "TRUNCATE orders",
        )
        while len(log.values) < 8:
            log.take(await anext(reading))
    found = [
        None if each is None else (each["op"], each["before"], each["after"]) for each in log.values
    ]
    first, changed, moved = (
        {"id": number, "item": item, "price": Decimal("1.00")}
        for number, item in ((1, "a"), (1, "b"), (2, "b"))
    )
    assert found == [
        ("r", None, first), ("u", first, changed), ("d", changed, None), None,
        ("c", None, moved), ("d", moved, None), None, ("t", None, None),
    ]  # fmt: skip
    source_info = log.values[1]["source"]
    assert (source_info["schema"], source_info["table"], source_info["snapshot"]) == (
        "public", "orders", "false",
    )  # fmt: skip


@on_loop
async def test_columns_that_come_and_go(shop: Shop) -> None:
    shop.run("INSERT INTO orders VALUES (1, 'a', 1)")
    log = Log()
    await live(shop, shop.source(), log, until=shop.rows())
    shop.run(
        "ALTER TABLE orders ADD COLUMN size INT DEFAULT 5",
        "INSERT INTO orders VALUES (2, 'b', 1, 6)",
        "ALTER TABLE orders DROP COLUMN item",
        "UPDATE orders SET price = 7 WHERE id = 1",
    )
    rows = [(1, Decimal("7.00"), 5), (2, "b", Decimal("1.00"), 6)]
    await live(shop, shop.source(), log, until=rows)
    assert log.table[1] == {"id": 1, "price": Decimal("7.00"), "size": 5}


@on_loop
async def test_transactions_that_roll_back_or_are_prepared(shop: Shop) -> None:
    source, log = shop.source(), Log()
    shop.run(
        "BEGIN", "INSERT INTO orders VALUES (1, 'prepared', 1)", "PREPARE TRANSACTION 'p'",
        "BEGIN", "INSERT INTO orders VALUES (2, 'rolled back', 1)", "ROLLBACK",
        "BEGIN", "INSERT INTO orders VALUES (3, 'kept', 1)", "SAVEPOINT s",
        "INSERT INTO orders VALUES (4, 'undone', 1)", "ROLLBACK TO s",
        "INSERT INTO orders VALUES (5, 'sub', 1)", "COMMIT",
    )  # fmt: skip
    shop.run("COMMIT PREPARED 'p'")
    await live(shop, source, log, until=shop.rows())
    shop.run("BEGIN", "INSERT INTO orders VALUES (9, 'late', 1)", "PREPARE TRANSACTION 'q'")
    shop.run("INSERT INTO orders VALUES (10, 'early', 1)")
    await live(shop, source, log, until=shop.rows())
    shop.run("COMMIT PREPARED 'q'")
    await live(shop, source, log, until=shop.rows())
    assert [row[0] for row in log.rows()] == [1, 3, 5, 9, 10]


@on_loop
async def test_a_server_that_crashes_and_restarts() -> None:
    with PostgresServer() as server:
        shop = Shop(server)
        shop.run("INSERT INTO orders SELECT n, 'a', 1 FROM generate_series(1, 100) n")
        source, log = shop.source(), Log()
        await live(shop, source, log, until=shop.rows())
        for again in (server.kill_and_restart, server.restart):
            async with reading_of(shop, source, log) as reading:
                shop.run("UPDATE orders SET price = price + 1")
                log.take(await anext(reading))
                # A fast shutdown waits until the reader has confirmed everything.
                restarted = asyncio.create_task(asyncio.to_thread(again))
                with pytest.raises(Retriable):
                    await read_on(reading, log)
                await restarted
            shop.connect()
            shop.run("UPDATE orders SET price = price + 1")
            await live(shop, source, log, until=shop.rows())
        shop.db.close()


@on_loop
async def test_what_the_server_lacks_is_named(shop: Shop) -> None:
    async def refused(**settings: object) -> str:
        with pytest.raises((ConfigError, ConnectError)) as caught:
            await live(shop, shop.source(**settings), Log(), until=[])
        return str(caught.value)

    assert "table public.gone does not exist" in await refused(tables=("public.gone",))
    assert "publication streamlog does not exist: CREATE" in await refused(create_slot=False)
    shop.run("CREATE PUBLICATION streamlog FOR TABLE orders")
    assert "slot" in await refused(create_slot=False)
    shop.run("CREATE TABLE keyless (a INT)")
    assert "has no primary key" in await refused(tables=("public.keyless",))
    assert "does not send its primary key" in await refused_identity(shop, refused)
    log = Log()
    source = shop.source()
    await live(shop, source, log, until=[])
    async with reading_of(shop, source, log) as reading:
        shop.run("INSERT INTO orders VALUES (1, 'a', 1)")
        log.take(await anext(reading))
        with pytest.raises(Retriable, match="is read by process"):
            await anext(source.read({}, None, log.context))
        shop.run("TRUNCATE orders")
        with pytest.raises(ConnectError, match=r"TRUNCATE of public\.orders"):
            await read_on(reading, log)
    wait_until(shop.is_free, "the end of the life before")
    shop.run(f"SELECT pg_drop_replication_slot('{shop.name}')")
    with pytest.raises(ConfigError, match="need a new snapshot"):
        await live(shop, source, log, until=None)
    assert log.offset is not None
    log.offset["system"] = "7"
    with pytest.raises(ConfigError, match="this is another database"):
        await live(shop, source, log, until=None)


async def refused_identity(shop: Shop, refused: Callable[[], Awaitable[str]]) -> str:
    shop.run("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    found: str = await refused()
    shop.run("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    return found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "mysql://host/db"}, "write postgresql://"),
        ({"url": "postgresql://u:geheim@host/db"}, r"set password=Secret"),
        ({"tables": ()}, "name one at least"),
        ({"tables": ("orders",)}, "with its schema"),
        ({"tables": ("a.b", "a.b")}, "a.b is there twice"),
        ({"slot": "My-Slot"}, "lower-case letters"),
        ({"publication": ""}, "lower-case letters"),
        ({"on_truncate": "event"}, "needs form='changes'"),
        ({"status_interval": "1m"}, "30s at most"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    given: dict[str, object] = {"url": "postgresql://host/db", "tables": ("public.orders",)}
    with pytest.raises(ConfigError, match=message) as caught:
        PostgresCdc(**{**given, **settings}).check()
    assert "geheim" not in str(caught.value)
