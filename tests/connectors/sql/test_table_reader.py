"""SqlSource against SQLite, PostgreSQL and MariaDB: every row once, whatever ends the reader."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamlog.connect import Read
from streamlog.connectors.sql import SqlSource
from streamlog.connectors.sql.table_reader import PAGE_CONTENT_MAX, TableReader
from streamlog.errors import ConfigError
from tests.connectors.runs import RealContext, on_loop
from tests.connectors.sql.databases import KINDS, NOW, Surroundings, connected, rows, run, url_of


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def inserted(*values: object) -> str:
    return f"INSERT INTO t VALUES ({', '.join(map(str, values))})"  # noqa: S608 - numbers, quoted texts


def named(number: int) -> str:
    return inserted(number, f"'n{number}'")


def reads(source: SqlSource, offset: dict | None = None, table: str = "t") -> list[Read]:
    """Return the reads of one poll."""
    reader = TableReader(source, "" if source.query else table)
    reader.connect()
    found: list[Read] = []
    while (next_read := reader.next_read(offset, NOW)) is not None:
        found.append(next_read[0])
        offset = msgspec.json.decode(msgspec.json.encode(next_read[0].offset))
        if next_read[1]:
            break
    reader.close()
    return found


def ids(found: list[Read]) -> list[object]:
    return [record.value["id"] for read in found for record in read.records(NOW)]


def test_rows_come_in_pages_behind_the_offset(url: str) -> None:
    run(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(20))")
    run(url, *(named(n) for n in range(5)))
    source = SqlSource(
        url=url, tables=("t",), mode="incrementing", incrementing_column="id", batch_rows=2
    )
    found = reads(source)
    assert [len(read) for read in found] == [2, 2, 1]
    assert ids(found) == [0, 1, 2, 3, 4]
    first = found[0].records(NOW)[1]
    assert (first.key, first.value, first.topic) == (1, {"id": 1, "name": "n1"}, "t")
    assert [each.name for each in found[0].schema.fields] == ["id", "name"]
    assert ids(reads(source, {"incrementing": 3})) == [4]
    assert reads(source, {"incrementing": 4}) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_page_of_wide_rows_is_cut_by_its_size(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    url = url_of("sqlite", request, tmp_path)
    chance = random.Random(seed)
    run(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, at TIMESTAMP NOT NULL)")
    sizes = [chance.choice((0, 10, 1_000, 40_000)) for _ in range(400)] + [3_000_000, 0, 5]
    chance.shuffle(sizes)
    run(
        url,
        *(inserted(n, f"'{'x' * s}'", f"'2020-01-01 00:{n // 60:02}:{n % 60:02}'")
          for n, s in enumerate(sizes)),
    )  # fmt: skip
    for mode in ("incrementing", "timestamp", "bulk"):
        source = SqlSource(
            url=url,
            tables=("t",),
            mode=mode,
            incrementing_column="id" if mode == "incrementing" else "",
            timestamp_column="at" if mode == "timestamp" else "",
        )
        found = reads(source)
        assert ids(found) == [*range(len(sizes))]
        pages = [[len(record.value["name"]) for record in read.records(NOW)] for read in found]
        assert all(sum(page) <= PAGE_CONTENT_MAX or len(page) == 1 for page in pages)
        # As few as that allows, but for the start: no row is read for each page.
        assert len(pages) < 40


@pytest.mark.parametrize("mode", ["timestamp", "timestamp+incrementing"])
def test_rows_of_one_time_stay_together(url: str, mode: str) -> None:
    run(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, at TIMESTAMP NOT NULL)")
    times = [1, 1, 2, 3, 3, 3, 3, 4]
    run(
        url,
        *(inserted(n, f"'2020-01-01 00:00:0{second}'") for n, second in enumerate(times)),
    )
    column = "id" if mode != "timestamp" else ""
    source = SqlSource(
        url=url, tables=("t",), mode=mode, timestamp_column="at", incrementing_column=column,
        batch_rows=2,
    )  # fmt: skip
    found = reads(source)
    assert sorted(ids(found)) == list(range(8))
    for read in found:
        behind = reads(source, dict(read.offset))
        assert not {*ids([read])} & {*ids(behind)}


def test_rows_of_the_future_wait(url: str) -> None:
    run(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, at TIMESTAMP NOT NULL)")
    run(url, "INSERT INTO t VALUES (1, '2020-01-01 00:00:00')")
    run(url, "INSERT INTO t VALUES (2, '2037-01-01 00:00:00')")
    source = SqlSource(url=url, tables=("t",), mode="timestamp", timestamp_column="at", settle="1m")
    assert ids(reads(source)) == [1]


def test_bulk_reads_all_rows_at_each_run(url: str) -> None:
    run(url, "CREATE TABLE t (a INTEGER, id VARCHAR(5), PRIMARY KEY (a, id))")
    run(url, *(inserted(n % 2, f"'{n}'") for n in range(5)))
    source = SqlSource(url=url, tables=("t",), batch_rows=2)
    found = reads(source)
    assert ids(found) == ["0", "2", "4", "1", "3"]
    assert found[0].records(NOW)[0].key == {"a": 0, "id": "0"}
    assert dict(found[-1].offset) == {"run": 1, "after": None}
    assert ids(reads(source, dict(found[0].offset))) == ["4", "1", "3"]
    assert ids(reads(source, {"run": 1, "after": None})) == ids(found)


def test_a_query_is_read_like_a_table(url: str) -> None:
    run(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(20))")
    run(url, *(named(n) for n in range(5)))
    source = SqlSource(
        url=url, query="SELECT id, name FROM t WHERE name LIKE 'n%';", mode="incrementing",
        incrementing_column="id", key_columns=("id",),
    )  # fmt: skip
    assert ids(reads(source)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(2))
def test_every_row_comes_once_over_lives_that_end_anywhere(url: str, seed: int) -> None:
    chance = random.Random(seed)
    run(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    source = SqlSource(
        url=url, tables=("t",), mode="incrementing", incrementing_column="id", batch_rows=3
    )
    database, written, log, offset = connected(url), 0, [], None
    for _ in range(10):
        with database.transaction():
            for _ in range(chance.randrange(8)):
                database.execute(inserted(written))
                written += 1
        reader = TableReader(source, "t")
        reader.connect()
        at = offset
        for _ in range(chance.randrange(5)):
            found = reader.next_read(at, NOW)
            if found is None:
                break
            at = found[0].offset
            if chance.random() < 0.7:
                # The transaction with the records and the offset counts.
                log += ids([found[0]])
                offset = msgspec.json.decode(msgspec.json.encode(at))
            else:
                break
        reader.close()
    database.close()
    log += ids(reads(source, offset))
    assert log == list(range(written))


def test_the_source_polls_again_and_closes_its_connection(url: str) -> None:
    run(url, "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = SqlSource(url=url, tables=("t",), mode="incrementing", incrementing_column="id")

    class Context(Surroundings):
        slept = 0

        async def sleep(self, time: object) -> None:
            self.slept += 1
            run(url, inserted(self.slept + 1))

    async def live() -> list[object]:
        context = Context()
        (part,) = await source.partitions(context)
        assert part == {"table": "t"}
        found, reading = [], source.read(part, None, context)
        async for read in reading:
            found.append(read)
            if len(found) == 3:
                break
        await reading.aclose()
        return ids(found)

    assert asyncio.run(live()) == [1, 2, 3]


def test_values_of_postgres_keep_their_types(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of("postgres", request, tmp_path)
    run(
        url,
        "CREATE TABLE t (id INT PRIMARY KEY, n NUMERIC(9, 2), j JSONB, a INT[], i INTERVAL)",
        """INSERT INTO t VALUES (1, 1.50, '{"a": 1}', '{1,2}', '5 s')""",
    )
    source = SqlSource(url=url, tables=("t",), mode="incrementing", incrementing_column="id")
    (read,) = reads(source)
    assert read.records(NOW)[0].value == {
        "id": 1, "n": Decimal("1.50"), "j": {"a": 1}, "a": [1, 2], "i": timedelta(seconds=5),
    }  # fmt: skip
    kinds = [(each.schema.kind, each.schema.logical) for each in read.schema.fields]
    assert kinds == [
        ("int32", None), ("bytes", "Decimal"), ("string", "json"), ("array", None),
        ("int64", "Duration"),
    ]  # fmt: skip


def test_what_is_missing_is_named(url: str) -> None:
    source = SqlSource(url=url, tables=("t",), mode="incrementing", incrementing_column="id")
    with pytest.raises(ConfigError, match="table t does not exist"):
        reads(source)
    run(url, "CREATE TABLE t (id INTEGER)")
    with pytest.raises(ConfigError, match="no primary key"):
        reads(SqlSource(url=url, tables=("t",)))
    assert rows(url, "SELECT * FROM t") == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tables": ()}, "either tables or query"),
        ({"query": "SELECT 1"}, "either tables or query"),
        ({"mode": "incrementing"}, "needs incrementing_column"),
        ({"timestamp_column": "at"}, "does not use timestamp_column"),
        ({"batch_rows": 0}, "1 to 100,000"),
        ({"poll": "0s"}, "without a pause"),
        ({"settle": "1s"}, "does not use settle"),
        ({"tables": (), "query": "SELECT 1"}, "needs key_columns"),
        ({"tables": ("a", "a")}, "names one of them twice"),
        ({"url": "host/db"}, "write one of"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SqlSource(**{"url": "sqlite:///a.db", "tables": ("t",), **settings}).check()


@on_loop
async def test_the_next_page_is_read_while_the_log_takes_the_last_one(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of("sqlite", request, tmp_path)
    run(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(20))")
    run(url, *(named(n) for n in range(6)))
    next_read, done = TableReader.next_read, threading.Semaphore(0)

    def noted(reader: TableReader, *arguments: Any) -> object:
        found = next_read(reader, *arguments)
        done.release()
        return found

    monkeypatch.setattr(TableReader, "next_read", noted)
    source = SqlSource(
        url=url, tables=("t",), mode="incrementing", incrementing_column="id", batch_rows=2
    )
    pages = source.read({"table": "t"}, None, RealContext())
    first = await anext(pages)
    # It asks the source for no more, and the second page comes all the same.
    for _ in range(2):
        assert done.acquire(timeout=30)
    run(url, named(6))
    following = [await anext(pages) for _ in range(3)]
    assert [ids([read]) for read in (first, *following)] == [[0, 1], [2, 3], [4, 5], [6]]
    await pages.aclose()


@on_loop
async def test_a_page_that_was_read_ahead_comes_again_to_the_next_reader(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of("sqlite", request, tmp_path)
    run(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(20))")
    run(url, *(named(n) for n in range(40)))
    source = SqlSource(
        url=url, tables=("t",), mode="incrementing", incrementing_column="id", batch_rows=3
    )
    chance, offset, found = random.Random(5), None, list[object]()
    while len(found) < 40:
        pages = source.read({"table": "t"}, offset, RealContext())
        for _ in range(chance.randrange(1, 4)):
            if len(found) == 40:
                break
            read = await anext(pages)
            found += ids([read])
            offset = read.offset
        await pages.aclose()
    assert found == [*range(40)]
