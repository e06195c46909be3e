"""Early results: the rows of open windows that are forwarded at the ends of intervals.

`EarlyResults` counts the intervals, by stream time or the wall clock. `EarlyRows` keeps the waiting
rows of tumbling, hopping and calendar windows, `EarlyChanges` those of windows that records make,
which other windows may replace. Rules of the module:

1. Which rows wait, and which were forwarded early, is state: a mark per row under (end, start,
   key). So a restart within an interval changes no result.
2. Early rows have a time source of their own. They are in the order of the records that changed
   them last, and have the numbers of those records.

Not done here: closing windows and forwarding the rows (`windowed_step` and the steps).
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from streamlog.processing.column_batch import TimeSource
from streamlog.processing.node_time import InputClock
from streamlog.processing.windows.open_rows import WindowChange
from streamlog.processing.windows.window_fold import Window, WindowFold
from streamlog.serdes.erased_types import JsonValue
from streamlog.tables.folds.folding import Row
from streamlog.tables.stores.store import (
    NamedStore,
    split_window_key,
    window_bound,
    window_key,
)
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Cadence, Emit

_NUMBER = struct.Struct(">q")


class EarlyResults:
    """The intervals of one windowed aggregation, and whether rows wait for their end."""

    def __init__(self, emit: Emit, feed: TimeSource, store: NamedStore) -> None:
        """`store` is for the marks."""
        self.feed = feed
        """The time source of the early rows."""
        self._cadence = Cadence(emit)
        self._is_event = emit.clock == "event"
        """Whether intervals are of stream time; otherwise, of the wall clock."""
        self._store = store

    @property
    @abstractmethod
    def has_waiting(self) -> bool:
        """Whether rows wait for the end of the interval."""

    @property
    def next_event_ms(self) -> int:
        """The stream time at which the interval ends; FAR_MS: intervals are of the wall clock."""
        return self._cadence.next_ms if self._is_event else FAR_MS

    @property
    def due_ms(self) -> int:
        """The stream time at which waiting rows are forwarded; FAR_MS: none by stream time."""
        next_ms = self.next_event_ms
        return next_ms if self.has_waiting and next_ms > UNKNOWN_MS else FAR_MS

    @property
    def next_wall_ms(self) -> int:
        """The wall-clock time at which waiting rows are forwarded; FAR_MS: none by that clock."""
        return self._cadence.next_ms if self.has_waiting and not self._is_event else FAR_MS

    def is_due(self, stream_ms: int, wall_ms: int | None) -> bool:
        """Return whether an interval has ended; the next one begins then.

        Args:
            stream_ms: the stream time.
            wall_ms: the wall-clock time; None: only stream time can end an interval now.
        """
        if self._is_event:
            return self._cadence.is_due(stream_ms)
        return wall_ms is not None and self._cadence.is_due(wall_ms)

    def settle(self) -> None:
        """Update clocks of its own after all available records were taken."""

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the marks."""
        return {"next_ms": self._cadence.next_ms}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; intervals of the wall clock start anew."""
        if self._is_event:
            self._cadence.next_ms = int(data["next_ms"])


class EarlyRows(EarlyResults):
    """The rows of time windows that wait for the end of an interval."""

    def __init__(
        self,
        emit: Emit,
        feed: TimeSource,
        store: NamedStore,
        fold: WindowFold,
        *,
        clock: InputClock | None,
        row_of: Callable[[int, int, bytes], tuple[Window, Row]],
    ) -> None:
        """`row_of` returns the row at this end, start and key; `clock` is None with `wall`."""
        super().__init__(emit, feed, store)
        self.clock = clock
        """The clock of stream time, exact to the record; None: intervals are of the wall clock."""
        self._fold = fold
        self._row_of = row_of
        self._marked: set[bytes] = set()
        self._is_spilled = False
        """Whether there are marks of rows that are not in memory."""

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait for the end of the interval."""
        return bool(self._fold.touched) or self._is_spilled

    @property
    def ended_ms(self) -> int | None:
        """The stream time at which the due interval ended; None: it is of the wall clock."""
        return self._cadence.ended_ms if self._is_event else None

    def settle(self) -> None:
        """Update the clock of stream time after all available records were taken."""
        if self.clock is not None:
            self.clock.settle()

    def take(self, closed_ms: int) -> list[tuple[Row, Window]]:
        """Return the waiting rows of windows that end after `closed_ms`, in order of changes."""
        if self._is_spilled:
            self._gather(closed_ms)
        fold = self._fold
        waiting = list(zip(fold.touched, fold.touched_windows, strict=True))
        fold.touched, fold.touched_windows = [], []
        for row, _ in waiting:
            row.touched = False
        if self._is_spilled:
            self._store.delete_range()
        for key in () if self._is_spilled else sorted(self._marked):
            self._store.delete(key)
        self._marked.clear()
        self._is_spilled = False
        found = [(row, window) for row, window in waiting if window.end_ms > closed_ms]
        return sorted(found, key=lambda each: each[0].number)

    def mark(self, window: Window, rows: Iterable[Row]) -> None:
        """Write marks for those of these rows that wait; the caller writes the rows themselves."""
        for row in rows:
            if row.touched:
                key = window_key(window.end_ms, window.start_ms, row.raw)
                self._marked.add(key)
                self._store.put(key, _NUMBER.pack(row.number))

    def spill(self) -> None:
        """Release the rows from memory: all are marked, and `take` finds them by their marks."""
        self._fold.touched, self._fold.touched_windows = [], []
        self._marked.clear()
        self._is_spilled = True

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the marks."""
        data = {**super().to_data(), "number": self._fold.number}
        return data if self.clock is None else {**data, "clock": self.clock.to_data()}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; intervals of the wall clock start anew."""
        super().load(data)
        if self.clock is not None:
            self.clock.load(data["clock"])
        self._fold.number = int(data["number"])
        # The rows of the marks are in the store: `take` reads them if the interval ends.
        self._is_spilled = True

    def _gather(self, closed_ms: int) -> None:
        """Read the marked rows into memory."""
        fold = self._fold
        for key, data in self._store.range(window_bound(closed_ms + 1)):
            window, row = self._row_of(*split_window_key(key))
            # A row that has changed since the mark was written is in `touched` already, with the
            # newer number.
            if not row.touched:
                row.touched = True
                (row.number,) = _NUMBER.unpack(data)
                fold.touched.append(row)
                fold.touched_windows.append(window)


