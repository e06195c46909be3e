"""Spark's histories of logs of live workers, compared by equality class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.broker.process import BrokerProcess
from tests.equality.live import compare_live
from tests.spark_bridge.live import history_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SEEDS = range(40) if os.environ.get("STREAMLOG_PROFILE") == "thorough" else (12, 28, 36)
"""`python -m tests.equality --live --spark --runs 200` runs more seeds."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("live") / "log", flush="os") as broker:
        yield broker.address


@pytest.mark.parametrize("seed", SEEDS)
def test_live_workers_equal_local_and_spark_histories(
    spark: SparkSession, address: str, tmp_path: Path, seed: int
) -> None:
    comparisons = compare_live(seed, address, tmp_path, others={"spark": history_in(spark)})
    assert comparisons
