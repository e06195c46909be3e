"""The Spark source against a real log: the columns, the rows, and what fails how."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_bridge import session
from streamlog.client.admin import NewTopic
from streamlog.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
START_MS = 1_700_000_000_000
PER_PARTITION = 500
PARTITIONS = 3
SPARK_KAFKA_COLUMNS = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Only the first compiler: it starts sooner, and nothing here runs for long.
    spark = session("tests", "local[2]", {"spark.driver.extraJavaOptions": FIRST_COMPILER})
    yield spark
    spark.stop()


def written(partition: int, number: int) -> tuple[int, bytes | None, bytes | None, Any]:
    key = None if number % 7 == 0 else b"key-%d" % number
    value = None if number % 11 == 0 else b"value-%d-%d" % (partition, number)
    headers = (("trace", b"\x00\xff"), ("empty", None)) if number % 5 == 0 else ()
    return START_MS + number, key, value, headers


async def write(url: str) -> None:
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("rows", PARTITIONS), NewTopic("empty", 1)])
        async with log.producer(compression="zstd") as producer:
            for partition in range(PARTITIONS):
                records = [written(partition, number) for number in range(PER_PARTITION)]
                await producer.send_many("rows", partition, records)
            await producer.flush()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spark") / "log"
    asyncio.run(write(f"embedded:{path}"))
    return path


def load(spark: SparkSession, directory: Path, **options: str) -> DataFrame:
    reader = spark.read.format("streamlog").option("path", str(directory))
    return reader.option("subscribe", "rows").options(**options).load()


def expected() -> set[tuple[Any, ...]]:
    rows = set()
    for partition in range(PARTITIONS):
        for number in range(PER_PARTITION):
            timestamp_ms, key, value, _ = written(partition, number)
            at = datetime.fromtimestamp(timestamp_ms / 1_000, UTC)
            rows.add((key, value, "rows", partition, number, at, 0))
    return rows


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Rows with bytes for bytearrays and aware timestamps."""
    return [
        (
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.topic,
            row.partition,
            row.offset,
            row.timestamp.astimezone(UTC),
            row.timestampType,
        )
        for row in frame.collect()
    ]


def test_columns_are_those_of_sparks_kafka_source(spark: SparkSession, directory: Path) -> None:
    assert load(spark, directory).dtypes == SPARK_KAFKA_COLUMNS
    with_headers = load(spark, directory, includeHeaders="true").dtypes
    assert with_headers[-1] == ("headers", "array<struct<key:string,value:binary>>")


def test_every_row_once_and_a_task_per_partition(spark: SparkSession, directory: Path) -> None:
    frame = load(spark, directory)
    rows = rows_of(frame)
    assert len(rows) == PARTITIONS * PER_PARTITION
    assert set(rows) == expected()
    assert frame.rdd.getNumPartitions() == PARTITIONS


def test_rows_stand_in_offset_order(spark: SparkSession, directory: Path) -> None:
    offsets: dict[int, list[int]] = {}
    for row in load(spark, directory).select("partition", "offset").collect():
        offsets.setdefault(row.partition, []).append(row.offset)
    assert all(seen == sorted(seen) for seen in offsets.values())


def test_headers_are_null_when_there_are_none(spark: SparkSession, directory: Path) -> None:
    frame = load(spark, directory, includeHeaders="true")
    for row in frame.where("partition = 0").collect():
        if row.offset % 5 == 0:
            pairs = [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers]
            assert pairs == [("trace", b"\x00\xff"), ("empty", None)]
        else:
            assert row.headers is None


def test_from_a_running_broker_the_rows_are_the_same(spark: SparkSession, directory: Path) -> None:
    async def read() -> list[tuple[Any, ...]]:
        async with Log.open(f"embedded:{directory}") as log:
            assert log.address is not None
            servers = "{}:{}".format(*log.address)
            reader = spark.read.format("streamlog").option("kafka.bootstrap.servers", servers)
            # Spark waits in a thread: the broker answers on this loop.
            return await asyncio.to_thread(
                lambda: rows_of(reader.option("subscribe", "rows").load())
            )

    assert set(asyncio.run(read())) == expected()


def test_a_frame_keeps_its_rows_when_the_log_grows(spark: SparkSession, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'log'}"
    asyncio.run(write(url))
    frame = load(spark, tmp_path / "log")
    before = frame.count()

    async def grow() -> None:
        async with Log.open(url) as log, log.producer() as producer:
            await producer.send_many("rows", 0, [(START_MS, None, b"later", ())])
            await producer.flush()

    asyncio.run(grow())
    assert frame.count() == before
    assert load(spark, tmp_path / "log").count() == before + 1


def test_an_empty_topic_has_no_rows(spark: SparkSession, directory: Path) -> None:
    reader = spark.read.format("streamlog").option("path", str(directory))
    assert reader.option("subscribe", "empty").load().count() == 0


def test_an_unknown_topic_is_named(spark: SparkSession, directory: Path) -> None:
    reader = spark.read.format("streamlog").option("path", str(directory))
    with pytest.raises(Exception, match="no topic 'nowhere'"):
        reader.option("subscribe", "nowhere").load()


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, directory: Path) -> None:
    reader = spark.read.format("streamlog").schema("key binary").option("path", str(directory))
    with pytest.raises(Exception, match="fixed columns"):
        reader.option("subscribe", "rows").load().count()
