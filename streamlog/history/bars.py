"""Bars: how far a history has come, partition by partition, on the terminal.

A bar for each partition while it is read, with records a second and the time that is left, and one
for all that the log holds. Rule of the file: nothing is printed where nobody watches.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from streamlog.history.task_run import Read
from streamlog.processing.inputs.record_queue import PartitionKey


class Bars:
    """Progress on the terminal; a context manager."""

    def __init__(self, total: int, *, shown: bool | None = None) -> None:
        """`total` records are read from the log; `shown` by default if a person watches."""
        self.is_shown = sys.stderr.isatty() if shown is None else shown
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Speed(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self.is_shown,
        )
        self._all = self._progress.add_task("all of the log", total=total)
        self._bars: dict[PartitionKey, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def read(self, read: Read) -> None:
        """Records of a partition have been read."""
        if read.place not in self._bars:
            for each in self._bars.values():
                self._progress.update(each, visible=False)
            name = f"{read.place[0]}-{read.place[1]}"
            self._bars[read.place] = self._progress.add_task(name, total=read.total)
        self._progress.update(self._bars[read.place], advance=read.records, visible=True)
        if not read.is_staged:
            self._progress.update(self._all, advance=read.records)


class _Speed(ProgressColumn):
    """Records a second."""

    def render(self, task: Task) -> Text:
        """As text."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")
