"""RecordWindowsStep: what steps over sessions and over sliding windows have in common.

Records are taken one by one: which windows of its key a record changes is for the kind to say; what
time it is, who is late, what is closed, and what goes on, is decided here. Rules of the file:

1. A window is open to a record as long as its end is no further behind the time of the record's own
   source than the node waits. So what a record changes depends on records before it, and not on
   when a window is found to be closed, which is done once per batch.
2. Final rows come in (end, start, key) order, once, also across restarts; their number identifies
   them for tasks downstream (`provenance`). Updates belong to the record behind them.
3. A function that fails on a record has changed nothing, where the record is to be left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

from streamlog.durations import TIMESTAMP_MS_MAX, moment
from streamlog.errors import UsageError
from streamlog.processing.aggregate import RowFormat, guarded, without_nulls
from streamlog.processing.columns import Batch, Feed, Origin, WindowedKeys
from streamlog.processing.early_changes import EarlyChanges
from streamlog.processing.exits import exit_failure
from streamlog.processing.failures import LeftOut
from streamlog.processing.late_records import LateRecords
from streamlog.processing.node_time import NodeTime
from streamlog.processing.open_rows import Change, OpenRows, OpenWindow
from streamlog.processing.step import Step, StepContext
from streamlog.processing.window_time import WindowTime
from streamlog.record import Windowed
from streamlog.tables.folding import Row
from streamlog.tables.store import NamedStore, split_window_key
from streamlog.topology import RecordWindowsAggregate
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Emit

T = TypeVar("T")
"""What is done for a record gives this."""


class Arrival(NamedTuple):
    """A record to be taken in."""

    raw: bytes
    """Its key."""
    value: Any
    timestamp_ms: int
    open_ms: int
    """Windows that end before this are closed to it."""


class _Results:
    """Rows in the making: columns for the next batch."""

    __slots__ = ("ats", "before", "timestamps", "values", "windows")

    def __init__(self) -> None:
        self.ats: list[int] = []
        self.windows: list[OpenWindow] = []
        self.values: list[Any] = []
        self.before: list[Any] = []
        self.timestamps: list[int] = []

    def add(self, at: int, window: OpenWindow, value: object, before: object = None) -> None:
        """One more; `at` is the place of the record behind it."""
        self.ats.append(at)
        self.windows.append(window)
        self.values.append(value)
        self.before.append(before)
        self.timestamps.append(window.row.timestamp_ms)


class RecordWindowsStep(Step):
    """One result per key and window that records have made."""

    section: ClassVar[str] = "windows"

    def __init__(self, node: RecordWindowsAggregate, context: StepContext) -> None:
        super().__init__(node.name)
        self._tells_old_values = context.tells_old_values
        self.feed = Feed((node.name, context.partition))
        """What its results carry, unless they belong to the records behind them."""
        windows = node.windows
        self._node = node
        self.node_time = NodeTime(context.feeds)
        self._feeds = self.node_time.feeds
        self._collector = context.collector
        self._late = LateRecords(node.name, node.late, context.collector)
        self._aggregation = guarded(node)
        self._format = RowFormat(node.name, node.aggregation)
        kept_ms = windows.retention_ms - windows.size_ms - windows.grace_ms
        self._rows = OpenRows(context.store, node.store.prefix, self._format, kept_ms=kept_ms)
        self._time = WindowTime(
            self._feeds,
            own=self.feed.source,
            united=node.united,
            idle_after_ms=node.idle_after_ms,
        )
        self._stream = self._time.stream
        self._early = self._early_changes(node, context)
        self._tells_changes = self._early is not None or node.emit == Emit.UPDATE
        """Whether anybody has to know what a record has changed."""
        self._closed_ms = UNKNOWN_MS
        self._sequence = 0

    def _early_changes(
        self, node: RecordWindowsAggregate, context: StepContext
    ) -> EarlyChanges | None:
        if node.early is None:
            return None
        feed = Feed((node.early_feed, context.partition))
        return EarlyChanges(node.emit, feed, NamedStore(context.store, node.early))

    @abstractmethod
    def add(self, arrival: Arrival) -> list[Change] | None:
        """What a record does to the windows of its key; None if all are closed to it."""

    @abstractmethod
    def forget(self, window: OpenWindow) -> None:
        """It is closed."""

    @abstractmethod
    def index(self, written: Mapping[bytes, OpenWindow | None], time_ms: int) -> None:
        """These rows were written, or removed (None): bring the store by key to the same state."""

    @abstractmethod
    def last_end_ms(self, timestamp_ms: int) -> int:
        """The end of the last window to close of those that a record makes alone."""

    @abstractmethod
    def first_time_ms(self, end_ms: int) -> int:
        """The smallest timestamp that the result of a window may have which ends then or later."""

    @property
    def own_feeds(self) -> Sequence[Feed]:
        """Its rows, unless they belong to the records behind them; the early ones apart."""
        return (self.feed,) if self._early is None else (self._early.feed, self.feed)

    @property
    def next_wall_ms(self) -> int:
        """When early rows are due, if that is by the clock on the wall."""
        return FAR_MS if self._early is None else self._early.next_wall_ms

    def process(self, batch: Batch) -> None:
        """Take in the records, close what they close, hand on the results."""
        batch, raws = without_nulls(self, batch, self._node.key, self._collector)
        batch = self.node_time.of(batch)
        updates = _Results()
        self._format.note(batch, raws)
        self._take(batch, raws, updates)
        self._close()
        if updates.ats:
            rows = [batch.rows[at] for at in updates.ats]
            self._forward(batch.origin, rows, updates)

    def waits_for(self) -> Iterable[tuple[Feed, int]]:
        """When the next window closes, if that is when its row goes on, or early rows do."""
        due_ms = self._rows.due_ms
        if not self._node.emit.is_final or due_ms == FAR_MS:
            return ()
        due_ms += self._node.closes_after_ms + 1
        if self._early is not None:
            due_ms = min(due_ms, self._early.due_ms)
        return [(feed, due_ms) for feed in self._feeds]

    def ends_at(self, due_ms: int) -> int:
        """A window closes when stream time has passed its end by the gap and the grace."""
        return due_ms - self._node.closes_after_ms - 1

    def needs(self, time_ms: int) -> Iterable[tuple[Feed, int]]:
        """When every window that begins before `time_ms` is closed."""
        closed_ms = time_ms + self._node.windows.size_ms + self._node.closes_after_ms + 1
        return [(feed, closed_ms) for feed in self._feeds]

    def settle(self, now_ms: int | None) -> bool:
        """All records at hand have been taken: note how far sources have come, and who is idle.

        Returns whether the end of an interval let rows go on.
        """
        self._time.settle()
        for own in self.own_feeds:
            own.quiet_ms = min((feed.quiet_ms for feed in self._feeds), default=0)
            own.at_end = all(feed.at_end for feed in self._feeds)
        self._close()
        return self._show(now_ms)

    def flush(self) -> None:
        """Write changed rows into the store."""
        self.index(self._rows.flush(), self._stream.now_ms)
        self._format.stored()
        if self._early is not None:
            self._early.flush()

    def table(self) -> Iterator[tuple[Any, Any]]:
        """The rows that are kept, by (end, start, key)."""
        self.flush()
        for key, data in self._rows.stored():
            end_ms, start_ms, raw = split_window_key(key)
            windowed = Windowed(self._node.key.loads(raw), moment(start_ms), moment(end_ms))
            yield windowed, self._aggregation.result(self._format.loads(data).state)

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the rows."""
        data = {"stream": self._stream.to_data(), "sequence": self._sequence}
        return data if self._early is None else {**data, "early": self._early.to_data()}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave; the rows are in the store."""
        self._stream.load(data["stream"])
        self._sequence = int(data["sequence"])
        self._closed_ms = self._limit_ms()
        self._rows.start_at(self._closed_ms)
        self.index({}, self._stream.now_ms)
        if self._early is not None and "early" in data:
            self._early.load(data["early"])
        self._set_time()

    def _take(self, batch: Batch, raws: Sequence[bytes], updates: _Results) -> None:
        stream = self._stream
        own, times = self._time.of(batch)
        source = self._time.common(batch)
        for at, raw in enumerate(raws):
            if own is not None:
                source = own[at]
            stream.advance(source, times[at])
            open_ms = stream.time_of(source) - self._node.late_after_ms
            arrival = Arrival(raw, batch.values[at], batch.timestamps[at], open_ms)
            changes = self._tried(batch, at, partial(self._added, arrival))
            if changes is None:
                self._tried(batch, at, partial(self._leave_out, batch, at, open_ms))
            elif not isinstance(changes, LeftOut):
                self._note(at, changes, updates)
            if self._early is not None and stream.now_ms >= self._early.next_event_ms:
                self._close()
                self._show(None)

    def _added(self, arrival: Arrival) -> list[Change] | None:
        # A window after the record may be as long as the definition says.
        time_ms, size_ms = arrival.timestamp_ms, self._node.windows.size_ms
        if not 0 <= time_ms < TIMESTAMP_MS_MAX - size_ms:
            raise UsageError(
                f"a timestamp of {time_ms} ms is in no window: they begin at 1970, and end by 9999"
            )
        return self.add(arrival)

    def _note(self, at: int, changes: Sequence[Change], updates: _Results) -> None:
        if self._early is not None:
            self._early.note(changes)
        if self._node.emit != Emit.UPDATE:
            return
        for window, is_gone, before in changes:
            value = None if is_gone else self._aggregation.result(window.row.state)
            updates.add(at, window, value, before)

    def _told(self, window: OpenWindow) -> object:
        """The result of a window that is about to change, if somebody has to know."""
        return self._aggregation.result(window.row.state) if self._tells_old_values else None

    def _tried(self, batch: Batch, at: int, work: Callable[[], T]) -> T | LeftOut:
        """Do something for a record; without a policy, an error is the task's."""
        if self.failures is not None:
            return self.failures.attempted(batch, at, work)
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - the user's code
            caught = error
        except SystemExit as stop:
            caught = exit_failure(stop)
        raise batch.failure(self.name, at, caught) from caught

    def _leave_out(self, batch: Batch, at: int, open_ms: int) -> None:
        end_ms = self.last_end_ms(batch.timestamps[at])
        self._late.leave_out(batch, at, end_ms=end_ms, late_by_ms=open_ms - end_ms)

    def _limit_ms(self) -> int:
        """Windows that end at this time or before are closed for good."""
        return self._stream.now_ms - self._node.closes_after_ms - 1

    def _close(self) -> None:
        """Emit and remove what stream time has passed."""
        limit_ms = self._limit_ms()
        if limit_ms <= self._closed_ms:
            return
        final = _Results()
        if limit_ms >= self._rows.due_ms:
            for window in self._rows.close(limit_ms):
                self.forget(window)
                if self._early is not None:
                    self._early.forget(window.key)
                if self._node.emit.is_final:
                    final.add(0, window, self._aggregation.result(window.row.state))
        self._closed_ms = limit_ms
        self._set_time()
        if final.ats:
            first, self._sequence = self._sequence, self._sequence + len(final.ats)
            times = [self.first_time_ms(each.end_ms) for each in final.windows]
            self._go_on(self.feed, range(first, self._sequence), times, final)

    def _show(self, wall_ms: int | None) -> bool:
        """Let early rows go on, if an interval is over; whether it is."""
        early = self._early
        if early is None or not early.is_due(self._stream.now_ms, wall_ms):
            return False
        shown, numbers = _Results(), []
        for key, (number, is_gone) in early.take():
            end_ms, start_ms, raw = split_window_key(key)
            window = None if is_gone else self._rows.load(start_ms, end_ms, raw)
            if window is not None:
                shown.add(0, window, self._aggregation.result(window.row.state))
            else:
                shown.add(0, OpenWindow(start_ms, end_ms, Row(None, end_ms, raw)), None)
            numbers.append(number)
        if numbers:
            # Those of a window come before its final one.
            self._go_on(early.feed, numbers, [max(self.feed.time_ms, 0)] * len(numbers), shown)
        return True

    def _set_time(self) -> None:
        """Results still to come belong to windows that are open."""
        if self._closed_ms >= 0:
            for feed in self.own_feeds:
                feed.time_ms = self.first_time_ms(self._closed_ms + 1)

    def _forward(self, origin: Origin, rows: Sequence[int], results: _Results) -> None:
        windows = results.windows
        keys = WindowedKeys(self._node.key, [each.row.raw for each in windows], windows)
        batch = Batch(origin, rows, keys, results.values, results.timestamps)
        batch.keys_are_raw = batch.values_are_raw = False
        if self._tells_old_values:
            batch.old_values = results.before
        self.forward(batch)

    def _go_on(
        self, feed: Feed, numbers: Sequence[int], times: Sequence[int], results: _Results
    ) -> None:
        """Hand on rows that are a source of their own, with numbers for offsets."""
        origin = Origin.of_rows(feed, numbers, times)
        self._forward(origin, range(len(numbers)), results)
