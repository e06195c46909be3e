"""Streaming queries from log to log: restarted, repeated, and limited."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.cli.test_groups_command import row
from tests.spark_bridge.test_writing import committed
from tests.worker.processes import streamlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PARTITIONS = 2


async def append(url: str, first: int, count: int) -> None:
    async with Log.open(url) as log:
        if not await log.admin().list_topics():
            await log.admin().create_topics([NewTopic("in", PARTITIONS), NewTopic("out", 1)])
        async with log.producer() as producer:
            for number in range(first, first + count):
                await producer.send("in", b"%d" % number, partition=number % PARTITIONS)


def run(
    spark: SparkSession,
    directory: Path,
    checkpoint: Path,
    out: Path | None = None,
    **options: str,
) -> StreamingQuery:
    reader = spark.readStream.format("streamlog").option("path", str(directory))
    frame = reader.options(**{"subscribe": "in", "startingOffsets": "earliest", **options}).load()
    writer = frame.selectExpr("value").writeStream.format("streamlog").outputMode("append")
    writer = writer.option("path", str(out or directory)).option("topic", "out")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    return query


def written_numbers(directory: Path) -> list[int]:
    return sorted(int(record.value or b"") for record in committed(directory, "out", 0))


async def positions(url: str) -> dict[TopicPartition, int]:
    async with Log.open(url) as log:
        return await log.admin().group_offsets("spark-streamlog-in")


def test_a_restarted_query_neither_loses_nor_repeats_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    url = f"embedded:{directory}"
    asyncio.run(append(url, 0, 100))
    query = run(spark, directory, checkpoint, maxOffsetsPerTrigger="60")
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert [size for size in sizes if size] == [60, 40]
    assert written_numbers(directory) == [*range(100)]
    asyncio.run(append(url, 100, 30))
    run(spark, directory, checkpoint)
    assert written_numbers(directory) == [*range(130)]
    # As if killed between the batch's publication and Spark's commit: the batch is repeated.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    asyncio.run(append(url, 130, 10))
    run(spark, directory, checkpoint)
    assert written_numbers(directory) == [*range(140)]
    assert asyncio.run(positions(url)) == {TopicPartition("in", n): 70 for n in range(2)}
    group = ("groups", "describe", "spark-streamlog-in", "--log", url)
    code, output = streamlog(*group, cwd=tmp_path)
    assert code == 0, output
    assert all(row(output, f"in-{number}", "70", "70", "0") for number in "01"), output


async def recreate(url: str, first: int, count: int) -> None:
    async with Log.open(url) as log:
        await log.admin().delete_topics(["in"])
        await log.admin().create_topics([NewTopic("in", PARTITIONS)])
    await append(url, first, count)


@pytest.mark.parametrize("count", [20, 150], ids=["fewer", "more"])
def test_a_recreated_topic_is_reported_or_read_from_its_start(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    directory, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    url = f"embedded:{directory}"
    asyncio.run(append(url, 0, 100))
    run(spark, directory, checkpoint)
    asyncio.run(recreate(url, 1_000, count))
    for _ in range(2):
        with pytest.raises(Exception, match="in-0: the topic was deleted and created again"):
            run(spark, directory, checkpoint)
    assert written_numbers(directory) == [*range(100)]
    new = [*range(1_000, 1_000 + count)]
    run(spark, directory, checkpoint, failOnDataLoss="false", maxOffsetsPerTrigger="40")
    assert written_numbers(directory) == [*range(100), *new]
    asyncio.run(append(url, 1_000 + count, 30))
    run(spark, directory, checkpoint)
    assert written_numbers(directory) == [*range(100), *new, *range(1_000 + count, 1_030 + count)]


def test_a_restored_backup_is_reported_or_read_from_the_divergence(
    spark: SparkSession, tmp_path: Path
) -> None:
    directory, out, checkpoint = tmp_path / "log", tmp_path / "out", tmp_path / "checkpoint"
    asyncio.run(append(f"embedded:{out}", 0, 0))
    asyncio.run(append(f"embedded:{directory}", 0, 60))
    shutil.copytree(directory, tmp_path / "backup")
    asyncio.run(append(f"embedded:{directory}", 60, 40))
    run(spark, directory, checkpoint, out)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "backup", directory)
    # Each start begins a leader epoch. With equally many starts, the epochs would be equal.
    asyncio.run(append(f"embedded:{directory}", 0, 0))
    asyncio.run(append(f"embedded:{directory}", 1_000, 70))
    with pytest.raises(Exception, match=r"in-0: the log was truncated: from offset 30 on it holds"):
        run(spark, directory, checkpoint, out)
    assert written_numbers(out) == [*range(100)]
    run(spark, directory, checkpoint, out, failOnDataLoss="false")
    assert written_numbers(out) == [*range(100), *range(1_000, 1_070)]


def test_an_option_of_batch_queries_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(append(f"embedded:{tmp_path / 'log'}", 0, 1))
    with pytest.raises(Exception, match="has no meaning in a streaming query"):
        run(spark, tmp_path / "log", tmp_path / "checkpoint", endingOffsets="latest")
