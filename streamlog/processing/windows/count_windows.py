"""CountWindowsStep: windows of a number of records of a key, and their results.

A full window is forwarded with the record that filled it; one that times out has a time source of
its own. Rules of the file: records count in the order of the task; stream time advances before the
record that advances it is counted, so a window that times out by then does not have it; open
windows are kept per key, and in the order in which they time out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

import msgspec

from streamlog.durations import moment
from streamlog.nodes.window_nodes import CountedAggregate
from streamlog.processing.column_batch import (
    Batch,
    BatchOrigin,
    TimeSource,
    WindowedKeys,
)
from streamlog.processing.error_handling import SkippedRecord
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.node_time import InputClock
from streamlog.processing.step import Step, StepContext
from streamlog.processing.tables.aggregate import (
    ROW_BYTES,
    ROWS_BYTES_MAX,
    LastRecords,
    guard_state,
    without_nulls,
)
from streamlog.processing.windows.window_fold import ResultColumns
from streamlog.record import Windowed
from streamlog.serdes import windowed_bytes
from streamlog.serdes.erased_types import JsonValue, UserKey, UserValue
from streamlog.tables.stores.store import NamedStore, escape_key, time_at, time_bytes, unescape_key
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Emit
from streamlog.windows.window_assigner import window_of


class StoredCountWindow(msgspec.Struct, array_like=True):
    """An open window, as it is stored."""

    number: int
    """The number, within its key, of the record that opened it."""
    records: int
    first_ms: int
    last_ms: int
    opened_ms: int
    state: bytes


class OpenCountWindow:
    """An open window, and the window of its results' keys."""

    __slots__ = ("end_ms", "number", "opened_ms", "records", "start_ms", "state")

    def __init__(self, number: int, opened_ms: int, state: object) -> None:
        self.number = number
        self.records = 0
        self.start_ms = FAR_MS
        self.end_ms = UNKNOWN_MS
        self.opened_ms = opened_ms
        self.state = state

    @property
    def start(self) -> datetime:
        """The time of its earliest record."""
        return moment(self.start_ms)

    @property
    def end(self) -> datetime:
        """The time of its latest record."""
        return moment(self.end_ms)

    @property
    def suffix(self) -> bytes:
        """Start and end as `windowed_bytes` appends them to a key."""
        return windowed_bytes(b"", self.start_ms, self.end_ms)

    def copy(self) -> OpenCountWindow:
        """Return an object with the current bounds, which later records do not change."""
        found = OpenCountWindow(self.number, self.opened_ms, None)
        found.start_ms, found.end_ms = self.start_ms, self.end_ms
        return found


class CountKeyWindows:
    """The open windows of a key, and the number of its records since the first one opened."""

    __slots__ = ("open", "seen")

    def __init__(self, seen: int = 0) -> None:
        self.seen = seen
        self.open: list[OpenCountWindow] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, list[StoredCountWindow]]).decode


def read_open_windows(node: CountedAggregate, data: bytes) -> Iterator[tuple[int, int, UserValue]]:
    """Iterate over a key's stored open windows: times of first and last record, and the result."""
    _, stored = _decode(data)
    for each in stored:
        state = node.aggregation.state.loads(each.state)
        yield each.first_ms, each.last_ms, node.aggregation.result(state)


