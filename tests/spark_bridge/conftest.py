"""One session for all tests of Spark: it takes as long to start as they do to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_bridge import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
CONF = {"spark.driver.extraJavaOptions": FIRST_COMPILER, "spark.sql.shuffle.partitions": "2"}
"""Only the first compiler: it starts sooner, and nothing here runs for long."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # A task that fails is tried once more.
    spark = session("tests", "local[2,2]", CONF)
    yield spark
    spark.stop()
