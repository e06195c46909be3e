"""Global tables of workers: whole before the first record, followed live, whatever is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.clock import SystemClock
from streamlog.errors import RequestTimedOut
from streamlog.log import Log
from streamlog.records.batch import Record
from streamlog.serdes import serde_for
from streamlog.topology import GlobalTable, TopicSpec, Topology
from streamlog.worker import global_tables
from streamlog.worker.global_tables import GlobalReader
from tests.worker.processes import STREAMLOG, attached, read_until, running, streamlog

TEXT = serde_for(str)
TOPOLOGY = Topology("app", (), (GlobalTable("users", TopicSpec("users", TEXT, TEXT)),))

ENRICH = """
import os
from streamlog import App

app = App("enrich", log="embedded:./log", state_dir="./state", commit_interval="50ms")
clicks = app.topic("clicks", key=str, value=str, partitions=3)
users = app.topic("users", key=str, value=str, partitions=2, compact=True)
out = app.topic("out", key=str, value=str, partitions=1)
table = app.global_table(users)
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


def test_a_worker_has_the_whole_table_before_its_first_record(tmp_path: Path) -> None:
    (tmp_path / "enrich.py").write_text(ENRICH)
    users = [(f"u{number}", f"name-{number}") for number in range(2_000)]
    clicks = [(f"c{number}", f"u{number * 7 % 2_100}") for number in range(300)]

    async def fill(log: Log) -> None:
        async with log.producer() as producer:
            await put(producer, "clicks", *clicks)
            await put(producer, "users", *users, ("u7", None), ("last", "one"))

    async def results(log: Log) -> set[str]:
        def enough(records: list[tuple[int, Record]]) -> bool:
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


def test_what_is_not_committed_is_not_read_and_not_waited_for(tmp_path: Path) -> None:
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


def test_a_stop_ends_the_reading(tmp_path: Path) -> None:
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


def test_a_log_that_gives_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_tables, "STALL_MS", 0)
    monkeypatch.setattr(global_tables, "POLL_MS", 1)

    async def nothing(*_: object, **__: object) -> dict[object, object]:
        return {}

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", listen=False) as log:
            await topic(log)
            async with log.producer() as producer:
                await put(producer, "users", ("a", "1"))
            async with GlobalReader(log, TOPOLOGY, {"users": 1}, SystemClock()) as reader:
                monkeypatch.setattr(reader._consumer, "poll_columns", nothing)
                with pytest.raises(RequestTimedOut, match="more to be read of users"):
                    await reader.load(asyncio.Event())

    asyncio.run(main())
