"""Global tables of workers: complete before the first record, then updated live, despite kills."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.client.range_reader import STALL_MS
from streamlog.clock import ManualClock, SystemClock
from streamlog.errors import RequestTimedOut, TopologyError
from streamlog.log import Log
from streamlog.nodes.table_nodes import GlobalTableNode
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.joins import stream_table_join as processing_tables
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.serdes import serde_for
from streamlog.topology import Topology
from streamlog.worker.global_reader import AWAY_MS_MAX, GlobalReader, GlobalStores
from tests.worker.processes import STREAMLOG, attached, read_until, running, streamlog

TEXT = serde_for(str)
TOPOLOGY = Topology("app", (), (GlobalTableNode("users", TopicSpec("users", TEXT, TEXT)),))

ENRICH = """
import os
from streamlog import App

app = App("enrich", log="embedded:./log", state_dir="./state", commit_interval="50ms")
clicks = app.topic("clicks", key=str, value=str, partitions=3)
users = app.topic("users", key=str, value=str, partitions=2, compact=True)
out = app.topic("out", key=str, value=str, partitions=1)
table = app.global_table(users, backend=os.environ.get("BACKEND", "memory"))
app.stream(clicks).lookup(table, lambda _, who: who, lambda who, name: f"{who}={name}").to(out)

@app.timer(every="100ms", on="every_worker")
async def tell() -> None:
    print("last:", await table.fetch("last"), sum([1 async for _ in table.scan()]))

if __name__ == "__main__":
    app.main()
"""


async def put(producer: Producer, topic: str, *pairs: tuple[str, str | None]) -> None:
    for key, value in pairs:
        data = None if value is None else value.encode()
        await producer.send(topic, data, key=key.encode())
    await producer.flush()


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_global_table_is_complete_before_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("BACKEND", backend)
    (tmp_path / "enrich.py").write_text(ENRICH)
    users = [(f"u{number}", f"name-{number}") for number in range(2_000)]
    clicks = [(f"c{number}", f"u{number * 7 % 2_100}") for number in range(300)]

    async def fill(log: Log) -> None:
        async with log.producer() as producer:
            await put(producer, "clicks", *clicks)
            await put(producer, "users", *users, ("u7", None), ("last", "one"))

    async def results(log: Log) -> set[str]:
        def enough(records: list[tuple[int, LogRecord]]) -> bool:
            return len(records) >= len(clicks)

        records = await read_until(log, "out", enough)
        return {(record.value or b"").decode() for _, record in records}

    async def later(log: Log) -> None:
        async with log.producer() as producer:
            await put(producer, "users", ("last", "two"), ("u7", "back"))

    async def again(log: Log) -> str:
        async with log.producer() as producer:
            await put(producer, "clicks", ("again", "u7"))
        records = await read_until(log, "out", lambda found: len(found) > len(clicks))
        return (records[-1][1].value or b"").decode()

    url = f"embedded:{tmp_path}/log"
    for topic, partitions in (("clicks", "3"), ("users", "2")):
        command = ("topics", "create", topic, "--partitions", partitions, "--log", url)
        assert streamlog(*command, cwd=tmp_path)[0] == 0

    async def own() -> None:
        async with Log.open(url, listen=False) as log:
            await fill(log)

    asyncio.run(own())
    names = {**dict(users), "u7": None}
    worker = (*STREAMLOG, "-A", "enrich", "worker")
    with running(*worker, cwd=tmp_path) as process:
        process.line("last: one 2000")
        assert attached(url, results) == {f"{who}={names.get(who)}" for _, who in clicks}
        process.kill()
    with running(*worker, cwd=tmp_path) as process:
        process.line("last: one 2000")
        attached(url, later)
        process.line("last: two 2001")
        assert attached(url, again) == "u7=back"
        assert process.stop() == 0


async def topic(log: Log) -> None:
    await log.admin().create_topics([NewTopic("users", 1)])


def test_uncommitted_rows_of_a_global_table_are_not_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            await topic(log)
            reader = GlobalReader(log, TOPOLOGY, {"users": 1}, SystemClock())
            async with reader, log.producer(transactional_id="t") as producer:
                async with producer.transaction():
                    await put(producer, "users", ("a", "1"))
                async with producer.transaction():
                    await put(producer, "users", ("a", "2"), ("b", "2"))
                    await reader.load(asyncio.Event())
                    assert reader.tables.rows_of("users").rows() == [(b"a", b"1")]
                    assert reader.left == {"users": 0}

    asyncio.run(main())


def test_stopping_ends_the_load_of_a_global_table(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            await topic(log)
            async with log.producer() as producer:
                await put(producer, "users", ("a", "1"))
            stop = asyncio.Event()
            stop.set()
            async with GlobalReader(log, TOPOLOGY, {"users": 1}, SystemClock()) as reader:
                await reader.load(stop)
                assert reader.left == {"users": 1}

    asyncio.run(main())


def test_a_log_that_returns_nothing_stalls_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()

    async def nothing(*_: object, **__: object) -> dict[object, object]:
        clock.advance(STALL_MS)
        return {}

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            await topic(log)
            async with log.producer() as producer:
                await put(producer, "users", ("a", "1"))
            async with GlobalReader(log, TOPOLOGY, {"users": 1}, clock) as reader:
                monkeypatch.setattr(reader._consumer, "poll_columns", nothing)
                with pytest.raises(RequestTimedOut, match="users-0: the read is at offset 0 "):
                    await reader.load(asyncio.Event())

    asyncio.run(main())


ON_DISK = Topology(
    "app", (), (GlobalTableNode("users", TopicSpec("users", TEXT, TEXT), "rocksdb"),)
)
USERS = TopicPartition("users", 0)


class Later(SystemClock):
    """A clock that runs ahead."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


