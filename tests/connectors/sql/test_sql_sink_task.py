"""SqlSink against SQLite, PostgreSQL and MariaDB: rows once, zombies fenced, tables made to fit."""

from __future__ import annotations

import asyncio
import enum
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from streamlog.connect import BadRecords, Fenced, Retriable, Schema, TopicPartition
from streamlog.connectors.sql import SqlSink
from streamlog.connectors.sql.database import open_database
from streamlog.connectors.sql.sql_sink_task import SqlSinkTask, SqlWriter
from streamlog.errors import ConfigError
from tests.connectors.sql.databases import KINDS, NOW, PLACE, Surroundings, batch, rows, run, url_of
from tests.servers.postgres import PostgresServer
from tests.servers.server_process import wait_until

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR(40), price INTEGER)"
ALL = "SELECT id, item, price FROM orders ORDER BY id"


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def sink_of(url: str, **settings: object) -> SqlSink:
    keyed = {"insert_mode": "upsert", "pk_mode": "record_key", "pk_fields": ("id",)}
    return SqlSink(url=url, **{**keyed, "delete_enabled": True, **settings})


def writer_of(sink: SqlSink) -> SqlWriter:
    writer = SqlWriter(sink, "orders-out", open_database(*sink.login))
    writer.connect()
    return writer


def order(item: str, price: int = 1) -> dict[str, object]:
    return {"item": item, "price": price}


def test_upserts_and_deletions_keep_their_order(url: str) -> None:
    run(url, ORDERS)
    writer = writer_of(sink_of(url))
    assert writer.recover([PLACE]) == {}
    changes = [(1, order("a")), (2, order("b")), (1, order("c")), (2, None), (2, order("d", 7))]
    writer.begin()
    writer.write(batch(changes))
    writer.write(batch([(3, {"item": "e"}), (1, None), (4, None)], first=5))
    writer.commit({PLACE: 8})
    writer.close()
    assert rows(url, ALL) == [(2, "d", 7), (3, "e", None)]
    again = writer_of(sink_of(url))
    assert again.recover([PLACE, TopicPartition("orders", 1)]) == {PLACE: 8}
    again.close()


def test_what_is_aborted_leaves_nothing(url: str) -> None:
    run(url, ORDERS)
    writer = writer_of(sink_of(url))
    writer.recover([PLACE])
    writer.begin()
    writer.write(batch([(1, order("a"))]))
    writer.abort()
    writer.abort()
    writer.begin()
    writer.write(batch([(2, order("b"))]))
    writer.commit({PLACE: 2})
    writer.close()
    assert rows(url, ALL) == [(2, "b", 1)]


def test_a_zombie_can_not_commit_and_its_rows_are_gone(url: str) -> None:
    run(url, ORDERS)
    zombie, successor = writer_of(sink_of(url)), writer_of(sink_of(url))
    zombie.recover([PLACE])
    successor.recover([PLACE])
    zombie.begin()
    zombie.write(batch([(1, order("old"))]))
    with pytest.raises(Fenced, match="another task has taken over"):
        zombie.commit({PLACE: 1})
    zombie.abort()
    successor.begin()
    successor.write(batch([(2, order("new"))]))
    successor.commit({PLACE: 1})
    zombie.close()
    successor.close()
    assert rows(url, ALL) == [(2, "new", 1)]


