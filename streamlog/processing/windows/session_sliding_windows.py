"""Session and sliding windows: one result per key and window that the key's records make.

Records are processed one by one. `SessionStep` and `SlidingStep` decide which windows of its key a
record changes; `RecordWindowsStep` keeps time and decides what is late, closed and emitted. A
record that joins sessions makes one of them: their states are merged, the earliest first, and the
record is added last, as in Kafka Streams. A sliding window holds the records in its span in the
order of their arrival; they are kept by key, as a late record may make a window of earlier ones.
Rules of the module:

1. A window is open to a record until its end is further behind the time of the record's own source
   than the node waits. So a record's effect depends on records before it, and not on when a window
   is found to be closed, which happens once per batch.
2. Final rows come in (end, start, key) order, once, also across restarts; their number identifies
   them for downstream tasks (`provenance`). Updates belong to the record that caused them.
3. A function that fails on a record has changed nothing, if the policy skips the record.
4. All open sessions of a key are in memory, or none.

Not done here: which sessions a record joins (`streamlog/windows`), open rows (`open_rows`), and
early results (`early_results`).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec

from streamlog.durations import TIMESTAMP_MS_MAX
from streamlog.errors import UsageError
from streamlog.nodes.window_nodes import RecordWindowsAggregate, SessionAggregate, SlidingAggregate
from streamlog.processing.column_batch import (
    Batch,
    TimeSource,
)
from streamlog.processing.error_handling import SkippedRecord
from streamlog.processing.step import StepContext
from streamlog.processing.tables.aggregate import (
    IMMUTABLE_TYPES,
    ROWS_BYTES_MAX,
)
from streamlog.processing.windows.early_results import EarlyChanges
from streamlog.processing.windows.open_rows import OpenRows, OpenWindow, WindowChange
from streamlog.processing.windows.window_fold import ResultColumns
from streamlog.processing.windows.windowed_step import WindowedStep
from streamlog.serdes.erased_types import JsonValue, UserState, UserValue
from streamlog.tables.folds.folding import Row
from streamlog.tables.stores.store import NamedStore, split_window_key
from streamlog.tables.stores.timed_stores import SessionStore, WindowStore
from streamlog.windows.definitions import merge_spans, window_after, window_up_to
from streamlog.windows.emit import Emit

T = TypeVar("T")
"""The result of an operation on a record."""


class WindowArrival(NamedTuple):
    """A record to add to windows."""

    raw: bytes
    """The key."""
    value: UserValue
    timestamp_ms: int
    open_ms: int
    """Windows that end before this are closed to the record."""


class RecordWindowsStep(WindowedStep):
    """One result per key and window that records have made."""

    _node: RecordWindowsAggregate
    _early: EarlyChanges | None

    def __init__(self, node: RecordWindowsAggregate, context: StepContext) -> None:
        # By more than `closes_after_ms`: a record at exactly that distance still joins the window.
        super().__init__(node, context, close_delay_ms=node.closes_after_ms + 1)
        self._rows = OpenRows(context.store, self._prefix, self._format, kept_ms=self._kept_ms)
        if node.early is not None:
            feed = TimeSource((node.early_feed, context.partition))
            self._early = EarlyChanges(node.emit, feed, NamedStore(context.store, node.early))
        self._needs_changes = self._early is not None or node.emit == Emit.UPDATE
        """Whether the changes of each record are needed."""

    @abstractmethod
    def add(self, arrival: WindowArrival) -> list[WindowChange] | None:
        """Return the changes of a record to its key's windows; None if all are closed to it."""

    @abstractmethod
    def forget(self, window: OpenWindow) -> None:
        """Remove a closed window from memory."""

    @abstractmethod
    def index(self, written: Mapping[bytes, OpenWindow | None], time_ms: int) -> None:
        """Bring the store by key to the state of these rows, written or removed (None)."""

    @abstractmethod
    def last_end_ms(self, timestamp_ms: int) -> int:
        """Return the end of the last window to close of those that a record makes alone."""

    def next_due_ms(self) -> int:
        """Return the end of a window before which none closes or expires; FAR_MS: there is none."""
        return self._rows.due_ms

    def end_intervals(self, wall_ms: int | None) -> bool:
        """Close windows and end intervals; returns whether an interval has ended."""
        self._close()
        return self._forward_early(wall_ms)

    def flush(self) -> None:
        """Write changed rows into the store."""
        self.index(self._rows.flush(), self._stream.now_ms)
        self._format.forget_noted()
        if self._early is not None:
            self._early.flush()

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; the rows are in the store."""
        super().load(data)
        self._rows.start_at(self._closed_ms)
        self.index({}, self._stream.now_ms)

    def fold_records(self, batch: Batch, raws: Sequence[bytes], results: ResultColumns) -> None:
        """Add the records to windows one by one, and close windows after the last one."""
        stream = self._stream
        own, times = self._time.of(batch)
        source = self._time.common(batch)
        for at, raw in enumerate(raws):
            if own is not None:
                source = own[at]
            stream.advance(source, times[at])
            open_ms = stream.time_of(source) - self._node.late_after_ms
            arrival = WindowArrival(raw, batch.values[at], batch.timestamps[at], open_ms)
            changes = self.attempt_record(batch, at, partial(self._add_checked, arrival))
            if changes is None:
                self.attempt_record(batch, at, partial(self._drop_late, batch, at, open_ms))
            elif not isinstance(changes, SkippedRecord):
                self._note(at, changes, results)
            if self._early is not None and stream.now_ms >= self._early.next_event_ms:
                self.end_intervals(None)
        self._close()

    def _add_checked(self, arrival: WindowArrival) -> list[WindowChange] | None:
        # A window may begin right after the record, and end a whole window's size later.
        time_ms, size_ms = arrival.timestamp_ms, self._node.windows.size_ms
        if not 0 <= time_ms < TIMESTAMP_MS_MAX - size_ms:
            raise UsageError(
                f"a timestamp of {time_ms} ms is in no window: windows lie between 1970 and 9999"
            )
        return self.add(arrival)

    def _note(self, at: int, changes: Sequence[WindowChange], results: ResultColumns) -> None:
        if self._early is not None:
            self._early.note(changes)
        if self._node.emit != Emit.UPDATE:
            return
        for window, is_gone, before in changes:
            value = None if is_gone else self._aggregation.result(window.row.state)
            results.add(at, window.row.raw, window, value, window.row.timestamp_ms)
            results.old_values.append(before)

    def _result_before(self, window: OpenWindow) -> object:
        """Return the result of a window that is about to change, if a step downstream needs it."""
        return self._aggregation.result(window.row.state) if self._sends_old_values else None

    def _drop_late(self, batch: Batch, at: int, open_ms: int) -> None:
        end_ms = self.last_end_ms(batch.timestamps[at])
        self._late.leave_out(batch, at, end_ms=end_ms, late_by_ms=open_ms - end_ms)

    def _close(self) -> None:
        """Emit and remove the windows that stream time has passed."""
        limit_ms = self._limit_ms(self._now_ms)
        if limit_ms <= self._closed_ms:
            return
        final = ResultColumns()
        if limit_ms >= self._rows.due_ms:
            for window in self._rows.close(limit_ms):
                self.forget(window)
                if self._early is not None:
                    self._early.forget(window.key)
                if self._node.emit.is_final:
                    self._add_result(final, window)
        self._closed_ms = limit_ms
        self._set_time()
        if final.count:
            self._forward_final(final, [self.first_time_ms(each.end_ms) for each in final.windows])

    def _forward_early(self, wall_ms: int | None) -> bool:
        """Forward early rows if an interval has ended; returns whether it has."""
        early = self._early
        if early is None or not early.is_due(self._now_ms, wall_ms):
            return False
        results, numbers = ResultColumns(), []
        for key, (number, is_gone) in early.take():
            end_ms, start_ms, raw = split_window_key(key)
            window = None if is_gone else self._rows.load(start_ms, end_ms, raw)
            if window is not None:
                self._add_result(results, window)
            else:
                gone = OpenWindow(start_ms, end_ms, Row(None, end_ms, raw))
                results.add(results.count, raw, gone, None, end_ms)
            numbers.append(number)
        if numbers:
            # A window's early rows come before its final one.
            times = [max(self.feed.time_ms, 0)] * len(numbers)
            self._forward_own(early.feed, numbers, times, results)
        return True

    def _add_result(self, results: ResultColumns, window: OpenWindow) -> None:
        row = window.row
        value = self._aggregation.result(row.state)
        results.add(results.count, row.raw, window, value, row.timestamp_ms)


class SessionStep(RecordWindowsStep):
    """One result per key and session."""

    def __init__(self, node: SessionAggregate, context: StepContext) -> None:
        super().__init__(node, context)
        self._windows = node.windows
        self._joined_ms = node.closes_after_ms - node.late_after_ms
        self._by_key = SessionStore(
            NamedStore(context.store, node.by_key), retention_ms=node.closes_after_ms + 1
        )
        self._open: dict[bytes, list[OpenWindow]] = {}
        """The open sessions of keys in use, in order."""

    def add(self, arrival: WindowArrival) -> list[WindowChange] | None:
        """Return the record's session, after those that it replaces; None if it is closed."""
        raw, time_ms = arrival.raw, arrival.timestamp_ms
        there = self._open.get(raw)
        if there is None:
            there = self._load_key(raw)
        # `_joined_ms` is 0 with final rows, and the gap on update: there, a closed session takes
        # records for one more gap, as in Kafka Streams.
        open_to_it = [each for each in there if each.end_ms >= arrival.open_ms - self._joined_ms]
        spans = [(window.start_ms, window.end_ms) for window in open_to_it]
        # The gap is 3 min; key k has the sessions 10:00 to 10:02 and 10:06 to 10:07.
        # 1. A record at 10:04 is near both: they are deleted, and 10:00 to 10:07 replaces them.
        # 2. A record at 10:11 is near none: it makes a session from 10:11 to 10:11.
        # 3. Another one at 10:11 replaces that session by one with equal bounds, which therefore
        #    is an update of the row, without a deletion.
        # 4. Stream time has closed 10:00 to 10:02: the record at 10:04 joins 10:06 to 10:07 only.
        joined, (start_ms, end_ms) = merge_spans(self._windows, spans, time_ms)
        # Late by the session that the record would form: an old record is in time if it joins a
        # session that is still open.
        if end_ms < arrival.open_ms:
            return None
        replaced = [open_to_it[at] for at in joined]
        gone = [
            WindowChange(each, is_gone=True, before=self._result_before(each)) for each in replaced
        ]
        state = self._state(replaced, arrival.value)
        # Change nothing before this line: the user's functions may fail.
        window = OpenWindow(start_ms, end_ms, Row(state, end_ms, raw))
        for each in replaced:
            self._rows.remove(each)
        self._rows.put(window)
        kept = [each for each in there if each not in replaced]
        self._open[raw] = sorted([*kept, window], key=_session_order)
        if start_ms == end_ms:
            return [WindowChange(window, before=gone[0].before if gone else None)]
        return [*gone, WindowChange(window)]

    def forget(self, window: OpenWindow) -> None:
        """Remove a closed session from memory."""
        raw = window.row.raw
        there = self._open.get(raw)
        if there is not None:
            left = [each for each in there if each.key != window.key]
            if left:
                self._open[raw] = left
            else:
                del self._open[raw]

    def index(self, written: Mapping[bytes, OpenWindow | None], time_ms: int) -> None:
        """Bring the sessions of each key in the store up to date."""
        self._by_key.advance(time_ms)
        for key, window in written.items():
            end_ms, start_ms, raw = split_window_key(key)
            if window is None:
                self._by_key.remove(raw, start_ms, end_ms)
            else:
                self._by_key.put(raw, start_ms, end_ms, b"")
        if self._rows.bytes_of(sum(map(len, self._open.values()))) > ROWS_BYTES_MAX:
            self._open.clear()

    def last_end_ms(self, timestamp_ms: int) -> int:
        """Return the timestamp: a record alone is a session of one record."""
        return timestamp_ms

    def first_time_ms(self, end_ms: int) -> int:
        """Return the end: a session's result has its end as timestamp."""
        return end_ms

    def _load_key(self, raw: bytes) -> list[OpenWindow]:
        spans = [(each.start_ms, each.end_ms) for each in self._by_key.find(raw)]
        found = [self._rows.load(start_ms, end_ms, raw) for start_ms, end_ms in spans]
        return [window for window in found if window is not None]

    def _state(self, replaced: Sequence[OpenWindow], value: object) -> object:
        aggregation = self._aggregation
        state = aggregation.initial()
        if aggregation.merge is not None:
            for window in replaced:
                state = aggregation.merge(state, window.row.state)
        return aggregation.add(state, value)


