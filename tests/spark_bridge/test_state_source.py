"""State as a DataFrame: the rows are plain Python's, of a directory, a snapshot and a bucket."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamlog.durations import moment
from tests.cli.one_app.test_state_commands import (
    BEGIN_MS,
    MINUTE_MS,
    SALES,
    WORDS,
    feed,
    fill_typed,
    shop,
    typed,
    until_typed_is_read,
)
from tests.worker.operations.test_app_reset import rows, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state")
    app = shop(path)
    asyncio.run(feed(app))
    with running(app):
        asyncio.run(rows(app, "sums", len(SALES)))
        asyncio.run(rows(app, "counts", len(SALES)))
    shop(path).backfill(directory=str(path / "snapshots"), job_id="one").run()
    return path


def load(spark: SparkSession, path: Path | str, **options: str) -> DataFrame:
    return spark.read.format("streamlog_state").options(**options).load(str(path))


def sums(sales: list[tuple[str, int, int]]) -> dict[str, int]:
    found = Counter[str]()
    for customer, amount, _ in sales:
        found[customer] += amount
    return dict(found)


def test_rows_are_those_of_plain_python(spark: SparkSession, directory: Path) -> None:
    frame = load(spark, directory / "state/shop")
    found = frame.where("store = 'sum'").selectExpr("task", "key", "cast(value as long) as n")
    assert {(each.task, each.key): each.n for each in found.collect()} == {
        ("0_0", customer): amount for customer, amount in sums(SALES).items()
    }
    windows = Counter((customer, minute) for customer, _, minute in SALES)
    counted = load(spark, directory / "state/shop", store="per-minute").where(
        "window_start is not null"
    )
    minute = timedelta(milliseconds=MINUTE_MS)
    assert {
        (each.key, seconds(each.window_start)): (json.loads(each.value), each.window_end)
        for each in counted.collect()
    } == {
        (customer, BEGIN_MS // 1000 + 60 * at): (count, local(at) + minute)
        for (customer, at), count in windows.items()
    }


def seconds(time: datetime) -> int:
    return round(time.timestamp())


def local(minute: int) -> datetime:
    """Return the begin of a minute as Spark returns times: of the local zone, without saying so."""
    return moment(BEGIN_MS + minute * MINUTE_MS).astimezone().replace(tzinfo=None)


def test_a_snapshot_is_read_and_joined_like_any_frame(spark: SparkSession, directory: Path) -> None:
    # The history ends before the last record.
    history = load(spark, directory / "snapshots/one", store="sum")
    worker = load(spark, directory / "state/shop/0_0", store="sum")
    assert {each.key: int(each.value) for each in history.collect()} == sums(SALES[:-1])
    only_there = worker.join(history, "key", "left_anti").collect()
    assert [(each.key, each.value) for each in only_there] == [("cid", "1")]
    assert bytes(only_there[0].key_bytes) == b"cid"


def test_recorded_types_tell_numbers_from_text(spark: SparkSession, tmp_path: Path) -> None:
    app = typed(tmp_path)
    asyncio.run(fill_typed(app))
    with running(app):
        asyncio.run(until_typed_is_read(app))
    where = tmp_path / "state" / "typed"
    frame = load(spark, where, store="last", types=app.log)
    assert {int(row.key): json.loads(row.value) for row in frame.collect()} == dict(WORDS)
    # Bytes alone don't tell: a text of digits is a number.
    (guessed,) = load(spark, where, store="last").where("key = '1'").collect()
    assert json.loads(guessed.value) == int(dict(WORDS)[1])
    with pytest.raises(Exception, match="has no record of app 'other'"):
        load(spark, where.rename(where.with_name("other")), types=app.log).collect()


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("nowhere", {}, "holds no state"),
        ("state/shop", {"stor": "sum"}, "unknown option 'stor'"),
    ],
)
def test_what_can_not_be_read_is_refused_in_one_line(
    spark: SparkSession, directory: Path, path: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message) as refused:
        load(spark, directory / path, **options).collect()
    assert "Traceback" not in str(refused.value)
