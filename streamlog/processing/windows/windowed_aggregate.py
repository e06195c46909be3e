"""WindowedAggregateStep: one result per key and window, when it closes, or earlier and more often.

Windows lie next to each other (tumbling, calendar) or overlap (hopping). Time is kept per source
(`StreamTime`): a record is late if its own source has passed its window's closing; a window closes
when all live sources have passed its end and grace. Rows of open windows are objects in a cache per
window; `flush` writes the changed ones under (end, start, key), so closing and expiring are ranges.
`Emit` decides what is forwarded before that: every update, the newest result at commits, or at
intervals (`EarlyRows`). Rules of the file:

1. A record is folded before the windows that it closes are closed; results come in (end, start,
   key) order.
2. What is closed follows from stream time alone, which is part of the progress. So a window is
   emitted once, also across restarts, and a late record never opens it again.
3. Rows emitted on close are numbered. Their order and content do not depend on how the inputs were
   interleaved, so the number identifies a row for downstream tasks (`provenance`).

The rules are those of Kafka Streams (KIP-825 for emission on close), with stream time per source.
The loop over the records is `WindowFold.run`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from streamlog.durations import moment
from streamlog.nodes.window_nodes import WindowedAggregate
from streamlog.processing.column_batch import (
    Batch,
    BatchOrigin,
    TimeSource,
    WindowedKeys,
    exit_failure,
)
from streamlog.processing.error_handling import SkippedRecord
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.node_time import InputClock
from streamlog.processing.step import Step, StepContext
from streamlog.processing.tables.aggregate import (
    ROWS_BYTES_MAX,
    RowFormat,
    RowSizes,
    guard_state,
    without_nulls,
)
from streamlog.processing.windows.window_fold import (
    GATE,
    LATE,
    SOURCE,
    Arrived,
    Updates,
    Window,
    WindowFold,
)
from streamlog.processing.windows.windowed_step import EarlyRows, LateRecords, WindowTime
from streamlog.record import Windowed
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
from streamlog.windows.emit import (
    FAR_MS,
    UNKNOWN_MS,
    Emit,
    closed_until,
    is_late,
)
from streamlog.windows.window_assigner import Assigner

T = TypeVar("T")
"""The result of an operation on a record."""


class FoldedWindow(NamedTuple):
    """Rows of one window, or of a part of it, by key, that were folded elsewhere."""

    start_ms: int
    end_ms: int
    raws: list[bytes]
    timestamps: list[int]
    """The largest timestamp of each key."""
    states: Sequence[Any]


class FinalRows:
    """Final rows, as columns that are being filled for the next batch."""

    __slots__ = ("raws", "timestamps", "values", "windows")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all rows: they have been forwarded."""
        self.raws: list[bytes] = []
        self.windows: list[Window] = []
        self.values: list[Any] = []
        self.timestamps: list[int] = []

    def add(self, raw: bytes, window: Window, value: object, timestamp_ms: int) -> None:
        """Add one result."""
        self.raws.append(raw)
        self.windows.append(window)
        self.values.append(value)
        self.timestamps.append(timestamp_ms)

    def add_all(self, folded: FoldedWindow, values: list[Any]) -> None:
        """Add the results of a whole window, or of a part of it."""
        window = Window(folded.start_ms, folded.end_ms, is_whole=False)
        self.raws += folded.raws
        self.windows += [window] * len(values)
        self.values += values
        self.timestamps += folded.timestamps


