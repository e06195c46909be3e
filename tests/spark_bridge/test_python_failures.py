"""Failures in Spark: one message with topic, partition, offset and node, without traces."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from spark_bridge.python_failures import first_line
from streamlog.client.admin import NewTopic
from streamlog.errors import ProcessingError, StreamlogError
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.spark_bridge.test_spark_run import END, Shop, shop
from tests.worker.processes import streamlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["shop"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


async def fill(url: str) -> None:
    """Write two partitions of 200 numbers, and delete the first 50 of partition 0."""
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("rows", 2)])
        async with log.producer() as producer:
            for number in range(400):
                await producer.send("rows", b"%d" % number, partition=number % 2)
                if number == 300:
                    await producer.flush()
        await log.admin().delete_records({TopicPartition("rows", 0): 50})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("failures") / "log"
    asyncio.run(fill(f"embedded:{path}"))
    return path


def read(spark: SparkSession, directory: Path, **options: str) -> DataFrame:
    reader = spark.read.format("streamlog").option("path", str(directory))
    return reader.options(**{"subscribe": "rows", **options}).load()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "nowhere"}, ("no topic 'nowhere'", "its topics: rows")),
        (
            {"startingOffsets": '{"rows": {"0": 0, "1": 0}}'},
            ("offset 0 of rows-0", "begins at 50 and ends at 200", "failOnDataLoss=false"),
        ),
        (
            {"endingOffsets": '{"rows": {"0": 60, "1": 999}}'},
            ("offset 999 of rows-1", "begins at 0 and ends at 200", "failOnDataLoss=false"),
        ),
        ({"valueSchema": "price long"}, ("rows-", "offset", "valueSchema")),
        ({"startingOfsets": "latest"}, ("no option 'startingofsets'", "startingOffsets")),
    ],
)
def test_a_failed_read_has_a_one_line_reason(
    spark: SparkSession, directory: Path, options: dict[str, str], words: tuple[str, ...]
) -> None:
    with pytest.raises(PySparkException) as raised:
        read(spark, directory, **options).collect()
    output = str(raised.value)
    assert all(word in output for word in words), output
    assert "Traceback" not in output
    assert "\tat " not in output
    assert len([line for line in output.splitlines() if "SQLSTATE" not in line]) <= 2


def test_without_fail_on_data_loss_the_remaining_records_are_read(
    spark: SparkSession, directory: Path
) -> None:
    read_options = {"startingOffsets": '{"rows": {"0": 0, "1": 0}}', "failOnDataLoss": "false"}
    read_options["endingOffsets"] = '{"rows": {"0": 999, "1": 999}}'
    assert read(spark, directory, **read_options).count() == 350


def test_a_failed_write_has_a_one_line_reason(spark: SparkSession, directory: Path) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) value", "cast(7 as int) partition")
    writer = frame.write.format("streamlog").mode("append").option("path", str(directory))
    with pytest.raises(PySparkException, match="a row is for rows-7") as raised:
        writer.option("topic", "rows").save()
    assert "Traceback" not in first_line(str(raised.value))


def test_a_history_without_its_topic_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lost = Shop(tmp_path)
    asyncio.run(_no_topics(lost.url))
    lost.app.stream(lost.orders).to(lost.totals)
    with pytest.raises(StreamlogError, match="orders"):
        lost.app.backfill(engine="spark", spark=spark, until=END).run()


async def _no_topics(url: str) -> None:
    async with Log.open(url):
        pass


def test_a_history_of_deleted_records_names_them(spark: SparkSession, shop: Shop) -> None:
    shop.app.stream(shop.orders).to(shop.totals)
    job = shop.app.backfill(engine="spark", spark=spark, until=END)
    assert "orders-0" in job.explain()

    async def delete() -> None:
        async with Log.open(shop.url) as log:
            deleted_before = {TopicPartition("orders", number): 100 for number in range(2)}
            await log.admin().delete_records(deleted_before)

    asyncio.run(delete())
    with pytest.raises(StreamlogError, match=r"orders-\d: offset 0 .* deleted") as raised:
        job.run()
    assert len(str(raised.value).splitlines()) == 1


def test_the_most_useful_line_of_spark_s_error_is_chosen() -> None:
    output = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        "  File \"x.py\", line 1, in <module>\nModuleNotFoundError: No module named 'shop'\n"
        "\tat org.apache.spark.Foo(Foo.scala:7)"
    )
    assert first_line(output) == "ModuleNotFoundError: No module named 'shop'"
    assert first_line("\n[TASK_LOST] an executor is gone\n\tat org.X") == (
        "[TASK_LOST] an executor is gone"
    )


BROKEN = """
from streamlog import App

app = App("shop", log="embedded:./log", state_dir="./state")
orders = app.topic("orders", key=str, value=int, partitions=2)
totals = app.topic("totals", key=str, value=int, partitions=2)
app.stream(orders).map_values(lambda v: 1 // (v - 77), name="inverse").to(totals)
"""


def test_a_failed_backfill_command_prints_one_error(shop: Shop) -> None:
    (shop.directory / "shop.py").write_text(BROKEN)
    code, output = streamlog(
        "-A", "shop", "backfill", "--master", "local[2]", "--until", END, cwd=shop.directory
    )
    assert code == ProcessingError.exit_code, output
    errors = [line for line in output.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert re.search(r"'inverse' failed at offset \d+ of orders-\d: ZeroDivisionError", errors[0])
    assert "\tat " not in output
    assert "Traceback" not in output
    # Spark's own log has one line per event.
    assert len(output.splitlines()) < 40, output
