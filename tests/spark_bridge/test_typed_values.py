"""Values as columns of the type that an app declares for the topic."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_bridge.typed_values import declared_columns, declared_decoder
from streamlog.client.admin import NewTopic
from streamlog.errors import ConfigError, SerdeError
from streamlog.log import Log
from tests.spark_bridge.declared_app import Item, Kind, Sale, numbers, sales

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = "tests.spark_bridge.declared_app"
AT = datetime(2026, 11, 22, 5, tzinfo=UTC)
SALE = Sale(AT, date(2026, 11, 22), Kind.WEB, 2, [Item("pen", 1.5), Item("ink")], {"a": 1})


def test_a_declared_type_becomes_spark_columns() -> None:
    assert declared_columns(APP, ["sales"]) == (
        "struct<`at`: timestamp, `day`: date, `kind`: string, `level`: bigint, "
        "`items`: array<struct<`name`: string, `price`: double>>, "
        "`counts`: map<string, bigint>, `note`: string, `is_paid`: boolean>"
    )
    assert declared_columns(f"{APP}:app", ["numbers"]) == "bigint"


def test_a_type_without_columns_is_named() -> None:
    with pytest.raises(ConfigError, match=r"trees\.what has a type that Spark lacks"):
        declared_columns(APP, ["trees"])
    with pytest.raises(ConfigError, match=r"different types.*names: string; numbers: bigint"):
        declared_columns(APP, ["numbers", "names"])
    with pytest.raises(ConfigError, match="has no topic 'nowhere'; its topics: sales"):
        declared_columns(APP, ["nowhere"])
    with pytest.raises(ConfigError, match="'nobody' can't be imported"):
        declared_columns("nobody", ["sales"])


def test_a_value_that_does_not_fit_its_type_is_refused() -> None:
    with pytest.raises(SerdeError):
        declared_decoder(APP, "sales")(b'{"at": 7}')


async def write(url: str) -> None:
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("sales", 1), NewTopic("numbers", 1)])
        async with log.producer() as producer:
            key, value = sales.encoded("a", SALE)
            await producer.send("sales", value, key=key)
            await producer.send("sales", None, key=key)
            for number in (7, -1):
                await producer.send("numbers", numbers.encoded("b", number)[1], key=b"b")
            await producer.send("numbers", b"no", key=b"b")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_values_are_read_as_the_app_declares_them(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(write(f"embedded:{tmp_path / 'log'}"))
    reader = spark.read.format("streamlog").option("path", str(tmp_path / "log"))
    reader = reader.option("app", APP)
    first, second = reader.option("subscribe", "sales").load().select("value").collect()
    assert second.value is None
    assert first.value.at.astimezone(UTC) == AT
    found = (first.value.day, first.value.kind, first.value.level, first.value["counts"])
    assert found == (SALE.day, "web", 2, {"a": 1})
    assert [tuple(item) for item in first.value["items"]] == [("pen", 1.5), ("ink", None)]
    reader = reader.option("subscribe", "numbers")
    good = reader.option("endingOffsets", '{"numbers": {"0": 2}}').load()
    assert sorted(row.value for row in good.collect()) == [-1, 7]
    with pytest.raises(
        Exception, match=r"numbers-0 at offset 2 does not fit the type that tests\.spark"
    ):
        reader.option("endingOffsets", "latest").load().collect()
