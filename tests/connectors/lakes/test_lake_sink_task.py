"""Delta and Iceberg: rows once, zombies fenced, columns that follow types. DuckDB reads them."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from streamlog.connect import (
    BadRecords,
    Batch,
    Fenced,
    Field,
    Retriable,
    Schema,
    TopicPartition,
)
from streamlog.connect.row_schema import decimal_schema
from streamlog.connectors.lakes.lake_sink_task import LakeSinkTask
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.derived.type_description import Digits
from streamlog.testing import check_sink
from tests.connectors.lakes.lakes import (
    KINDS,
    PLACE,
    START,
    TOPIC,
    DeltaTables,
    IcebergTables,
    Tables,
    batch_of,
    cloud_tables,
    local_tables,
)
from tests.connectors.runs import on_loop, writing
from tests.connectors.schema_changes import (
    PART,
    WIDER_PART,
    row_at_random,
    schema_at_random,
    without_nulls,
)
from tests.servers.postgres import PostgresServer

OTHER = TopicPartition(TOPIC, 1)
WIDE_ITEM = Schema("int64", optional=True)
LATE = Field("d", Schema("string"))
is_thorough = os.environ.get("STREAMLOG_PROFILE") == "thorough"


class Order(msgspec.Struct, frozen=True):
    id: int
    item: str


class Wider(msgspec.Struct, frozen=True):
    id: int
    item: str
    price: float


class Narrower(msgspec.Struct, frozen=True):
    id: int


class Retyped(msgspec.Struct, frozen=True):
    id: int
    item: int


async def flush(task: Any, *batches: Batch[Any, Any]) -> None:
    await task.begin()
    for batch in batches:
        await task.write(batch)
    await task.commit({batch.partition: batch.next_offset for batch in batches})


def orders(first: int, count: int) -> list[Order]:
    return [Order(at, f"item {at}") for at in range(first, first + count)]


@on_loop
async def test_a_flush_is_one_commit_with_values_keys_times_and_places(tables: Tables) -> None:
    async with writing(tables.sink()) as task:
        assert await task.recover([PLACE]) == {}
        one = batch_of(orders(0, 2), kind=Order)
        two = batch_of([None], 2, kind=Order)
        await flush(task, one, two)
    # Delta counts the creation of the table as well, Iceberg its snapshots alone.
    first = 1 if isinstance(tables, DeltaTables) else 0
    found = tables.rows("id, item, _key, epoch_us(_timestamp) AS us, _offset, _partition")
    start = int(START.timestamp()) * 1_000_000
    assert sorted((tuple(row.values()) for row in found), key=lambda row: row[4]) == [
        (0, "item 0", "k0", start, 0, 0),
        (1, "item 1", "k1", start + 60_000_000, 1, 0),
        (None, None, "k2", start + 120_000_000, 2, 0),
    ]
    assert tables.commits() == first + 1


@on_loop
async def test_offsets_are_in_the_table(tables: Tables) -> None:
    async with writing(tables.sink()) as task:
        await task.recover([PLACE, OTHER])
        await flush(task, batch_of(orders(0, 3), kind=Order))
        await flush(task, batch_of(orders(7, 1), 7, kind=Order))
    async with writing(tables.sink()) as task:
        assert await task.recover([PLACE, OTHER]) == {PLACE: 8}
        await task.reset({PLACE: 5, OTHER: None})
        assert await task.recover([PLACE, OTHER]) == {PLACE: 5}
        await task.reset({PLACE: None})
        assert await task.recover([PLACE, OTHER]) == {}


@on_loop
async def test_what_was_aborted_leaves_nothing(tables: Tables) -> None:
    async with writing(tables.sink()) as task:
        await task.recover([PLACE])
        await task.begin()
        await task.write(batch_of(orders(0, 3), kind=Order))
        await task.abort()
        await task.abort()
        await flush(task, batch_of(orders(0, 1), kind=Order))
    assert [row["id"] for row in tables.rows()] == [0]


@pytest.mark.parametrize("stops", ["before its flush", "with rows", "before there is a table"])
@on_loop
async def test_a_zombie_is_fenced_and_writes_nothing(tables: Tables, stops: str) -> None:
    if stops != "before there is a table":
        async with writing(tables.sink()) as task:
            await task.recover([PLACE])
            await flush(task, batch_of(orders(0, 1), kind=Order))
    async with writing(tables.sink()) as zombie, writing(tables.sink()) as successor:
        found = await zombie.recover([PLACE])
        first = found.get(PLACE, 0)
        if stops == "with rows":
            await zombie.begin()
            await zombie.write(batch_of(orders(first, 2), first, kind=Order))
        assert await successor.recover([PLACE]) == found
        await flush(successor, batch_of(orders(first, 3), first, kind=Order))
        if stops == "with rows":
            with pytest.raises(Fenced, match="another task has taken over"):
                await zombie.commit({PLACE: first + 2})
        elif found:
            with pytest.raises(Fenced, match="another task has taken over"):
                await flush(zombie, batch_of(orders(first, 2), first, kind=Order))
        else:
            # Without a table nothing could tell it, and it finds that its rows are there.
            await flush(zombie, batch_of(orders(first, 2), first, kind=Order))
        await flush(successor, batch_of(orders(first + 3, 1), first + 3, kind=Order))
    assert sorted(row["id"] for row in tables.rows("id")) == [*range(first + 4)]


@on_loop
async def test_two_that_believe_they_own_a_new_table_add_no_row_twice(tables: Tables) -> None:
    async with writing(tables.sink()) as zombie, writing(tables.sink()) as successor:
        await zombie.recover([PLACE])
        await successor.recover([PLACE])
        await flush(zombie, batch_of(orders(0, 2), kind=Order))
        await flush(successor, batch_of(orders(0, 5), kind=Order))
        # The successor's first commit has raised the epoch.
        with pytest.raises(Fenced):
            await flush(zombie, batch_of(orders(2, 9), 2, kind=Order))
    assert sorted(row["id"] for row in tables.rows("id")) == [*range(5)]


@pytest.mark.parametrize("counts", [True, False])
@on_loop
async def test_a_commit_without_an_answer_counts_once(
    tables: Tables, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(tables.sink()) as task:
        assert isinstance(task, LakeSinkTask)
        await task.recover([PLACE])
        await flush(task, batch_of(orders(0, 1), kind=Order))
        with monkeypatch.context() as patch:
            real = task._lake.load

            def load(table: str) -> Any:
                version: Any = real(table)
                commit = version.commit

                def commit_and_lose(*args: Any, **options: Any) -> None:
                    if counts:
                        commit(*args, **options)
                    raise Retriable("the connection is lost")

                monkeypatch.setattr(version, "commit", commit_and_lose)
                return version

            patch.setattr(task._lake, "load", load)
            with pytest.raises(Retriable):
                await flush(task, batch_of(orders(1, 2), 1, kind=Order))
            await task.abort()
        await flush(task, batch_of(orders(1, 4), 1, kind=Order))
    assert sorted(row["id"] for row in tables.rows("id")) == [*range(5)]


@on_loop
async def test_others_write_the_table_meanwhile(tables: Tables) -> None:
    async with writing(tables.sink()) as task:
        await task.recover([PLACE])
        await flush(task, batch_of(orders(0, 2), kind=Order))
        await task.begin()
        await task.write(batch_of(orders(2, 2), 2, kind=Order))
        tables.compact()
        tables.append_outside(pa.table({"id": [100], "note": ["by hand"]}))
        await task.commit({PLACE: 4})
        tables.compact()
        await flush(task, batch_of(orders(4, 1), 4, kind=Order))
    assert sorted(row["id"] for row in tables.rows("id")) == [0, 1, 2, 3, 4, 100]
    async with writing(tables.sink()) as task:
        assert await task.recover([PLACE]) == {PLACE: 5}


async def until_done(call: Callable[[], Awaitable[object]], task: Any) -> None:
    """Repeat a call, as the runtime does."""
    while True:
        try:
            await call()
        except Retriable:
            await task.abort()
        else:
            return


def test_tasks_that_write_one_table_at_once(tables: Tables) -> None:
    places = [TopicPartition(TOPIC, number) for number in range(3)]
    meet = threading.Barrier(len(places), timeout=60)

    async def write(place: TopicPartition) -> None:
        async with writing(tables.sink()) as task:
            await until_done(lambda: task.recover([place]), task)
            meet.wait()
            for first in range(0, 8, 2):
                values = [Order(place.partition * 100 + at, "x") for at in (first, first + 1)]
                batch = batch_of(values, first, place=place, kind=Order)
                await until_done(lambda batch=batch: flush(task, batch), task)

    threads = [threading.Thread(target=asyncio.run, args=(write(place),)) for place in places]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    expected = sorted(number * 100 + at for number in range(3) for at in range(8))
    assert sorted(row["id"] for row in tables.rows("id")) == expected


@on_loop
async def test_a_type_gains_and_loses_a_field(tables: Tables) -> None:
    async with writing(tables.sink()) as task:
        await task.recover([PLACE])
        await flush(task, batch_of(orders(0, 1), kind=Order))
        await flush(task, batch_of([Wider(1, "b", 2.5)], 1, kind=Wider))
        await flush(task, batch_of([Narrower(2)], 2, kind=Narrower))
    rows = {row["id"]: (row["item"], row["price"]) for row in tables.rows("id, item, price")}
    assert rows == {0: ("item 0", None), 1: ("b", 2.5), 2: (None, None)}


@on_loop
async def test_a_changed_type_fails_with_both_schemas(tables: Tables) -> None:
    async with writing(tables.sink()) as task:
        await task.recover([PLACE])
        await flush(task, batch_of(orders(0, 1), kind=Order))
        await task.begin()
        with pytest.raises(ConfigError) as raised:
            await task.write(batch_of([Retyped(1, 2)], 1, kind=Retyped))
    message = str(raised.value)
    assert "column item is string, which does not hold every int64" in message
    assert "The table has (id int64, item string," in message
    assert "the rows (id int64, item int64," in message
    assert len(tables.rows()) == 1


def holds(table: Schema, row: Schema) -> bool:
    """Return whether a column takes another type, by the documentation's table."""
    kinds = [replace(each, optional=False) for each in (table, row)]
    return kinds[0] == kinds[1] or kinds in [
        [Schema("int64"), Schema("int32")],
        [Schema("float64"), Schema("int32")],
        [Schema("float64"), Schema("float32")],
        [decimal_schema(12, 4), decimal_schema(6, 2)],
        [WIDER_PART, PART],
        [Schema("array", items=WIDE_ITEM), Schema("array", items=Schema("int32"))],
    ]


