"""Spark on Apache Kafka: frames and streaming queries, written in transactions, read back.

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
def emptied() -> None:
    """Topics without records."""

    async def make() -> None:
        async with emptied_kafka(KAFKA, {"in": 2, "out": PARTITIONS}):
            pass

    asyncio.run(make())


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Path]:
    """Where segments wait; nothing is left there."""
    yield tmp_path / "staging"
    assert not any(path.is_file() for path in (tmp_path / "staging").rglob("*"))


def write(frame: DataFrame, staging: Path, **options: str) -> None:
    writer = frame.write.format("streamlog").mode("append").option("topic", "out")
    writer = writer.option("kafka.bootstrap.servers", KAFKA).option("stagingPath", str(staging))
    writer.options(**options).save()


def committed(count: int) -> list[tuple[int, bytes, int]]:
    """Partition, key and value of the committed records of `out`, once there are so many.

    Behind them comes one more, so that what would come again is seen.
    """

    async def story(log: Log) -> list[tuple[int, bytes, int]]:
        async with log.producer() as producer:
            for number in range(PARTITIONS):
                await producer.send("out", b"-1", key=b"last", partition=number)
        found = await read_until(
            log, "out", lambda rows: sum(r.key == b"last" for _, r in rows) == PARTITIONS
        )
        rows = [(at, r.key or b"", int(r.value or b"")) for at, r in found if r.key != b"last"]
        assert len(rows) == count
        return rows

    return attached(URL, story)


def test_a_job_counts_once_however_often_it_is_run(spark: SparkSession, staging: Path) -> None:
    frame = spark.range(0, ROWS, 1, 4).selectExpr(*COLUMNS)
    # The second time it has other tasks, and other segments.
    for again in (frame, frame.repartition(3)):
        write(again, staging, jobId="nightly-7", **{"kafka.compression.type": "zstd"})
    rows = committed(ROWS)
    assert sorted(value for _, _, value in rows) == [*range(ROWS)]
    for number in range(PARTITIONS):
        keys = [key for at, key, _ in rows if at == number]
        assert {*partitions_of_keys(keys, PARTITIONS)} == {number}


def test_of_a_job_that_fails_nothing_counts(spark: SparkSession, staging: Path) -> None:
    failing = "if(id = 99, raise_error('boom'), cast(id as string)) value"
    with pytest.raises(Exception, match="boom"):
        write(spark.range(0, 100, 1, 2).selectExpr(failing), staging)
    assert committed(0) == []


async def appended(log: Log, first: int, count: int) -> None:
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


def test_a_query_goes_on_after_a_restart_without_loss_or_repeat(
    spark: SparkSession, tmp_path: Path, staging: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    attached(URL, lambda log: appended(log, 0, 100))
    run(spark, checkpoint, staging)
    # Killed after the batch was published and before Spark has noted it: it comes again.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    attached(URL, lambda log: appended(log, 100, 30))
    run(spark, checkpoint, staging)
    assert sorted(value for _, _, value in committed(130)) == [*range(130)]

    async def positions(log: Log) -> dict[TopicPartition, int]:
        return await log.admin().group_offsets("spark-streamlog-in")

    assert attached(URL, positions) == {TopicPartition("in", n): 65 for n in range(2)}


def test_what_is_in_the_topics_is_read_and_what_was_aborted_is_not(spark: SparkSession) -> None:
    async def story(log: Log) -> None:
        await appended(log, 0, 40)
        async with log.producer(transactional_id="aborts") as producer:
            aborted = producer.transaction()
            await aborted.__aenter__()
            for number in range(40, 60):
                await producer.send("in", b"%d" % number, partition=number % 2)
            await producer.flush()
            await aborted.__aexit__(KeyError, KeyError(), None)
        await log.admin().create_topics([NewTopic("other", 1)])

    attached(URL, story)
    reader = spark.read.format("streamlog").option("kafka.bootstrap.servers", KAFKA)
    rows = reader.option("subscribe", "in,other").load()
    assert sorted(int(row.value) for row in rows.collect()) == [*range(40)]
