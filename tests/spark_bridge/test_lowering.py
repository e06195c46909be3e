"""Windows lowered to columns: rows, state and progress equal those of tasks."""

from __future__ import annotations

import asyncio
import os
import warnings
from itertools import chain
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from spark_bridge.spark_run import SparkRun
from streamlog import App, Snapshot, Windowed, agg, tumbling
from streamlog.history.local_run import with_ends
from streamlog.history.plan import Plan, Stage, plan_history
from streamlog.history.readers import LogReader
from streamlog.history.task_run import FinishedTask
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.snapshots import SnapshotStore
from streamlog.snapshots.capture import finish_snapshot
from streamlog.tables.local_disk.rocksdb_store import read_sorted
from streamlog.tables.state.changelog import TaskProgress
from tests.equality.programs import Fed, Program
from tests.equality.runs import driven
from tests.history.test_local_run import NOW_MS, fill, rows_of, run_history
from tests.spark_bridge import lowered
from tests.worker.operations.test_hand_over import run_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS = range(30) if IS_THOROUGH else (2,)
PIPELINES = 10 if IS_THOROUGH else 2


def run_lowered(
    spark: SparkSession, url: str, plan: Plan, directory: Path
) -> tuple[list[FinishedTask], SparkRun]:
    snapshot_store = SnapshotStore(str(directory / "snapshots" / "one"))
    snapshot_store.remove()
    with LogReader(url) as reader:
        plan = with_ends(plan, reader)
    memory_bytes = 64 * 1024 * 1024
    run = SparkRun(
        plan,
        spark,
        url=url,
        security=None,
        snapshots=snapshot_store,
        now_ms=NOW_MS,
        state_memory_bytes=memory_bytes,
    )
    return run.run(), run


def plan_of(program: Program, span: TimeSpan) -> Plan:
    counts = {name: spec.partitions or 1 for name, spec in program.app.topics.items()}
    return plan_history(program.app.topology(), counts, span=span, engine="spark", outputs="stage")


def results_of(task: FinishedTask, directory: Path, *, has_positions: bool) -> object:
    """Return all results of a task without the names of its attempt.

    `has_positions`: with its positions in its inputs. Behind a lowered stage, they count fewer time
    marks, because its windows close in larger steps.
    """
    snapshot_store = SnapshotStore(str(directory / "snapshots" / "one"))
    entry = task.entry
    state = []
    for file in entry.files:
        with snapshot_store.checked(file) as path:
            state += [*read_sorted(str(path))]
    progress = None
    if entry.progress is not None:
        progress = TaskProgress.decode(snapshot_store.read(entry.progress.name))
    taken = (entry.subtopology, entry.partition, entry.times, task.drops)
    staged = [(each.topic, each.partition, each.records, each.crc) for each in task.staged]
    positions = (entry.offsets, progress) if has_positions else None
    return taken, state, positions, staged


def snapshot_of(plan: Plan, tasks: list[FinishedTask], directory: Path) -> Snapshot:
    """Make a snapshot as a job does."""
    return finish_snapshot(
        SnapshotStore(str(directory / "snapshots" / "one")),
        [task.entry for task in tasks],
        topology=plan.topology,
        partitions=plan.counts,
        cut_ms=plan.until_ms,
        created_ms=NOW_MS,
        pending=[part for task in tasks for part in task.pending],
        staged=[part for task in tasks for part in task.staged],
    )


def is_behind_windows(stage: Stage) -> bool:
    feeders = chain.from_iterable(stage.subtopology.feeders.values())
    return any(feeder.name.startswith("windows-") for feeder in feeders)


@pytest.mark.parametrize("seed", SEEDS)
def test_lowered_stages_equal_stages_of_tasks(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    warnings.simplefilter("ignore", UserWarning)
    url = f"embedded:{tmp_path / 'log'}"
    app = App("lowered", log=url, state_dir=str(tmp_path / "state"), commit_interval="50ms")
    program = lowered.program(app, seed, PIPELINES)
    fed = lowered.history(program, seed)
    expected = driven(lowered.program(App("lowered"), seed, PIPELINES), fed)
    asyncio.run(fill(url, program, fed))
    until_ms = lowered.BEGIN_MS + Random(seed).randrange(lowered.SPAN_MS)
    for span in (TimeSpan(), TimeSpan(until_ms=until_ms)):
        plan = plan_of(program, span)
        assert sum(stage.lowering is not None for stage in plan.stages) == PIPELINES
        tasks, run = run_lowered(spark, url, plan, tmp_path)
        assert [s.lowering for s in run.plan.stages] == [s.lowering for s in plan.stages]
        local = run_history(url, program, tmp_path / "local", span)
        behind = {stage.number for stage in plan.stages if is_behind_windows(stage)}
        for spark_task, local_task in zip(tasks, local, strict=True):
            has_positions = spark_task.entry.subtopology not in behind
            found = results_of(spark_task, tmp_path, has_positions=has_positions)
            wanted = results_of(local_task, tmp_path / "local", has_positions=has_positions)
            assert found == wanted, f"seed {seed}, {span}"
        if span == TimeSpan():
            assert rows_of(tasks, program, tmp_path) == expected, f"seed {seed}"
    # Workers continue from the cut, with open windows.
    app.hand_over(snapshot_of(run.plan, tasks, tmp_path))
    assert asyncio.run(run_worker(program, url, expected)) == expected, (
        f"seed {seed}, cut at {until_ms}"
    )


def test_sums_beyond_64_bits_fall_back_to_tasks(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"embedded:{tmp_path / 'log'}"
    program = Program(App("large"), inputs={"in": 1})
    source = program.app.topic("in", key=str, value=int, partitions=1)
    out = program.app.topic("out", key=Windowed[str], value=lowered.Totals, partitions=1)
    windowed = (
        program.app.stream(source).group_by(lambda k, _: k, name="by").windowed(tumbling("1s"))
    )
    numbers = {"total": agg.sum(lambda v: v), "least": agg.min(lambda v: v)}
    rows = windowed.agg(
        lowered.Totals, name="sums", count=agg.count(), most=agg.max(lambda v: v), **numbers
    )
    rows.changes().to(out)
    program.outputs.append(out)  # type: ignore[arg-type]
    times_ms = [1_000_000, 1_000_000, 1_000_001, 1_009_000]
    fed = [Fed("in", 0, "a", 1 << 62, at_ms) for at_ms in times_ms]
    asyncio.run(fill(url, program, fed))
    tasks, run = run_lowered(spark, url, plan_of(program, TimeSpan()), tmp_path)
    assert "a sum does not fit into 64 bits" in run.plan.explain()
    assert "its stage runs again, record by record" in caplog.text
    found = rows_of(tasks, program, tmp_path)
    assert found == rows_of(
        run_history(url, program, tmp_path / "local"), program, tmp_path / "local"
    )
    assert str(3 << 62).encode() in next(iter(found[0]))[2]
