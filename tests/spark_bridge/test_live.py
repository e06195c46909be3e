"""Workers that are fed while they run, beside a history of the same log in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamlog.history.finished import FinishedTask
from streamlog.processing.cut_input import TimeSpan
from tests.broker.process import BrokerProcess
from tests.equality.live import compare_live
from tests.equality.programs import Program
from tests.spark_bridge.test_history import run_in_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("live") / "log", flush="os") as broker:
        yield broker.address


@pytest.mark.parametrize("seed", [11, 46])
def test_workers_that_are_fed_while_they_run_keep_what_is_promised_beside_spark(
    spark: SparkSession, address: str, tmp_path: Path, seed: int
) -> None:
    def in_spark(url: str, program: Program, directory: Path) -> list[FinishedTask]:
        return run_in_spark(spark, url, program, directory, TimeSpan())

    compare_live(seed, address, tmp_path, run_history=in_spark, patience=3)
