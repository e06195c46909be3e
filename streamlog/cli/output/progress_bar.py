"""Progress: a bar on a terminal for work that takes longer than two seconds.

    with progress_bar("verifying log", unit="bytes") as bar:
        bar.total = ...
        bar.done += ...

The work only counts; a thread of the bar looks at the counts and draws. So counting costs an
addition, and the bar also moves while the work waits. Nothing is drawn if standard error is not a
terminal, and nothing is left of the bar once the work has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

from streamlog.cli.output.plain_text import one_line

APPEAR_S = 2.0
"""Work that ends before has no bar: one that flashes up tells nothing."""
LOOK_S: Final = 0.1
BYTES: Final = "bytes"
"""The unit that is shown as kB, MB, ..."""


@dataclass(slots=True)
class Bar:
    """How far some work is. The work sets these fields as it gets on."""

    what: str
    done: int = 0
    total: int | None = None
    """None if it is unknown: then the bar shows what was done, and that time passes."""
    is_shown: bool = True
    """Whether there is a terminal for it; without one, a command may print lines instead."""

    def advance(self, count: int = 1) -> None:
        """Count what was done."""
        self.done += count


@contextmanager
def progress_bar(
    what: str, *, total: int | None = None, unit: str = "", prints: bool = False
) -> Iterator[Bar]:
    """Show a bar while the block runs.

    Args:
        what: what is being done, as the first words of the line.
        total: how much there is to do, if it is known.
        unit: what is counted: records, rows, moves, or `BYTES`.
        prints: whether the block prints results as it finds them: if they go to the terminal,
            they show by themselves how far it is.
    """
    bar = Bar(what, total=total)
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        bar.is_shown = False
        yield bar
        return
    ended = Event()
    thread = Thread(target=_draw, args=(bar, unit, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield bar
    finally:
        # The thread removes the bar, before anything else is printed.
        ended.set()
        thread.join()


def _draw(bar: Bar, unit: str, ended: Event) -> None:
    if APPEAR_S and ended.wait(APPEAR_S):
        return
    # Imported only now: most commands end without a bar.
    from rich.progress import (  # noqa: PLC0415 - see above
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from streamlog.cli.output.plain_console import stderr_console  # noqa: PLC0415 - as above

    counted: ProgressColumn = (
        DownloadColumn() if unit == BYTES else TextColumn("{task.fields[counted]}", markup=False)
    )
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        counted,
        TimeElapsedColumn() if bar.total is None else TimeRemainingColumn(),
        console=stderr_console(),
        auto_refresh=False,
        transient=True,
        # Through a pipe, results are left as they are; on the terminal they go above the bar.
        redirect_stdout=sys.stdout.isatty(),
    ) as drawn:
        task = drawn.add_task("", total=bar.total, counted="")
        while True:
            drawn.update(
                task,
                description=one_line(bar.what),
                completed=bar.done,
                total=bar.total,
                counted=_counted(bar, unit),
                refresh=True,
            )
            if ended.wait(LOOK_S):
                return


def _counted(bar: Bar, unit: str) -> str:
    if bar.total is not None:
        return f"{bar.done:,} of {bar.total:,} {unit}"
    return f"{bar.done:,} {unit}" if bar.done else ""
