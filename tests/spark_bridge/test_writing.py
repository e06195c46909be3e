"""Frames written to a log: a job's rows count all, once, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.records.batch import LogRecord
from streamlog.records.murmur2 import partitions_of_keys
from streamlog.stored_log import StoredLog
from tests.broker.three_brokers import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PARTITIONS = 3
ROWS = 2_000
COLUMNS = ("cast(id % 100 as string) key", "cast(id as string) value")


async def create(url: str) -> None:
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("out", PARTITIONS), NewTopic("more", 1)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    asyncio.run(create(f"embedded:{tmp_path / 'log'}"))
    return tmp_path / "log"


def committed(directory: Path, topic: str, number: int) -> list[LogRecord]:
    with StoredLog(str(directory)) as stored:
        first, end = stored.offsets(topic, number)
        if first == end:
            return []
        view = stored.committed(topic, number, first, end)
        return [
            record
            for batch in stored.read(topic, number, first, view.end_offset)
            if not batch.is_control
            and not any(
                aborted_transaction.producer_id == batch.producer_id
                and aborted_transaction.first_offset
                <= batch.base_offset
                <= aborted_transaction.last_offset
                for aborted_transaction in view.aborted
            )
            for record in batch.records()
        ]


def write(frame: DataFrame, directory: Path, **options: str) -> None:
    writer = frame.write.format("streamlog").mode("append").option("path", str(directory))
    writer.options(**{"topic": "out", **options}).save()


def test_rows_become_records_in_the_partitions_of_their_keys(
    spark: SparkSession, directory: Path
) -> None:
    frame = spark.range(0, ROWS, 1, 4).selectExpr(*COLUMNS)
    write(frame, directory, **{"kafka.compression.type": "zstd"})
    found = [committed(directory, "out", number) for number in range(PARTITIONS)]
    assert sorted(int(r.value or b"") for records in found for r in records) == [*range(ROWS)]
    for number, records in enumerate(found):
        keys = [record.key or b"" for record in records]
        assert {*partitions_of_keys(keys, PARTITIONS)} == {number}
    assert list((directory / "_staging").iterdir()) == []


def test_a_repeated_job_changes_nothing(spark: SparkSession, directory: Path) -> None:
    frame = spark.range(0, 50, 1, 2).selectExpr(
        "cast(null as binary) key",
        "encode(cast(id as string), 'utf-8') value",
        "if(id % 2 = 0, 'more', null) topic",
        "if(id % 2 = 0, 0, cast(id % 3 as int)) partition",
        "timestamp_millis(1700000000000 + id) timestamp",
        "array(struct('trace' as key, cast('x' as binary) as value)) headers",
    )
    for _ in range(2):
        write(frame, directory, jobId="nightly-7")
    more = committed(directory, "more", 0)
    assert sorted(int(record.value or b"") for record in more) == [*range(0, 50, 2)]
    for record in more:
        assert record.timestamp_ms == 1_700_000_000_000 + int(record.value or b"")
        assert record.headers == (("trace", b"x"),)
    for number in range(PARTITIONS):
        values = [int(record.value or b"") for record in committed(directory, "out", number)]
        assert values
        assert all(value % 2 == 1 and value % 3 == number for value in values)


def test_a_failed_job_commits_nothing(spark: SparkSession, directory: Path) -> None:
    failing = "if(id = 99, raise_error('boom'), cast(id as string)) value"
    with pytest.raises(Exception, match="boom"):
        write(spark.range(0, 100, 1, 2).selectExpr(failing), directory)
    assert [committed(directory, "out", number) for number in range(PARTITIONS)] == [[], [], []]
    assert not any((directory / "_staging").rglob("*/*"))


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("cast(id as string) vlaue", {}, "column 'vlaue'"),
        ("id value", {}, "'value' has type bigint"),
        ("cast(id as string) value", {"topic": "nowhere"}, "no topic 'nowhere'"),
        ("cast(id as string) value, 7 partition", {}, "a row is for out-7"),
        ("cast(id as string) value", {"jobid_": "x"}, "no option 'jobid_'"),
        ("cast(id as string) value, 'nowhere' topic", {}, "rows name the topic 'nowhere'"),
    ],
)
def test_an_invalid_column_topic_or_option_is_named(
    spark: SparkSession, directory: Path, columns: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        write(spark.range(3).selectExpr(*columns.split(", ")), directory, **options)


@asynccontextmanager
async def one(directory: Path) -> AsyncIterator[str]:
    async with Log.open(f"embedded:{directory}") as log:
        assert log.address is not None
        yield "{}:{}".format(*log.address)


@asynccontextmanager
async def three() -> AsyncIterator[str]:
    async with Cluster() as cluster:
        await cluster.ready()
        servers = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())
        await create(f"kafka://{servers}")
        yield servers


@contextmanager
def served(brokers: AbstractAsyncContextManager[str]) -> Iterator[str]:
    """Run brokers on a loop in another thread: Spark needs the thread of its sources."""
    address: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with brokers as servers:
            address.set_result(servers)
            await stop.wait()

    thread = Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield address.result(timeout=60)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_rows_can_be_written_to_a_running_broker(spark: SparkSession, directory: Path) -> None:
    with served(one(directory)) as servers:
        frame = spark.range(0, ROWS, 1, 2).selectExpr(*COLUMNS)
        writer = frame.write.format("streamlog").mode("append").option("topic", "out")
        writer.option("kafka.bootstrap.servers", servers).save()
        reader = spark.read.format("streamlog").option("kafka.bootstrap.servers", servers)
        reader = reader.option("subscribe", "out").option("startingTimestamp", "1")
        assert reader.load().count() == ROWS
    assert not any((directory / "_staging").rglob("*/*"))


def test_several_brokers_get_a_job_once_in_one_transaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    staging = tmp_path / "staging"
    with served(three()) as servers:
        frame = spark.range(0, ROWS, 1, 2).selectExpr(*COLUMNS)
        options = {"topic": "out", "jobId": "nightly-7", "kafka.bootstrap.servers": servers}
        for again in (frame, frame.repartition(3)):
            writer = again.write.format("streamlog").mode("append").options(**options)
            writer.option("stagingPath", str(staging)).save()
        reader = spark.read.format("streamlog").option("kafka.bootstrap.servers", servers)
        reader = reader.option("subscribe", "out").option("startingOffsets", "earliest")
        assert reader.load().selectExpr("cast(value as string)").distinct().count() == ROWS
        assert reader.load().count() == ROWS
    assert not any(path.is_file() for path in staging.rglob("*"))
