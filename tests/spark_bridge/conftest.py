"""One session for all tests of Spark: it takes as long to start as they do to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_bridge import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_COMPILER = "-XX:TieredStopAtLevel=1"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Only the first compiler: it starts sooner, and nothing here runs for long. A task that fails
    # is tried once more.
    conf = {"spark.driver.extraJavaOptions": FIRST_COMPILER, "spark.sql.shuffle.partitions": "2"}
    spark = session("tests", "local[2,2]", conf)
    yield spark
    spark.stop()
