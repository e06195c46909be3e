"""CutInput: an input that ends at an event time instead of an offset, for histories and savepoints.

It takes everything before the first record or mark at which stream time has reached the cut, and
knows the offset there. What follows belongs to the run that continues.

Not done here: the order of records of several inputs (`record_queue`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from streamlog.errors import ProcessingError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.inputs.record_queue import Chunk, Input, Records
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS


class TimeSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a partition's event time, in milliseconds since 1970.

    It begins with the first record that is not before `since_ms`, and ends before the first one at
    which stream time has reached `until_ms`.
    """

    since_ms: int = UNKNOWN_MS
    until_ms: int = FAR_MS


class CutInput(Input):
    """An input partition between two event times."""

    def __init__(
        self, topic: TopicSpec, partition: int, rank: int, *, span: TimeSpan, clock: str = ""
    ) -> None:
        super().__init__(topic, partition, rank, clock=clock)
        self._span = span
        self._has_begun = span.since_ms == UNKNOWN_MS
        self.cut: int | None = None
        """Offset of the first record or mark beyond the end; None: none was seen."""

    def start_at(self, position: int) -> None:
        """Skip all records before this offset, at most up to the cut.

        What follows the cut belongs to the runner that continues from there.
        """
        super().start_at(position if self.cut is None else min(position, self.cut))

    def arrive(self, records: Records, marks: Sequence[TimeMark] = ()) -> None:
        """Add records and time marks, unless the cut was reached."""
        if self.cut is None:
            super().arrive(records, marks)

    def head(self) -> tuple[int, int] | None:
        """Return time and rank of the next record or mark before the end; None if there is none."""
        while not self._chunks and self._unread:
            piece = self._unread.popleft()
            if isinstance(piece, TimeMark):
                self._reach(piece)
            else:
                self._read(piece)
        return super().head() if self._chunks else None

    def floor(self) -> tuple[int, int]:
        """Return the smallest merge key that a record still to arrive can have.

        After a cut, that is the cut.
        """
        return super().floor() if self.cut is None else (self._span.until_ms, self.rank)

    def is_at_end(self) -> bool:
        """Return whether everything was taken; False after a cut, because the log has more."""
        return self.cut is None and super().is_at_end()

    def _read(self, columns: RecordColumns) -> None:
        try:
            chunk = self.decode(columns)
        except ProcessingError:
            # The unreadable record may lie after the cut, where this input does not read. Halving
            # finds out: the first half may contain the cut, and then the second is never decoded.
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
        # By the running maximum: what is after the cut belongs to the next run, even if the record
        # is out of order and its own timestamp lies before the end.
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
