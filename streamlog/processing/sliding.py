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

    __slots__ = ("number", "records", "starts", "windows")

    def __init__(self, records: list[Kept], windows: Iterable[OpenWindow]) -> None:
        self.records = records
        """By time, and in the order in which they came."""
        self.windows = {window.start_ms: window for window in windows}
        self.starts = sorted(self.windows)
        self.number = max(map(_number, records), default=0)
        """Of the last record."""

    def __len__(self) -> int:
        """How much there is."""
        return len(self.records) + len(self.starts)

    def between(self, first_ms: int, last_ms: int) -> list[Kept]:
        """The records of these times, both included."""
        records = self.records
        low = bisect_left(records, first_ms, key=_time)
        return records[low : bisect_right(records, last_ms, low, key=_time)]

    def around(self, first_ms: int, last_ms: int) -> list[int]:
        """The starts of windows between these times, both included."""
        return self.starts[bisect_left(self.starts, first_ms) : bisect_right(self.starts, last_ms)]

    def keep(self, record: Kept, least_ms: int) -> None:
        """One more record; those before `least_ms` are of no more use."""
        insort(self.records, record, key=_time)
        if self.records[0].timestamp_ms < least_ms:
            del self.records[: bisect_left(self.records, least_ms, key=_time)]

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
        entered = [self._with(key, start_ms, arrival) for start_ms in self._starts(key, arrival)]
        if not entered:
            return None
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
        return [Change(self._set(key, raw, each), before=each.before) for each in entered]

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
        starts |= {window_after(e.timestamp_ms) for e in key.between(first_ms - 1, time_ms - 1)}
        return sorted(start for start in starts if start + size_ms >= arrival.open_ms)

    def _with(self, key: KeyWindows, start_ms: int, arrival: Arrival) -> Entered:
        """What a window becomes with one more record."""
        window, before = key.windows.get(start_ms), None
        if window is not None:
            state, last_ms = window.row.state, window.row.timestamp_ms
            before = self._told(window)
        else:
            _, state, last_ms, _ = self._folded(start_ms, self._held(key, start_ms))
        state = self._added_to(state, arrival.value)
        return Entered(start_ms, state, max(last_ms, arrival.timestamp_ms), before)

    def _folded(self, start_ms: int, records: Sequence[Kept]) -> Entered:
        """A window that holds these records."""
        state = self._aggregation.initial()
        for record in records:
            state = self._added_to(state, record.value)
        return Entered(start_ms, state, max(map(_time, records), default=-1))

    def _added_to(self, state: object, value: object) -> object:
        state = self._aggregation.add(state, value)
        if state is value and type(state) not in UNCHANGING:
            # Of its own: the value goes into other windows too, and a state may change in place.
            serde = self._aggregation.state
            return serde.loads(serde.dumps(state))
        return state

    def _held(self, key: KeyWindows, start_ms: int) -> list[Kept]:
        """The records that were here before a window that begins then, in the order they came."""
        end_ms = start_ms + self._size_ms
        found = [each for each in key.between(start_ms, end_ms) if each.open_ms <= end_ms]
        return sorted(found, key=_number)

    def _set(self, key: KeyWindows, raw: bytes, entered: Entered) -> OpenWindow:
        start_ms, state, timestamp_ms, _ = entered
        window = key.windows.get(start_ms)
        if window is None:
            window = OpenWindow(start_ms, start_ms + self._size_ms, Row(state, timestamp_ms, raw))
            key.open(window)
        else:
            window.row.state, window.row.timestamp_ms = state, timestamp_ms
        self._rows.put(window)
        return window

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