@pytest.mark.parametrize("seed", range(40 if is_thorough else 1))
@on_loop
async def test_schemas_that_change_at_random(tables: Tables, seed: int) -> None:
    chance = random.Random(seed)
    columns, expected, offset = dict[str, Schema](), dict[int, Any](), 0
    async with writing(tables.sink()) as task:
        await task.recover([PLACE])
        for _ in range(12 if is_thorough else 5):
            schema = schema_at_random(chance) or Schema("struct", fields=(LATE,))
            values = [row_at_random(chance, schema) for _ in range(3)]
            fields = {each.name: each.schema for each in schema.fields}
            batch = batch_of(values, offset)
            batch.schema = schema
            await task.begin()
            if all(holds(columns.get(name, kind), kind) for name, kind in fields.items()):
                await task.write(batch)
                await task.commit({PLACE: batch.next_offset})
                # A column keeps its type, whatever is written to it later.
                columns = {**fields, **columns}
                expected |= {
                    offset + at: without_nulls(each or {}) for at, each in enumerate(values)
                }
            else:
                with pytest.raises(ConfigError, match="does not hold every"):
                    await task.write(batch)
                await task.abort()
            offset += len(values)
    rows = tables.rows("* EXCLUDE (_key, _timestamp, _partition)")
    found = {row.pop("_offset"): without_nulls(row) for row in rows}
    assert len(rows) == len(found)
    assert found == expected


