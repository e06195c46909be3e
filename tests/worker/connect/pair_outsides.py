"""Both sides of each pair of connectors, started where they are servers."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from tests.broker.process import BrokerProcess
from tests.connectors.http.servers import answering
from tests.connectors.search.bulk_double import BulkDouble
from tests.servers.mariadb import MariaDbServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis_server import RedisServer
from tests.worker.connect import outsides
from tests.worker.connect.outsides import Origin, Target
from tests.worker.processes import read_whole


@dataclass(frozen=True, slots=True)
class Outside:
    """Where a pair reads and writes."""

    origin: Origin
    target: Target
    settings: Mapping[str, str]
    restart: Callable[[], None] = lambda: None
    """Kills its server, if it has one that keeps what it has, and starts it again."""


async def tail_and_objects(path: Path, _: AsyncExitStack) -> Outside:
    (path / "in.log").touch()
    return Outside(
        outsides.LinesOfFile(path / "in.log"),
        outsides.JsonFiles(path / "out"),
        {"source": f"{path}/in.log", "target": f"{path}/out"},
    )


async def spool_dir_and_sqlite(path: Path, _: AsyncExitStack) -> Outside:
    return Outside(
        outsides.FilesOfDirectory(path / "in"),
        outsides.SqlTable(lambda: sqlite3.connect(path / "out.db", timeout=30), column="value"),
        {"source": f"{path}/in", "target": f"sqlite:///{path}/out.db"},
    )


async def sqlite_and_delta(path: Path, _: AsyncExitStack) -> Outside:
    origin = outsides.SqlTable(
        lambda: sqlite3.connect(path / "in.db", timeout=30),
        insert="insert into numbers values (?)",
    )
    return Outside(
        origin.create(),
        outsides.DeltaTable(path / "out"),
        {"source": f"sqlite:///{path}/in.db", "target": f"{path}/out"},
    )


async def sse_and_iceberg(path: Path, stack: AsyncExitStack) -> Outside:
    api = outsides.Api()
    settings = {
        "source": await stack.enter_async_context(answering(api.respond)),
        "target": f"file://{path}/out",
        "catalog": f"sqlite:///{path}/catalog.db",
    }
    return Outside(api, outsides.IcebergTable(path / "catalog.db"), settings)


async def poll_and_search(_: Path, stack: AsyncExitStack) -> Outside:
    api, double = outsides.Api(), BulkDouble()
    settings = {
        "source": await stack.enter_async_context(answering(api.respond)),
        "target": await stack.enter_async_context(answering(double.respond)),
    }
    return Outside(api, Documents(double), settings)


async def redis(_: Path, stack: AsyncExitStack) -> Outside:
    server = stack.enter_context(RedisServer(appendfsync="always"))
    keys = outsides.RedisKeys(server.client)
    settings = {"source": server.url(), "target": server.url()}
    return Outside(keys, keys, settings, server.kill_and_restart)


async def cluster(path: Path, stack: AsyncExitStack) -> Outside:
    other = stack.enter_context(BrokerProcess(path / "other", flush="os"))
    log = await stack.enter_async_context(Log.open(f"kafka://{other.address}"))
    await log.admin().create_topics([NewTopic("in", 2), NewTopic("out", 2)])
    topics = Topics(log)
    settings = {"source": other.address, "target": other.address}
    return Outside(topics, topics, settings, other.kill_and_restart)


async def postgres(_: Path, stack: AsyncExitStack) -> Outside:
    server = stack.enter_context(PostgresServer())
    first, second = server.create_database(), server.create_database()
    return Outside(
        outsides.SqlTable(lambda: psycopg.connect(server.dsn(first))).create(),
        outsides.SqlTable(lambda: psycopg.connect(server.dsn(second))),
        {"source": server.url(first), "target": server.url(second)},
        server.kill_and_restart,
    )


async def mariadb(_: Path, stack: AsyncExitStack) -> Outside:
    server = stack.enter_context(MariaDbServer())
    first, second = server.create_database(), server.create_database()
    return Outside(
        outsides.SqlTable(lambda: server.connect(first)).create(),
        outsides.SqlTable(lambda: server.connect(second)),
        {"source": server.url(first), "target": server.url(second)},
        server.kill_and_restart,
    )


PAIRS: Mapping[tuple[str, str], Callable[[Path, AsyncExitStack], Awaitable[Outside]]] = {
    ("Tail", "Objects"): tail_and_objects,
    ("SpoolDir", "SqlSink"): spool_dir_and_sqlite,
    ("SqlSource", "Delta"): sqlite_and_delta,
    ("Sse", "Iceberg"): sse_and_iceberg,
    ("Poll", "Search"): poll_and_search,
    ("RedisStreams", "RedisSink"): redis,
    ("KafkaClusterSource", "KafkaClusterSink"): cluster,
    ("PostgresCdc", "SqlSink of PostgreSQL"): postgres,
    ("SqlSource of MariaDB", "SqlSink of MariaDB"): mariadb,
}
"""By source and sink; the word before the first space is the connector's."""


class Documents:
    """The documents of an index; each has the id of its offset."""

    def __init__(self, double: BulkDouble) -> None:
        self._double = double

    async def found(self) -> Counter[int]:
        return Counter(map(outsides.number_of, self._double.documents("numbers").values()))


class Topics:
    """A topic of another cluster to read, and one to write."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def feed(self, numbers: Sequence[int]) -> None:
        async with self._log.producer() as producer:
            for n in numbers:
                await producer.send("in", b"%d" % n, partition=n % 2)

    async def found(self) -> Counter[int]:
        records = await read_whole(self._log, "out")
        return Counter(int(record.value or b"") for _, record in records)
