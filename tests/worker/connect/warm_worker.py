"""Workers that are forked from a process which has imported everything, and are killed.

A worker that starts from nothing imports for a second of CPU, and a worker that is killed right
after its first commit works for a tenth of that. Modules that `PRELOADED` names are imported once.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from streamlog.connect_tasks.part_reader import PartReader
from streamlog.worker import worker
from streamlog.worker.commit.commit import OnStep
from streamlog.worker.connect import sink_group
from tests.worker.connect.connector_pairs import app_of
from tests.worker.mortal import deadly, run_with

PRELOADED = [__name__, "pytest", "pyarrow.dataset", "deltalake", "pyiceberg.catalog.sql"]


def context() -> ForkServerContext:
    """Return where `start` gets its processes from."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    return found


@dataclass(frozen=True, slots=True)
class Life:
    """A worker of an app, from its start to its end."""

    path: Path
    url: str
    """Of the log."""
    pair: tuple[str, str, str]
    """The app's name, its source and its sink."""
    settings: Mapping[str, str]
    step: str = "none"
    """Where it is killed."""
    times: int = 0
    """How often it may come there before that."""
    instance_id: str | None = "one"


def start(at: ForkServerContext, life: Life) -> ForkServerProcess:
    """Start a worker."""
    process = at.Process(target=_live, args=(life,))
    process.start()
    return process


def output_of(path: Path) -> str:
    """Return the end of what all workers have written."""
    return (path / "output").read_text()[-6000:]


def _live(life: Life) -> None:
    os.chdir(life.path)
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for room in (worker, sink_group):
        room.SESSION_TIMEOUT_MS, room.HEARTBEAT_INTERVAL_MS = 2_000, 300  # type: ignore[misc]
    on_step = deadly(life.step, life.times)
    _watch_readers(on_step)
    run_with(app_of(*life.pair, life.settings), life.url, on_step, life.instance_id)


def _watch_readers(on_step: OnStep) -> None:
    """Tell the steps of sources that are not those of a commit: read, held, callback."""
    hold, count = PartReader._hold, PartReader.count

    async def held(self: PartReader, read: Any) -> None:
        if len(read):
            on_step("read")
        await hold(self, read)
        if len(read):
            on_step("held")

    def counted(self: PartReader) -> None:
        before = self.figures.commits
        count(self)
        if self.figures.commits > before:
            on_step("callback")

    PartReader._hold, PartReader.count = held, counted  # type: ignore[method-assign]
