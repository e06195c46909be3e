"""Stages whose process is killed: each task's first attempt, at random, at a random moment."""

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
"""Of first attempts."""
LATEST_S = 0.15
"""A task of a small program takes about so long."""


class KilledStage(StageFunction):
    """A stage that dies now and then."""

    def __init__(self, work: StageWork, deaths: Path) -> None:
        super().__init__(work)
        self._seed = f"{work.place.url}-{work.stage.number}"
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
            # Its rows may have been read by then, and its report been written, or not.
            timer.join()
        finally:
            timer.cancel()

    def _die(self) -> None:
        (self._deaths / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