def stores_in(path: Path, cluster: str) -> GlobalStores:
    tables, state = ON_DISK.global_tables, str(path / "state")
    return GlobalStores.opened(tables, state, memory_bytes=64 * 2**20, cluster=cluster)


async def on_disk(
    log: Log, path: Path, clock: Later, *, cluster: str = "", then: str | None = None
) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Return the first position that a worker reads, and its last rows; `then` is written live."""
    stores = stores_in(path, cluster or log.cluster_id)
    async with GlobalReader(log, ON_DISK, {"users": 1}, clock, stores=stores) as reader:
        tables, now_ms = reader.tables.of_topics, clock.wall_ms()
        (users,) = await log.admin().find_topics(["users"])
        ids = {"users": users.topic_id}
        starts = stores.starts(tables, {USERS: 0}, {USERS: 2**40}, now_ms, ids)
        await reader.load(asyncio.Event())
        if then is not None:
            async with log.producer() as producer:
                await put(producer, "users", (then, "new"))
            while reader.tables.rows_of("users").get(then.encode()) is None:
                await reader._step()
        return starts[USERS], reader.tables.rows_of("users").rows()


def test_a_table_on_disk_resumes_at_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing_tables, "PAGE_ROWS", 3)

    async def main() -> None:
        clock = Later()
        async with Log.open(f"embedded:{tmp_path}/log", listen=False) as log:
            await topic(log)
            async with log.producer() as producer:
                await put(producer, "users", *((f"u{n}", "old") for n in range(10)), ("u3", None))
            rows = [(b"u%d" % n, b"old") for n in range(10) if n != 3]
            assert await on_disk(log, tmp_path, clock) == (0, rows)
            rows.append((b"v", b"new"))
            assert await on_disk(log, tmp_path, clock, then="v") == (11, rows)
            async with log.producer() as producer:
                await put(producer, "users", ("u0", None))
            assert await on_disk(log, tmp_path, clock) == (12, rows[1:])
            # Two processes on one directory: the second gets its own copy.
            first = stores_in(tmp_path, log.cluster_id)
            assert (await on_disk(log, tmp_path, clock))[1] == rows[1:]
            first.close()
            # After the retention of deletions, or on another log, the table is read from the start.
            clock.ahead_ms = AWAY_MS_MAX + 60_000
            assert await on_disk(log, tmp_path, clock) == (0, rows[1:])
            assert await on_disk(log, tmp_path, clock, cluster="another") == (0, rows[1:])

    asyncio.run(main())


def test_an_unknown_backend_is_refused() -> None:
    app = App("app")
    users = app.topic("users", key=str, value=str)
    with pytest.raises(TopologyError, match="'memory' or 'rocksdb'"):
        app.global_table(users, backend="disk")  # type: ignore[arg-type]