_session_order = attrgetter("end_ms", "start_ms")


class KeptRecord(NamedTuple):
    """A record that later windows may hold."""

    timestamp_ms: int
    number: int
    """The order in which the records of a key arrived."""
    open_ms: int
    """Windows that end before this were closed to it."""
    value: UserValue
    data: bytes
    """The value as bytes."""


class EnteredWindow(NamedTuple):
    """The new state of a window."""

    window: OpenWindow | None
    """None: the window is new."""
    start_ms: int
    state: UserState
    timestamp_ms: int
    before: UserValue = None
    """Its current result, if there is one and a step downstream needs it."""


_time = attrgetter("timestamp_ms")
_number = attrgetter("number")
_Packed = list[tuple[int, int, bytes]]
_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.Decoder(_Packed).decode


class SlidingKeyWindows:
    """The open windows of a key, and its records."""

    __slots__ = ("number", "records", "starts", "times", "windows")

    def __init__(self, records: list[KeptRecord], windows: Iterable[OpenWindow]) -> None:
        self.records = records
        """By timestamp, then by arrival."""
        self.times = [record.timestamp_ms for record in records]
        """The timestamps of the records."""
        self.windows = {window.start_ms: window for window in windows}
        self.starts = sorted(self.windows)
        self.number = max(map(_number, records), default=0)
        """The number of the last record."""

    def __len__(self) -> int:
        """Return the number of records and windows."""
        return len(self.records) + len(self.starts)

    def between(self, first_ms: int, last_ms: int) -> list[KeptRecord]:
        """Return the records between these times, both inclusive."""
        low = bisect_left(self.times, first_ms)
        return self.records[low : bisect_right(self.times, last_ms, low)]

    def times_between(self, first_ms: int, last_ms: int) -> list[int]:
        """Return the timestamps between these times, both inclusive."""
        low = bisect_left(self.times, first_ms)
        return self.times[low : bisect_right(self.times, last_ms, low)]

    def around(self, first_ms: int, last_ms: int) -> list[int]:
        """Return the starts of windows between these times, both inclusive."""
        return self.starts[bisect_left(self.starts, first_ms) : bisect_right(self.starts, last_ms)]

    def keep(self, record: KeptRecord, least_ms: int) -> None:
        """Add a record, and remove those before `least_ms`."""
        times = self.times
        at = bisect_right(times, record.timestamp_ms)
        times.insert(at, record.timestamp_ms)
        self.records.insert(at, record)
        if times[0] < least_ms:
            over = bisect_left(times, least_ms)
            del times[:over], self.records[:over]

    def open(self, window: OpenWindow) -> None:
        """Add a window."""
        self.windows[window.start_ms] = window
        insort(self.starts, window.start_ms)

    def close(self, start_ms: int) -> None:
        """Remove a window."""
        if self.windows.pop(start_ms, None) is not None:
            self.starts.remove(start_ms)


