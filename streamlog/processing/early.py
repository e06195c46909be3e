"""EarlyRows: what goes on of windows that are open still, at the ends of intervals.

A windowed aggregation with `Emit.early` notes which rows have changed since they were last handed
on; when an interval is over, the newest result of each goes on. These rows are a source of their
own beside the final ones: they are numbered by the record that changed them last, as those of
`Emit.COMMIT` are, while final rows stay exact to the number whatever was killed. Their stream time
is that of the final rows, so behind a repartition the early ones of a window come first.
An interval ends at its own time, and before the record that takes stream time beyond it, so how
records were cut into batches changes nothing. Rule of the file: which rows wait is state. A mark
per row, under (end, start, key), is written with the row, so that a restart in the middle of an
interval changes nothing of what comes out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from streamlog.processing.columns import Feed
from streamlog.processing.input_clock import InputClock
from streamlog.processing.window_fold import Window, WindowFold
from streamlog.tables.folding import Row
from streamlog.tables.store import (
    NamedStore,
    split_window_key,
    window_bound,
    window_key,
)
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Cadence, Emit

_NUMBER = struct.Struct(">q")


class EarlyRows:
    """The rows that wait for the end of an interval."""

    def __init__(
        self,
        emit: Emit,
        feed: Feed,
        fold: WindowFold,
        store: NamedStore,
        *,
        clock: InputClock | None,
        row_of: Callable[[int, int, bytes], tuple[Window, Row]],
    ) -> None:
        """`row_of` finds the row at this end, start and key; `store` is for the marks."""
        self.feed = feed
        """What its rows carry."""
        self.clock = clock
        """Of stream time; None: intervals are of the clock on the wall."""
        self._cadence = Cadence(emit)
        self._fold = fold
        self._store = store
        self._row_of = row_of
        self._marked: set[bytes] = set()
        self._is_spilled = False
        """Marks are there of rows that are not in memory."""

    @property
    def next_event_ms(self) -> int:
        """Nothing is due before stream time has come to this."""
        return FAR_MS if self.clock is None else self._cadence.next_ms

    @property
    def next_wall_ms(self) -> int:
        """Nothing is due before the clock on the wall shows this."""
        waits = self._fold.touched or self._is_spilled
        return self._cadence.next_ms if waits and self.clock is None else FAR_MS

    @property
    def due_ms(self) -> int:
        """When rows that wait go on, in stream time; FAR_MS: by that never."""
        waits = self._fold.touched or self._is_spilled
        next_ms = self.next_event_ms
        return next_ms if waits and next_ms > UNKNOWN_MS else FAR_MS

    @property
    def over_ms(self) -> int | None:
        """The stream time at which the interval was over that was due; None: as it is."""
        return None if self.clock is None else self._cadence.over_ms

    def is_due(self, wall_ms: int | None) -> bool:
        """Whether an interval is over; without a time on the wall, one of stream time."""
        if self.clock is not None:
            return self._cadence.is_due(self.clock.now_ms)
        return wall_ms is not None and self._cadence.is_due(wall_ms)

    def take(self, closed_ms: int) -> list[tuple[Row, Window]]:
        """The rows that wait, of windows that end after `closed_ms`, as they were changed."""
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
        """These rows are being written: write which of them wait."""
        for row in rows:
            if row.touched:
                key = window_key(window.end_ms, window.start_ms, row.raw)
                self._marked.add(key)
                self._store.put(key, _NUMBER.pack(row.number))

    def spill(self) -> None:
        """Rows are let go of, all of which are marked: find those that wait by their marks."""
        self._fold.touched, self._fold.touched_windows = [], []
        self._marked.clear()
        self._is_spilled = True

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the marks."""
        data: dict[str, object] = {"next_ms": self._cadence.next_ms, "number": self._fold.number}
        return data if self.clock is None else {**data, "clock": self.clock.to_data()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave; the clock on the wall counts anew."""
        if self.clock is not None:
            self._cadence.next_ms = int(data["next_ms"])
            self.clock.load(data["clock"])
        self._fold.number = int(data["number"])
        self._is_spilled = True

    def _gather(self, closed_ms: int) -> None:
        """Bring the rows that are marked into memory."""
        fold = self._fold
        for key, data in self._store.range(window_bound(closed_ms + 1)):
            window, row = self._row_of(*split_window_key(key))
            if not row.touched:
                row.touched = True
                (row.number,) = _NUMBER.unpack(data)
                fold.touched.append(row)
                fold.touched_windows.append(window)
