"""Progress of Spark tasks in the driver's bars: each record counts once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_bridge.stage_function import EVERY_MS, ProgressWatch, ProgressWriter, TaskInput
from streamlog.clock import ManualClock
from streamlog.history.task_run import Read
from streamlog.snapshots import SnapshotStore
from tests.spark_bridge.test_spark_run import END, Shop, shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["shop"]


def test_progress_reports_the_attempt_that_is_ahead(tmp_path: Path) -> None:
    snapshot_store, clock, reported = SnapshotStore(str(tmp_path)), ManualClock(), list[Read]()
    watch = ProgressWatch(snapshot_store, reported.append)
    watch.look()
    first = ProgressWriter(snapshot_store, "0_1-7", clock=clock)
    first(Read(("orders", 1), 30, 100, is_staged=False))
    watch.look()
    assert reported == []
    clock.advance(EVERY_MS)
    first(Read(("orders", 1), 10, 100, is_staged=False))
    watch.look()
    second = ProgressWriter(snapshot_store, "0_1-8", clock=clock)
    second(Read(("orders", 1), 25, 100, is_staged=False))
    second.write()
    watch.look()
    assert reported == [Read(("orders", 1), 40, 100, is_staged=False)]
    second(Read(("orders", 1), 75, 100, is_staged=False))
    second.write()
    watch.look()
    assert reported[1:] == [Read(("orders", 1), 60, 100, is_staged=False)]


def test_repeated_stages_report_each_record_once(tmp_path: Path) -> None:
    reported, counts_by_task = list[Read](), Counter[TaskInput]()
    for number, records in enumerate((40, 30, 100)):
        snapshot_store = SnapshotStore(str(tmp_path / str(number)))
        writer = ProgressWriter(snapshot_store, f"0_1-{number}")
        writer(Read(("orders", 1), records, 100, is_staged=False))
        writer.write()
        ProgressWatch(snapshot_store, reported.append, counts_by_task).look()
    assert [read.records for read in reported] == [40, 60]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_progress_bars_count_records_read_by_spark_tasks(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts_by_task: Counter[str] = Counter()

    def read(_bars: object, found: Read) -> None:
        counts_by_task[f"{found.partition[0]}-{found.partition[1]}"] += found.records

    monkeypatch.setattr("streamlog.history.job.JobProgress.read", read)
    shop.app.stream(shop.orders).to(shop.totals)
    job = shop.app.backfill(engine="spark", spark=spark, until=END, progress=True)
    snapshot = job.run()
    assert {"orders-0", "orders-1"} == {*counts_by_task}
    assert counts_by_task.total() == 2_000
    assert "progress" not in snapshot.store.names()
