"""The Spark source against a real log: columns, rows, and failures."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

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


def expected_record(partition: int, number: int) -> tuple[int, bytes | None, bytes | None, Any]:
    key = None if number % 7 == 0 else b"key-%d" % number
    value = None if number % 11 == 0 else b"value-%d-%d" % (partition, number)
    headers = (("trace", b"\x00\xff"), ("empty", None)) if number % 5 == 0 else ()
    return START_MS + number, key, value, headers


async def write(url: str) -> None:
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("rows", PARTITIONS), NewTopic("empty", 1)])
        async with log.producer(compression="zstd") as producer:
            for partition in range(PARTITIONS):
                records = [expected_record(partition, number) for number in range(PER_PARTITION)]
                await producer.send_batch("rows", partition, records)
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
            timestamp_ms, key, value, _ = expected_record(partition, number)
            at = datetime.fromtimestamp(timestamp_ms / 1_000, UTC)
            rows.add((key, value, "rows", partition, number, at, 0))
    return rows


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return rows with bytes instead of bytearrays, and with aware timestamps."""
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


def test_columns_equal_those_of_spark_s_kafka_source(spark: SparkSession, directory: Path) -> None:
    assert load(spark, directory).dtypes == SPARK_KAFKA_COLUMNS
    with_headers = load(spark, directory, includeHeaders="true").dtypes
    assert with_headers[-1] == ("headers", "array<struct<key:string,value:binary>>")


def test_every_row_is_read_once_with_a_task_per_partition(
    spark: SparkSession, directory: Path
) -> None:
    frame = load(spark, directory)
    rows = rows_of(frame)
    assert len(rows) == PARTITIONS * PER_PARTITION
    assert set(rows) == expected()
    assert frame.rdd.getNumPartitions() == PARTITIONS


def test_rows_are_in_offset_order(spark: SparkSession, directory: Path) -> None:
    offsets: dict[int, list[int]] = {}
    for row in load(spark, directory).select("partition", "offset").collect():
        offsets.setdefault(row.partition, []).append(row.offset)
    assert all(seen == sorted(seen) for seen in offsets.values())


def test_headers_are_null_for_records_without_headers(spark: SparkSession, directory: Path) -> None:
    frame = load(spark, directory, includeHeaders="true")
    for row in frame.where("partition = 0").collect():
        if row.offset % 5 == 0:
            pairs = [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers]
            assert pairs == [("trace", b"\x00\xff"), ("empty", None)]
        else:
            assert row.headers is None


def test_a_running_broker_gives_the_rows_of_its_files(spark: SparkSession, directory: Path) -> None:
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
            await producer.send_batch("rows", 0, [(START_MS, None, b"later", ())])
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


def test_a_user_s_schema_is_refused(spark: SparkSession, directory: Path) -> None:
    reader = spark.read.format("streamlog").schema("key binary").option("path", str(directory))
    with pytest.raises(Exception, match="fixed columns"):
        reader.option("subscribe", "rows").load().count()


def test_large_partitions_are_split_into_tasks(spark: SparkSession, directory: Path) -> None:
    frame = load(spark, directory, maxRecordsPerPartition="200", columns="value,partition,offset")
    assert frame.columns == ["value", "partition", "offset"]
    assert frame.rdd.getNumPartitions() == PARTITIONS * 3
    found = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
    assert sorted(found) == [(p, n) for p in range(PARTITIONS) for n in range(PER_PARTITION)]


def test_a_read_can_start_at_a_timestamp(spark: SparkSession, directory: Path) -> None:
    frame = load(
        spark,
        directory,
        startingTimestamp=str(START_MS + 100),
        endingOffsets='{"rows": {"0": 150, "1": 150, "2": -1}}',
    )
    assert frame.count() == 50 + 50 + 400


def test_filters_on_partition_and_offset_are_pushed_down(
    spark: SparkSession, directory: Path
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, directory, filterPushdown="true", columns="partition,offset")
        wanted = frame.where("partition = 1 and offset >= 490 and offset < 495")
        assert wanted.rdd.getNumPartitions() == 1
        assert [row.offset for row in wanted.collect()] == [490, 491, 492, 493, 494]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


async def transact(url: str) -> None:
    """Write transactions of 0 to 4, of which odd ones abort, and some JSON values."""
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("decided", 1), NewTopic("json", 1)])
        for number in range(5):
            async with log.producer(transactional_id=f"tx-{number}") as producer:
                with suppress(ZeroDivisionError):
                    async with producer.transaction():
                        await producer.send("decided", b"%d" % number, partition=0)
                        await producer.flush()
                        if number % 2:
                            raise ZeroDivisionError
        async with log.producer() as producer:
            for text in (b'{"price": 7, "name": "a", "more": 1}', None, b'{"price": 8}', b"no"):
                await producer.send("json", text, partition=0)


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spark") / "log"
    asyncio.run(transact(f"embedded:{path}"))
    return path


def test_aborted_records_are_read_only_if_requested(spark: SparkSession, decided: Path) -> None:
    reader = spark.read.format("streamlog").option("path", str(decided))
    seen = reader.option("subscribe", "decided").load().select("value").collect()
    assert [bytes(row.value) for row in seen] == [b"0", b"2", b"4"]
    uncommitted = reader.option("isolationLevel", "read_uncommitted").load()
    assert uncommitted.count() == 5


def test_a_value_schema_makes_typed_columns(spark: SparkSession, decided: Path) -> None:
    reader = spark.read.format("streamlog").option("path", str(decided))
    reader = reader.option("subscribe", "json").option("valueSchema", "price long, name string")
    good = reader.option("endingOffsets", '{"json": {"0": 3}}').load()
    rows = good.select("value.price", "value.name").collect()
    assert [tuple(row) for row in rows] == [(7, "a"), (None, None), (8, None)]
    with pytest.raises(Exception, match="the value of json-0 at offset 3 does not fit"):
        reader.option("endingOffsets", "latest").load().collect()


def test_a_damaged_batch_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def write_twice() -> None:
        await write(f"embedded:{path}")
        async with Log.open(f"embedded:{path}") as log, log.producer() as producer:
            await producer.send("rows", b"one more", partition=1)

    asyncio.run(write_twice())
    segment = min(path.glob("p-*-1/*.log"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    with pytest.raises(Exception, match=r"rows-1: .*the batch at offset 0 has CRC"):
        load(spark, path).collect()


def test_deleted_offsets_fail_the_read_or_are_skipped(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def delete() -> None:
        await write(f"embedded:{path}")
        async with Log.open(f"embedded:{path}") as log:
            await log.admin().delete_records({TopicPartition("rows", 0): 100})

    asyncio.run(delete())
    read_options = {"startingOffsets": '{"rows": {"0": 0, "1": 0, "2": 0}}'}
    with pytest.raises(Exception, match=r"offset 0 of rows-0 is outside the log.*failOnDataLoss"):
        load(spark, path, **read_options)
    assert load(spark, path, failOnDataLoss="false", **read_options).count() == 1_400
