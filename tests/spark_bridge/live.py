"""Spark's history of a log, for comparisons with workers whose inputs grew."""

from __future__ import annotations

import warnings
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from spark_bridge import session
from spark_bridge.spark_run import SparkRun
from streamlog.history.local_run import with_ends
from streamlog.history.plan import plan_history
from streamlog.history.readers import LogReader
from streamlog.history.task_run import FinishedTask
from streamlog.processing.inputs.cut_input import TimeSpan
from tests.equality.live import HistoryRun, counts_of, place_in
from tests.equality.programs import Program
from tests.spark_bridge.conftest import CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE_BYTES = 64 * 1024 * 1024


def history_in(spark: SparkSession) -> HistoryRun:
    """Return a function that runs histories in this session, one at a time."""
    running = Lock()

    def run(url: str, program: Program, directory: Path) -> list[FinishedTask]:
        with running, warnings.catch_warnings(), LogReader(url) as reader:
            warnings.simplefilter("ignore", UserWarning)
            counts, span = counts_of(program), TimeSpan()
            plan = plan_history(program.app.topology(), counts, span=span, outputs="stage")
            return SparkRun(
                with_ends(plan, reader),
                spark,
                url=url,
                security=None,
                snapshots=place_in(directory),
                now_ms=0,
                state_memory_bytes=STATE_BYTES,
            ).run()

    return run


def spark_history() -> HistoryRun:
    """Return a function that runs histories in a new session."""
    return history_in(session("equality", "local[2,2]", CONF))
