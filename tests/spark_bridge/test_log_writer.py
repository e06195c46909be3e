"""Writes to topics whose producers use another partitioner than the default."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from spark_bridge.log_writer import partitioner_of
from spark_bridge.source_options import WriteOptions, parse_write_options
from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.partitioners import Partitioner, partition_by
from streamlog.worker.worker import Worker
from tests.spark_bridge.declared_app import by_length
from tests.spark_bridge.test_writing import committed, one, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 4
APP = "tests.spark_bridge.declared_app"
WRITTEN: dict[str, Partitioner] = {
    "murmur2": "murmur2",
    "crc32": "crc32",
    "fnv1a": "fnv1a",
    "lengths": by_length,
}


def keys(count: int) -> list[bytes]:
    return [b"u" * (at % 3) + b"%d" % at for at in range(count)]


async def fill(url: str) -> None:
    async with Log.open(url) as log:
        names = [*WRITTEN, "empty", "by-hand", "single"]
        await log.admin().create_topics(
            [NewTopic(name, 1 if name == "single" else COUNT) for name in names]
        )
        async with log.producer() as producer:
            for name, partitioner in WRITTEN.items():
                for key in keys(40):
                    at = partition_by(partitioner, key, COUNT)
                    await producer.send(name, b"", key=key, partition=at)
            for key in keys(40):
                await producer.send("by-hand", b"", key=key)
            await producer.send("by-hand", b"", key=b"u1", partition=2)
            await producer.send("single", b"", key=b"u1")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "log"
    asyncio.run(fill(f"embedded:{path}"))
    return path


@pytest.fixture(scope="module", params=["path", "broker"])
def address(request: pytest.FixtureRequest, directory: Path) -> Iterator[dict[str, str]]:
    if request.param == "path":
        yield {"path": str(directory)}
        return
    with served(one(directory)) as servers:
        yield {"kafka.bootstrap.servers": servers}


def options(address: dict[str, str], **given: str) -> WriteOptions:
    return parse_write_options({**address, **given})


def test_the_default_partitioner_is_checked_against_the_topic_s_keys(
    address: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("murmur2", "empty", "by-hand"):
        assert partitioner_of(options(address), topic, COUNT) == "murmur2"
    assert partitioner_of(options(address), "single", 1) == "murmur2"
    for topic in ("crc32", "fnv1a"):
        message = rf"of \d+ keys in topic '{topic}' are not where murmur2 .* partitioner='{topic}'"
        with pytest.raises(ConfigError, match=message):
            partitioner_of(options(address), topic, COUNT)
        assert partitioner_of(options(address, partitioner=topic), topic, COUNT) == topic
    assert caplog.messages == []
    caplog.set_level(logging.WARNING)
    assert partitioner_of(options(address), "lengths", COUNT) == "murmur2"
    words = "'lengths' are not where murmur2 puts them, and no other partitioner fits"
    assert words in caplog.text


def test_an_app_s_declared_partitioner_is_used(directory: Path) -> None:
    declared = options({"path": str(directory)}, app=APP)
    assert partitioner_of(declared, "crc32", COUNT) == "crc32"
    assert partitioner_of(declared, "lengths", COUNT) is by_length
    assert partitioner_of(declared, "sales", COUNT) == "murmur2"
    with pytest.raises(ConfigError, match="has no topic 'fnv1a'; its topics: sales"):
        partitioner_of(declared, "fnv1a", COUNT)


def test_invalid_partitioner_options_are_refused() -> None:
    for given, message in (
        (
            {"partitioner": "crc"},
            "option 'partitioner' must be murmur2 or crc32 or fnv1a, not 'crc'",
        ),
        ({"partitioner": "crc32", "app": APP}, "give either 'partitioner' or 'app'"),
        ({"kafka.partitioner.class": "x"}, "'kafka.partitioner.class' has no meaning here"),
    ):
        with pytest.raises(ConfigError, match=message):
            options({"path": "/data"}, **given)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_table_finds_rows_written_by_spark(spark: SparkSession, directory: Path) -> None:
    frame = spark.range(0, 200, 1, 2).selectExpr("concat('s', id) key", "cast(id as string) value")

    def write(**given: str) -> None:
        writer = frame.write.format("streamlog").mode("append").option("path", str(directory))
        writer.options(**{"topic": "crc32", **given}).save()

    with pytest.raises(Exception, match="keys in topic 'crc32' are not where murmur2 puts them"):
        write()
    assert sum(len(committed(directory, "crc32", at)) for at in range(COUNT)) == 40
    write(app=APP)
    found = {r.key: at for at in range(COUNT) for r in committed(directory, "crc32", at)}
    assert len(found) == 240
    assert asyncio.run(join_all(directory)) == {f"s{at}": str(at) for at in range(200)}


async def join_all(directory: Path) -> dict[str, str]:
    """Join each key with the table; return the rows that the join finds."""
    app = App("joined", log=f"embedded:{directory}", state_dir=f"{directory}-state")
    users = app.topic("crc32", key=str, value=str, partitioner="crc32")
    asks = app.topic("asks", key=str, value=str, partitioner="crc32", partitions=COUNT)
    answers = app.topic("answers", key=str, value=str, partitions=1)
    app.stream(asks).join(app.table(users), lambda _, user: user, name="with-user").to(answers)
    found: dict[str, str] = {}
    async with Log.open(f"embedded:{directory}") as log:
        await log.admin().create_topics([NewTopic("asks", COUNT), NewTopic("answers", 1)])
        async with log.producer() as producer:
            producer.partition_by({"asks": "crc32"})
            for at in range(200):
                await producer.send("asks", b"", key=b"s%d" % at)
        stop = asyncio.Event()
        worker = Worker(app.program(), log_url=f"embedded:{directory}", announce=lambda _: None)
        running = asyncio.create_task(worker.run(stop))
        async with (
            asyncio.timeout(120),
            log.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as reader,
        ):
            reader.assign([TopicPartition("answers", 0)])
            while len(found) < 200:
                for records in (await reader.poll(timeout_ms=500)).values():
                    found |= {(r.key or b"").decode(): (r.value or b"").decode() for r in records}
                if running.done():
                    running.result()
        stop.set()
        await running
    return found