class CountWindowsStep(Step):
    """One result per key and number of its records."""

    section = "windows"

    def __init__(self, node: CountedAggregate, context: StepContext) -> None:
        super().__init__(node.name)
        self.feed = TimeSource((node.name, context.partition))
        """The time source of windows that time out."""
        self._node = node
        self.node_time = NodeTime(context.feeds)
        self._feeds = self.node_time.feeds
        self._collector = context.collector
        self._timeout_ms = node.windows.timeout_ms
        self._aggregation = guard_state(node)
        self._store = NamedStore(context.store, node.store)
        self._due = NamedStore(context.store, node.due)
        self._clock = InputClock(self._feeds, node.idle_after_ms)
        self._keys: dict[bytes, CountKeyWindows] = {}
        self._dirty: set[bytes] = set()
        self._next_due_ms = FAR_MS
        self._sequence = 0
        self._last = LastRecords(node.name)
        self._written_bytes = self._written_keys = 0

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time source of windows that time out."""
        return () if self._timeout_ms is None else (self.feed,)

    def process(self, batch: Batch) -> None:
        """Add each record to the windows of its key, and forward those that are full."""
        batch, raws = without_nulls(self, batch, self._node.key, self._collector)
        self._last.note(batch, raws)
        batch = self.node_time.of(batch)
        results, origin = ResultColumns(), batch.origin
        for at, raw in enumerate(raws):
            # Windows of 3 records, timeout 5 min; that of key k was opened at 10:00 and has 2.
            # 1. A record of another key at 10:06 moves the clock first: the window times out with 2
            #    records, although no record of k has arrived.
            # 2. A record of k at 10:06 does so, too: it does not count for that window any more,
            #    and opens the next one.
            # 3. Full windows of earlier records of the batch are forwarded before those rows.
            if self._timeout_ms is not None:
                self._clock.move_before(origin, batch.rows[at])
                if self._next_due_ms <= self._clock.now_ms:
                    results = self._forward_full(batch, results)
                    self._time_out()
            self._take(batch, at, raw, results)
        self._forward_full(batch, results)

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when the next window times out, if its row is forwarded then."""
        if self._next_due_ms == FAR_MS or self._node.emit != Emit.CLOSE:
            return ()
        return [(feed, self._next_due_ms) for feed in self._feeds]

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return when every window that was opened before `time_ms` is full or has timed out."""
        return [(feed, time_ms + (self._timeout_ms or 0)) for feed in self._feeds]

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """Let windows time out after all available records were taken."""
        self._clock.settle()
        self._time_out()
        if self._timeout_ms is not None:
            # A window that times out later was opened later than this.
            time_ms = self._clock.now_ms - self._timeout_ms
            self.feed.time_ms = max(self.feed.time_ms, time_ms)
        self.feed.update_end(self._feeds)
        return False

    def flush(self) -> None:
        """Write changed keys into the store."""
        for raw in sorted(self._dirty):
            key = self._keys[raw]
            if not key.open:
                self._store.delete(raw)
                del self._keys[raw]
                continue
            data = _encode((key.seen, [self._to_stored(raw, window) for window in key.open]))
            self._store.put(raw, data)
            self._written_bytes += len(raw) + len(data)
            self._written_keys += 1
        self._dirty.clear()
        self._last.clear()
        mean_bytes = ROW_BYTES + 8 * self._written_bytes // max(self._written_keys, 1)
        if len(self._keys) * mean_bytes > ROWS_BYTES_MAX:
            self._keys.clear()

    def table(self) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over the open windows, by the bytes of the key."""
        self.flush()
        for raw, data in self._store.range():
            key = self._node.key.loads(raw)
            for first_ms, last_ms, result in read_open_windows(self._node, data):
                yield Windowed(key, moment(first_ms), moment(last_ms)), result

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the open windows."""
        return {"clock": self._clock.to_data(), "sequence": self._sequence}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        self._clock.load(data["clock"])
        self._sequence = int(data["sequence"])
        self._look_ahead()

    def _take(self, batch: Batch, at: int, raw: bytes, results: ResultColumns) -> None:
        work = partial(self._count, raw, batch.values[at], batch.timestamps[at])
        found = self.attempt_record(batch, at, work)
        if not isinstance(found, SkippedRecord):
            for window, value in found:
                results.add(at, raw, window.copy(), value, window.end_ms)

    def _count(
        self, raw: bytes, value: object, timestamp_ms: int
    ) -> list[tuple[OpenCountWindow, UserValue]]:
        """Count the record; returns the windows to forward, and their results.

        Nothing has changed if the user's function raises.
        """
        window_of(timestamp_ms, 1)  # Refuses times before 1970,
        moment(timestamp_ms)  # and those outside the calendar.
        spec, aggregation, key = self._node.windows, self._aggregation, self._key(raw)
        begun = [] if key.seen % spec.step else [self._new_window(key.seen, timestamp_ms)]
        windows = [*key.open, *begun]
        states = [aggregation.add(window.state, value) for window in windows]
        on_update = self._node.emit == Emit.UPDATE
        found: list[tuple[OpenCountWindow, UserValue]] = []
        for window, state in zip(windows, states, strict=True):
            window.state = state
            window.records += 1
            window.start_ms = min(window.start_ms, timestamp_ms)
            window.end_ms = max(window.end_ms, timestamp_ms)
            if on_update or window.records == spec.records:
                found.append((window, aggregation.result(state)))
        for window in begun:
            self._expect(raw, window)
        self._keep(raw, key, windows)
        key.seen = (key.seen + 1) if key.open else 0
        return found

    def _new_window(self, number: int, timestamp_ms: int) -> OpenCountWindow:
        # A record that is out of order opens its window now: it would time out at once otherwise.
        opened_ms = max(timestamp_ms, self._clock.now_ms)
        return OpenCountWindow(number, opened_ms, self._aggregation.initial())

    def _keep(self, raw: bytes, key: CountKeyWindows, windows: Sequence[OpenCountWindow]) -> None:
        """Keep those windows that are not full."""
        full = self._node.windows.records
        key.open = [window for window in windows if window.records < full]
        self._keys[raw] = key
        self._dirty.add(raw)
        for window in windows:
            if window.records >= full and self._timeout_ms is not None:
                self._due.delete(self._due_key(raw, window))

    def _expect(self, raw: bytes, window: OpenCountWindow) -> None:
        """Store when the window times out."""
        if self._timeout_ms is not None:
            self._due.put(self._due_key(raw, window), b"")
            self._next_due_ms = min(self._next_due_ms, window.opened_ms + self._timeout_ms)

    def _due_key(self, raw: bytes, window: OpenCountWindow) -> bytes:
        due_ms = window.opened_ms + (self._timeout_ms or 0)
        return time_bytes(due_ms) + escape_key(raw) + window.number.to_bytes(8, "big")

    def _time_out(self) -> None:
        """Forward the windows that have timed out, in the order in which they did."""
        now_ms = self._clock.now_ms
        if self._timeout_ms is None or self._next_due_ms > now_ms:
            return
        results = ResultColumns()
        times: list[int] = []
        low, high = time_bytes(self._next_due_ms), time_bytes(now_ms + 1)
        for due_key, _ in list(self._due.range(low, high)):
            raw, end = unescape_key(due_key[8:])
            key = self._key(raw)
            number = int.from_bytes(due_key[8 + end :], "big")
            (window,) = [each for each in key.open if each.number == number]
            if self._node.emit == Emit.CLOSE:
                value = self._aggregation.result(window.state)
                results.add(len(times), raw, window, value, window.end_ms)
                # The time at which it was opened; the source has told steps below that no row is
                # before `feed.time_ms`.
                times.append(max(time_at(due_key) - self._timeout_ms, self.feed.time_ms))
            key.open.remove(window)
            key.seen = key.seen if key.open else 0
            self._keys[raw] = key
            self._dirty.add(raw)
            self._due.delete(due_key)
        self._look_ahead(low)
        first, self._sequence = self._sequence, self._sequence + len(times)
        numbers = range(first, self._sequence)
        origin = BatchOrigin.of_rows(self.feed, numbers, times)
        self._forward(origin, range(len(times)), results)

    def _look_ahead(self, low: bytes = b"") -> None:
        found = next(self._due.range(low), None)
        self._next_due_ms = FAR_MS if found is None else time_at(found[0])

    def _forward_full(self, batch: Batch, results: ResultColumns) -> ResultColumns:
        self._forward(batch.origin, results.rows_of(batch.rows), results)
        return ResultColumns()

    def _forward(self, origin: BatchOrigin, rows: Sequence[int], results: ResultColumns) -> None:
        keys = WindowedKeys(self._node.key, results.raws, results.windows)
        batch = Batch(origin, rows, keys, results.values, results.timestamps)
        batch.keys_are_raw = batch.values_are_raw = False
        self.forward(batch)

    def _key(self, raw: bytes) -> CountKeyWindows:
        key = self._keys.get(raw)
        if key is not None:
            return key
        data = self._store.get(raw)
        if data is None:
            return CountKeyWindows()
        seen, stored = _decode(data)
        key = self._keys[raw] = CountKeyWindows(seen)
        loads = self._node.aggregation.state.loads
        for each in stored:
            window = OpenCountWindow(each.number, each.opened_ms, loads(each.state))
            window.records = each.records
            window.start_ms, window.end_ms = each.first_ms, each.last_ms
            key.open.append(window)
        return key

    def _to_stored(self, raw: bytes, window: OpenCountWindow) -> StoredCountWindow:
        try:
            state = self._node.aggregation.state.dumps(window.state)
        except Exception as error:
            raise self._last.failure(raw, error) from error
        return StoredCountWindow(
            window.number,
            window.records,
            window.start_ms,
            window.end_ms,
            window.opened_ms,
            state,
        )
