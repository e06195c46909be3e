"""Folding records into windows, record by record: the loop under every windowed aggregation.

`WindowFold.run` takes one source's records in their order: which window each falls in, whether that
has closed to it, its row, the fold, and on update what goes on. It stops where something else has
its turn: at a late record, behind one at which windows may close, at another source's record.
It is for windows side by side; `run_overlapping` for hopping ones, of which several hold a record:
it is folded into each that is open, by ascending start. The rule of the file: it may be compiled,
so times outside of what a calendar knows leave by `open_window`, which refuses them, before
anything is calculated. Not done here: stream time, closing and expiring (`windowed`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlog.durations import moment
from streamlog.serdes import windowed_bytes
from streamlog.tables.folds import prefetch
from streamlog.tables.folds.folding import Columns, Row
from streamlog.windows.emit import FAR_MS
from streamlog.windows.window_assigner import window_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

__all__ = ["DONE", "GATE", "LATE", "SOURCE", "Arrived", "Updates", "Window", "WindowFold"]

DONE, LATE, GATE, SOURCE = range(4)
"""Why a run stopped: all taken; a late record, not taken; windows may close now, the record was
taken; the record of another source, not taken."""
_TIME_MS_MAX = 1 << 50
"""Far beyond the year 9999: no sum of two overflows."""
_DONE, _LATE, _GATE, _SOURCE = DONE, LATE, GATE, SOURCE
_AHEAD = prefetch.AHEAD
_KNOWN = 16


class Window:
    """An open window: its rows in memory, and which of them the store does not have yet."""

    __slots__ = ("dirty", "end", "end_ms", "is_whole", "rows", "start", "start_ms", "suffix")

    def __init__(self, start_ms: int, end_ms: int, *, is_whole: bool) -> None:
        # First, as it refuses what no calendar has.
        self.start: datetime = moment(start_ms)
        self.end: datetime = moment(end_ms)
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.suffix = windowed_bytes(b"", start_ms, end_ms)
        """Start and end as `windowed_bytes` has them behind a key."""
        self.rows: dict[bytes, Row] = {}
        self.dirty: list[Row] | None = None if is_whole else []
        """None: they are most of the rows, and nobody keeps a list; in a new window, all."""
        self.is_whole = is_whole
        """The store has no rows of it beyond those in memory."""


class Arrived:
    """Records to be taken in, as columns."""

    __slots__ = ("cold", "raws", "sources", "times", "timestamps", "values")

    def __init__(
        self,
        raws: Sequence[bytes],
        values: Sequence[Any],
        timestamps: Sequence[int],
        times: Sequence[int],
        sources: Sequence[Any] | None,
    ) -> None:
        """`times` is the stream time of each record's source at it; `sources` each one's own.

        `sources` is None if all are the same.
        """
        self.raws = _listed(raws)
        self.values = _listed(values)
        self.timestamps = _listed(timestamps)
        self.times = _listed(times)
        self.sources = sources
        self.cold = 0
        """The first record whose row has not been looked at (`warming`)."""

    def until(self, end: int) -> Arrived:
        """Those before `end`."""
        own = None if self.sources is None else self.sources[:end]
        return Arrived(
            self.raws[:end], self.values[:end], self.timestamps[:end], self.times[:end], own
        )


def _listed(column: Sequence[Any]) -> list[Any]:
    return column if type(column) is list else list(column)


class Updates:
    """What goes on on update, in columns: of which record, and its row's result."""

    __slots__ = ("ats", "count", "old_values", "raws", "timestamps", "values", "windows")

    def __init__(self) -> None:
        self.count = 0
        """How many there are."""
        self.ats: list[int] | None = None
        """Each one's record; None: they are those of the first records, in order."""
        self.raws: list[bytes] = []
        self.windows: list[Window] = []
        self.values: list[Any] = []
        self.timestamps: list[int] = []
        self.old_values: list[Any] = []
        """What each result replaces, where somebody needs that."""


