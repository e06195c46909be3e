"""Histories, publications and hand-overs are killed: no row is lost or doubled.

For each of a hundred cuts: the process of the backfill, which also serves the log, is killed
before, during or after its computation, and the job runs again; then the hand-over is killed at one
of its steps, and is repeated; then a worker continues. The random programs have open session
windows, pending timers and half-matched joins.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Timer
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from streamlog import Snapshot
from streamlog.client.admin import Admin
from streamlog.history import job, stage_task
from streamlog.history import job as job_module
from streamlog.history.job import BackfillJob
from streamlog.worker.operations.hand_over import run_hand_over
from tests.equality.programs import Program, build
from tests.worker.operations.test_hand_over import IS_THOROUGH, Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(not IS_THOROUGH, reason="STREAMLOG_PROFILE=thorough")

spawned = multiprocessing.get_context("forkserver")

SEEDS = range(100)
PATIENCE_S = 180
STEPS = ("begun", "states written", "offsets sent", "noted", "committed")
MOMENTS: dict[str, tuple[str, ...]] = {
    "stage": ("task", "manifest", "done"),
    "publish": ("task", "asked", "published", "done"),
}
SPARK_S_MAX = 10
"""Spark takes at least this long."""
PUBLISH_S_MAX = 0.1
"""A publication takes about this long."""


def job_of(
    program: Program,
    until_ms: int,
    outputs: Literal["stage", "publish"],
    spark: SparkSession | None = None,
) -> BackfillJob:
    return program.app.backfill(
        until=until_ms,
        engine="local" if spark is None else "spark",
        spark=spark,
        outputs=outputs,
        job_id="one",
        progress=False,
    )


def program_of(seed: int, directory: str) -> Program:
    warnings.simplefilter("ignore", UserWarning)
    return build(seed, "driver", log=f"embedded:{directory}/log", state_dir=f"{directory}/state")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(count: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return `work` with a kill after its `count`-th call."""
    left = [count]

    def working(*args: Any, **options: Any) -> Any:
        found = work(*args, **options)
        left[0] -= 1
        if left[0] <= 0:
            die()
        return found

    return working


def within(seconds: float, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return `work` with a kill this many seconds after its start."""

    def working(*args: Any, **options: Any) -> Any:
        Timer(seconds, die).start()
        return work(*args, **options)

    return working


class Attempt(NamedTuple):
    """A backfill that is killed."""

    seed: int
    directory: str
    until_ms: int
    outputs: Literal["stage", "publish"]
    moment: str
    is_spark: bool = False


def backfill_and_die(attempt: Attempt) -> None:
    """Run the attempt in this process, until it is killed."""
    seed, directory, until_ms, outputs, moment, is_spark = attempt
    rng = Random(f"{seed} {moment}")
    spark = None
    if is_spark:
        spark = importlib.import_module("spark_bridge").session("killed", "local[1]")
    match moment:
        case "task" if spark is not None:
            Timer(rng.uniform(0, SPARK_S_MAX), die).start()
        case "task":
            stage_task.capture = after(rng.randint(1, 4), stage_task.capture)
        case "manifest":
            job_module.finish_snapshot = within(0, job_module.finish_snapshot)
        case "asked":
            Admin.publish = within(rng.uniform(0, PUBLISH_S_MAX), Admin.publish)  # type: ignore[method-assign]
        case "published":
            job.publish_rows = after(1, job.publish_rows)
        case _:
            pass
    job_of(program_of(seed, directory), until_ms, outputs, spark).run()
    die()


def hand_over_and_die(seed: int, directory: str, url: str, step: str) -> None:
    """Run a hand-over in this process, until it is killed."""

    def on_step(now: str) -> None:
        if now == step:
            die()

    app = program_of(seed, directory).app
    run_hand_over(app.program(), Snapshot.open(url), log_url=app.log, on_step=on_step)


def killed(work: Callable[..., None], *arguments: object) -> None:
    process = spawned.Process(target=work, args=arguments)
    process.start()
    process.join(PATIENCE_S)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_backfills_and_hand_overs_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    case = Case(seed, tmp_path)
    rng = Random(f"killed {seed}")
    outputs: Literal["stage", "publish"] = rng.choice(["stage", "publish"])
    moment, step = rng.choice(MOMENTS[outputs]), rng.choice(STEPS)
    killed(backfill_and_die, Attempt(seed, str(tmp_path), case.until_ms, outputs, moment))
    snapshot = job_of(case.program, case.until_ms, outputs).run()
    snapshot.verify()
    killed(hand_over_and_die, seed, str(tmp_path), snapshot.url, step)
    done = case.program.app.hand_over(snapshot)
    assert done.is_repeated == (step == "committed"), (outputs, moment, step)
    assert done.offsets == snapshot.offsets
    case.check(case.live())
