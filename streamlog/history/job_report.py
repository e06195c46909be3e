"""JobReport: notes how a history proceeds, for those who look at it from another process."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from streamlog.clock import Clock
from streamlog.history.task_run import Read
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.replace import replace
from streamlog.snapshots.job_notes import JobNote, PartitionNote
from streamlog.snapshots.noted_jobs import JobNotes

NOTE_MS: Final = 2_000
"""Between two notes: a note may be a request to an object store."""


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
