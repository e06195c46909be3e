"""CutInput: an input partition of which a task takes the time between two ends, and no more.

History is cut at a time T and not at an offset of each partition: what comes before the first
record whose stream time is T or later has been taken, whatever the partition, so all tasks
downstream have seen the same, and whoever goes on from there continues one run. Rule of the file:
stream time is that of the records taken, with the time marks between them; a partition that was
cut is not at its end, and nothing of it comes before T any more. Not done here: reading the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.errors import ProcessingError
from streamlog.processing.chunk import Chunk
from streamlog.processing.record_queue import Input, Records
from streamlog.records.columns import RecordColumns
from streamlog.records.control import TimeMark
from streamlog.topology import TopicSpec
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A part of a partition's time, in milliseconds since 1970.

    It begins with the first record that is not before `since_ms`, and ends before the first one
    at which stream time has come to `until_ms`.
    """

    since_ms: int = UNKNOWN_MS
    until_ms: int = FAR_MS


class CutInput(Input):
    """An input partition between two times."""

    def __init__(
        self, topic: TopicSpec, partition: int, rank: int, *, span: TimeSpan, clock: str = ""
    ) -> None:
        super().__init__(topic, partition, rank, clock=clock)
        self._span = span
        self._has_begun = span.since_ms == UNKNOWN_MS
        self.cut: int | None = None
        """Offset of the first record, or mark, that is beyond the end; None: none was seen."""

    def start_at(self, position: int) -> None:
        """As of all inputs; what is behind the cut is the business of who goes on from there."""
        super().start_at(position if self.cut is None else min(position, self.cut))

    def arrive(self, records: Records, marks: Sequence[TimeMark] = ()) -> None:
        """Take in records and time marks, up to the end."""
        if self.cut is None:
            super().arrive(records, marks)

    def head(self) -> tuple[int, int] | None:
        """Time and rank of the next record, or mark; None if there is none before the end."""
        while not self._chunks and self._unread:
            piece = self._unread.popleft()
            if isinstance(piece, TimeMark):
                self._reach(piece)
            else:
                self._read(piece)
        return super().head() if self._chunks else None

    def floor(self) -> tuple[int, int]:
        """Time and rank that no record still to arrive comes before."""
        return super().floor() if self.cut is None else (self._span.until_ms, self.rank)

    def is_at_end(self) -> bool:
        """Whether there is nothing left to read: behind a cut there is."""
        return self.cut is None and super().is_at_end()

    def _read(self, columns: RecordColumns) -> None:
        try:
            chunk = self.arrived(columns)
        except ProcessingError:
            # It may be one behind the end, which is none of ours.
            if len(columns) == 1:
                raise
            middle = len(columns) // 2
            self._read(columns[:middle])
            if self.cut is None:
                self._read(columns[middle:])
            return
        chunk.count_from(max(self._arrived_ms, self.time_ms))
        self._keep(chunk)

    def _keep(self, chunk: Chunk) -> None:
        low = 0
        if not self._has_begun:
            low = bisect_left(chunk.times, self._span.since_ms)
            self._has_begun = low < len(chunk.times)
        high = bisect_left(chunk.times, self._span.until_ms)
        if high < len(chunk.times):
            self._cut_at(chunk.offsets[high])
        if low < high:
            self._arrived_ms = chunk.times[high - 1]
            self._chunks.append(chunk if high - low == len(chunk) else chunk.part(low, high))

    def _reach(self, mark: TimeMark) -> None:
        if not self._has_begun:
            return
        time_ms = mark.time_behind(max(self._arrived_ms, self.time_ms), self.clock)
        if time_ms >= self._span.until_ms:
            self._cut_at(mark.offset)
        else:
            super()._reach(mark)

    def _cut_at(self, offset: int) -> None:
        self.cut = offset
        self._unread.clear()