@on_loop
async def test_tables_are_changed_only_if_they_may_be(tables: Tables) -> None:
    async with writing(tables.sink(auto_create=False)) as task:
        await task.recover([PLACE])
        with pytest.raises(ConfigError, match="does not exist: create it, or set auto_create"):
            await flush(task, batch_of(orders(0, 1), kind=Order))
    async with writing(tables.sink(auto_evolve=False)) as task:
        await task.recover([PLACE])
        await flush(task, batch_of(orders(0, 1), kind=Order))
        with pytest.raises(ConfigError, match="lacks columns price of the rows"):
            await flush(task, batch_of([Wider(1, "b", 2.5)], 1, kind=Wider))


@on_loop
async def test_rows_without_a_schema(tables: Tables) -> None:
    values = [
        [{"n": 1, "who": None, "tags": ["a", {"b": 1}]}, None],
        [{"n": 2, "who": "x", "tags": "plain", "new": 1.5}, {"n": None, "tags": 7}],
    ]
    async with writing(tables.sink()) as task:
        await task.recover([PLACE])
        await flush(task, batch_of(values[0], keys=[None, None]))
        await flush(task, batch_of(values[1], 2))
        await task.begin()
        with pytest.raises(BadRecords) as raised:
            await task.write(batch_of([{"n": 1}, {"n": "x"}], 4))
    assert list(raised.value.why) == [1]
    found = tables.rows("_offset, n, who, tags, new, _key")
    assert sorted((tuple(row.values()) for row in found), key=lambda row: row[0]) == [
        (0, 1, None, '["a",{"b":1}]', None, None),
        (1, None, None, None, None, None),
        (2, 2, "x", "plain", 1.5, "k2"),
        (3, None, None, "7", None, "k3"),
    ]