class SlidingStep(RecordWindowsStep):
    """One result per key and sliding window."""

    def __init__(self, node: SlidingAggregate, context: StepContext) -> None:
        super().__init__(node, context)
        self._size_ms = node.windows.size_ms
        self._value = node.value
        # A record is needed as long as the window that begins right after it is open.
        self._needed_ms = node.closes_after_ms + self._size_ms + 1
        self._records = WindowStore(
            NamedStore(context.store, node.by_key), retention_ms=self._needed_ms + 1
        )
        self._in_use: dict[bytes, SlidingKeyWindows] = {}
        self._fresh: set[tuple[bytes, int]] = set()
        """Keys and timestamps of records that the store does not have yet."""

    def add(self, arrival: WindowArrival) -> list[WindowChange] | None:
        """Return the windows that hold the record, and the one after it; None if all are closed."""
        raw, time_ms, open_ms = arrival.raw, arrival.timestamp_ms, arrival.open_ms
        key = self._in_use.get(raw)
        if key is None:
            key = self._load_key(raw)
        starts = self._starts(key, arrival)
        if not starts:
            return None
        entered = self._enter(key, starts, arrival)
        # Windows of 10 s; key k has records at 10:00:03 and 10:00:08. One at 10:00:05 arrives.
        # 1. It enters the windows around it: those that end at :08 and at :05 (new, with the record
        #    at :03), and the one that begins right after :03.
        # 2. A window begins right after it, at 10:00:05.001: it does not hold the record itself,
        #    but it holds the one at :08, so it exists from now on.
        after_ms = window_after(time_ms)
        if after_ms not in key.windows and after_ms + self._size_ms >= open_ms:
            held = self._earlier_records(key, after_ms)
            if held:
                entered.append(self._fold_new(after_ms, held))
        data = self._value.dumps(arrival.value)
        # Change nothing before this line: the user's functions may fail.
        self._in_use[raw] = key
        key.number += 1
        kept = KeptRecord(time_ms, key.number, open_ms, arrival.value, data)
        key.keep(kept, self._stream.now_ms - self._needed_ms)
        self._fresh.add((raw, time_ms))
        windows = self._set(key, raw, entered)
        if not self._needs_changes:
            return []
        pairs = zip(windows, entered, strict=True)
        return [WindowChange(window, before=each.before) for window, each in pairs]

    def forget(self, window: OpenWindow) -> None:
        """Remove a closed window from memory."""
        key = self._in_use.get(window.row.raw)
        if key is not None:
            key.close(window.start_ms)

    def index(self, written: Mapping[bytes, OpenWindow | None], time_ms: int) -> None:  # noqa: ARG002 - windows follow from records
        """Write the new records of each key into the store."""
        self._records.advance(time_ms)
        for raw, at_ms in self._fresh:
            found = self._in_use[raw].between(at_ms, at_ms)
            if found:
                rows = [(each.number, each.open_ms, each.data) for each in found]
                self._records.put(raw, at_ms, _pack(rows))
        self._fresh.clear()
        if self._rows.bytes_of(sum(map(len, self._in_use.values()))) > ROWS_BYTES_MAX:
            self._in_use.clear()

    def last_end_ms(self, timestamp_ms: int) -> int:
        """Return the end of the window that ends at the record, or of the first one there is."""
        return max(timestamp_ms, self._size_ms)

    def first_time_ms(self, end_ms: int) -> int:
        """Return the start of the window: none of its records is earlier."""
        return max(end_ms - self._size_ms, 0)

    def _starts(self, key: SlidingKeyWindows, arrival: WindowArrival) -> list[int]:
        """Return the starts of the windows that hold a record and are open to it, ascending."""
        time_ms, size_ms = arrival.timestamp_ms, self._size_ms
        first_ms = time_ms - size_ms
        starts = {*key.around(first_ms, time_ms), window_up_to(time_ms, size_ms)}
        starts.update(map(window_after, key.times_between(first_ms - 1, time_ms - 1)))
        least_ms = arrival.open_ms - size_ms
        return sorted(start for start in starts if start >= least_ms)

    def _enter(
        self, key: SlidingKeyWindows, starts: Sequence[int], arrival: WindowArrival
    ) -> list[EnteredWindow]:
        """Return what the windows with these starts become with the record."""
        add, windows = self._aggregation.add, key.windows
        value, time_ms = arrival.value, arrival.timestamp_ms
        found: list[EnteredWindow] = []
        for start_ms in starts:
            window, before = windows.get(start_ms), None
            if window is not None:
                state, last_ms = window.row.state, window.row.timestamp_ms
                if self._sends_old_values:
                    before = self._result_before(window)
            else:
                _, _, state, last_ms, _ = self._fold_new(
                    start_ms, self._earlier_records(key, start_ms)
                )
            state = add(state, value)
            if state is value:
                state = self._copy_of(state)
            found.append(EnteredWindow(window, start_ms, state, max(last_ms, time_ms), before))
        return found

    def _fold_new(self, start_ms: int, records: Sequence[KeptRecord]) -> EnteredWindow:
        """Return a new window that holds these records."""
        add, state = self._aggregation.add, self._aggregation.initial()
        for record in records:
            state = add(state, record.value)
            if state is record.value:
                state = self._copy_of(state)
        return EnteredWindow(None, start_ms, state, max(map(_time, records), default=-1))

    def _copy_of(self, value: object) -> object:
        """Return a copy of a value that becomes a state: other windows use the value too."""
        if type(value) in IMMUTABLE_TYPES:
            return value
        serde = self._aggregation.state
        return serde.loads(serde.dumps(value))

    def _earlier_records(self, key: SlidingKeyWindows, start_ms: int) -> list[KeptRecord]:
        """Return the earlier records of a window that begins at `start_ms`, in order of arrival."""
        end_ms = start_ms + self._size_ms
        # A record that was late for this window when it arrived is not in it: if the window had
        # existed then, it would have been closed to the record.
        found = [each for each in key.between(start_ms, end_ms) if each.open_ms <= end_ms]
        return sorted(found, key=_number)

    def _set(
        self, key: SlidingKeyWindows, raw: bytes, entered: Sequence[EnteredWindow]
    ) -> list[OpenWindow]:
        """Set the new states of windows; returns the windows."""
        size_ms, windows = self._size_ms, []
        for window, start_ms, state, timestamp_ms, _ in entered:
            if window is None:
                row = Row(state, timestamp_ms, raw)
                window = OpenWindow(start_ms, start_ms + size_ms, row)  # noqa: PLW2901 - it is there now
                key.open(window)
            else:
                row = window.row
                row.state, row.timestamp_ms = state, timestamp_ms
            windows.append(window)
        self._rows.put_all(windows)
        return windows

    def _load_key(self, raw: bytes) -> SlidingKeyWindows:
        records = [
            KeptRecord(at_ms, number, open_ms, self._value.loads(data), data)
            for at_ms, rows in self._records.fetch(raw)
            for number, open_ms, data in _unpack(rows)
        ]
        return SlidingKeyWindows(records, self._load_windows(raw, records))

    def _load_windows(self, raw: bytes, records: Sequence[KeptRecord]) -> Iterator[OpenWindow]:
        size_ms, times = self._size_ms, {record.timestamp_ms for record in records}
        starts = {window_up_to(t, size_ms) for t in times} | {window_after(t) for t in times}
        for start_ms in starts:
            if start_ms + size_ms > self._closed_ms:
                window = self._rows.load(start_ms, start_ms + size_ms, raw)
                if window is not None:
                    yield window
