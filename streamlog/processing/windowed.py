"""WindowedAggregateStep: one result per key and window, on close, on every update or per commit.

Time is kept per source (`StreamTime`): a record is late against the time of its own source,
a window closes when all live sources have passed its end and grace. Rows of open windows are
objects in a cache per window; `flush` writes the changed ones under (end, start, key), so
closing and expiring are ranges. Rules of the file:

1. A record is added before windows are closed by it; results come in (end, start, key) order.
2. What is closed follows from stream time alone, which is part of the progress: so a window is
   emitted once, also across restarts, and a late record never opens it again.
3. Rows emitted on close are numbered. Their order and content do not depend on how the inputs
   were interleaved, so the number identifies a row for tasks downstream (`provenance`).

Rules of Kafka Streams (KIP-825 for emission on close), with its stream time per source.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from streamlog.durations import moment
from streamlog.processing.aggregate import (
    ROWS_BYTES_MAX,
    RowFormat,
    RowSizes,
    guarded,
    without_nulls,
)
from streamlog.processing.columns import Batch, Feed, Origin, WindowedKeys
from streamlog.processing.failures import LeftOut
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.step import Collector, Step
from streamlog.processing.window_fold import (
    GATE,
    LATE,
    SOURCE,
    Arrived,
    Updates,
    Window,
    WindowFold,
)
from streamlog.record import Late, Windowed
from streamlog.tables.folding import Row, cleaned, keyed
from streamlog.tables.store import (
    KeyValueStore,
    prefix_end,
    split_window_key,
    window_bound,
    window_key,
)
from streamlog.topology import TopicSpec, WindowedAggregate
from streamlog.windows.assign import window_of
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Emit, StreamTime, closed_until

T = TypeVar("T")
"""What is done for a record gives this."""


class Closed:
    """Final rows in the making: columns for the next batch."""

    __slots__ = ("raws", "timestamps", "values", "windows")

    def __init__(self) -> None:
        self.raws: list[bytes] = []
        self.windows: list[Window] = []
        self.values: list[Any] = []
        self.timestamps: list[int] = []

    def add(self, raw: bytes, window: Window, value: object, timestamp_ms: int) -> None:
        """One more result."""
        self.raws.append(raw)
        self.windows.append(window)
        self.values.append(value)
        self.timestamps.append(timestamp_ms)


class WindowedAggregateStep(Step):
    """One result per key and window."""

    section = "windows"

    def __init__(
        self,
        node: WindowedAggregate,
        store: KeyValueStore,
        collector: Collector,
        *,
        feeds: Sequence[Feed],
        partition: int,
        tells_old_values: bool = False,
    ) -> None:
        super().__init__(node.name)
        self._tells_old_values = tells_old_values
        self.feed = Feed((node.name, partition))
        """What its results carry, if it emits on close."""
        self._feeds = feeds
        self._node = node
        self._grace_ms = node.windows.grace_ms
        # How long rows stay after their window has closed.
        self._kept_ms = node.windows.retention_ms - node.windows.size_ms - self._grace_ms
        self._result = node.aggregation.result
        self._format = RowFormat(node.name, node.aggregation)
        self._sizes = RowSizes()
        self._store = store
        self._collector = collector
        self._prefix = node.store.prefix
        self._stream = StreamTime(s for feed in feeds for s, _, _ in feed.heard_of())
        self._fold = WindowFold(
            guarded(node).add,
            node.aggregation.result,
            node.aggregation.initial,
            open_window=self._open,
            load_row=self._load_row,
            size_ms=node.windows.size_ms,
            offset_ms=node.windows.offset_ms,
            grace_ms=self._grace_ms,
            on_update=node.emit is Emit.UPDATE,
            on_commit=node.emit is Emit.COMMIT,
            tells_old_values=tells_old_values and node.emit is not Emit.CLOSE,
        )
        self._windows = self._fold.windows
        self._ends: list[int] = []
        self._closed_ms = UNKNOWN_MS
        self._sequence = 0

    def process(self, batch: Batch) -> None:
        """Fold the records, close what they close, hand on the results."""
        batch, raws = without_nulls(self, batch, self._node.key, self._collector)
        closed, updates = Closed(), Updates()
        self._take(batch, raws, closed, updates)
        self._hand_on(closed)
        if updates.ats:
            rows = batch.rows
            if len(updates.ats) < len(rows):
                rows = [rows[at] for at in updates.ats]
            keys = WindowedKeys(self._node.key, updates.raws, updates.windows)
            results = Batch(batch.origin, rows, keys, updates.values, updates.timestamps)
            self._forward(results, updates.old_values)

    @property
    def own_feeds(self) -> Sequence[Feed]:
        """Its rows, unless they belong to the records behind them."""
        return (self.feed,)

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """All records at hand have been taken: note how far sources have come, and who is idle."""
        stream, idle_after_ms = self._stream, self._node.idle_after_ms
        for feed in self._feeds:
            for source, time_ms, quiet_ms in feed.heard_of():
                idle = idle_after_ms is not None and quiet_ms >= idle_after_ms
                if idle and stream.is_idle(source) and time_ms <= stream.time_of(source):
                    continue
                if time_ms > UNKNOWN_MS:
                    stream.advance(source, time_ms)
                if idle:
                    stream.set_idle(source)
        self._rest()
        closed = Closed()
        self._close(closed)
        self._hand_on(closed)
        return False

    def _rest(self) -> None:
        """What those downstream are told of its time: nothing new while rows wait for a commit."""
        if self._node.emit is Emit.COMMIT and not self._fold.touched:
            self.feed.time_ms = max(self.feed.time_ms, self._stream.now_ms)
        quiet_ms = min((feed.quiet_ms for feed in self._feeds), default=0)
        self.feed.quiet_ms = 0 if self._fold.touched else quiet_ms
        at_end = all(feed.at_end for feed in self._feeds)
        self.feed.at_end = at_end and not self._fold.touched

    @property
    def has_waiting(self) -> bool:
        """Whether there is something for `emit`."""
        return bool(self._fold.touched)

    def emit(self) -> None:
        """Hand on the newest result of every row that has changed since the last commit.

        They come in the order of the records that changed them last, and are numbered by those:
        what a restart emits again has the same number or belongs behind what came before.
        """
        fold = self._fold
        places = sorted(range(len(fold.touched)), key=lambda at: fold.touched[at].number)
        rows = [fold.touched[at] for at in places]
        windows = [fold.touched_windows[at] for at in places]
        old_values = fold.touched_old_values and [fold.touched_old_values[at] for at in places]
        fold.touched, fold.touched_windows, fold.touched_old_values = [], [], []
        for row in rows:
            row.touched = False
        numbers, times = [row.number for row in rows], [row.time_ms for row in rows]
        results = Batch(
            self._origin(numbers, times),
            range(len(rows)),
            WindowedKeys(self._node.key, [row.raw for row in rows], windows),
            [self._result(row.state) for row in rows],
            [row.timestamp_ms for row in rows],
        )
        self._forward(results, old_values)
        self._rest()

    def flush(self) -> None:
        """Write changed rows into the store."""
        count = 0
        for window in self._windows.values():
            rows = window.dirty
            head = self._prefix + window_key(window.end_ms, window.start_ms, b"")
            values = self._format.dumps_all(rows)
            self._store.write(zip(keyed(rows, head), values, strict=True))
            cleaned(rows)
            window.dirty = []
            self._sizes.add(rows, values)
            count += len(window.rows)
        if self._sizes.bytes_of(count) > ROWS_BYTES_MAX and not self.has_waiting:
            for window in self._windows.values():
                window.is_whole = window.is_whole and not window.rows
                window.rows.clear()

    def table(self) -> Iterator[tuple[Any, Any]]:
        """The rows that are kept, by (end, start, key)."""
        self.flush()
        for key, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            end_ms, start_ms, raw = split_window_key(key[len(self._prefix) :])
            windowed = Windowed(self._node.key.loads(raw), moment(start_ms), moment(end_ms))
            yield windowed, self._result(self._format.loads(data).state)

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the rows."""
        sequence = self._fold.number if self._node.emit is Emit.COMMIT else self._sequence
        return {"stream": self._stream.to_data(), "sequence": sequence}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave; the rows are in the store."""
        self._stream.load(data["stream"])
        self._sequence = self._fold.number = int(data["sequence"])
        self._closed_ms = closed_until(self._stream.now_ms, self._grace_ms)
        self._ends = list(self._stored_ends())
        self._set_gate()
        self._set_time()

    def _take(self, batch: Batch, raws: Sequence[bytes], closed: Closed, updates: Updates) -> None:
        """Fold all records, and close what they close."""
        origin, fold, stream = batch.origin, self._fold, self._stream
        own = None if origin.sources is None else batch.of_origin(origin.sources)
        times = batch.of_origin(origin.times)
        arrived = Arrived(raws, batch.values, batch.timestamps, times, own)
        start = fold.at = 0
        while start < len(raws):
            source = origin.feed.source if own is None else own[start]
            stream.advance(source, times[start])
            try:
                why = fold.run(start, arrived, stream.outlook(source), updates)
            except Exception as error:  # noqa: BLE001 - the user's functions
                if fold.at > start:
                    stream.advance(source, times[fold.at - 1])
                why = self._again(batch, arrived, updates, error)
            start = fold.at if why == SOURCE else fold.at + 1
            if start:
                stream.advance(source, times[start - 1])
            if why == LATE:
                self._tried(batch, partial(self._leave_out, batch, fold.at, stream.time_of(source)))
            elif why == GATE:
                self._close(closed)

    def _again(self, batch: Batch, arrived: Arrived, updates: Updates, error: Exception) -> int:
        """The record in hand has failed: try it alone, by the policy; says why it stopped."""
        fold, at = self._fold, self._fold.at
        alone = arrived.until(at + 1)
        own = batch.origin.sources
        source = batch.origin.feed.source if own is None else own[batch.rows[at]]
        outlook = self._stream.outlook(source)
        found = self._tried(batch, partial(fold.run, at, alone, outlook, updates), error)
        fold.at = at
        if not isinstance(found, LeftOut):
            return found
        self._forget_empty(batch.timestamps[at], arrived.raws[at])
        return GATE  # Time goes on without it.

    def _forget_empty(self, timestamp_ms: int, raw: bytes) -> None:
        """A row that was begun for the record in hand has nothing in it."""
        spec = self._node.windows
        _, end_ms = window_of(timestamp_ms, spec.size_ms, spec.offset_ms)
        window = self._windows.get(end_ms)
        if window is not None and raw in window.rows and window.rows[raw].timestamp_ms < 0:
            del window.rows[raw]

    def _tried(
        self, batch: Batch, work: Callable[[], T], error: Exception | None = None
    ) -> T | LeftOut:
        """Do something for the record in hand; without a policy, an error is the task's."""
        at = self._fold.at
        if self.failures is not None:
            return self.failures.attempted(batch, at, work, first=error)
        try:
            if error is None:
                return work()
        except Exception as caught:  # noqa: BLE001 - the user's code
            error = caught
        raise batch.failure(self.name, at, error) from error

    def _leave_out(self, batch: Batch, at: int, source_ms: int) -> None:
        late, spec = self._node.late, self._node.windows
        _, end_ms = window_of(batch.timestamps[at], spec.size_ms, spec.offset_ms)
        late_by_ms = closed_until(source_ms, self._grace_ms) - end_ms
        if late is None:
            self._collector.drop(self.name, "late", late_by_ms=late_by_ms)
        elif isinstance(late, TopicSpec):
            record = batch.record(at)
            value = Late(record.value, timedelta(milliseconds=late_by_ms), moment(end_ms))
            self._collector.send(
                SinkBatch(
                    late.name,
                    None,
                    [batch.timestamps[at]],
                    [late.key.dumps(record.key)],
                    [late.value.dumps(value)],
                    [record.headers],
                )
            )
        else:
            late(batch.record(at))

    def _open(self, start_ms: int, end_ms: int) -> Window:
        """The window in memory; its rows come when they are needed."""
        at = bisect_left(self._ends, end_ms)
        is_new = at == len(self._ends) or self._ends[at] != end_ms
        window = self._windows[end_ms] = Window(start_ms, end_ms, is_whole=is_new)
        if is_new:
            self._ends.insert(at, end_ms)
            self._fold.gate_ms = min(self._fold.gate_ms, end_ms)
        return window

    def _load_row(self, window: Window, raw: bytes) -> Row:
        data = self._store.get(self._prefix + window_key(window.end_ms, window.start_ms, raw))
        row = window.rows[raw] = self._format.loads(data, raw)
        return row

    def _close(self, closed: Closed) -> None:
        """Emit and expire what stream time has passed."""
        limit_ms = closed_until(self._stream.now_ms, self._grace_ms)
        if limit_ms <= self._closed_ms:
            return
        if limit_ms >= self._fold.gate_ms:
            if self._node.emit is Emit.CLOSE:
                first = bisect_right(self._ends, self._closed_ms)
                for end_ms in self._ends[first : bisect_right(self._ends, limit_ms)]:
                    self._emit(end_ms, closed)
            self._expire(limit_ms - self._kept_ms)
        self._closed_ms = limit_ms
        self._set_gate()
        self._set_time()

    def _emit(self, end_ms: int, closed: Closed) -> None:
        """The final rows of one window, by key."""
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
            closed.add(raw, window, self._result(row.state), row.timestamp_ms)

    def _expire(self, end_ms: int) -> None:
        """Remove the rows of windows that end at `end_ms` or before."""
        expired = self._ends[: bisect_right(self._ends, end_ms)]
        if not expired:
            return
        del self._ends[: len(expired)]
        for end in expired:
            self._windows.pop(end, None)
        # Not from the beginning: a scan there would step over all rows ever removed.
        low, high = window_bound(expired[0]), window_bound(end_ms + 1)
        self._store.delete_range(self._prefix + low, self._prefix + high)

    def _hand_on(self, closed: Closed) -> None:
        if not closed.raws:
            return
        # What comes after a row begins no earlier than its window.
        origin = self._own_origin([window.start_ms for window in closed.windows])
        keys = WindowedKeys(self._node.key, closed.raws, closed.windows)
        rows = range(len(closed.raws))
        # Each row is handed on once.
        results = Batch(origin, rows, keys, closed.values, closed.timestamps)
        self._forward(results, [None] * len(rows))

    def _forward(self, batch: Batch, old_values: Sequence[Any]) -> None:
        batch.keys_are_raw = batch.values_are_raw = False
        if self._tells_old_values:
            batch.old_values = old_values
        self.forward(batch)

    def _own_origin(self, times: Sequence[int]) -> Origin:
        """Results on close: a source of their own, with numbers for offsets."""
        first, self._sequence = self._sequence, self._sequence + len(times)
        return self._origin(range(first, self._sequence), times)

    def _origin(self, numbers: Sequence[int], times: Sequence[int]) -> Origin:
        name, partition = self.feed.source
        return Origin(
            self.feed,
            topic=name,
            partition=partition,
            offsets=numbers,
            positions=numbers,
            times=times,
            watermarks=times,
        )

    def _stored_ends(self) -> Iterator[int]:
        """The ends of all windows in the store: one seek for each."""
        high = prefix_end(self._prefix)
        low = self._prefix
        while (found := next(self._store.range(low, high), None)) is not None:
            end_ms, _, _ = split_window_key(found[0][len(self._prefix) :])
            yield end_ms
            low = self._prefix + window_bound(end_ms + 1)

    def _set_gate(self) -> None:
        """Nothing closes or expires before stream time less grace has come to the gate."""
        next_close = bisect_right(self._ends, self._closed_ms)
        closing = self._ends[next_close : next_close + 1]
        expiring = [end + self._kept_ms for end in self._ends[:1]]
        self._fold.gate_ms = min([*closing, *expiring], default=FAR_MS)

    def _set_time(self) -> None:
        """Results still to come belong to windows that are open: none begins before this."""
        if self._closed_ms >= 0 and self._node.emit is not Emit.COMMIT:
            spec = self._node.windows
            self.feed.time_ms = window_of(self._closed_ms, spec.size_ms, spec.offset_ms)[0]