@on_loop
async def test_bytes_and_two_topics(tables: Tables) -> None:
    other = TopicPartition("b", 4)
    async with writing(tables.sink()) as task:
        await task.recover([PLACE, other])
        one = batch_of([b"\x00\xff", None], keys=[b"k", None])
        await flush(task, one, batch_of([b"x"], 9, place=other))
        # The second time, one of the two tables has the flush already.
        await flush(task, one, batch_of([b"x", b"y"], 9, place=other))
        assert await task.recover([PLACE, other]) == {PLACE: 2, other: 11}
    rows = [tuple(row.values()) for row in tables.rows("value, _key")]
    assert sorted(rows, key=str) == [(None, None), (b"\x00\xff", b"k")]
    assert sorted(row["value"] for row in tables.rows("value", "b")) == [b"x", b"y"]


class Inner(msgspec.Struct, frozen=True):
    text: str | None
    many: list[int | None]


class Everything(msgspec.Struct, frozen=True):
    number: int
    real: float | None
    text: str
    raw: bytes | None
    flag: bool
    money: Annotated[Decimal, Digits(12, 2)] | None
    day: date | None
    at: datetime | None
    clock: time
    wait: timedelta
    ident: UUID
    inner: Inner | None
    words: list[str]
    by_name: dict[str, float]


def anything(chance: random.Random, number: int) -> Everything:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.3 else value

    texts = ["", "a" * 5_000, "ü\u0000\n", "null", "-1", "\U0001f600"]
    reals = [0.0, -0.0, 1e300, -1e-300, float("inf"), float("-inf"), float("nan")]
    return Everything(
        number=chance.choice([number, -(2**63), 2**63 - 1, 0]),
        real=maybe(chance.choice(reals)),
        text=chance.choice(texts),
        raw=maybe(chance.randbytes(chance.randrange(4))),
        flag=chance.random() < 0.5,
        money=maybe(Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-2)),
        day=maybe(date(1970, 1, 1) + timedelta(days=chance.randrange(-100_000, 100_000))),
        at=maybe(START + timedelta(microseconds=chance.randrange(-(10**15), 10**15))),
        clock=time(chance.randrange(24), 1, 2, chance.randrange(1_000_000)),
        wait=timedelta(microseconds=chance.randrange(-(10**12), 10**12)),
        ident=UUID(int=chance.getrandbits(128)),
        inner=maybe(Inner(maybe(chance.choice(texts)), [maybe(1), maybe(-5)][: number % 3])),
        words=chance.choices(texts, k=number % 3),
        by_name={text: chance.choice(reals) for text in texts[: number % 4]},
    )


def plain(value: Any) -> Any:
    """Return a value in a form that both sides have: equal NaN, one zone, no classes."""
    found = value
    match value:
        case timedelta():
            found = value // timedelta(microseconds=1)
        case time():
            found = value.isoformat("microseconds")
        case datetime():
            found = value.astimezone(UTC).isoformat()
        case UUID() | float():
            found = str(value)
        case dict():
            found = {name: plain(each) for name, each in value.items()}
        case list() | tuple():
            found = [plain(each) for each in value]
        case msgspec.Struct():
            found = plain({name: getattr(value, name) for name in value.__struct_fields__})
    return found


