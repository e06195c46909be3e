"""How far tasks are in Spark comes to the bars of the driver: each record once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_bridge.stage_function import EVERY_MS, ProgressWatch, ProgressWriter, TaskPlace
from streamlog.clock import ManualClock
from streamlog.history.task_run import Read
from streamlog.snapshots import SnapshotStore
from tests.spark_bridge.test_spark_run import END, Shop, shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["shop"]


def test_of_two_attempts_the_one_that_is_ahead_is_told(tmp_path: Path) -> None:
    place, clock, heard = SnapshotStore(str(tmp_path)), ManualClock(), list[Read]()
    watch = ProgressWatch(place, heard.append)
    watch.look()
    first = ProgressWriter(place, "0_1-7", clock=clock)
    first(Read(("orders", 1), 30, 100, is_staged=False))
    watch.look()
    assert heard == []
    clock.advance(EVERY_MS)
    first(Read(("orders", 1), 10, 100, is_staged=False))
    watch.look()
    second = ProgressWriter(place, "0_1-8", clock=clock)
    second(Read(("orders", 1), 25, 100, is_staged=False))
    second.write()
    watch.look()
    assert heard == [Read(("orders", 1), 40, 100, is_staged=False)]
    second(Read(("orders", 1), 75, 100, is_staged=False))
    second.write()
    watch.look()
    assert heard[1:] == [Read(("orders", 1), 60, 100, is_staged=False)]


def test_what_is_run_again_is_told_once(tmp_path: Path) -> None:
    heard, told = list[Read](), Counter[TaskPlace]()
    for number, records in enumerate((40, 30, 100)):
        place = SnapshotStore(str(tmp_path / str(number)))
        teller = ProgressWriter(place, f"0_1-{number}")
        teller(Read(("orders", 1), records, 100, is_staged=False))
        teller.write()
        ProgressWatch(place, heard.append, told).look()
    assert [read.records for read in heard] == [40, 60]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_bars_show_what_tasks_of_spark_have_read(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Counter[str] = Counter()

    def read(_bars: object, found: Read) -> None:
        told[f"{found.place[0]}-{found.place[1]}"] += found.records

    monkeypatch.setattr("streamlog.history.job.Bars.read", read)
    shop.app.stream(shop.orders).to(shop.totals)
    job = shop.app.backfill(engine="spark", spark=spark, until=END, progress=True)
    snapshot = job.run()
    assert {"orders-0", "orders-1"} == {*told}
    assert told.total() == 2_000
    assert "progress" not in snapshot.place.names()
