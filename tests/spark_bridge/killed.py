"""Stages with killed processes: some first attempts of tasks, at random moments."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Timer

import pyarrow as pa
from pyspark import TaskContext

from spark_bridge.stage_function import StageFunction, StageWork

KILLED_SHARE = 0.4
"""The share of first attempts that are killed."""
LATEST_S = 0.15
"""About the run time of a small program's task."""


class KilledStage(StageFunction):
    """A stage whose process is killed at random."""

    def __init__(self, work: StageWork, deaths: Path) -> None:
        super().__init__(work)
        self._seed = f"{work.snapshots.url}-{work.stage.number}"
        self._deaths = deaths

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        rng = Random(f"{self._seed}-{context.partitionId()}")
        if context.attemptNumber() or rng.random() >= KILLED_SHARE:
            yield from super().__call__(batches)
            return
        timer = Timer(rng.uniform(0, LATEST_S), self._die)
        timer.start()
        try:
            yield from super().__call__(batches)
            # By then, its rows may have been read and its report written, or not.
            timer.join()
        finally:
            timer.cancel()

    def _die(self) -> None:
        (self._deaths / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