@pytest.mark.parametrize("seed", range(20 if is_thorough else 1))
@on_loop
async def test_random_values_come_back_from_another_program(tables: Tables, seed: int) -> None:
    chance = random.Random(seed)
    values = [anything(chance, number) for number in range(120)]
    async with writing(tables.sink()) as task:
        await task.recover([PLACE])
        at = 0
        while at < len(values):
            size = chance.choice([1, 7, 60])
            await flush(task, batch_of(values[at : at + size], at, kind=Everything))
            at += size
    found = {
        row.pop("_offset"): row for row in tables.rows("* EXCLUDE (_key, _timestamp, _partition)")
    }
    assert len(found) == len(values)
    for number, value in enumerate(values):
        assert plain(found[number]) == plain(value)


@pytest.mark.parametrize(
    ("kind", "partition_by"),
    [
        ("delta", ("item", "_partition")),
        ("iceberg", ("item", "day(_timestamp)", "bucket(id, 4)", "truncate(_key, 2)")),
    ],
)
@on_loop
async def test_a_new_table_is_partitioned(
    tmp_path: Path, kind: str, partition_by: tuple[str, ...]
) -> None:
    tables = local_tables(kind, tmp_path)
    values = [Order(at, f"item {at % 2}") for at in range(20)]
    async with writing(tables.sink(partition_by=partition_by)) as task:
        await task.recover([PLACE])
        await flush(task, batch_of(values, kind=Order))
        await flush(task, batch_of([Wider(20, "a/b", 1.0)], 20, kind=Wider))
    assert Counter(row["item"] for row in tables.rows("item")) == Counter(
        [each.item for each in values] + ["a/b"]
    )
    assert len(directories(tmp_path)) >= 3
    async with writing(tables.sink(partition_by=("nothing",), **elsewhere(kind, tmp_path))) as task:
        await task.recover([PLACE])
        with pytest.raises(ConfigError, match="partition_by names 'nothing'"):
            await flush(task, batch_of(values, kind=Order))


def directories(root: Path) -> set[Path]:
    return {path.parent for path in root.rglob("*.parquet")}


def elsewhere(kind: str, root: Path) -> dict[str, Any]:
    return {"url": f"{root}/other"} if kind == "delta" else {"table": "lake.other"}


class Row(msgspec.Struct, frozen=True):
    number: int


class Outside:
    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    async def put(self, rows: Sequence[object]) -> None:
        raise AssertionError("the sink writes them")

    async def rows(self) -> Sequence[object]:
        return self.tables.rows("number, _offset, _partition", "checked")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["disk", "s3"])
@pytest.mark.parametrize("seed", range(20 if is_thorough else 1))
def test_many_lives_with_kills_and_zombies(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, place: str, seed: int
) -> None:
    if place == "s3" and not is_thorough:
        pytest.skip("STREAMLOG_PROFILE=thorough runs it on S3")
    if place == "s3":
        address = request.getfixturevalue("s3")
        tables = cloud_tables(kind, tmp_path, address, f"{place}-{seed}")
    else:
        tables = local_tables(kind, tmp_path)
    lives = 20 if is_thorough else 5
    asyncio.run(check_sink(tables.sink, Outside(tables), value=Row, seed=seed, lives=lives))


@pytest.mark.parametrize("kind", KINDS)
@on_loop
async def test_a_bucket_of_s3(tmp_path: Path, kind: str, s3: str) -> None:
    tables = cloud_tables(kind, tmp_path, s3, "bucket")
    for first in (0, 2):
        async with writing(tables.sink()) as task:
            assert await task.recover([PLACE]) == ({PLACE: first} if first else {})
            await flush(task, batch_of(orders(first, 2), first, kind=Order))
    assert sorted(row["id"] for row in tables.rows("id")) == [0, 1, 2, 3]


@on_loop
async def test_a_catalogue_in_postgresql(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.url(postgres.create_database())
    tables = IcebergTables(
        f"file://{tmp_path}/lake", url.replace("postgresql:", "postgresql+psycopg:")
    )
    async with writing(tables.sink()) as zombie, writing(tables.sink()) as task:
        await zombie.recover([PLACE])
        await flush(zombie, batch_of(orders(0, 2), kind=Order))
        assert await task.recover([PLACE]) == {PLACE: 2}
        with pytest.raises(Fenced):
            await flush(zombie, batch_of(orders(2, 2), 2, kind=Order))
        await flush(task, batch_of(orders(2, 1), 2, kind=Order))
    assert sorted(row["id"] for row in tables.rows("id")) == [0, 1, 2]