_MARK = struct.Struct(">Bq")
_WAITS, _GONE, _SEEN = 1, 2, 4
"""Flags of a mark: the row waits; other windows have replaced it; it was forwarded early."""


class WaitingChange(NamedTuple):
    """A row to forward at the end of the interval."""

    number: int
    """The number of the record that changed it last."""
    is_gone: bool
    """Whether other windows have replaced it."""


class EarlyChanges(EarlyResults):
    """The rows of record-made windows that wait for the end of an interval."""

    def __init__(self, emit: Emit, feed: TimeSource, store: NamedStore) -> None:
        super().__init__(emit, feed, store)
        self._waiting: dict[bytes, WaitingChange] = {}
        self._unwritten: set[bytes] = set()
        """Keys whose marks are not written yet."""
        self._number = 0

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait for the end of the interval."""
        return bool(self._waiting)

    def note(self, changes: Iterable[WindowChange]) -> None:
        """Add the changes that one record has made."""
        self._number += 1
        for window, is_gone, _ in changes:
            # Intervals of 1 min; a session of key k is forwarded at 10:01, and grows at 10:01:20.
            # 1. Growing replaces it by a session with another end: the old row is gone. It was
            #    forwarded, so its deletion has to be forwarded at 10:02 as well.
            # 2. The new session grows again at 10:01:40. Its first row was never forwarded, so
            #    there is nothing to delete: its change is forgotten.
            if is_gone and not self._was_forwarded(window.key):
                self.forget(window.key)
            else:
                self._waiting[window.key] = WaitingChange(self._number, is_gone)
                self._unwritten.add(window.key)

    def forget(self, key: bytes) -> None:
        """Remove a row that is final, or that no longer exists."""
        self._waiting.pop(key, None)
        self._unwritten.discard(key)
        if self._store.get(key) is not None:
            self._store.delete(key)

    def take(self) -> list[tuple[bytes, WaitingChange]]:
        """Remove and return the waiting rows, in the order in which they were changed."""
        found = sorted(self._waiting.items(), key=lambda each: (each[1].number, each[0]))
        for key, waiting in found:
            if waiting.is_gone:
                self._store.delete(key)
            else:
                self._store.put(key, _MARK.pack(_SEEN, 0))
        self._waiting.clear()
        self._unwritten.clear()
        return found

    def flush(self) -> None:
        """Write the marks of rows that wait."""
        for key in sorted(self._unwritten):
            number, is_gone = self._waiting[key]
            seen = _SEEN if self._was_forwarded(key) else 0
            self._store.put(key, _MARK.pack(_WAITS | (_GONE if is_gone else 0) | seen, number))
        self._unwritten.clear()

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the marks."""
        return {**super().to_data(), "number": self._number}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; intervals of the wall clock start anew."""
        super().load(data)
        self._number = int(data["number"])
        for key, mark in self._store.range():
            flags, number = _MARK.unpack(mark)
            if flags & _WAITS:
                self._waiting[key] = WaitingChange(number, bool(flags & _GONE))

    def _was_forwarded(self, key: bytes) -> bool:
        mark = self._store.get(key)
        return mark is not None and bool(mark[0] & _SEEN)