class WindowFold:
    """The windows that are open in memory, and how records get into them."""

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
        "_size_ms",
        "_span_of",
        "_start_ms",
        "_step_ms",
        "_tells_old_values",
        "at",
        "gate_ms",
        "number",
        "raws",
        "told",
        "touched",
        "touched_old_values",
        "touched_windows",
        "windows",
    )

    def __init__(
        self,
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
        initial: Callable[[], Any],
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

        `open_window` makes a window that is not in memory, or refuses it; `load_row` asks the
        store for the row of a window that is not whole. `span_of` tells start and end of the
        window around a time, if they are not of one size. `is_atomic`: where `add` fails for one
        of several windows, none has the record; then it must leave states as they are.
        `sends_old_values`: what goes on says what it replaces.
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
        """Windows that a run has come to, each where its number would have it."""
        self._near: list[Row | None] | None = None
        self._near_windows: list[Window | None] = []
        self._near_at = 0
        self._grace_ms, self._offset_ms = grace_ms, offset_ms
        self._on_update = on_update
        self._on_commit = on_commit
        self._tells_old_values = sends_old_values
        self.windows: dict[int, Window] = {}
        """By their ends."""
        self.raws: dict[bytes, bytes] = {}
        """Keys that have rows in several windows, each as one object: the fewer there are, the
        nearer they lie. To be cleared when rows are let go of."""
        self.gate_ms = FAR_MS
        """Nothing closes before stream time less grace has come to this."""
        self.at = 0
        """The record in hand: where a run stopped, or failed."""
        self.told = -1
        """The record whose closed windows have been told of already, of several around it."""
        self.number = 0
        """How many records were folded, if rows are handed on at commits."""
        self.touched: list[Row] = []
        """Those that wait for a commit, and the window of each."""
        self.touched_windows: list[Window] = []
        self.touched_old_values: list[Any] = []
        """What each of them has handed on last, where somebody needs that."""

    def run(
        self, start: int, arrived: Arrived, outlook: tuple[int, int, int], updates: Updates
    ) -> int:
        """Take in records from `start` on, all of the source of the first of them.

        Args:
            start: the first record.
            arrived: all of them.
            outlook: of the source, see `StreamTime.outlook`.
            updates: where results go, on update.

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
        window: Any = None
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
            if end_ms <= max(own_ms, now_ms) - grace_ms:
                return _LATE
            if window is None:
                window = self._window(start_ms, end_ms)
            row = self._row_near(window, arrived)
            self._fold(window, row, values[at], timestamp_ms, updates)
            if self._on_update:
                self._note(updates, window, row, arrived)
            stream_ms = max(now_ms, min(own_ms, others_ms))
            if self._on_commit:
                self._touch(window, row, stream_ms)
            if stream_ms - grace_ms >= self.gate_ms:
                return _GATE
        return _DONE

    def _find(self, timestamp_ms: int) -> None:
        """Start and end of its window."""
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
        self, start: int, arrived: Arrived, outlook: tuple[int, int, int], updates: Updates
    ) -> int:
        """As `run`, for windows of which one begins every step.

        A record that is late for some of its windows is one to stop at, before it is taken; with
        `told` set to it, it is taken into the others.
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
            if first_ms + size_ms <= closed_ms:
                if self.told != at:
                    return _LATE
                first_ms = ((closed_ms - size_ms) // step_ms + 1) * step_ms
            if first_ms != have_first_ms or last_ms != have_last_ms:
                windows = self._windows_from(first_ms, last_ms)
                have_first_ms, have_last_ms = first_ms, last_ms
            if at >= arrived.cold:
                self._warm(windows, arrived)
            stream_ms = max(now_ms, min(own_ms, others_ms))
            self._fold_all(windows, arrived, updates, stream_ms)
            if stream_ms - grace_ms >= self.gate_ms:
                return _GATE
        return _DONE

    def _windows_from(self, first_ms: int, last_ms: int) -> list[Window]:
        """The windows that start between these, both included."""
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
        self, windows: list[Window], arrived: Arrived, updates: Updates, stream_ms: int
    ) -> None:
        """Take the record in hand into each of the windows."""
        at = self.at
        raw, value, timestamp_ms = arrived.raws[at], arrived.values[at], arrived.timestamps[at]
        states: Any = None
        if self._is_atomic:
            states = [self._add(self._row(window, raw).state, value) for window in windows]
        for place, window in enumerate(windows):
            row = self._row(window, raw)
            if states is None:
                self._fold(window, row, value, timestamp_ms, updates)
            else:
                old_value = self._result_of(row) if self._tells_old_values else None
                row.state = states[place]
                self._changed(window, row, timestamp_ms)
                if self._tells_old_values:
                    self._note_old(row, old_value, updates)
            if self._on_update:
                self._note(updates, window, row, arrived)
            if self._on_commit:
                self._touch(window, row, stream_ms)

    def _window(self, start_ms: int, end_ms: int) -> Window:
        window = self.windows.get(end_ms)
        return self._open_window(start_ms, end_ms) if window is None else window

    def _fold(
        self,
        window: Window,
        row: Row,
        value: Any,  # noqa: ANN401 - the stream's
        timestamp_ms: int,
        updates: Updates,
    ) -> None:
        old_value = self._result_of(row) if self._tells_old_values else None
        if self._columns is not None:
            self._columns.fold(row, value)
        else:
            row.kept = self._add(row.kept, value)  # Only columns keep numbers.
        self._changed(window, row, timestamp_ms)
        if self._tells_old_values:
            self._note_old(row, old_value, updates)

    def _changed(self, window: Window, row: Row, timestamp_ms: int) -> None:
        row.timestamp_ms = max(row.timestamp_ms, timestamp_ms)
        if not row.dirty:
            row.dirty = True
            if window.dirty is not None:
                window.dirty.append(row)

    def _note_old(self, row: Row, old_value: Any, updates: Updates) -> None:  # noqa: ANN401 - a result
        old_values = updates.old_values if self._on_update else self.touched_old_values
        if self._on_update or not row.touched:
            old_values.append(old_value)

    def _window_near(self, at: int) -> Window | None:
        """The window of a record, if that has been looked up with its row."""
        place = at - self._near_at
        if self._near is None or place >= len(self._near_windows):
            return None
        return self._near_windows[place]

    def _row_near(self, window: Window, arrived: Arrived) -> Row:
        """The row of the record in hand, looked up with those of the next few."""
        at = self.at
        if at >= arrived.cold:
            dicts = self._windows_ahead(window, arrived)
            self._near = prefetch.warmed(dicts, arrived.raws, at)
            self._near_at = at
            arrived.cold = at + len(dicts)
            prefetch.warm_objects(arrived.raws, arrived.cold)
            prefetch.warm_objects(arrived.values, arrived.cold)
        # A row stays its key's; one that is made meanwhile is not among them.
        row = None if self._near is None else self._near[at - self._near_at]
        return self._row(window, arrived.raws[at]) if row is None else row

    def _windows_ahead(self, window: Window, arrived: Arrived) -> list[dict[bytes, Row] | None]:
        """Where the next few records have their rows, by what windows there are by now.

        The record in hand has it in this window.
        """
        timestamps = arrived.timestamps
        dicts: list[dict[bytes, Row] | None] = []
        windows: list[Window | None] = []
        if self._known is None:
            self._known = [window] * _KNOWN
        for at in range(self.at, min(self.at + _AHEAD, len(timestamps))):
            timestamp_ms = timestamps[at]
            other: Any = window
            if not window.start_ms <= timestamp_ms < window.end_ms:
                other = self._known_window(timestamp_ms)
            windows.append(other)
            dicts.append(None if other is None else other.rows)
        self._near_windows = windows
        return dicts

    def _known_window(self, timestamp_ms: int) -> Window | None:
        """The window around a time, if there is one by now."""
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

    def _result_of(self, row: Row) -> Any:  # noqa: ANN401 - the aggregation's
        if row.timestamp_ms < 0:
            return None  # Nothing is in it yet.
        return self.result(row)

    def result(self, row: Row) -> Any:  # noqa: ANN401 - the aggregation's
        """What a row stands for."""
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

    def _note(self, updates: Updates, window: Window, row: Row, arrived: Arrived) -> None:
        """The row goes on as it is behind the record in hand."""
        at = self.at
        result = self.result(row)
        if updates.ats is None and at != updates.count:
            updates.ats = list(range(updates.count))
        if updates.ats is not None:
            updates.ats.append(at)
        updates.count += 1
        updates.raws.append(arrived.raws[at])
        updates.windows.append(window)
        updates.values.append(result)
        if row.timestamp_ms == arrived.timestamps[at]:
            # The number that is there already, and not another one like it.
            updates.timestamps.append(arrived.timestamps[at])
        else:
            updates.timestamps.append(row.timestamp_ms)