class WindowedAggregateStep(Step):
    """One result per key and window."""

    section = "windows"

    def __init__(self, node: WindowedAggregate, context: StepContext) -> None:
        super().__init__(node.name)
        self._sends_old_values = context.sends_old_values
        self.feed = TimeSource((node.name, context.partition))
        """The time source of the results, if the step emits on close."""
        self.node_time = NodeTime(context.feeds)
        self._feeds = self.node_time.feeds
        self._node = node
        self._grace_ms = node.windows.grace_ms
        # For how long rows stay after their window has closed.
        self._kept_ms = node.windows.retention_ms - node.windows.size_ms - self._grace_ms
        self._result = node.aggregation.result
        self._format = RowFormat(node.name, node.aggregation)
        self._sizes = RowSizes()
        self._store = context.store
        self._collector = context.collector
        self._prefix = node.store.prefix
        self._late = LateRecords(node.name, node.late, context.collector)
        self._time = WindowTime(
            self._feeds,
            own=self.feed.source,
            united=node.united,
            idle_after_ms=node.idle_after_ms,
        )
        self._stream = self._time.stream
        self._assigner = Assigner(node.windows)
        self._fold = self._folding(node)
        self._overlaps = isinstance(node.windows, Hopping)
        self._run = self._fold.run_overlapping if self._overlaps else self._fold.run
        self._early = self._early_rows(node, context.partition)
        self._windows = self._fold.windows
        self._ends: list[int] = []
        self._gone: list[bytes] = []
        """Keys of rows that have expired, and are in the store until the next flush."""
        self._closed_ms = UNKNOWN_MS
        self._sequence = 0

    def _folding(self, node: WindowedAggregate) -> WindowFold:
        windows = node.windows
        return WindowFold(
            guard_state(node).add,
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
            self._fold,
            NamedStore(self._store, node.early),
            clock=None if by_wall else InputClock(self._feeds, node.idle_after_ms),
            row_of=self._row_of,
        )

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time sources of rows that belong to no record; early ones have one of their own."""
        return (self.feed,) if self._early is None else (self._early.feed, self.feed)

    @property
    def next_wall_ms(self) -> int:
        """When early rows are due, if that is by the wall clock."""
        return FAR_MS if self._early is None else self._early.next_wall_ms

    def process(self, batch: Batch) -> None:
        """Fold the records, close windows, and forward the results."""
        batch, raws = without_nulls(self, batch, self._node.key, self._collector)
        batch = self.node_time.of(batch)
        closed, updates = FinalRows(), Updates()
        self._format.note(batch, raws)
        self._take(batch, raws, closed, updates)
        self._forward_final(closed)
        if updates.count:
            rows = batch.rows
            if updates.ats is not None:
                rows = [rows[at] for at in updates.ats]
            elif updates.count < len(rows):
                rows = [rows[at] for at in range(updates.count)]
            keys = WindowedKeys(self._node.key, updates.raws, updates.windows)
            results = Batch(batch.origin, rows, keys, updates.values, updates.timestamps)
            self._forward(results, updates.old_values)

    def adopt(self, folded: FoldedWindow) -> None:
        """Take over rows that were folded elsewhere from all records; windows come by (end, start).

        The step's time is that of all records. Windows that end before this one and are closed by
        that time are forwarded; the others are forwarded when more rows come, or when time takes
        effect (`settle`).
        """
        self._time.settle()
        closed, end_ms = FinalRows(), folded.end_ms
        limit_ms = closed_until(self._now_ms, self._grace_ms)
        window = self._windows.get(end_ms)
        if window is None:
            self._close(closed, min(self._now_ms, end_ms - 1 + self._grace_ms))
            if self._node.emit.is_final and end_ms <= limit_ms - self._kept_ms:
                # Closed and not kept: its rows are never looked up, and never written.
                closed.add_all(folded, list(map(self._result, folded.states)))
                self._forward_final(closed)
                return
            window = self._open(folded.start_ms, end_ms)
        rows = list(map(Row, folded.states, folded.timestamps, folded.raws))
        for row in rows:
            row.dirty = True
        window.rows.update(zip(folded.raws, rows, strict=True))
        if window.dirty is not None:
            window.dirty += rows
        self._forward_final(closed)

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when the next window closes, or early rows are due, if rows are forwarded then."""
        next_close = bisect_right(self._ends, self._closed_ms)
        if not self._node.emit.is_final or next_close == len(self._ends):
            return ()
        due_ms = self._ends[next_close] + self._grace_ms
        if self._early is not None:
            due_ms = min(due_ms, self._early.due_ms)
        return [(feed, due_ms) for feed in self._feeds]

    def ends_at(self, due_ms: int) -> int:
        """Return the end of the window that closes at this stream time: the grace earlier."""
        return due_ms - self._grace_ms

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return when every window that begins before `time_ms` is closed."""
        closed_ms = time_ms + self._node.windows.size_ms + self._grace_ms
        return [(feed, closed_ms) for feed in self._feeds]

    def settle(self, now_ms: int | None) -> bool:
        """Let time, idle sources and intervals take effect after all available records were taken.

        Returns whether the end of an interval has forwarded rows.
        """
        self._time.settle()
        if self._early is not None and self._early.clock is not None:
            self._early.clock.settle()
        self._rest()
        closed = FinalRows()
        fired = self._pass(closed, now_ms)
        self._forward_final(closed)
        return fired

    def _rest(self) -> None:
        """Update the time sources of its rows; the time stays while rows wait for a commit."""
        waits = self.has_waiting
        if self._node.emit == Emit.COMMIT and not waits:
            self.feed.time_ms = max(self.feed.time_ms, self._stream.now_ms)
        quiet_ms = min((feed.quiet_ms for feed in self._feeds), default=0)
        at_end = all(feed.at_end for feed in self._feeds)
        for own in self.own_time_sources:
            own.quiet_ms = 0 if waits else quiet_ms
            own.at_end = at_end and not waits

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
        places = sorted(range(len(touched)), key=lambda at: touched[at].number)
        rows = [(touched[at], windows[at]) for at in places]
        for row in touched:
            row.touched = False
        results = self._newest(self.feed, rows, [row.time_ms for row, _ in rows])
        self._forward(results, [replaced[at] for at in places] if replaced else [])
        self._rest()

    def _newest(
        self, feed: TimeSource, rows: Sequence[tuple[Row, Window]], times: Sequence[int]
    ) -> Batch:
        """Return the current results of rows, each numbered by the record that changed it last."""
        return Batch(
            BatchOrigin.of_rows(feed, [row.number for row, _ in rows], times),
            range(len(rows)),
            WindowedKeys(self._node.key, [r.raw for r, _ in rows], [window for _, window in rows]),
            [self._fold.result(row) for row, _ in rows],
            [row.timestamp_ms for row, _ in rows],
        )

    def flush(self) -> None:
        """Write changed rows into the store."""
        count, gone = 0, len(self._gone)
        keys, self._gone = self._gone, []
        values: list[bytes | None] = [None] * gone
        for window in self._windows.values():
            self._write_down(window, keys, values)
            count += len(window.rows)
        self._format.stored()
        self._store.write(Changes(keys, values))
        self._sizes.add(keys, values, gone)
        if self._sizes.bytes_of(count) > ROWS_BYTES_MAX and not self.has_waiting:
            for window in self._windows.values():
                window.is_whole = window.is_whole and not window.rows
                window.rows.clear()
            self._fold.raws.clear()
            if self._early is not None:
                self._early.spill()

    def _write_down(self, window: Window, keys: list[bytes], values: list[bytes | None]) -> None:
        head = self._prefix + window_key(window.end_ms, window.start_ms, b"")
        before = len(keys)
        if window.dirty is None:
            self._format.write_down_dirty(window.rows, head, keys, values)
        else:
            self._format.write_down(window.dirty, head, keys, values)
        if self._early is not None and window.dirty is not None:
            self._early.mark(window, window.dirty)
        are_most = (len(keys) - before) * 2 > len(window.rows)
        window.dirty = None if are_most and self._early is None else []

    def table(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the rows that are kept, by (end, start, key)."""
        self.flush()
        for key, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            end_ms, start_ms, raw = split_window_key(key[len(self._prefix) :])
            windowed = Windowed(self._node.key.loads(raw), moment(start_ms), moment(end_ms))
            yield windowed, self._result(self._format.loads(data).state)

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the rows."""
        sequence = self._fold.number if self._node.emit == Emit.COMMIT else self._sequence
        data: dict[str, object] = {"stream": self._stream.to_data(), "sequence": sequence}
        return data if self._early is None else {**data, "early": self._early.to_data()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore what `to_data` returned; the rows are in the store."""
        self._stream.load(data["stream"])
        self._sequence = self._fold.number = int(data["sequence"])
        if self._early is not None and "early" in data:
            self._early.load(data["early"])
        self._closed_ms = closed_until(self._now_ms, self._grace_ms)
        self._ends = list(self._stored_ends())
        self._set_gate()
        self._set_time()

    def _take(
        self, batch: Batch, raws: Sequence[bytes], closed: FinalRows, updates: Updates
    ) -> None:
        """Fold all records, and close the windows that they close."""
        fold = self._fold
        own, times = self._time.of(batch)
        arrived = Arrived(raws, batch.values, batch.timestamps, times, own)
        start = fold.at = 0
        fold.told = -1
        while start < len(raws):
            stop = self._emit_early(batch, start, closed)
            part = arrived if stop == len(raws) else arrived.until(stop)
            self._take_from(start, batch, part, closed, updates)
            start = stop

    def _take_from(
        self, start: int, batch: Batch, arrived: Arrived, closed: FinalRows, updates: Updates
    ) -> None:
        """Fold the records from index `start` on."""
        fold, stream = self._fold, self._stream
        own, times, common = arrived.sources, arrived.times, self._time.common(batch)
        while start < len(times):
            source = common if own is None else own[start]
            stream.advance(source, times[start])
            try:
                why = self._run(start, arrived, stream.outlook(source), updates)
            except Exception as error:  # noqa: BLE001 - the user's functions
                if fold.at > start:
                    stream.advance(source, times[fold.at - 1])
                why = self._again(batch, arrived, updates, error)
            except SystemExit as stop:
                if fold.at > start:
                    stream.advance(source, times[fold.at - 1])
                why = self._again(batch, arrived, updates, exit_failure(stop))
            start = fold.at if why == SOURCE else fold.at + 1
            if start:
                stream.advance(source, times[start - 1])
            if why == LATE:
                start = self._drop_late(batch, stream.time_of(source))
            elif why == GATE:
                self._close(closed)

    def _emit_early(self, batch: Batch, at: int, closed: FinalRows) -> int:
        """Emit early rows if an interval ends before this record; returns the next index to check.

        Stream time is that of all inputs as of this record in the order of the task, even if
        records that do not reach this node have advanced it. So the result does not depend on when
        `settle` is called.
        """
        early, origin, rows = self._early, batch.origin, batch.rows
        if early is None or early.clock is None:
            return len(rows)
        early.clock.move_before(origin, rows[at])
        self._pass(closed)
        next_ms = max(early.next_event_ms, 0)
        return at + 1 + early.clock.next_row(origin, rows[at + 1 :], next_ms)

    @property
    def _now_ms(self) -> int:
        """The time by which windows close."""
        exact = None if self._early is None else self._early.clock
        return self._stream.now_ms if exact is None else exact.now_ms

    def _again(self, batch: Batch, arrived: Arrived, updates: Updates, error: Exception) -> int:
        """Retry the failed record alone, by the policy; returns why the run stopped."""
        fold, at = self._fold, self._fold.at
        alone = arrived.until(at + 1)
        own = batch.origin.sources if arrived.sources is not None else None
        source = self._time.common(batch) if own is None else own[batch.rows[at]]
        outlook = self._stream.outlook(source)
        found = self._tried(batch, partial(self._run, at, alone, outlook, updates), error)
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

    def _tried(
        self, batch: Batch, work: Callable[[], T], error: Exception | None = None
    ) -> T | SkippedRecord:
        """Do something for the current record; without a policy, an error is the task's."""
        at = self._fold.at
        if self.failures is not None:
            return self.failures.attempt_record(batch, at, work, first=error)
        try:
            if error is None:
                return work()
        except Exception as caught:  # noqa: BLE001 - the user's code
            error = caught
        except SystemExit as stop:
            error = exit_failure(stop)
        raise batch.failure(self.name, at, error) from error

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
        #    at this record again. `told` makes it skip the closed window and fold into the other.
        if isinstance(self._tried(batch, drop_windows), SkippedRecord) or not self._overlaps:
            return at + 1
        fold.told = at
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
        data = self._store.get(self._prefix + window_key(window.end_ms, window.start_ms, raw))
        row = window.rows[raw] = self._format.loads(data, raw)
        return row

    def _pass(self, closed: FinalRows, wall_ms: int | None = None) -> bool:
        """Close windows and end intervals that stream time, or the wall clock, has passed.

        Returns whether an interval has ended.
        """
        early = self._early
        is_due = early is not None and early.is_due(wall_ms)
        if early is not None and is_due:
            self._close(closed, early.over_ms)
            self._forward_final(closed)
            rows = early.take(self._closed_ms)
            # A window's early rows come before its final ones, whose time is the window's start.
            times = [max(self.feed.time_ms, 0)] * len(rows)
            self._forward(self._newest(early.feed, rows, times), [])
        self._close(closed)
        return is_due

    def _close(self, closed: FinalRows, now_ms: int | None = None) -> None:
        """Emit and expire the windows that stream time, or `now_ms`, has passed."""
        limit_ms = closed_until(self._now_ms if now_ms is None else now_ms, self._grace_ms)
        if limit_ms <= self._closed_ms:
            return
        if self._early is not None or limit_ms >= self._fold.gate_ms:
            if self._node.emit.is_final:
                first = bisect_right(self._ends, self._closed_ms)
                for end_ms in self._ends[first : bisect_right(self._ends, limit_ms)]:
                    self._emit(end_ms, closed)
            self._expire(limit_ms - self._kept_ms)
        self._closed_ms = limit_ms
        self._set_gate()
        self._set_time()

    def _emit(self, end_ms: int, closed: FinalRows) -> None:
        """Add the final rows of one window, by key."""
        window = self._windows.get(end_ms)
        rows = {} if window is None else dict(window.rows)
        if window is None or not window.is_whole:
            low, high = window_bound(end_ms), window_bound(end_ms + 1)
            for key, data in self._store.range(self._prefix + low, self._prefix + high):
                _, start_ms, raw = split_window_key(key[len(self._prefix) :])
                window = window or Window(start_ms, end_ms, is_whole=False)
                if raw not in rows:
                    rows[raw] = self._format.loads(data)
        if window is None:
            return
        for raw, row in sorted(rows.items(), key=itemgetter(0)):
            closed.add(raw, window, self._fold.result(row), row.timestamp_ms)

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

    def _forward_final(self, closed: FinalRows) -> None:
        if not closed.raws:
            return
        # The windows of later rows begin no earlier than this row's window.
        times = [window.start_ms for window in closed.windows]
        first, self._sequence = self._sequence, self._sequence + len(times)
        origin = BatchOrigin.of_rows(self.feed, range(first, self._sequence), times)
        keys = WindowedKeys(self._node.key, closed.raws, closed.windows)
        batch = Batch(origin, range(len(times)), keys, closed.values, closed.timestamps)
        closed.clear()
        # Each row is forwarded once, so it replaces nothing.
        self._forward(batch, [None] * len(times))

    def _forward(self, batch: Batch, old_values: Sequence[Any]) -> None:
        batch.keys_are_raw = batch.values_are_raw = False
        if self._sends_old_values:
            batch.old_values = old_values
        self.forward(batch)

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
        """Set the time before which no window of a later result begins."""
        if self._closed_ms >= 0 and self._node.emit != Emit.COMMIT:
            for own in self.own_time_sources:
                own.time_ms = self._assigner.first_open(self._closed_ms)
