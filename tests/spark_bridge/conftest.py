"""One Spark session for all tests, because a session starts slowly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_bridge import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
CONF = {"spark.driver.extraJavaOptions": FIRST_COMPILER, "spark.sql.shuffle.partitions": "2"}
"""Only the first JIT compiler, which starts faster; no test here runs long."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # A task that fails is retried once.
    spark = session("tests", "local[2,2]", CONF)
    yield spark
    spark.stop()