@pytest.mark.parametrize("counts", [True, False])
def test_a_commit_without_an_answer_counts_once(
    url: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(url, "CREATE TABLE orders (item VARCHAR(40), price INTEGER)")
    writer = writer_of(SqlSink(url=url))
    writer.recover([PLACE])
    with monkeypatch.context() as patch:

        def commit_and_lose() -> None:
            if counts:
                writer.database.connection.commit()
            raise Retriable("the connection is lost")

        patch.setattr(writer.database, "commit", commit_and_lose)
        writer.begin()
        writer.write(batch([(None, order("a")), (None, order("b"))]))
        with pytest.raises(Retriable):
            writer.commit({PLACE: 2})
        writer.abort()
    writer.begin()
    writer.write(batch([(None, order("a")), (None, order("b")), (None, order("c"))]))
    writer.commit({PLACE: 3})
    writer.close()
    assert sorted(rows(url, "SELECT item FROM orders")) == [("a",), ("b",), ("c",)]


def test_a_zombie_that_reconnects_is_fenced_before_it_writes(url: str) -> None:
    run(url, ORDERS)
    zombie = writer_of(sink_of(url))
    zombie.recover([PLACE])
    zombie.database.close()
    zombie.abort()
    successor = writer_of(sink_of(url))
    successor.recover([PLACE])
    successor.close()
    zombie._is_confirmed = False
    with pytest.raises(Fenced):
        zombie.begin()
    zombie.close()


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Everything:
    number: int
    share: float
    text: str
    raw: bytes
    yes: bool
    price: Decimal
    day: date
    at: datetime
    token: UUID
    tags: list[str]
    colour: Colour
    took: timedelta
    note: str | None = None


EVERYTHING = Everything(
    2**40,
    0.5,
    "täxt %s ?",
    b"\x00\xff",
    True,
    Decimal("12.340"),
    date(2026, 1, 2),
    NOW,
    UUID(int=7),
    ["a", 'b"'],
    Colour.RED,
    timedelta(milliseconds=5),
)


def test_a_missing_table_is_created_and_takes_every_type(url: str) -> None:
    sink = SqlSink(
        url=url, table="all %s {topic}", auto_create=True, insert_mode="upsert",
        pk_mode="record_key", pk_fields=("id",),
    )  # fmt: skip
    writer = writer_of(sink)
    writer.recover([PLACE])
    writer.begin()
    schema, key = Schema.of(Everything), Schema.of(str)
    writer.write(batch([("k", EVERYTHING), ("K", EVERYTHING)], schema=schema, key_schema=key))
    writer.commit({PLACE: 2})
    name = writer.database.quoted("all %s orders")
    writer.close()
    wanted = "SELECT id, number, text, raw, price, at, note"
    found = rows(url, f"{wanted} FROM {name} ORDER BY id")
    assert len(found) == 2
    _, number, text, raw, price, at, note = found[1]
    assert (number, text, bytes(raw), note) == (2**40, "täxt %s ?", b"\x00\xff", None)
    assert Decimal(price) == Decimal("12.34")
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    assert moment.replace(tzinfo=moment.tzinfo or UTC) == NOW


def test_a_record_without_a_key_is_a_row_of_a_table_that_was_created(url: str) -> None:
    writer = writer_of(SqlSink(url=url, table="orders", auto_create=True))
    writer.recover([PLACE])
    text = Schema("string")
    writer.begin()
    writer.write(batch([(None, "a"), ("k", "b")], schema=text, key_schema=text))
    writer.commit({PLACE: 2})
    writer.close()
    found = rows(url, "SELECT _key, value FROM orders ORDER BY value DESC")
    assert found == [("k", "b"), (None, "a")]


def test_a_new_field_widens_the_table_in_the_middle_of_a_transaction(url: str) -> None:
    run(url, ORDERS)
    writer = writer_of(sink_of(url, auto_evolve=True))
    writer.recover([PLACE])
    writer.begin()
    writer.write(batch([(1, order("a"))]))
    wider = Schema.of_arrow(__import__("pyarrow").schema({"item": "string", "size": "float64"}))
    writer.write(batch([(2, {"item": "b", "size": 1.5})], first=1, schema=wider))
    writer.commit({PLACE: 2})
    writer.close()
    found = rows(url, "SELECT id, item, size FROM orders ORDER BY id")
    assert found == [(1, "a", None), (2, "b", 1.5)]


def test_what_the_table_lacks_is_named(url: str) -> None:
    writer = writer_of(sink_of(url))
    writer.recover([PLACE])
    writer.begin()
    with pytest.raises(ConfigError, match="table orders does not exist: create it, or set auto"):
        writer.write(batch([(1, order("a"))]))
    writer.abort()
    run(url, "CREATE TABLE orders (id INTEGER, item VARCHAR(40))")
    writer.begin()
    with pytest.raises(ConfigError, match="lacks columns price: create them, or set auto_evolve"):
        writer.write(batch([(1, order("a"))]))
    writer.abort()
    writer.begin()
    with pytest.raises(ConfigError, match=r"no primary key or unique index on \(id\)"):
        writer.write(batch([(1, {"item": "a"})]))
    writer.abort()
    writer.begin()
    with pytest.raises(BadRecords):
        writer.write(batch([(None, {"item": "a"})]))
    writer.close()


def test_an_operator_sets_and_forgets_offsets(url: str) -> None:
    other = TopicPartition("orders", 1)
    writer = writer_of(sink_of(url))
    writer.reset({PLACE: 40, other: 7})
    assert writer.recover([PLACE, other]) == {PLACE: 40, other: 7}
    writer.reset({PLACE: None})
    assert writer.recover([PLACE, other]) == {other: 7}
    writer.close()


def test_a_task_writes_through_its_thread(url: str) -> None:
    async def live() -> None:
        task = sink_of(url, auto_create=True).open(Surroundings())
        assert isinstance(task, SqlSinkTask)
        async with task:
            assert await task.recover([PLACE]) == {}
            await task.begin()
            schema = Schema.of_arrow(__import__("pyarrow").schema({"item": "string"}))
            await task.write(batch([(1, {"item": "a"})], schema=schema, key_schema=Schema("int64")))
            await task.commit({PLACE: 1})
            await task.revoked([PLACE])

    asyncio.run(live())
    assert rows(url, "SELECT id, item FROM orders") == [(1, "a")]


def test_two_tasks_create_the_table_of_offsets_at_once(postgres: PostgresServer) -> None:
    name = postgres.create_database()
    second = SqlWriter(sink := sink_of(postgres.url(name)), "b", open_database(*sink.login))
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(postgres.dsn(name)) as first,
        psycopg.connect(postgres.dsn(name), autocommit=True) as onlooker,
    ):
        first.execute("CREATE TABLE streamlog_offsets (sink TEXT)")
        connecting = pool.submit(second.connect)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: onlooker.execute(waiting).fetchone() == (1,), "the wait of the second")
        first.commit()
        with pytest.raises(Retriable, match=r"another task creates .*streamlog_offsets.* just now"):
            connecting.result()
    second.close()
    second.connect()
    second.close()


