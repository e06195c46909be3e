"""Killed executors and drivers of Spark around publications and hand-overs: rows count once.

Some cases of `tests.worker.test_killed_hand_over`, run by Spark: processes of tasks are killed at
random, and in some cases the driver as well, with its JVM and its log.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal

import pytest

from tests.spark_bridge.test_spark_run import deaths
from tests.worker.operations.test_hand_over import IS_THOROUGH, Case
from tests.worker.test_killed_hand_over import (
    MOMENTS,
    STEPS,
    Attempt,
    backfill_and_die,
    hand_over_and_die,
    job_of,
    killed,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["deaths"]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not IS_THOROUGH, reason="STREAMLOG_PROFILE=thorough"),
]

EXECUTORS = range(10)
DRIVERS = range(4)


def check_hand_over(
    spark: SparkSession, case: Case, outputs: Literal["stage", "publish"], step: str
) -> None:
    """Run the job, a hand-over that is killed once, and a worker; check each row once."""
    snapshot = job_of(case.program, case.until_ms, outputs, spark).run()
    snapshot.verify()
    killed(hand_over_and_die, case.seed, str(case.directory), snapshot.url, step)
    done = case.program.app.hand_over(snapshot)
    assert done.is_repeated == (step == "committed"), (outputs, step)
    assert done.offsets == snapshot.offsets
    case.check(case.live())


@pytest.mark.parametrize("seed", EXECUTORS)
def test_killed_executors_neither_lose_nor_repeat_rows(
    spark: SparkSession, tmp_path: Path, deaths: Path, seed: int
) -> None:
    rng = Random(f"executors {seed}")
    outputs: Literal["stage", "publish"] = rng.choice(["stage", "publish"])
    check_hand_over(spark, Case(seed, tmp_path), outputs, rng.choice(STEPS))


@pytest.mark.parametrize("seed", DRIVERS)
def test_killed_drivers_neither_lose_nor_repeat_rows(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    case = Case(seed, tmp_path)
    moment = MOMENTS["publish"][seed]
    attempt = Attempt(seed, str(tmp_path), case.until_ms, "publish", moment, is_spark=True)
    killed(backfill_and_die, attempt)
    check_hand_over(spark, case, "publish", Random(seed).choice(STEPS))
