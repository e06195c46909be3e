"""Folding records into windows, record by record: the loop under every windowed aggregation.

`WindowFold.run` takes one source's records in their order: which window each falls into, whether
that window has closed for it, its row, the fold, and on update the new result. It stops where its
caller has to act: at a late record, after a record at which windows may close, at another source's
record. It is for windows next to each other; `run_overlapping` is for hopping ones, several of
which hold a record: it folds the record into each open one, by ascending start. The rule of the
file: it may be compiled, so times outside the calendar are passed to `open_window`, which refuses
them, before any arithmetic. Not done here: stream time, closing and expiring
(`windowed_aggregate`). What the fold means, as plain loops over the whole input:
`tests/oracle/windows.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from streamlog.durations import moment
from streamlog.records import packing
from streamlog.serdes import windowed_bytes
from streamlog.serdes.erased_types import UserState, UserValue
from streamlog.tables.folds import prefetch
from streamlog.tables.folds.folding import Columns, Row
from streamlog.windows.emit import FAR_MS
from streamlog.windows.window_assigner import window_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from streamlog.processing.column_batch import ResultWindow
    from streamlog.windows.emit import Source

__all__ = [
    "DONE",
    "GATE",
    "LATE",
    "SOURCE",
    "Arrived",
    "ResultColumns",
    "Window",
    "WindowFold",
    "keys_below",
    "missing_rows",
]

DONE, LATE, GATE, SOURCE = range(4)
"""Why a run stopped: all records are taken; a late record, not taken; windows may close now, the
record was taken; a record of another source, not taken."""
_TIME_MS_MAX = 1 << 50
"""Far beyond the year 9999, and no sum of two such times overflows."""
_DONE, _LATE, _GATE, _SOURCE = DONE, LATE, GATE, SOURCE
_AHEAD = prefetch.AHEAD
_KNOWN = 16


class Window:
    """An open window: its rows in memory, and which of these the store does not have yet."""

    __slots__ = ("dirty", "end", "end_ms", "is_whole", "rows", "start", "start_ms", "suffix")

    def __init__(self, start_ms: int, end_ms: int, *, is_whole: bool) -> None:
        # First, because `moment` refuses times outside the calendar.
        self.start: datetime = moment(start_ms)
        self.end: datetime = moment(end_ms)
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.suffix = windowed_bytes(b"", start_ms, end_ms)
        """Start and end as `windowed_bytes` appends them to a key."""
        self.rows: dict[bytes, Row] = {}
        self.dirty: list[Row] | None = None if is_whole else []
        """The rows that have changed. None: most rows have, so there is no list; in a new window,
        all have."""
        self.is_whole = is_whole
        """Whether the store has no rows of the window besides those in memory."""


class Arrived:
    """Records to fold, as columns."""

    __slots__ = ("cold", "raws", "sources", "times", "timestamps", "values")

    def __init__(
        self,
        raws: Sequence[bytes],
        values: Sequence[UserValue],
        timestamps: Sequence[int],
        times: Sequence[int],
        sources: Sequence[Source] | None,
    ) -> None:
        """`times` is the stream time of each record's source at the record.

        `sources` is each record's own source; None if all have one.
        """
        self.raws = _as_list(raws)
        self.values = _as_list(values)
        self.timestamps = _as_list(timestamps)
        self.times = _as_list(times)
        self.sources = sources
        self.cold = 0
        """The first record whose row has not been prefetched (`prefetch`)."""

    def until(self, end: int) -> Arrived:
        """Return the records before index `end`."""
        own = None if self.sources is None else self.sources[:end]
        return Arrived(
            self.raws[:end], self.values[:end], self.timestamps[:end], self.times[:end], own
        )


T = TypeVar("T")
"""An entry of a column."""


def _as_list(column: Sequence[T]) -> list[T]:
    return column if type(column) is list else list(column)


class ResultColumns:
    """Results of windows, as columns that are being filled."""

    __slots__ = ("ats", "count", "old_values", "raws", "timestamps", "values", "windows")

    def __init__(self) -> None:
        self.count = 0
        """The number of results."""
        self.ats: list[int] | None = None
        """The index of each result's record; None: the results belong to the first records, in
        order."""
        self.raws: list[bytes] = []
        self.windows: list[ResultWindow] = []
        self.values: list[UserValue] = []
        self.timestamps: list[int] = []
        self.old_values: list[UserValue] = []
        """The value that each result replaces, if a step downstream needs it; empty: the results
        replace nothing."""

    def add(
        self,
        at: int,
        raw: bytes,
        window: ResultWindow,
        value: UserValue,
        timestamp_ms: int,
    ) -> None:
        """Add one result.

        Args:
            at: the index of the record that it belongs to.
            raw: the key.
            window: the window, which ends up in the key.
            value: the result; None deletes the earlier one.
            timestamp_ms: its timestamp.
        """
        if self.ats is None and at != self.count:
            self.ats = list(range(self.count))
        if self.ats is not None:
            self.ats.append(at)
        self.count += 1
        self.raws.append(raw)
        self.windows.append(window)
        self.values.append(value)
        self.timestamps.append(timestamp_ms)

    def rows_of(self, rows: Sequence[int]) -> Sequence[int]:
        """Return the entry of `rows` for each result; `rows` has one entry per record."""
        if self.ats is not None:
            return [rows[at] for at in self.ats]
        if self.count == len(rows):
            return rows
        # Not a part of a range: a range says that the results stand for all records of the batch.
        return [rows[at] for at in range(self.count)]


def missing_rows(window: Window, raws: list[bytes], timestamps: list[int]) -> list[bytes]:
    """Return the keys of rows that records need of this window, and that it does not have.

    Whether a record is late for it does not count. A key is named once.
    """
    found: dict[bytes, None] = {}
    start_ms, end_ms, rows = window.start_ms, window.end_ms, window.rows
    for at in range(len(raws)):
        timestamp_ms = timestamps[at]
        if start_ms <= timestamp_ms < end_ms and raws[at] not in rows:
            found[raws[at]] = None
    return list(found)


def keys_below(head: bytes, raws: list[bytes]) -> list[bytes]:
    """Return the keys in the store of rows with these keys; all of them follow `head`."""
    return [packing.joined(head, raw) for raw in raws]


class WindowFold:
    """The open windows in memory, and the fold of records into them."""

    __slots__ = (
        "_add",
        "_columns",
        "_end_ms",
        "_grace_ms",
        "_initial",
        "_is_atomic",
        "_known",
        "_load_row",
        "_near",
        "_near_at",
        "_near_windows",
        "_offset_ms",
        "_on_commit",
        "_on_update",
        "_open_window",
        "_result",
        "_sends_old_values",
        "_size_ms",
        "_span_of",
        "_start_ms",
        "_step_ms",
        "at",
        "dropped_at",
        "gate_ms",
        "number",
        "raws",
        "touched",
        "touched_old_values",
        "touched_windows",
        "windows",
    )

    def __init__(
        self,
        add: Callable[[UserState, UserValue], UserState],
        result: Callable[[UserState], UserValue],
        initial: Callable[[], UserState],
        *,
        open_window: Callable[[int, int], Window],
        load_row: Callable[[Window, bytes], Row],
        size_ms: int,
        grace_ms: int,
        offset_ms: int = 0,
        step_ms: int = 0,
        span_of: Callable[[int], tuple[int, int]] | None = None,
        is_atomic: bool = False,
        on_update: bool = False,
        on_commit: bool = False,
        sends_old_values: bool = False,
    ) -> None:
        """`add`, `result` and `initial` are an aggregation's.

        `open_window` creates a window that is not in memory, or refuses it; `load_row` reads the
        row of a window that is not whole from the store. `span_of` returns start and end of the
        window around a time, if the windows differ in size. `is_atomic`: if `add` fails for one of
        several windows, no window has the record; `add` must then leave states as they are.
        `sends_old_values`: results carry the values that they replace.
        """
        self._add = add
        self._result = result
        self._initial = initial
        columns: Any = getattr(add, "__self__", None)
        is_theirs = getattr(initial, "__self__", None) is columns
        self._columns = columns if isinstance(columns, Columns) and is_theirs else None
        self._open_window = open_window
        self._load_row = load_row
        self._size_ms = size_ms
        self._step_ms = step_ms
        self._span_of = span_of
        self._is_atomic = is_atomic
        self._start_ms = self._end_ms = 0
        self._known: list[Window] | None = None
        """Windows that a run has reached, each at its number modulo `_KNOWN`."""
        self._near: list[Row | None] | None = None
        self._near_windows: list[Window | None] = []
        self._near_at = 0
        self._grace_ms, self._offset_ms = grace_ms, offset_ms
        self._on_update = on_update
        self._on_commit = on_commit
        self._sends_old_values = sends_old_values
        self.windows: dict[int, Window] = {}
        """By their ends."""
        self.raws: dict[bytes, bytes] = {}
        """Keys that have rows in several windows, each as one object: fewer objects lie closer
        together. Clear it when rows are released."""
        self.gate_ms = FAR_MS
        """The stream time, less grace, before which nothing closes."""
        self.at = 0
        """The index of the current record: where a run stopped, or failed."""
        self.dropped_at = -1
        """The index of a record that the caller has dropped from its closed windows already."""
        self.number = 0
        """The number of records folded, if rows are forwarded at commits."""
        self.touched: list[Row] = []
        """Rows that wait for a commit; `touched_windows` has the window of each."""
        self.touched_windows: list[Window] = []
        self.touched_old_values: list[UserValue] = []
        """The result that each of them has forwarded last, if a step downstream needs it."""

    def run(
        self, start: int, arrived: Arrived, outlook: tuple[int, int, int], results: ResultColumns
    ) -> int:
        """Fold records from index `start` on, as long as they have the source of the first one.

        Args:
            start: the index of the first record.
            arrived: all records.
            outlook: of the source, see `StreamTime.outlook`.
            results: receives results, on update.

        Returns:
            Why it stopped, at the record `at`.
        """
        own_ms, now_ms, others_ms = outlook
        raws, values = arrived.raws, arrived.values
        timestamps, times = arrived.timestamps, arrived.times
        sources = arrived.sources
        source = None if sources is None else sources[start]
        grace_ms = self._grace_ms
        start_ms = end_ms = -1
        window: Window | None = None
        # Since the last run, windows may have closed and a flush may have released rows.
        self._near = self._known = None
        for at in range(start, len(raws)):
            self.at = at
            if sources is not None and sources[at] is not source:
                return _SOURCE
            timestamp_ms = timestamps[at]
            own_ms = max(own_ms, times[at])
            if timestamp_ms < start_ms or timestamp_ms >= end_ms:
                window = self._window_near(at)
                if window is None:
                    self._find(timestamp_ms)
                    start_ms, end_ms = self._start_ms, self._end_ms
                else:
                    start_ms, end_ms = window.start_ms, window.end_ms
            # Windows of 1 min, grace 10 s. The record is at 10:00:30, its window ends at 10:01:00.
            # 1. Its own source is at 10:01:05: the window is open until 10:01:10; fold it.
            # 2. Its own source is at 10:01:12: late, though another source is at 10:00:20 and the
            #    window is still open for that source's records.
            # 3. Its own source is at 10:00:30, another one at 10:05:00: `now_ms`, the minimum over
            #    the sources, is 10:00:30, so a faster source does not make it late.
            # 4. The record brings the minimum to 10:01:10: it is folded first, then _GATE lets
            #    the caller close what ended by 10:01:00.
            if end_ms <= max(own_ms, now_ms) - grace_ms:
                return _LATE
            if window is None:
                window = self._window(start_ms, end_ms)
            row = self._row_near(window, arrived)
            self._fold(window, row, values[at], timestamp_ms, results)
            if self._on_update:
                self._note(results, window, row, arrived)
            stream_ms = max(now_ms, min(own_ms, others_ms))
            if self._on_commit:
                self._touch(window, row, stream_ms)
            if stream_ms - grace_ms >= self.gate_ms:
                return _GATE
        return _DONE

    def _find(self, timestamp_ms: int) -> None:
        """Set start and end of the window around a time."""
        size_ms, offset_ms = self._size_ms, self._offset_ms
        if timestamp_ms < 0 or timestamp_ms > _TIME_MS_MAX:
            self._open_window(*window_of(timestamp_ms, size_ms, offset_ms))
        if self._span_of is not None:
            self._start_ms, self._end_ms = self._span_of(timestamp_ms)
        else:
            start_ms = (timestamp_ms - offset_ms) // size_ms * size_ms + offset_ms
            self._end_ms = start_ms + size_ms
            self._start_ms = max(start_ms, 0)

    def run_overlapping(
        self, start: int, arrived: Arrived, outlook: tuple[int, int, int], results: ResultColumns
    ) -> int:
        """Fold records as `run` does, into windows of which one begins every `step_ms`.

        Stops before a record that is late for some of its windows. If `dropped_at` is the index of
        that record, folds it into the others.
        """
        own_ms, now_ms, others_ms = outlook
        raws, timestamps, times = arrived.raws, arrived.timestamps, arrived.times
        sources = arrived.sources
        source = None if sources is None else sources[start]
        grace_ms, size_ms, step_ms = self._grace_ms, self._size_ms, self._step_ms
        have_first_ms = have_last_ms = -1
        windows: list[Window] = []
        for at in range(start, len(raws)):
            self.at = at
            if sources is not None and sources[at] is not source:
                return _SOURCE
            timestamp_ms = timestamps[at]
            own_ms = max(own_ms, times[at])
            if timestamp_ms < 0 or timestamp_ms > _TIME_MS_MAX:
                self._open_window(*window_of(timestamp_ms, size_ms, 0))
            last_ms = timestamp_ms // step_ms * step_ms
            first_ms = ((timestamp_ms - size_ms) // step_ms + 1) * step_ms
            first_ms = max(first_ms, 0)
            closed_ms = max(own_ms, now_ms) - grace_ms
            # Windows of 10 min, one every 5 min; the record is at 10:07, in 10:00 and in 10:05.
            # 1. Everything up to 10:09 is closed: both windows are open, fold into both.
            # 2. Everything up to 10:12 is closed: the window of 10:00 ended at 10:10. _LATE lets
            #    the caller drop the record from it, and set `dropped_at`.
            # 3. The run continues at this record: `first_ms` becomes 10:05, the first window that
            #    ends after 10:12.
            if first_ms + size_ms <= closed_ms:
                if self.dropped_at != at:
                    return _LATE
                first_ms = ((closed_ms - size_ms) // step_ms + 1) * step_ms
            if first_ms != have_first_ms or last_ms != have_last_ms:
                windows = self._windows_from(first_ms, last_ms)
                have_first_ms, have_last_ms = first_ms, last_ms
            if at >= arrived.cold:
                self._warm(windows, arrived)
            stream_ms = max(now_ms, min(own_ms, others_ms))
            self._fold_all(windows, arrived, results, stream_ms)
            if stream_ms - grace_ms >= self.gate_ms:
                return _GATE
        return _DONE

    def _windows_from(self, first_ms: int, last_ms: int) -> list[Window]:
        """Return the windows that start between these times, both inclusive."""
        found: list[Window] = []
        start_ms = first_ms
        while start_ms <= last_ms:
            found.append(self._window(start_ms, start_ms + self._size_ms))
            start_ms += self._step_ms
        return found

    def _warm(self, windows: list[Window], arrived: Arrived) -> None:
        for window in windows:
            prefetch.warm(window.rows, arrived.raws, self.at)
        arrived.cold = self.at + _AHEAD

    def _fold_all(
        self, windows: list[Window], arrived: Arrived, results: ResultColumns, stream_ms: int
    ) -> None:
        """Fold the current record into each of the windows."""
        at = self.at
        raw, value, timestamp_ms = arrived.raws[at], arrived.values[at], arrived.timestamps[at]
        # The record is in windows A and B, and the user's function fails for B.
        # 1. The policy is to fail: the task ends, so it does not matter that A has the record.
        # 2. The policy may skip the record: then no window may have it. All new states are computed
        #    before the first one is set; `guard_state` keeps `add` from changing the old ones.
        states: list[UserState] | None = None
        if self._is_atomic:
            states = [self._add(self._row(window, raw).state, value) for window in windows]
        for index, window in enumerate(windows):
            row = self._row(window, raw)
            if states is None:
                self._fold(window, row, value, timestamp_ms, results)
            else:
                old_value = self._result_of(row) if self._sends_old_values else None
                row.state = states[index]
                self._mark_changed(window, row, timestamp_ms)
                if self._sends_old_values:
                    self._note_old(row, old_value, results)
            if self._on_update:
                self._note(results, window, row, arrived)
            if self._on_commit:
                self._touch(window, row, stream_ms)

    def _window(self, start_ms: int, end_ms: int) -> Window:
        window = self.windows.get(end_ms)
        return self._open_window(start_ms, end_ms) if window is None else window

    def _fold(
        self,
        window: Window,
        row: Row,
        value: UserValue,
        timestamp_ms: int,
        results: ResultColumns,
    ) -> None:
        old_value = self._result_of(row) if self._sends_old_values else None
        if self._columns is not None:
            self._columns.fold(row, value)
        else:
            row.kept = self._add(row.kept, value)  # Only columns keep numbers.
        self._mark_changed(window, row, timestamp_ms)
        if self._sends_old_values:
            self._note_old(row, old_value, results)

    def _mark_changed(self, window: Window, row: Row, timestamp_ms: int) -> None:
        row.timestamp_ms = max(row.timestamp_ms, timestamp_ms)
        if not row.dirty:
            row.dirty = True
            if window.dirty is not None:
                window.dirty.append(row)

    def _note_old(self, row: Row, old_value: UserValue, results: ResultColumns) -> None:
        old_values = results.old_values if self._on_update else self.touched_old_values
        if self._on_update or not row.touched:
            old_values.append(old_value)

    def _window_near(self, at: int) -> Window | None:
        """Return the window of a record, if it was prefetched with its row."""
        index = at - self._near_at
        if self._near is None or index >= len(self._near_windows):
            return None
        return self._near_windows[index]

    def _row_near(self, window: Window, arrived: Arrived) -> Row:
        """Return the row of the current record, prefetched with those of the next few."""
        at = self.at
        if at >= arrived.cold:
            dicts = self._windows_ahead(window, arrived)
            self._near = prefetch.warmed(dicts, arrived.raws, at)
            self._near_at = at
            arrived.cold = at + len(dicts)
            prefetch.warm_objects(arrived.raws, arrived.cold)
            prefetch.warm_objects(arrived.values, arrived.cold)
        # A row never changes its key, so a prefetched one is right; new ones are not prefetched.
        row = None if self._near is None else self._near[at - self._near_at]
        return self._row(window, arrived.raws[at]) if row is None else row

    def _windows_ahead(self, window: Window, arrived: Arrived) -> list[dict[bytes, Row] | None]:
        """Return the dicts that hold the rows of the next few records, by the windows so far.

        The current record's row is in this window.
        """
        timestamps = arrived.timestamps
        dicts: list[dict[bytes, Row] | None] = []
        windows: list[Window | None] = []
        if self._known is None:
            self._known = [window] * _KNOWN
        for at in range(self.at, min(self.at + _AHEAD, len(timestamps))):
            timestamp_ms = timestamps[at]
            other: Window | None = window
            if not window.start_ms <= timestamp_ms < window.end_ms:
                other = self._known_window(timestamp_ms)
            windows.append(other)
            dicts.append(None if other is None else other.rows)
        self._near_windows = windows
        return dicts

    def _known_window(self, timestamp_ms: int) -> Window | None:
        """Return the window around a time, if it exists."""
        if self._span_of is not None or timestamp_ms < 0 or timestamp_ms > _TIME_MS_MAX:
            return None
        number = (timestamp_ms - self._offset_ms) // self._size_ms
        known: Any = self._known
        window: Window = known[number % _KNOWN]
        if window.start_ms <= timestamp_ms < window.end_ms:
            return window
        other = self.windows.get((number + 1) * self._size_ms + self._offset_ms)
        if other is not None:
            known[number % _KNOWN] = other
        return other

    def _row(self, window: Window, raw: bytes) -> Row:
        found = window.rows.get(raw)
        return self._new_row(window, raw) if found is None else found

    def _result_of(self, row: Row) -> UserValue:
        if row.timestamp_ms < 0:
            return None  # The row is new and empty.
        return self.result(row)

    def result(self, row: Row) -> UserValue:
        """Return the result of a row."""
        return self._result(row.kept) if self._columns is None else self._columns.result_of(row)

    def _new_row(self, window: Window, raw: bytes) -> Row:
        if len(self.windows) > 1:
            raw = self.raws.setdefault(raw, raw)
        if not window.is_whole:
            return self._load_row(window, raw)
        columns = self._columns
        row = Row(self._initial(), -1, raw) if columns is None else columns.row(raw)
        window.rows[raw] = row
        return row

    def _touch(self, window: Window, row: Row, time_ms: int) -> None:
        self.number += 1
        row.number = self.number
        row.time_ms = max(time_ms, 0)
        if not row.touched:
            row.touched = True
            self.touched.append(row)
            self.touched_windows.append(window)

    def _note(self, results: ResultColumns, window: Window, row: Row, arrived: Arrived) -> None:
        """Add the row's result after the current record to the results."""
        at = self.at
        # The existing int object, not an equal new one.
        timestamp_ms = arrived.timestamps[at]
        if row.timestamp_ms != timestamp_ms:
            timestamp_ms = row.timestamp_ms
        results.add(at, arrived.raws[at], window, self.result(row), timestamp_ms)
