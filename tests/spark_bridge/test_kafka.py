"""Spark on Apache Kafka: frames and streaming queries, written in transactions and read back.

Needs a broker: STREAMLOG_KAFKA=HOST:PORT (`make conformance-kafka`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.murmur2 import partitions_of_keys
from tests.client.clusters import emptied_kafka
from tests.worker.processes import attached, read_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA = os.environ.get("STREAMLOG_KAFKA", "")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not KAFKA, reason="needs Apache Kafka: make conformance-kafka"),
]

URL = f"kafka://{KAFKA}"
PARTITIONS = 3
ROWS = 2_000
COLUMNS = ("cast(id % 100 as string) key", "cast(id as string) value")


@pytest.fixture(autouse=True)
def emptied_topics() -> None:
    """Create empty topics."""

    async def make() -> None:
        async with emptied_kafka(KAFKA, {"in": 2, "out": PARTITIONS}):
            pass

    asyncio.run(make())


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Path]:
    """Yield the staging directory; check that it ends empty."""
    yield tmp_path / "staging"
    assert not any(path.is_file() for path in (tmp_path / "staging").rglob("*"))


def write(frame: DataFrame, staging: Path, **options: str) -> None:
    writer = frame.write.format("streamlog").mode("append").option("topic", "out")
    writer = writer.option("kafka.bootstrap.servers", KAFKA).option("stagingPath", str(staging))
    writer.options(**options).save()


def committed(count: int) -> list[tuple[int, bytes, int]]:
    """Return partition, key and value of the `count` committed records of `out`.

    A last record per partition is written after them, so that repeated records are found.
    """

    async def scenario(log: Log) -> list[tuple[int, bytes, int]]:
        async with log.producer() as producer:
            for number in range(PARTITIONS):
                await producer.send("out", b"-1", key=b"last", partition=number)
        found = await read_until(
            log, "out", lambda rows: sum(r.key == b"last" for _, r in rows) == PARTITIONS
        )
        rows = [(at, r.key or b"", int(r.value or b"")) for at, r in found if r.key != b"last"]
        assert len(rows) == count
        return rows

    return attached(URL, scenario)


def test_a_repeated_job_writes_its_rows_once(spark: SparkSession, staging: Path) -> None:
    frame = spark.range(0, ROWS, 1, 4).selectExpr(*COLUMNS)
    # The second run has other tasks and other segments.
    for again in (frame, frame.repartition(3)):
        write(again, staging, jobId="nightly-7", **{"kafka.compression.type": "zstd"})
    rows = committed(ROWS)
    assert sorted(value for _, _, value in rows) == [*range(ROWS)]
    for number in range(PARTITIONS):
        keys = [key for at, key, _ in rows if at == number]
        assert {*partitions_of_keys(keys, PARTITIONS)} == {number}


def test_a_failed_job_commits_nothing(spark: SparkSession, staging: Path) -> None:
    failing = "if(id = 99, raise_error('boom'), cast(id as string)) value"
    with pytest.raises(Exception, match="boom"):
        write(spark.range(0, 100, 1, 2).selectExpr(failing), staging)
    assert committed(0) == []


async def append(log: Log, first: int, count: int) -> None:
    async with log.producer() as producer:
        for number in range(first, first + count):
            await producer.send("in", b"%d" % number, partition=number % 2)


def run(spark: SparkSession, checkpoint: Path, staging: Path) -> None:
    reader = spark.readStream.format("streamlog").option("kafka.bootstrap.servers", KAFKA)
    frame = reader.option("subscribe", "in").option("startingOffsets", "earliest").load()
    writer = frame.selectExpr(*("key", "value")).writeStream.format("streamlog")
    writer = writer.option("kafka.bootstrap.servers", KAFKA).option("topic", "out")
    writer = writer.option("stagingPath", str(staging)).outputMode("append")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


def test_a_restarted_query_neither_loses_nor_repeats_records(
    spark: SparkSession, tmp_path: Path, staging: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    attached(URL, lambda log: append(log, 0, 100))
    run(spark, checkpoint, staging)
    # As if killed between the batch's publication and Spark's commit: the batch is repeated.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    attached(URL, lambda log: append(log, 100, 30))
    run(spark, checkpoint, staging)
    assert sorted(value for _, _, value in committed(130)) == [*range(130)]

    async def positions(log: Log) -> dict[TopicPartition, int]:
        return await log.admin().group_offsets("spark-streamlog-in")

    assert attached(URL, positions) == {TopicPartition("in", n): 65 for n in range(2)}


def test_committed_records_are_read_and_aborted_ones_are_not(spark: SparkSession) -> None:
    async def scenario(log: Log) -> None:
        await append(log, 0, 40)
        async with log.producer(transactional_id="aborts") as producer:
            aborted = producer.transaction()
            await aborted.__aenter__()
            for number in range(40, 60):
                await producer.send("in", b"%d" % number, partition=number % 2)
            await producer.flush()
            await aborted.__aexit__(KeyError, KeyError(), None)
        await log.admin().create_topics([NewTopic("other", 1)])

    attached(URL, scenario)
    reader = spark.read.format("streamlog").option("kafka.bootstrap.servers", KAFKA)
    rows = reader.option("subscribe", "in,other").load()
    assert sorted(int(row.value) for row in rows.collect()) == [*range(40)]
