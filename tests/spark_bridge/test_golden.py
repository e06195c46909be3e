"""The golden cases as a history in Spark, compared with the driver in its order."""

from __future__ import annotations

import asyncio
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamlog.processing.inputs.cut_input import TimeSpan
from tests.history.golden import GoldenApp, content, golden_cases
from tests.spark_bridge.test_spark_run import run_in_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES = golden_cases()
if os.environ.get("STREAMLOG_PROFILE") != "thorough":
    CASES = CASES[::6]  # Each case has one or more stages, and each stage is a Spark job.

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.skipif(not CASES, reason="STREAMLOG_GOLDEN names no file of cases")
def test_a_spark_history_of_the_golden_cases_equals_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    warnings.simplefilter("ignore", UserWarning)
    golden = GoldenApp(CASES)
    url = f"embedded:{tmp_path / 'log'}"
    asyncio.run(golden.fill(url))
    tasks = run_in_spark(spark, url, golden.program, tmp_path, TimeSpan())
    found = golden.staged(tasks, golden.place(tmp_path))
    expected = golden.driven()
    for output, records, wanted in zip(golden.outputs, found, expected, strict=True):
        assert content(records) == content(wanted), output.case["id"]
    assert golden.passed(found) == golden.passed(expected)
