"""WindowedAggregateStep: tumbling, hopping and calendar windows, one result per key and window.

Windows lie next to each other (tumbling, calendar) or overlap (hopping). Rows of open windows are
objects in a cache per window; `flush` writes the changed ones under (end, start, key), so closing
and expiring are ranges. `Emit` decides what is forwarded: the final rows, every update, the newest
result at commits, or early rows at intervals (`EarlyRows`). Rules of the file:

1. A record is folded before the windows that it closes are closed; results come in (end, start,
   key) order.
2. What is closed follows from stream time alone, which is part of the progress. So a window is
   emitted once, also across restarts, and a late record never opens it again.

The rules are those of Kafka Streams (KIP-825 for emission on close), with stream time per source.
The loop over the records is `WindowFold.run`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from streamlog.nodes.window_nodes import WindowedAggregate
from streamlog.processing.column_batch import Batch, TimeSource, exit_failure
from streamlog.processing.error_handling import SkippedRecord
from streamlog.processing.node_time import InputClock
from streamlog.processing.step import StepContext
from streamlog.processing.tables.aggregate import ROWS_BYTES_MAX, RowSizes
from streamlog.processing.windows.early_results import EarlyRows
from streamlog.processing.windows.window_fold import (
    GATE,
    LATE,
    SOURCE,
    Arrived,
    ResultColumns,
    Window,
    WindowFold,
    keys_below,
    missing_rows,
)
from streamlog.processing.windows.windowed_step import WindowedStep
from streamlog.serdes.erased_types import JsonValue, UserState
from streamlog.tables.folds.folding import Row
from streamlog.tables.stores.store import (
    Changes,
    NamedStore,
    prefix_end,
    split_window_key,
    window_bound,
    window_key,
)
from streamlog.windows.calendar import Calendar
from streamlog.windows.definitions import Hopping, Tumbling
from streamlog.windows.emit import FAR_MS, Emit, closed_until, is_late
from streamlog.windows.window_assigner import Assigner


class FoldedWindow(NamedTuple):
    """Rows of one window, or of a part of it, by key, that were folded elsewhere."""

    start_ms: int
    end_ms: int
    raws: list[bytes]
    timestamps: list[int]
    """The largest timestamp of each key."""
    states: Sequence[UserState]


class WindowedAggregateStep(WindowedStep):
    """One result per key and tumbling, hopping or calendar window."""

    _node: WindowedAggregate
    _early: EarlyRows | None

    def __init__(self, node: WindowedAggregate, context: StepContext) -> None:
        super().__init__(node, context, close_delay_ms=node.windows.grace_ms)
        self._grace_ms = node.windows.grace_ms
        self._result = node.aggregation.result
        self._sizes = RowSizes()
        self._assigner = Assigner(node.windows)
        self._fold = self._folding(node)
        self._overlaps = isinstance(node.windows, Hopping)
        self._run = self._fold.run_overlapping if self._overlaps else self._fold.run
        self._early = self._early_rows(node, context.partition)
        self._windows = self._fold.windows
        self._ends: list[int] = []
        """The ends of all windows that have rows, ascending; closed ones stay until they expire."""
        self._gone: list[bytes] = []
        """Keys of rows that have expired, and are in the store until the next flush."""
        self._absent: set[tuple[int, bytes]] = set()
        """The window's end and the key of rows that the store does not have (`_read_ahead`)."""
        self._final = ResultColumns()
        """The rows of closed windows that are not forwarded yet."""

    def _folding(self, node: WindowedAggregate) -> WindowFold:
        windows = node.windows
        return WindowFold(
            self._aggregation.add,
            node.aggregation.result,
            node.aggregation.initial,
            open_window=self._open,
            load_row=self._load_row,
            size_ms=windows.size_ms,
            grace_ms=windows.grace_ms,
            offset_ms=windows.offset_ms if isinstance(windows, Tumbling) else 0,
            step_ms=windows.step_ms if isinstance(windows, Hopping) else 0,
            span_of=self._assigner.only if isinstance(windows, Calendar) else None,
            is_atomic=node.on_error is not None and node.on_error.action != "fail",
            on_update=node.emit == Emit.UPDATE,
            on_commit=node.emit == Emit.COMMIT or node.emit.is_early,
            sends_old_values=self._sends_old_values and node.emit != Emit.CLOSE,
        )

    def _early_rows(self, node: WindowedAggregate, partition: int) -> EarlyRows | None:
        if node.early is None:
            return None
        by_wall = node.emit.clock == "wall"
        return EarlyRows(
            node.emit,
            TimeSource((node.early_feed, partition)),
            NamedStore(self._store, node.early),
            self._fold,
            clock=None if by_wall else InputClock(self._feeds, node.idle_after_ms),
            row_of=self._row_of,
        )

    def fold_records(self, batch: Batch, raws: Sequence[bytes], results: ResultColumns) -> None:
        """Fold all records, and close the windows that they close."""
        fold = self._fold
        own, times = self._time.of(batch)
        arrived = Arrived(raws, batch.values, batch.timestamps, times, own)
        self._read_ahead(arrived)
        start = fold.at = 0
        fold.dropped_at = -1
        while start < len(raws):
            stop = self._emit_early(batch, start)
            part = arrived if stop == len(raws) else arrived.until(stop)
            self._fold_from(start, batch, part, results)
            start = stop
        self._absent.clear()
        self._forward_closed()

    def _read_ahead(self, arrived: Arrived) -> None:
        """Read the rows of these records that are only in the store, all at once.

        `_load_row` would read each by itself, at twice the cost.
        """
        # A row that is there is kept in its window, unchanged, also if its record turns out to be
        # late. One that is not there is only noted: an empty row would be forwarded on close.
        partial_windows = [each for each in self._windows.values() if not each.is_whole]
        if not partial_windows:
            return
        wanted = [
            (each, missing_rows(each, arrived.raws, arrived.timestamps)) for each in partial_windows
        ]
        keys: list[bytes] = []
        for window, raws in wanted:
            keys += keys_below(self._head(window), raws)
        found = self._store.get_all(keys)
        start = 0
        for window, raws in wanted:
            absent = self._format.take_up(raws, found, start, window.rows)
            self._absent.update((window.end_ms, raw) for raw in absent)
            start += len(raws)

    def _head(self, window: Window) -> bytes:
        """Return what comes before the key of a row of this window, in the store."""
        return self._prefix + window_key(window.end_ms, window.start_ms, b"")

    def adopt(self, folded: FoldedWindow) -> None:
        """Take over rows that were folded elsewhere from all records; windows come by (end, start).

        The step's time is that of all records. Windows that end before this one and are closed by
        that time are forwarded; the others are forwarded when more rows come, or when time takes
        effect (`settle`).
        """
        self._time.settle()
        end_ms = folded.end_ms
        limit_ms = closed_until(self._now_ms, self._grace_ms)
        window = self._windows.get(end_ms)
        if window is None:
            self._close(min(self._now_ms, end_ms - 1 + self._grace_ms))
            if self._node.emit.is_final and end_ms <= limit_ms - self._kept_ms:
                # Closed and not kept: its rows are never looked up, and never written.
                self._add_final(folded)
                self._forward_closed()
                return
            window = self._open(folded.start_ms, end_ms)
        rows = list(map(Row, folded.states, folded.timestamps, folded.raws))
        for row in rows:
            row.dirty = True
        window.rows.update(zip(folded.raws, rows, strict=True))
        if window.dirty is not None:
            window.dirty += rows
        self._forward_closed()

    def _add_final(self, folded: FoldedWindow) -> None:
        """Add the results of a whole window, or of a part of it, to the final rows."""
        final, window = self._final, Window(folded.start_ms, folded.end_ms, is_whole=False)
        final.count += len(folded.raws)
        final.raws += folded.raws
        final.windows += [window] * len(folded.raws)
        final.values += map(self._result, folded.states)
        final.timestamps += folded.timestamps

    @property
    def open_windows(self) -> int:
        """The number of windows that have rows and are open, whatever the number of keys."""
        return len(self._ends) - bisect_right(self._ends, self._closed_ms)

    def next_due_ms(self) -> int:
        """Return the end of the window that closes next."""
        next_close = bisect_right(self._ends, self._closed_ms)
        return FAR_MS if next_close == len(self._ends) else self._ends[next_close]

    def first_time_ms(self, end_ms: int) -> int:
        """Return the start of the earliest window that ends at `end_ms` or later."""
        return self._assigner.first_open(end_ms - 1)

    def end_intervals(self, wall_ms: int | None) -> bool:
        """Close windows and end intervals; returns whether an interval has ended."""
        has_ended = self._pass(wall_ms)
        self._forward_closed()
        return has_ended

    def _update_own_sources(self) -> None:
        """Update the time sources of its rows; the time stays while rows wait for a commit."""
        if self._node.emit == Emit.COMMIT and not self.has_waiting:
            self.feed.time_ms = max(self.feed.time_ms, self._stream.now_ms)
        super()._update_own_sources()

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait for `emit`."""
        return self._early is None and bool(self._fold.touched)

    def emit(self) -> None:
        """Forward the newest result of every row that has changed since the last commit.

        Rows come in the order of the records that changed them last, and have those records'
        numbers: what a restart emits again has the number of the first time, or a larger one than
        all before.
        """
        fold = self._fold
        touched, windows, replaced = fold.touched, fold.touched_windows, fold.touched_old_values
        fold.touched, fold.touched_windows, fold.touched_old_values = [], [], []
        order = sorted(range(len(touched)), key=lambda at: touched[at].number)
        rows = [(touched[at], windows[at]) for at in order]
        for row in touched:
            row.touched = False
        old_values = [replaced[at] for at in order] if replaced else []
        self._forward_newest(self.feed, rows, [row.time_ms for row, _ in rows], old_values)
        self._update_own_sources()

    def _forward_newest(
        self,
        feed: TimeSource,
        rows: Sequence[tuple[Row, Window]],
        times: Sequence[int],
        old_values: list[object],
    ) -> None:
        """Forward the current results of rows, each numbered by the record that changed it last."""
        results = ResultColumns()
        results.count = len(rows)
        results.raws = [row.raw for row, _ in rows]
        results.windows = [window for _, window in rows]
        results.values = [self._fold.result(row) for row, _ in rows]
        results.timestamps = [row.timestamp_ms for row, _ in rows]
        results.old_values = old_values
        self._forward_own(feed, [row.number for row, _ in rows], times, results)

    def flush(self) -> None:
        """Write changed rows into the store."""
        count, gone = 0, len(self._gone)
        keys, self._gone = self._gone, []
        values: list[bytes | None] = [None] * gone
        for window in self._windows.values():
            self._write_down(window, keys, values)
            count += len(window.rows)
        self._format.forget_noted()
        self._store.write(Changes(keys, values))
        self._sizes.add(keys, values, gone)
        # Not while rows wait for a commit: `touched` refers to these objects.
        if self._sizes.bytes_of(count) > ROWS_BYTES_MAX and not self.has_waiting:
            for window in self._windows.values():
                window.is_whole = window.is_whole and not window.rows
                window.rows.clear()
            self._fold.raws.clear()
            if self._early is not None:
                self._early.spill()

    def _write_down(self, window: Window, keys: list[bytes], values: list[bytes | None]) -> None:
        head, before = self._head(window), len(keys)
        if window.dirty is None:
            self._format.write_down_dirty(window.rows, head, keys, values)
        else:
            self._format.write_down(window.dirty, head, keys, values)
        if self._early is not None and window.dirty is not None:
            self._early.mark(window, window.dirty)
        # If most rows have changed, a scan of all rows is cheaper than a list of the changed ones.
        are_most = (len(keys) - before) * 2 > len(window.rows)
        window.dirty = None if are_most and self._early is None else []

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the rows."""
        data = super().to_data()
        return {**data, "sequence": self._fold.number} if self._node.emit == Emit.COMMIT else data

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; the rows are in the store."""
        self._fold.number = int(data["sequence"])
        super().load(data)
        self._ends = list(self._stored_ends())
        self._set_gate()

    def _fold_from(
        self, start: int, batch: Batch, arrived: Arrived, results: ResultColumns
    ) -> None:
        """Fold the records from index `start` on."""
        fold, stream = self._fold, self._stream
        own, times, common = arrived.sources, arrived.times, self._time.common(batch)
        while start < len(times):
            source = common if own is None else own[start]
            stream.advance(source, times[start])
            try:
                why = self._run(start, arrived, stream.outlook(source), results)
            except Exception as error:  # noqa: BLE001 - the user's functions
                if fold.at > start:
                    stream.advance(source, times[fold.at - 1])
                why = self._again(batch, arrived, results, error)
            except SystemExit as stop:
                if fold.at > start:
                    stream.advance(source, times[fold.at - 1])
                why = self._again(batch, arrived, results, exit_failure(stop))
            start = fold.at if why == SOURCE else fold.at + 1
            if start:
                stream.advance(source, times[start - 1])
            if why == LATE:
                start = self._drop_late(batch, stream.time_of(source))
            elif why == GATE:
                self._close()

    def _emit_early(self, batch: Batch, at: int) -> int:
        """Emit early rows if an interval ends before this record; returns the next index to check.

        Stream time is that of all inputs as of this record in the order of the task, even if
        records that do not reach this node have advanced it. So the result does not depend on when
        `settle` is called.
        """
        early, origin, rows = self._early, batch.origin, batch.rows
        if early is None or early.clock is None:
            return len(rows)
        early.clock.move_before(origin, rows[at])
        self._pass()
        next_ms = max(early.next_event_ms, 0)
        return at + 1 + early.clock.next_row(origin, rows[at + 1 :], next_ms)

    @property
    def _now_ms(self) -> int:
        """The time by which windows close."""
        exact = None if self._early is None else self._early.clock
        return self._stream.now_ms if exact is None else exact.now_ms

    def _again(
        self, batch: Batch, arrived: Arrived, results: ResultColumns, error: Exception
    ) -> int:
        """Retry the failed record alone, by the policy; returns why the run stopped."""
        fold, at = self._fold, self._fold.at
        alone = arrived.until(at + 1)
        own = batch.origin.sources if arrived.sources is not None else None
        source = self._time.common(batch) if own is None else own[batch.rows[at]]
        outlook = self._stream.outlook(source)
        work = partial(self._run, at, alone, outlook, results)
        found = self.attempt_record(batch, at, work, first=error)
        fold.at = at
        if not isinstance(found, SkippedRecord):
            return found
        self._forget_empty(batch.timestamps[at], arrived.raws[at])
        return GATE  # The record is skipped, and still advances time.

    def _forget_empty(self, timestamp_ms: int, raw: bytes) -> None:
        """Remove rows that were created for the failed record and are empty."""
        for _, end_ms in self._assigner.of(timestamp_ms):
            window = self._windows.get(end_ms)
            if window is not None and raw in window.rows and window.rows[raw].timestamp_ms < 0:
                del window.rows[raw]

    def _drop_late(self, batch: Batch, source_ms: int) -> int:
        """Drop the current record from its closed windows; returns the next index to fold."""
        fold, grace_ms = self._fold, self._grace_ms
        at = fold.at

        def drop_windows() -> None:
            for _, end_ms in self._assigner.of(batch.timestamps[at]):
                if is_late(end_ms, source_ms, grace_ms):
                    late_by_ms = closed_until(source_ms, grace_ms) - end_ms
                    self._late.leave_out(batch, at, end_ms=end_ms, late_by_ms=late_by_ms)

        # Hopping windows of 10 min, each 5 min; the record at 10:03 is in 9:55 and in 10:00.
        # 1. Both are closed: it is dropped twice, once for each window.
        # 2. Only 9:55 to 10:05 is closed: the record is dropped for that one, then `run` starts
        #    at this record again. `dropped_at` makes it skip the closed window and fold into the
        #    other.
        found = self.attempt_record(batch, at, drop_windows)
        if isinstance(found, SkippedRecord) or not self._overlaps:
            return at + 1
        fold.dropped_at = at
        return at

    def _open(self, start_ms: int, end_ms: int) -> Window:
        """Create the window in memory; its rows are loaded on demand."""
        at = bisect_left(self._ends, end_ms)
        is_new = at == len(self._ends) or self._ends[at] != end_ms
        window = self._windows[end_ms] = Window(start_ms, end_ms, is_whole=is_new)
        if self._early is not None:
            window.dirty = []  # `EarlyRows.mark` needs a list of the changed rows.
        if is_new:
            self._ends.insert(at, end_ms)
            self._lower_gate(end_ms)
        return window

    def _row_of(self, end_ms: int, start_ms: int, raw: bytes) -> tuple[Window, Row]:
        """Return an existing row and its window."""
        window = self._windows.get(end_ms) or self._open(start_ms, end_ms)
        return window, window.rows.get(raw) or self._load_row(window, raw)

    def _load_row(self, window: Window, raw: bytes) -> Row:
        data = None
        if (window.end_ms, raw) not in self._absent:
            data = self._store.get(self._prefix + window_key(window.end_ms, window.start_ms, raw))
        row = window.rows[raw] = self._format.loads(data, raw)
        return row

    def _pass(self, wall_ms: int | None = None) -> bool:
        """Close windows and end intervals that stream time, or the wall clock, has passed.

        Returns whether an interval has ended.
        """
        early = self._early
        is_due = early is not None and early.is_due(self._now_ms, wall_ms)
        if early is not None and is_due:
            self._close(early.ended_ms)
            self._forward_closed()
            rows = early.take(self._closed_ms)
            # Intervals of 1 min, windows of 10 min; stream time passes 10:10:30, an interval ended
            # at 10:10.
            # 1. `ended_ms` is 10:10: the window that ends at 10:10 closes first. Its row is final,
            #    and it has no early row for the interval.
            # 2. Open windows that changed before 10:10 forward their early rows.
            # 3. Then the windows close that end between 10:10 and now: as if stream time had moved
            #    in two steps, to 10:10 first.
            # A window's early rows come before its final ones, whose time is the window's start.
            times = [max(self.feed.time_ms, 0)] * len(rows)
            self._forward_newest(early.feed, rows, times, [])
        self._close()
        return is_due

    def _close(self, now_ms: int | None = None) -> None:
        """Emit and expire the windows that stream time, or `now_ms`, has passed."""
        limit_ms = closed_until(self._now_ms if now_ms is None else now_ms, self._grace_ms)
        if limit_ms <= self._closed_ms:
            return
        # The gate saves a search per record: below it, no window closes or expires. With early rows
        # by stream time there is none, because `_emit_early` looks before each record that matters.
        if self._early is not None or limit_ms >= self._fold.gate_ms:
            if self._node.emit.is_final:
                first = bisect_right(self._ends, self._closed_ms)
                for end_ms in self._ends[first : bisect_right(self._ends, limit_ms)]:
                    self._add_closed(end_ms)
            self._expire(limit_ms - self._kept_ms)
        self._closed_ms = limit_ms
        self._set_gate()
        self._set_time()

    def _add_closed(self, end_ms: int) -> None:
        """Add the final rows of one window, by key."""
        final, window = self._final, self._windows.get(end_ms)
        rows = {} if window is None else dict(window.rows)
        if window is None or not window.is_whole:
            low, high = window_bound(end_ms), window_bound(end_ms + 1)
            for key, data in self._store.range(self._prefix + low, self._prefix + high):
                _, start_ms, raw = split_window_key(key[len(self._prefix) :])
                window = window or Window(start_ms, end_ms, is_whole=False)
                if raw not in rows:  # Rows in memory are newer.
                    rows[raw] = self._format.loads(data)
        if window is None:
            return
        for raw, row in sorted(rows.items(), key=itemgetter(0)):
            final.add(final.count, raw, window, self._fold.result(row), row.timestamp_ms)

    def _expire(self, end_ms: int) -> None:
        """Remove the rows of windows that end at `end_ms` or before."""
        expired = self._ends[: bisect_right(self._ends, end_ms)]
        if not expired:
            return
        del self._ends[: len(expired)]
        self._fold.raws.clear()
        windows = [self._windows.pop(end, None) for end in expired]
        if all(window is not None and window.is_whole for window in windows):
            # Memory has all rows that the store may have: no scan is needed to find them.
            rows = chain.from_iterable(window.rows.values() for window in windows if window)
            self._gone += [row.key for row in rows if row.key is not None]
            return
        # Not from the beginning: there, a scan steps over the tombstones of removed rows.
        low, high = window_bound(expired[0]), window_bound(end_ms + 1)
        self._store.delete_range(self._prefix + low, self._prefix + high)

    def _forward_closed(self) -> None:
        final = self._final
        if final.count:
            self._final = ResultColumns()
            # The windows of later rows begin no earlier than this row's window.
            self._forward_final(final, [window.start_ms for window in final.windows])

    def _stored_ends(self) -> Iterator[int]:
        """Iterate over the ends of all windows in the store: one seek for each."""
        high = prefix_end(self._prefix)
        low = self._prefix
        while (found := next(self._store.range(low, high), None)) is not None:
            end_ms, _, _ = split_window_key(found[0][len(self._prefix) :])
            yield end_ms
            low = self._prefix + window_bound(end_ms + 1)

    def _set_gate(self) -> None:
        """Set the time, less grace, before which nothing closes or expires."""
        next_close = bisect_right(self._ends, self._closed_ms)
        closing = self._ends[next_close : next_close + 1]
        expiring = [end + self._kept_ms for end in self._ends[:1]]
        self._fold.gate_ms = FAR_MS
        self._lower_gate(min([*closing, *expiring], default=FAR_MS))

    def _lower_gate(self, gate_ms: int) -> None:
        """Lower the gate to a window's end, unless `_emit_early` closes windows before records."""
        if self._early is None or self._early.clock is None:
            self._fold.gate_ms = min(self._fold.gate_ms, gate_ms)

    def _set_time(self) -> None:
        """Set the time that no later row precedes; at commits, `_update_own_sources` does that."""
        if self._node.emit != Emit.COMMIT:
            super()._set_time()
