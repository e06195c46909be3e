"""JobProgress and JobReport: how far a history is.

The progress is for the one who has started it: bars on a terminal, and elsewhere lines in the log.
The report is a note beside the snapshot, which other processes read, such as the worker's console.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

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

from streamlog.clock import Clock, SystemClock
from streamlog.durations import duration_text
from streamlog.history.task_run import Read
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.replace import replace
from streamlog.snapshots.job_notes import JobNote, PartitionNote
from streamlog.snapshots.noted_jobs import JobNotes

NOTE_MS: Final = 2_000
"""Between two notes: a note may be a request to an object store."""
FIRST_LINE_S: Final = 10.0
LINES_S_MAX: Final = 60.0
"""Between two lines of the log: each takes twice as long as the one before, up to this."""

logger = logging.getLogger(__name__)


class JobProgress:
    """Shows the progress of a job to the one who runs it; a context manager.

    On a terminal: one bar per partition that is being read, with records per second and the time
    left, and one for the whole log. Elsewhere: lines in the log, after 10 s, 20 s, 40 s, and so on.
    """

    def __init__(
        self,
        job_id: str,
        total: int,
        *,
        shown: bool | None = None,
        first_line_s: float = FIRST_LINE_S,
    ) -> None:
        """Begin with nothing read.

        Args:
            job_id: names the job in lines.
            total: records that the history reads from the log.
            shown: whether to show bars; None: if standard error is a terminal, else lines.
            first_line_s: when the first line is due, in seconds.
        """
        is_shown = sys.stderr.isatty() if shown is None else shown
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Speed(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not is_shown,
        )
        self._all = self._progress.add_task("whole log", total=total)
        self._bars: dict[PartitionKey, TaskID] = {}
        self._job_id, self._total, self._done = job_id, total, 0
        self._ended = Event()
        # A thread, because what a log file lacks most is a line while nothing is read: Spark
        # starts, or sorts a shuffle.
        self._lines = (
            None
            if is_shown or shown is False
            else Thread(
                target=self._say, args=(first_line_s,), name="history-progress", daemon=True
            )
        )

    def __enter__(self) -> Self:
        self._progress.start()
        if self._lines is not None:
            self._lines.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        self._ended.set()
        if self._lines is not None:
            self._lines.join()

    def read(self, read: Read) -> None:
        """Count records that were read."""
        if read.partition not in self._bars:
            for each in self._bars.values():
                self._progress.update(each, visible=False)
            name = f"{read.partition[0]}-{read.partition[1]}"
            self._bars[read.partition] = self._progress.add_task(name, total=read.total)
        self._progress.update(self._bars[read.partition], advance=read.records, visible=True)
        # Records that a stage has staged are no records of the log.
        if not read.is_staged:
            self._progress.update(self._all, advance=read.records)
            self._done += read.records

    def _say(self, wait_s: float) -> None:
        clock = SystemClock()
        began_ms = clock.now_ms()
        while not self._ended.wait(wait_s):
            wait_s = min(wait_s * 2, LINES_S_MAX)
            line = progress_line(self._done, self._total, clock.now_ms() - began_ms)
            logger.info("history %s: %s", self._job_id, line)


def progress_line(done: int, total: int, elapsed_ms: int) -> str:
    """Return how far a history is, as a line of the log."""
    took = duration_text(elapsed_ms // 1000 * 1000)
    if done >= total:
        return f"all {total:,} records are read; its tasks end ({took} so far)"
    if not done:
        return f"no task has read a record yet, of {total:,} ({took} so far)"
    left = duration_text(round((total - done) * elapsed_ms / done / 1000) * 1000)
    return f"{done:,} of {total:,} records are read ({took} so far, about {left} left)"


class _Speed(ProgressColumn):
    """Shows records per second."""

    def render(self, task: Task) -> Text:
        """Return the speed as text; empty while it is unknown."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class JobReport:
    """Writes the notes of one job; a context manager, whose end without `done` is a failure."""

    def __init__(self, notes: JobNotes, note: JobNote, clock: Clock) -> None:
        """Write the first note, which has the plan."""
        self._notes, self._note, self._clock = notes, note, clock
        self._read: dict[PartitionKey, PartitionNote] = {}
        self._noted_ms = clock.now_ms()
        notes.write(note)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            # Ctrl-C has no text.
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self._write(replace(self._note, state="failed", error=said))

    def read(self, read: Read) -> None:
        """Count records that were read."""
        # Records that a stage has staged are no records of the log.
        if read.is_staged:
            return
        before = self._read.get(read.partition)
        count = read.records if before is None else before.read + read.records
        self._read[read.partition] = PartitionNote(*read.partition, count, read.total)
        if self._clock.now_ms() - self._noted_ms >= NOTE_MS:
            self._write(self._note)

    def done(self, rows: Mapping[str, int], dropped: int) -> None:
        """Note that the snapshot is complete."""
        self._write(replace(self._note, state="done", rows=dict(rows), dropped=dropped))

    def _write(self, note: JobNote) -> None:
        self._noted_ms = self._clock.now_ms()
        parts = tuple(each for _, each in sorted(self._read.items()))
        self._note = replace(note, partitions=parts, at_ms=self._clock.wall_ms())
        self._notes.write(self._note)
