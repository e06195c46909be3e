"""SlidingStep: one result per key and sliding window.

A window holds the records in its span that it was open to when they came, folded in the order in
which they came. Those records are kept by key, as a record out of order may make a window that
holds earlier ones; a record that has come into no window leaves no trace. Rule of the file: which
windows a key may have follows from its records, so none is looked for anywhere else. Not done here:
time, closing and emission (`record_windows`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from streamlog.processing.aggregate import ROWS_BYTES_MAX, UNCHANGING
from streamlog.processing.open_rows import Change, OpenWindow
from streamlog.processing.record_windows import Arrival, RecordWindowsStep
from streamlog.processing.step import StepContext
from streamlog.tables.folding import Row
from streamlog.tables.store import NamedStore
from streamlog.tables.window_store import WindowStore
from streamlog.topology import SlidingAggregate
from streamlog.windows.sliding import window_after, window_up_to


class Kept(NamedTuple):
    """A record that windows to come may hold."""

    timestamp_ms: int
    number: int
    """In the order in which records of its key came."""
    open_ms: int
    """Windows that end before this were closed to it."""
    value: Any
    data: bytes
    """The value written down."""


class Entered(NamedTuple):
    """What a window is to become."""

    window: OpenWindow | None
    """None: it is not there yet."""
    start_ms: int
    state: Any
    timestamp_ms: int
    before: Any = None
    """Its result, if there is one and somebody has to know."""


_time = attrgetter("timestamp_ms")
_number = attrgetter("number")
_Packed = list[tuple[int, int, bytes]]
_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.Decoder(_Packed).decode


class KeyWindows:
    """The open windows of a key, and its records."""

    __slots__ = ("number", "records", "starts", "times", "windows")

    def __init__(self, records: list[Kept], windows: Iterable[OpenWindow]) -> None:
        self.records = records
        """By time, and in the order in which they came."""
        self.times = [record.timestamp_ms for record in records]
        """Of each."""
        self.windows = {window.start_ms: window for window in windows}
        self.starts = sorted(self.windows)
        self.number = max(map(_number, records), default=0)
        """Of the last record."""

    def __len__(self) -> int:
        """How much there is."""
        return len(self.records) + len(self.starts)

    def between(self, first_ms: int, last_ms: int) -> list[Kept]:
        """The records of these times, both included."""
        low = bisect_left(self.times, first_ms)
        return self.records[low : bisect_right(self.times, last_ms, low)]

    def times_between(self, first_ms: int, last_ms: int) -> list[int]:
        """The times of those."""
        low = bisect_left(self.times, first_ms)
        return self.times[low : bisect_right(self.times, last_ms, low)]

    def around(self, first_ms: int, last_ms: int) -> list[int]:
        """The starts of windows between these times, both included."""
        return self.starts[bisect_left(self.starts, first_ms) : bisect_right(self.starts, last_ms)]

    def keep(self, record: Kept, least_ms: int) -> None:
        """One more record; those before `least_ms` are of no more use."""
        times = self.times
        place = bisect_right(times, record.timestamp_ms)
        times.insert(place, record.timestamp_ms)
        self.records.insert(place, record)
        if times[0] < least_ms:
            over = bisect_left(times, least_ms)
            del times[:over], self.records[:over]

    def open(self, window: OpenWindow) -> None:
        """A new window."""
        self.windows[window.start_ms] = window
        insort(self.starts, window.start_ms)

    def close(self, start_ms: int) -> None:
        """A window is closed."""
        if self.windows.pop(start_ms, None) is not None:
            self.starts.remove(start_ms)


class SlidingStep(RecordWindowsStep):
    """One result per key and sliding window."""

    def __init__(self, node: SlidingAggregate, context: StepContext) -> None:
        super().__init__(node, context)
        self._size_ms = node.windows.size_ms
        self._value = node.value
        # A record is needed as long as the window that begins behind it is open.
        self._needed_ms = node.closes_after_ms + self._size_ms + 1
        self._records = WindowStore(
            NamedStore(context.store, node.by_key), retention_ms=self._needed_ms + 1
        )
        self._in_use: dict[bytes, KeyWindows] = {}
        self._fresh: set[tuple[bytes, int]] = set()
        """Keys and times of records that the store does not have yet."""

    def add(self, arrival: Arrival) -> list[Change] | None:
        """The windows that hold it, and the one behind it; None if all of those are closed."""
        raw, time_ms, open_ms = arrival.raw, arrival.timestamp_ms, arrival.open_ms
        key = self._in_use.get(raw)
        if key is None:
            key = self._found(raw)
        starts = self._starts(key, arrival)
        if not starts:
            return None
        entered = self._entered(key, starts, arrival)
        after_ms = window_after(time_ms)
        if after_ms not in key.windows and after_ms + self._size_ms >= open_ms:
            held = self._held(key, after_ms)
            if held:
                entered.append(self._folded(after_ms, held))
        data = self._value.dumps(arrival.value)
        # Nothing has changed before this: functions may have failed.
        self._in_use[raw] = key
        key.number += 1
        kept = Kept(time_ms, key.number, open_ms, arrival.value, data)
        key.keep(kept, self._stream.now_ms - self._needed_ms)
        self._fresh.add((raw, time_ms))
        windows = self._set(key, raw, entered)
        if not self._tells_changes:
            return []
        pairs = zip(windows, entered, strict=True)
        return [Change(window, before=each.before) for window, each in pairs]

    def forget(self, window: OpenWindow) -> None:
        """It is closed."""
        key = self._in_use.get(window.row.raw)
        if key is not None:
            key.close(window.start_ms)

    def index(self, written: Mapping[bytes, OpenWindow | None], time_ms: int) -> None:  # noqa: ARG002 - windows follow from records
        """The records of each key."""
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
        """Alone it is in the window that ends at it, or in the first one there is."""
        return max(timestamp_ms, self._size_ms)

    def first_time_ms(self, end_ms: int) -> int:
        """No record of a window is before its start."""
        return max(end_ms - self._size_ms, 0)

    def _starts(self, key: KeyWindows, arrival: Arrival) -> list[int]:
        """Where the windows begin that hold a record and are open to it, ascending."""
        time_ms, size_ms = arrival.timestamp_ms, self._size_ms
        first_ms = time_ms - size_ms
        starts = {*key.around(first_ms, time_ms), window_up_to(time_ms, size_ms)}
        starts.update(map(window_after, key.times_between(first_ms - 1, time_ms - 1)))
        least_ms = arrival.open_ms - size_ms
        return sorted(start for start in starts if start >= least_ms)

    def _entered(self, key: KeyWindows, starts: Sequence[int], arrival: Arrival) -> list[Entered]:
        """What the windows that begin then become with one more record."""
        add, windows = self._aggregation.add, key.windows
        value, time_ms = arrival.value, arrival.timestamp_ms
        found: list[Entered] = []
        for start_ms in starts:
            window, before = windows.get(start_ms), None
            if window is not None:
                state, last_ms = window.row.state, window.row.timestamp_ms
                if self._tells_old_values:
                    before = self._told(window)
            else:
                _, _, state, last_ms, _ = self._folded(start_ms, self._held(key, start_ms))
            state = add(state, value)
            if state is value:
                state = self._own(state)
            found.append(Entered(window, start_ms, state, max(last_ms, time_ms), before))
        return found

    def _folded(self, start_ms: int, records: Sequence[Kept]) -> Entered:
        """A window that holds these records."""
        add, state = self._aggregation.add, self._aggregation.initial()
        for record in records:
            state = add(state, record.value)
            if state is record.value:
                state = self._own(state)
        return Entered(None, start_ms, state, max(map(_time, records), default=-1))

    def _own(self, value: object) -> object:
        """A value that has become a state: it goes into others too, and may change in place."""
        if type(value) in UNCHANGING:
            return value
        serde = self._aggregation.state
        return serde.loads(serde.dumps(value))

    def _held(self, key: KeyWindows, start_ms: int) -> list[Kept]:
        """The records that were here before a window that begins then, in the order they came."""
        end_ms = start_ms + self._size_ms
        found = [each for each in key.between(start_ms, end_ms) if each.open_ms <= end_ms]
        return sorted(found, key=_number)

    def _set(self, key: KeyWindows, raw: bytes, entered: Sequence[Entered]) -> list[OpenWindow]:
        """Let windows become what they are to become."""
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

    def _found(self, raw: bytes) -> KeyWindows:
        records = [
            Kept(at_ms, number, open_ms, self._value.loads(data), data)
            for at_ms, rows in self._records.fetch(raw)
            for number, open_ms, data in _unpack(rows)
        ]
        return KeyWindows(records, self._stored(raw, records))

    def _stored(self, raw: bytes, records: Sequence[Kept]) -> Iterator[OpenWindow]:
        size_ms, times = self._size_ms, {record.timestamp_ms for record in records}
        starts = {window_up_to(t, size_ms) for t in times} | {window_after(t) for t in times}
        for start_ms in starts:
            if start_ms + size_ms > self._closed_ms:
                window = self._rows.load(start_ms, start_ms + size_ms, raw)
                if window is not None:
                    yield window
