"""What all steps over windows share: their time, open rows, early results, late records.

`WindowTime` judges records by the stream time of their own source (`StreamTime`), so that a source
that is read faster makes no records of others late; if several streams feed one aggregate, one time
counts for all (`JoinTime`). `OpenRows` keeps the rows of open windows by (end, start, key), the
order in which windows close, and writes a row once per commit. At the end of an interval
`EarlyRows` (windows of time) and `EarlyChanges` (windows that records make) return what has changed
since the last interval; these results have a time source of their own. `LateRecords` counts records
whose window has closed, or writes them to the topic for late records. Rules of the module:

1. Finding what is due never looks at what is not.
2. Which rows wait for an interval, and which were forwarded early, is state: a mark per row under
   (end, start, key), so a restart within an interval changes no result.

Not done here: which windows hold a record, and closing them (the steps).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from streamlog.durations import moment
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.column_batch import Batch, TimeSource
from streamlog.processing.joins.stream_join import JoinTime
from streamlog.processing.node_time import InputClock, source_names
from streamlog.processing.outbox import Collector, SinkBatch
from streamlog.processing.tables.aggregate import RowFormat, RowSizes
from streamlog.processing.windows.window_fold import Window, WindowFold
from streamlog.record import Late
from streamlog.serdes import window_bytes, windowed_bytes
from streamlog.tables.folds.folding import Row
from streamlog.tables.stores.store import (
    Changes,
    KeyValueStore,
    NamedStore,
    prefix_end,
    split_window_key,
    window_bound,
    window_key,
)
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Cadence, Emit, Source, StreamTime

_NUMBER = struct.Struct(">q")


class EarlyRows:
    """The rows of time windows that wait for the end of an interval."""

    def __init__(
        self,
        emit: Emit,
        feed: TimeSource,
        fold: WindowFold,
        store: NamedStore,
        *,
        clock: InputClock | None,
        row_of: Callable[[int, int, bytes], tuple[Window, Row]],
    ) -> None:
        """`row_of` returns the row at this end, start and key; `store` is for the marks."""
        self.feed = feed
        """The time source of the early rows."""
        self.clock = clock
        """The clock of stream time; None: intervals are of wall-clock time."""
        self._cadence = Cadence(emit)
        self._fold = fold
        self._store = store
        self._row_of = row_of
        self._marked: set[bytes] = set()
        self._is_spilled = False
        """Whether there are marks of rows that are not in memory."""

    @property
    def next_event_ms(self) -> int:
        """The stream time before which nothing is due."""
        return FAR_MS if self.clock is None else self._cadence.next_ms

    @property
    def next_wall_ms(self) -> int:
        """The wall-clock time before which nothing is due."""
        waits = self._fold.touched or self._is_spilled
        return self._cadence.next_ms if waits and self.clock is None else FAR_MS

    @property
    def due_ms(self) -> int:
        """The stream time at which waiting rows are forwarded; FAR_MS: none by stream time."""
        waits = self._fold.touched or self._is_spilled
        next_ms = self.next_event_ms
        return next_ms if waits and next_ms > UNKNOWN_MS else FAR_MS

    @property
    def over_ms(self) -> int | None:
        """The stream time at which the due interval ended; None: it is of the wall clock."""
        return None if self.clock is None else self._cadence.over_ms

    def is_due(self, wall_ms: int | None) -> bool:
        """Return whether an interval has ended; of stream time if `wall_ms` is None."""
        if self.clock is not None:
            return self._cadence.is_due(self.clock.now_ms)
        return wall_ms is not None and self._cadence.is_due(wall_ms)

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
        """Write marks for those of these rows that wait; the rows are being written as well."""
        for row in rows:
            if row.touched:
                key = window_key(window.end_ms, window.start_ms, row.raw)
                self._marked.add(key)
                self._store.put(key, _NUMBER.pack(row.number))

    def spill(self) -> None:
        """Release the rows, all of which are marked; `take` finds waiting ones by their marks."""
        self._fold.touched, self._fold.touched_windows = [], []
        self._marked.clear()
        self._is_spilled = True

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the marks."""
        data: dict[str, object] = {"next_ms": self._cadence.next_ms, "number": self._fold.number}
        return data if self.clock is None else {**data, "clock": self.clock.to_data()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore what `to_data` returned; intervals of the wall clock start anew."""
        if self.clock is not None:
            self._cadence.next_ms = int(data["next_ms"])
            self.clock.load(data["clock"])
        self._fold.number = int(data["number"])
        self._is_spilled = True

    def _gather(self, closed_ms: int) -> None:
        """Read the marked rows into memory."""
        fold = self._fold
        for key, data in self._store.range(window_bound(closed_ms + 1)):
            window, row = self._row_of(*split_window_key(key))
            if not row.touched:
                row.touched = True
                (row.number,) = _NUMBER.unpack(data)
                fold.touched.append(row)
                fold.touched_windows.append(window)


class LateRecords:
    """A node's late records: written to a topic as `Late`, given to a function, or counted."""

    def __init__(
        self, node: str, to: TopicSpec | Callable[[Any], object] | None, collector: Collector
    ) -> None:
        self._node = node
        self._to = to
        self._collector = collector

    def leave_out(self, batch: Batch, at: int, *, end_ms: int, late_by_ms: int) -> None:
        """Drop the record at this index of the batch.

        Args:
            batch: the batch of the record.
            at: its index.
            end_ms: the end of its window.
            late_by_ms: how far the time of its source had passed the window's closing.
        """
        to = self._to
        if to is None:
            self._collector.drop(self._node, "late", late_by_ms=late_by_ms)
        elif isinstance(to, TopicSpec):
            record = batch.record(at)
            value = Late(record.value, timedelta(milliseconds=late_by_ms), moment(end_ms))
            self._collector.send(
                SinkBatch(
                    to.name,
                    None,
                    [batch.timestamps[at]],
                    [to.key.dumps(record.key)],
                    [to.value.dumps(value)],
                    [record.headers],
                    window_bytes(to.key),
                    partitioner=to.partitioner,
                )
            )
        else:
            to(batch.record(at))


STALE_MAX = 1_000
"""How many keys of replaced rows may be in the heap, on top of twice the rows."""


class OpenWindow:
    """A window of one key and its row."""

    __slots__ = ("end_ms", "is_stored", "key", "row", "start_ms")

    def __init__(self, start_ms: int, end_ms: int, row: Row, *, is_stored: bool = False) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.row = row
        self.key = window_key(end_ms, start_ms, row.raw)
        """The key of its row in the store."""
        self.is_stored = is_stored
        """Whether the store has a row under this key."""

    @property
    def start(self) -> datetime:
        """Start, inclusive, as users see it."""
        return moment(self.start_ms)

    @property
    def end(self) -> datetime:
        """End, as users see it."""
        return moment(self.end_ms)

    @property
    def suffix(self) -> bytes:
        """Start and end as `windowed_bytes` appends them to a key."""
        return windowed_bytes(b"", self.start_ms, self.end_ms)


class WindowChange(NamedTuple):
    """What a record has done to a window; `is_gone` if other windows have replaced it."""

    window: OpenWindow
    is_gone: bool = False
    before: Any = None
    """The result that it replaces, if a step downstream needs it; None: there was none."""


class OpenRows:
    """The rows of one table."""

    def __init__(
        self, store: KeyValueStore, prefix: bytes, row_format: RowFormat, *, kept_ms: int
    ) -> None:
        """`kept_ms`: for how long rows stay after their window has closed."""
        self._store = store
        self._prefix = prefix
        self._format = row_format
        self._kept_ms = kept_ms
        self._changed: dict[bytes, OpenWindow | None] = {}
        """By key; None: to be removed from the store."""
        self._order: list[bytes] = []
        """A heap of the keys in `_changed` whose value is not None, and of some that are outdated.
        """
        self._closed_ms = self._expired_ms = UNKNOWN_MS
        self._sizes = RowSizes()
        self.due_ms = FAR_MS
        """The time before which there is nothing to `close`."""

    def start_at(self, closed_ms: int) -> None:
        """Count the windows that end at this time or before as closed, after a restart."""
        self._closed_ms = closed_ms
        self._expired_ms = closed_ms - self._kept_ms
        self._set_due()

    def load(self, start_ms: int, end_ms: int, raw: bytes) -> OpenWindow | None:
        """Return the window of a key, if it has a row."""
        key = window_key(end_ms, start_ms, raw)
        if key in self._changed:
            return self._changed[key]
        data = self._store.get(self._prefix + key)
        if data is None:
            return None
        return OpenWindow(start_ms, end_ms, self._format.loads(data, raw), is_stored=True)

    def put(self, window: OpenWindow) -> None:
        """Store a row that is new or has changed."""
        self.put_all((window,))

    def put_all(self, windows: Iterable[OpenWindow]) -> None:
        """Store rows that are new or have changed."""
        changed = self._changed
        for window in windows:
            key = window.key
            there = changed.get(key)
            if there is window:
                continue
            if there is None:
                window.is_stored = window.is_stored or key in changed
                heappush(self._order, key)
                self.due_ms = min(self.due_ms, window.end_ms)
            else:
                window.is_stored = there.is_stored
            changed[key] = window

    def remove(self, window: OpenWindow) -> None:
        """Remove a row."""
        if window.is_stored:
            self._changed[window.key] = None
        else:
            self._changed.pop(window.key, None)
        if len(self._order) > 2 * len(self._changed) + STALE_MAX:
            self._order = [key for key, there in self._changed.items() if there is not None]
            heapify(self._order)

    def close(self, limit_ms: int) -> list[OpenWindow]:
        """Close the open windows that end at this time or before; returns them in key order."""
        closed: list[OpenWindow] = []
        if limit_ms > self._closed_ms:
            closed = self._ended(limit_ms)
            self._closed_ms = limit_ms
        self._expire(limit_ms - self._kept_ms)
        self._set_due()
        return closed

    def flush(self) -> dict[bytes, OpenWindow | None]:
        """Write the changes into the store; returns them."""
        written, self._changed, self._order = self._changed, {}, []
        self._write([window for window in written.values() if window is not None])
        gone = [key for key, window in written.items() if window is None]
        self._store.write([(self._prefix + key, None) for key in gone])
        return written

    def bytes_of(self, count: int) -> int:
        """Return the memory that `count` rows take, by estimate."""
        return self._sizes.bytes_of(count)

    def stored(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and rows in the store, of all windows that are kept."""
        cut = len(self._prefix)
        for key, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            yield key[cut:], data

    def _ended(self, limit_ms: int) -> list[OpenWindow]:
        found: dict[bytes, OpenWindow] = {}
        cut, end = len(self._prefix), window_bound(limit_ms + 1)
        for stored, data in self._store.range(self._bound(self._closed_ms), self._bound(limit_ms)):
            key = stored[cut:]
            if key not in self._changed:
                end_ms, start_ms, raw = split_window_key(key)
                row = self._format.loads(data, raw)
                found[key] = OpenWindow(start_ms, end_ms, row, is_stored=True)
        changed = []
        while self._order and self._order[0] < end:
            key = heappop(self._order)
            window = self._changed.get(key)
            if window is not None:
                changed.append(window)
                found[key] = window
                del self._changed[key]
        if self._kept_ms:
            self._write(changed)
        return [window for _, window in sorted(found.items())]

    def _expire(self, limit_ms: int) -> None:
        """Remove the rows of windows that end at this time or before."""
        if limit_ms <= self._expired_ms:
            return
        # Not from the beginning: there, a scan steps over the tombstones of removed rows.
        self._store.delete_range(self._bound(self._expired_ms), self._bound(limit_ms))
        self._expired_ms = limit_ms

    def _write(self, windows: list[OpenWindow]) -> None:
        values = self._format.dumps_all([window.row for window in windows])
        keys = [self._prefix + window.key for window in windows]
        self._store.write(Changes(keys, [*values]))
        self._sizes.add(keys, values)
        for window in windows:
            window.is_stored = True

    def _set_due(self) -> None:
        while self._order and self._changed.get(self._order[0]) is None:
            heappop(self._order)
        ends = [self._first_end_ms(self._closed_ms)]
        if self._order:
            ends.append(split_window_key(self._order[0])[0])
        if self._kept_ms:
            ends.append(self._first_end_ms(self._expired_ms) + self._kept_ms)
        self.due_ms = min(ends)

    def _first_end_ms(self, after_ms: int) -> int:
        """Return the first end, after this time, of a window in the store."""
        high = prefix_end(self._prefix)
        found = next(self._store.range(self._bound(after_ms), high), None)
        return FAR_MS if found is None else split_window_key(found[0][len(self._prefix) :])[0]

    def _bound(self, end_ms: int) -> bytes:
        """Return a key before the rows of all windows that end after this time."""
        return self._prefix + window_bound(end_ms + 1)


_MARK = struct.Struct(">Bq")
_WAITS, _GONE, _SEEN = 1, 2, 4


class WaitingChanges(NamedTuple):
    """A row to forward at the end of the interval."""

    number: int
    """The number of the record that changed it last."""
    is_gone: bool
    """Whether other windows have replaced it."""


class EarlyChanges:
    """The rows of record-made windows that wait for the end of an interval."""

    def __init__(self, emit: Emit, feed: TimeSource, store: NamedStore) -> None:
        self.feed = feed
        """The time source of the early rows."""
        self._is_event = emit.clock == "event"
        self._cadence = Cadence(emit)
        self._store = store
        self._waiting: dict[bytes, WaitingChanges] = {}
        self._fresh: set[bytes] = set()
        """Keys whose marks are not written yet."""
        self._number = 0

    @property
    def next_event_ms(self) -> int:
        """The stream time before which nothing is due."""
        return self._cadence.next_ms if self._is_event else FAR_MS

    @property
    def due_ms(self) -> int:
        """The stream time at which waiting rows are forwarded; FAR_MS: none by stream time."""
        next_ms = self.next_event_ms
        return next_ms if self._waiting and next_ms > UNKNOWN_MS else FAR_MS

    @property
    def next_wall_ms(self) -> int:
        """The wall-clock time before which nothing is due."""
        return self._cadence.next_ms if self._waiting and not self._is_event else FAR_MS

    def is_due(self, stream_ms: int, wall_ms: int | None) -> bool:
        """Return whether an interval has ended; of stream time if `wall_ms` is None."""
        if self._is_event:
            return self._cadence.is_due(stream_ms)
        return wall_ms is not None and self._cadence.is_due(wall_ms)

    def note(self, changes: Iterable[WindowChange]) -> None:
        """Add the changes that one record has made."""
        self._number += 1
        for window, is_gone, _ in changes:
            if is_gone and not self._seen(window.key):
                self.forget(window.key)
            else:
                self._waiting[window.key] = WaitingChanges(self._number, is_gone)
                self._fresh.add(window.key)

    def forget(self, key: bytes) -> None:
        """Remove a row that is final, or that no longer exists."""
        self._waiting.pop(key, None)
        self._fresh.discard(key)
        if self._store.get(key) is not None:
            self._store.delete(key)

    def take(self) -> list[tuple[bytes, WaitingChanges]]:
        """Remove and return the waiting rows, in the order in which they were changed."""
        found = sorted(self._waiting.items(), key=lambda each: (each[1].number, each[0]))
        for key, waiting in found:
            if waiting.is_gone:
                self._store.delete(key)
            else:
                self._store.put(key, _MARK.pack(_SEEN, 0))
        self._waiting.clear()
        self._fresh.clear()
        return found

    def flush(self) -> None:
        """Write the marks of rows that wait."""
        for key in sorted(self._fresh):
            number, is_gone = self._waiting[key]
            seen = _SEEN if self._seen(key) else 0
            self._store.put(key, _MARK.pack(_WAITS | (_GONE if is_gone else 0) | seen, number))
        self._fresh.clear()

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the marks."""
        return {"next_ms": self._cadence.next_ms, "number": self._number}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore what `to_data` returned; intervals of the wall clock start anew."""
        if self._is_event:
            self._cadence.next_ms = int(data["next_ms"])
        self._number = int(data["number"])
        for key, mark in self._store.range():
            flags, number = _MARK.unpack(mark)
            if flags & _WAITS:
                self._waiting[key] = WaitingChanges(number, bool(flags & _GONE))

    def _seen(self, key: bytes) -> bool:
        mark = self._store.get(key)
        return mark is not None and bool(mark[0] & _SEEN)


class WindowTime:
    """The event time of one windowed aggregation."""

    def __init__(
        self, feeds: Sequence[TimeSource], *, own: Source, united: bool, idle_after_ms: int | None
    ) -> None:
        """`own` is the common name of all sources, if they are `united`."""
        self._feeds = feeds
        self._own = own
        self._idle_after_ms = idle_after_ms
        self._joined = JoinTime(feeds) if united else None
        self._ways = source_names(feeds)
        called = [pair for ways in self._ways.values() for pair in ways.items()]
        self._meet = any(source != way for source, way in called)
        self.stream = StreamTime([own] if united else (way for _, way in called))

    def of(self, batch: Batch) -> tuple[Sequence[Source] | None, Sequence[int]]:
        """Return each record's source (None: all have one) and that source's time at the record."""
        origin = batch.origin
        if self._joined is not None:
            reach, feed = self._joined.reach, origin.feed
            return None, [reach(feed, turn_ms) for turn_ms in batch.of_origin(origin.moments)]
        own = None if origin.sources is None else batch.of_origin(origin.sources)
        if own is not None and self._meet:
            called = self._ways[origin.feed]
            own = [called[source] for source in own]
        return own, batch.of_origin(origin.times)

    def common(self, batch: Batch) -> Source:
        """Return the source of all records, where `of` returns None for the sources."""
        if self._joined is not None:
            return self._own
        feed = batch.origin.feed
        return self._ways[feed].get(feed.source, feed.source)

    def settle(self) -> None:
        """Update the times of the sources after all available records, and mark idle ones."""
        if self._joined is not None:
            self.stream.advance(self._own, self._joined.settle())
            return
        stream, idle_after_ms = self.stream, self._idle_after_ms
        for feed in self._feeds:
            called = self._ways[feed]
            for heard, time_ms, quiet_ms in feed.heard_of():
                source = called[heard]
                idle = idle_after_ms is not None and quiet_ms >= idle_after_ms
                if idle and stream.is_idle(source) and time_ms <= stream.time_of(source):
                    continue
                if time_ms > UNKNOWN_MS:
                    stream.advance(source, time_ms)
                if idle:
                    stream.set_idle(source)
