"""Histories in Spark equal the test driver, despite failures of Spark's tasks."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from spark_bridge.spark_run import SparkRun
from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.errors import ProcessingError
from streamlog.history.local_run import with_ends
from streamlog.history.plan import plan_history
from streamlog.history.readers import LogReader
from streamlog.history.staging import read_segment
from streamlog.history.task_run import FinishedTask
from streamlog.log import Log
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.processing.provenance import MARK
from streamlog.snapshots import SnapshotStore
from tests.equality.programs import SPAN_MS, Program, build, history
from tests.equality.runs import driven
from tests.history.test_local_run import NOW_MS, fill, rows_of, run_history
from tests.spark_bridge.killed import KilledStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SEEDS = range(200) if os.environ.get("STREAMLOG_PROFILE") == "thorough" else (1, 142)
END = "2100-01-01"


def run_in_spark(
    spark: SparkSession, url: str, program: Program, directory: Path, span: TimeSpan
) -> list[FinishedTask]:
    counts = {name: spec.partitions or 1 for name, spec in program.app.topics.items()}
    with LogReader(url) as reader:
        plan = plan_history(program.app.topology(), counts, span=span, outputs="stage")
        plan = with_ends(plan, reader)
    snapshot_store = SnapshotStore(str(directory / "snapshots" / "one"))
    snapshot_store.remove()
    return SparkRun(
        plan,
        spark,
        url=url,
        security=None,
        snapshots=snapshot_store,
        now_ms=NOW_MS,
        state_memory_bytes=64 * 1024 * 1024,
    ).run()


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kill processes of stages at random; the directory has a file per killed process."""
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    monkeypatch.setattr("spark_bridge.spark_run.StageFunction", partial(KilledStage, deaths=deaths))
    return deaths


def positions(task: FinishedTask, program: Program) -> list[tuple[object, ...]]:
    """Return positions in inputs; those between stages depend on an engine's time marks."""
    return sorted(each for each in task.entry.offsets if each[0][0] in program.inputs)


def waiting(tasks: list[FinishedTask], directory: Path) -> Counter[tuple[object, ...]]:
    """Return the records between two stages that the cut leaves to the workers."""
    snapshot_store = SnapshotStore(str(directory / "snapshots" / "one"))
    found: Counter[tuple[object, ...]] = Counter()
    for part in (part for task in tasks for part in task.pending):
        with snapshot_store.checked(part) as path:
            records = [r for batch in read_segment(path) for r in batch.records()]
        kept = [r for r in records if r.headers[-1][0] != MARK]
        found.update((part.topic, part.partition, r.key, r.value, r.timestamp_ms) for r in kept)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spark_history_equals_the_driver_despite_killed_tasks(
    spark: SparkSession, tmp_path: Path, deaths: Path, seed: int
) -> None:
    warnings.simplefilter("ignore", UserWarning)
    url = f"embedded:{tmp_path / 'log'}"
    program = build(seed, "driver")
    fed = history(seed, program)
    asyncio.run(fill(url, program, fed))
    found = rows_of(run_in_spark(spark, url, program, tmp_path, TimeSpan()), program, tmp_path)
    context = f"seed {seed}, {len([*deaths.iterdir()])} tasks killed: {program.operators}"
    assert found == driven(build(seed, "driver"), fed), context
    span = TimeSpan(until_ms=1_000_000 + Random(seed).randrange(SPAN_MS))
    cut = run_in_spark(spark, url, program, tmp_path, span)
    found = rows_of(cut, program, tmp_path)
    local = run_history(url, program, tmp_path / "local", span)
    assert found == rows_of(local, program, tmp_path / "local"), f"cut, {context}"
    assert [positions(task, program) for task in cut] == [
        positions(task, program) for task in local
    ], f"cut, {context}"
    assert [task.entry.times for task in cut] == [task.entry.times for task in local], context
    assert waiting(cut, tmp_path) == waiting(local, tmp_path / "local"), context
    assert [task.entry.rows for task in cut] == [task.entry.rows for task in local]


class Shop:
    """A shop app over 2,000 orders."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"embedded:{directory / 'log'}"
        self.app = App("shop", log=self.url, state_dir=str(directory / "state"))
        self.orders = self.app.topic("orders", key=str, value=int, partitions=2)
        self.totals = self.app.topic("totals", key=str, value=int, partitions=2)

    async def fill(self) -> None:
        async with Log.open(self.url) as log:
            await log.admin().create_topics([NewTopic("orders", 2), NewTopic("totals", 2)])
            async with log.producer() as producer:
                for n in range(2_000):
                    raw_key, raw_value = self.orders.encoded(f"shop{n % 5}", n)
                    await producer.send("orders", raw_value, key=raw_key, timestamp_ms=1_000 + n)
                await producer.flush()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    asyncio.run(shop.fill())
    return shop


def test_a_killed_task_changes_no_result(spark: SparkSession, shop: Shop) -> None:
    marker = str(shop.directory / "killed")

    def die_once(value: int) -> int:
        if value == 1_500 and not os.path.exists(marker):  # noqa: PTH110 - in Spark's process
            with open(marker, "w"):  # noqa: PTH123 - in Spark's process
                os.kill(os.getpid(), 9)
        return value

    counted = shop.app.stream(shop.orders).map_values(die_once, name="dies")
    totals = counted.group_by(lambda k, _: k, name="by-shop").reduce(lambda a, b: a + b, name="sum")
    totals.changes().to(shop.totals)
    job = shop.app.backfill(engine="spark", spark=spark, until=END, outputs="stage")
    snapshot = job.run()
    assert os.path.exists(marker)  # noqa: PTH110 - as above
    assert job.rows["totals"] == 2_000
    snapshot.verify()
    local = shop.app.backfill(until=END, outputs="stage").run()
    assert sorted((s.topic, s.partition, s.records) for s in snapshot.manifest.staged) == sorted(
        (s.topic, s.partition, s.records) for s in local.manifest.staged
    )
    attempts = {name.partition("-")[0] for name in snapshot.store.names() if "_" in name}
    assert len(attempts) == sum("_" in name for name in snapshot.store.names())


def test_a_failure_names_its_record_without_java_traces(spark: SparkSession, shop: Shop) -> None:
    shop.app.stream(shop.orders).map_values(lambda v: 1 // (v - 77), name="inverse").to(shop.totals)
    job = shop.app.backfill(engine="spark", spark=spark, until=END)
    with pytest.raises(ProcessingError, match=r"'inverse' failed") as raised:
        job.run()
    assert (raised.value.topic, raised.value.node) == ("orders", "inverse")
    assert raised.value.offset >= 0
    assert "java" not in str(raised.value).lower()
    assert raised.value.__suppress_context__


def test_a_damaged_batch_is_reported_with_its_offset(spark: SparkSession, shop: Shop) -> None:
    shop.app.stream(shop.orders).to(shop.totals)
    job = shop.app.backfill(engine="spark", spark=spark, until=END)
    # Damaged after `explain`: the broker would find the damage when it opens the log.
    assert "orders-0" in job.explain()
    for segment in shop.directory.glob("log/p-*/*.log"):
        data = bytearray(segment.read_bytes())
        if len(data) > 1_000:
            data[100] ^= 0xFF
            segment.write_bytes(data)
    with pytest.raises(ProcessingError, match=r"orders-\d can be read up to offset 0") as raised:
        job.run()
    assert (raised.value.topic, raised.value.offset) == ("orders", 0)