def test_many_tasks_start_on_an_empty_database(postgres: PostgresServer) -> None:
    """Whichever of PostgreSQL's checks finds the table of another task, no task fails."""
    sink = sink_of(postgres.url(postgres.create_database()))
    run(sink.url, "CREATE TABLE orders (item TEXT, price INT)")

    def start(writer: SqlWriter) -> None:
        while True:
            writer.close()
            try:
                writer.connect()
            except Retriable:
                continue
            return

    writers = [SqlWriter(sink, f"{at}", open_database(*sink.login)) for at in range(4)]
    with ThreadPoolExecutor(len(writers)) as pool:
        for _ in range(60 if THOROUGH else 3):
            list(pool.map(start, writers))
            for each in writers:
                each.close()
            run(sink.url, "DROP TABLE streamlog_offsets")


SESSIONS = {
    "postgres": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mariadb": "SELECT id FROM information_schema.processlist "
    "WHERE db = database() AND id <> connection_id()",
}
"""Statements that end the sessions of a database, or return them."""


@pytest.mark.parametrize(
    ("kind", "call"),
    # PostgreSQL begins with the first statement.
    [("mariadb", "begin"), *((kind, call) for kind in SESSIONS for call in ("recover", "reset"))],
)
def test_a_session_that_ends_between_two_flushes(
    kind: str, call: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    run(url, ORDERS)
    writer = writer_of(sink_of(url))
    writer.recover([PLACE])
    calls = {
        "begin": writer.begin,
        "recover": lambda: writer.recover([PLACE]),
        "reset": lambda: writer.reset({PLACE: 5}),
    }
    for row in rows(url, SESSIONS[kind]):
        if kind == "mariadb":
            run(url, f"KILL {row[0]}")
    with pytest.raises(Retriable):
        calls[call]()
    calls[call]()
    writer.abort()
    writer.recover([PLACE])
    writer.begin()
    writer.write(batch([(1, order("a", 2))], first=5))
    writer.commit({PLACE: 6})
    writer.close()
    assert rows(url, ALL) == [(1, "a", 2)]


def test_postgres_that_crashes_in_a_transaction_is_written_again() -> None:
    with PostgresServer() as server:
        url = server.url(server.create_database())
        run(url, "CREATE TABLE orders (item TEXT, price INT)")
        writer = writer_of(SqlSink(url=url))
        writer.recover([PLACE])
        for start in (0, 2):
            writer.begin()
            writer.write(batch([(None, order("a")), (None, order("b"))], first=start))
            server.kill_and_restart()
            with pytest.raises(Retriable):
                writer.commit({PLACE: start + 2})
            writer.abort()
            writer.begin()
            writer.write(batch([(None, order("a")), (None, order("b"))], first=start))
            writer.commit({PLACE: start + 2})
        writer.close()
        assert rows(url, "SELECT count(*) FROM orders") == [(4,)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "oracle://host/db"}, "write one of postgresql://"),
        ({"url": "postgresql://u:geheim@host/db"}, r"set password=Secret"),
        ({"url": "jdbc:mariadb://host/db?password=geheim"}, "set password=Secret"),
        ({"insert_mode": "upsert"}, "needs a key"),
        ({"delete_enabled": True}, "needs pk_mode='record_key'"),
        ({"pk_mode": "record_value"}, "needs pk_fields"),
        ({"pk_mode": "kafka", "pk_fields": ("a",)}, "takes three pk_fields"),
        ({"pk_fields": ("a", "a")}, "names one of them twice"),
        ({"table": ""}, "is no name"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        SqlSink(**{"url": "sqlite:///a.db", **settings}).check()
    assert "geheim" not in str(caught.value)
