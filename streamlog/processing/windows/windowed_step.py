"""What all windowed aggregations share: their time, closing, late and early records, progress.

`WindowTime` judges records by the stream time of their own source (`StreamTime`), so that a source
that is read faster makes no records of others late; if several streams feed one aggregate, one time
counts for all (`JoinTime`). `LateRecords` counts records whose window has closed, or writes them to
the topic for late records. `WindowedStep` is the base of the steps: it owns the time sources of the
rows, when windows close, what a restart needs, and forwarding results. Rules of the module:

1. A window is closed when stream time has passed its end by a delay that never changes: the grace,
   and for sessions the gap. So what is closed follows from stream time, which is state.
2. Rows that belong to no record are numbered. Their order and content do not depend on how the
   inputs were interleaved, so the number identifies a row for downstream tasks (`provenance`).

Not done here: which windows hold a record (`windowed_aggregate`, `session_sliding_windows`), and
when early rows are due (`early_results`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from streamlog.durations import moment
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.nodes.window_nodes import RecordWindowsAggregate, WindowedAggregate
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource, WindowedKeys
from streamlog.processing.joins.stream_join import JoinTime
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.node_time import source_names
from streamlog.processing.outbox import Collector, SinkBatch
from streamlog.processing.step import Step, StepContext
from streamlog.processing.tables.aggregate import RowFormat, guard_state, without_nulls
from streamlog.processing.windows.early_results import EarlyResults
from streamlog.processing.windows.window_fold import ResultColumns
from streamlog.record import Late, Windowed
from streamlog.serdes import window_bytes
from streamlog.serdes.erased_types import AnyRecord, JsonValue, UserKey, UserValue
from streamlog.tables.stores.store import prefix_end, split_window_key
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Source, StreamTime


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
        self._names = source_names(feeds)
        pairs = [pair for names in self._names.values() for pair in names.items()]
        self._has_renamed = any(source != name for source, name in pairs)
        self.stream = StreamTime([own] if united else (name for _, name in pairs))

    def of(self, batch: Batch) -> tuple[Sequence[Source] | None, Sequence[int]]:
        """Return each record's source (None: all have one) and that source's time at the record."""
        origin = batch.origin
        if self._joined is not None:
            reach, feed = self._joined.reach, origin.feed
            return None, [reach(feed, turn_ms) for turn_ms in batch.of_origin(origin.moments)]
        own = None if origin.sources is None else batch.of_origin(origin.sources)
        if own is not None and self._has_renamed:
            # A source that reaches the node by two paths has a name for each (`source_names`): it
            # may be at 10:05 on one path while a join on the other path still holds it at 10:00.
            name_of = self._names[origin.feed]
            own = [name_of[source] for source in own]
        return own, batch.of_origin(origin.times)

    def common(self, batch: Batch) -> Source:
        """Return the source of all records, where `of` returns None for the sources."""
        if self._joined is not None:
            return self._own
        feed = batch.origin.feed
        return self._names[feed].get(feed.source, feed.source)

    def settle(self) -> None:
        """Update the times of the sources after all available records, and mark idle ones."""
        if self._joined is not None:
            self.stream.advance(self._own, self._joined.settle())
            return
        stream, idle_after_ms = self.stream, self._idle_after_ms
        for feed in self._feeds:
            name_of = self._names[feed]
            for own_name, time_ms, quiet_ms in feed.source_times():
                source = name_of[own_name]
                idle = idle_after_ms is not None and quiet_ms >= idle_after_ms
                if idle and stream.is_idle(source) and time_ms <= stream.time_of(source):
                    # Still idle, and not further: to advance it and to set it idle again would scan
                    # all sources twice, for an equal result.
                    continue
                if time_ms > UNKNOWN_MS:
                    stream.advance(source, time_ms)
                if idle:
                    stream.set_idle(source)


class LateRecords:
    """A node's late records: written to a topic as `Late`, given to a function, or counted."""

    def __init__(
        self, node: str, to: TopicSpec | Callable[[AnyRecord], object] | None, collector: Collector
    ) -> None:
        self._node = node
        self._to = to
        self._collector = collector
        self.count = 0
        """The number of late records."""

    def leave_out(self, batch: Batch, at: int, *, end_ms: int, late_by_ms: int) -> None:
        """Drop the record at this index of the batch.

        Args:
            batch: the batch of the record.
            at: its index.
            end_ms: the end of its window.
            late_by_ms: how far the time of its source had passed the window's closing.
        """
        to = self._to
        self.count += 1
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


class WindowedStep(Step):
    """One result per key and window."""

    section: ClassVar[str] = "windows"

    def __init__(
        self,
        node: WindowedAggregate | RecordWindowsAggregate,
        context: StepContext,
        *,
        close_delay_ms: int,
    ) -> None:
        """A window closes when stream time has passed its end by `close_delay_ms`."""
        super().__init__(node.name)
        self._node = node
        self._close_delay_ms = close_delay_ms
        self._sends_old_values = context.sends_old_values
        self.feed = TimeSource((node.name, context.partition))
        """The time source of rows that belong to no record: on close, and at commits."""
        self.node_time = NodeTime(context.feeds)
        self._feeds = self.node_time.feeds
        self._store = context.store
        self._prefix = node.store.prefix
        self._collector = context.collector
        self._aggregation = guard_state(node)
        self._format = RowFormat(node.name, node.aggregation)
        # For how long rows stay after their window has closed.
        windows = node.windows
        self._kept_ms = windows.retention_ms - windows.size_ms - windows.grace_ms
        self._late = LateRecords(node.name, node.late, context.collector)
        self._time = WindowTime(
            self._feeds,
            own=self.feed.source,
            united=node.united,
            idle_after_ms=node.idle_after_ms,
        )
        self._stream = self._time.stream
        self._early: EarlyResults | None = None
        self._closed_ms = UNKNOWN_MS
        """Windows that end at this time or before are closed."""
        self._sequence = 0
        """The number of the next row on close."""

    @abstractmethod
    def fold_records(self, batch: Batch, raws: Sequence[bytes], results: ResultColumns) -> None:
        """Add records, with these keys, to windows, and close the windows that they close.

        `results` receives what is forwarded on update.
        """

    @abstractmethod
    def next_due_ms(self) -> int:
        """Return the end of a window before which none closes or expires; FAR_MS: there is none."""

    @abstractmethod
    def first_time_ms(self, end_ms: int) -> int:
        """Return the smallest time of a result whose window ends at `end_ms` or later."""

    @abstractmethod
    def end_intervals(self, wall_ms: int | None) -> bool:
        """Close windows and end intervals that stream time, or the wall clock, has passed.

        Returns whether an interval has ended.
        """

    @property
    def late_records(self) -> int:
        """The number of records that came after their window had closed."""
        return self._late.count

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
        results = ResultColumns()
        self._format.note(batch, raws)
        self.fold_records(batch, raws, results)
        if results.count:
            self._forward(batch.origin, results.rows_of(batch.rows), results)

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when the next window closes, or early rows are due, if rows are forwarded then."""
        due_ms = self.next_due_ms()
        if not self._node.emit.is_final or due_ms == FAR_MS:
            return ()
        # Windows of 10 min, grace 1 min; the window from 10:00 to 10:10 is open.
        # 1. It closes at 10:11: if its inputs are quiet, the runner has the log write a time mark
        #    once they have been quiet for as long as they are behind 10:11 (decision 008).
        # 2. Early rows wait for the end of an interval at 10:05: that comes first.
        due_ms += self._close_delay_ms
        if self._early is not None:
            due_ms = min(due_ms, self._early.due_ms)
        return [(feed, due_ms) for feed in self._feeds]

    def ends_at(self, due_ms: int) -> int:
        """Return the end of the window that closes at this stream time: the delay earlier."""
        return due_ms - self._close_delay_ms

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return when every window that begins before `time_ms` is closed."""
        # A step below waits for 10:20. Rows have the times of their windows' starts, so all windows
        # that begin before 10:20 have to close: with windows of 10 min, the last of them ends just
        # before 10:30, and the inputs have to reach 10:30 plus the delay.
        closed_ms = time_ms + self._node.windows.size_ms + self._close_delay_ms
        return [(feed, closed_ms) for feed in self._feeds]

    def settle(self, now_ms: int | None) -> bool:
        """Let time, idle sources and intervals take effect after all available records were taken.

        Returns whether the end of an interval has forwarded rows.
        """
        self._time.settle()
        if self._early is not None:
            self._early.settle()
        self._update_own_sources()
        return self.end_intervals(now_ms)

    def table(self) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over the rows that are kept, by (end, start, key)."""
        self.flush()
        for key, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            end_ms, start_ms, raw = split_window_key(key[len(self._prefix) :])
            windowed = Windowed(self._node.key.loads(raw), moment(start_ms), moment(end_ms))
            yield windowed, self._aggregation.result(self._format.loads(data).state)

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the rows."""
        data: dict[str, object] = {"stream": self._stream.to_data(), "sequence": self._sequence}
        return data if self._early is None else {**data, "early": self._early.to_data()}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; the rows are in the store."""
        self._stream.load(data["stream"])
        self._sequence = int(data["sequence"])
        if self._early is not None and "early" in data:
            self._early.load(data["early"])
        self._closed_ms = self._limit_ms(self._now_ms)
        self._set_time()

    @property
    def _now_ms(self) -> int:
        """The time by which windows close."""
        return self._stream.now_ms

    def _limit_ms(self, now_ms: int) -> int:
        """Return the time up to which windows that end by it are closed for good."""
        return now_ms - self._close_delay_ms

    def _set_time(self) -> None:
        """Set the time that no later row precedes: later rows belong to windows that are open."""
        # Windows of 10 min, no grace; stream time is 10:25, so 10:10 to 10:20 is closed. The next
        # row is that of 10:20 to 10:30, so steps below may go to 10:20. At 10:25, they would close
        # windows that this row still belongs to.
        if self._closed_ms >= 0:
            for own in self.own_time_sources:
                own.time_ms = self.first_time_ms(self._closed_ms + 1)

    def _update_own_sources(self) -> None:
        for own in self.own_time_sources:
            own.update_end(self._feeds, is_holding=self.has_waiting)

    def _forward_final(self, results: ResultColumns, times: Sequence[int]) -> None:
        """Forward the rows of windows that have closed; `times` are those of their source."""
        # The numbers are offsets for tasks downstream, which drop repetitions by them.
        # 1. A commit stores that the next number is 7. Rows 7 and 8 are sent, then the task
        #    crashes.
        # 2. The restarted task closes the same windows in the same order, and sends 7 and 8 again:
        #    with `at_least_once`, too, the task behind a repartition topic counts them once.
        first, self._sequence = self._sequence, self._sequence + results.count
        self._forward_own(self.feed, range(first, self._sequence), times, results)

    def _forward_own(
        self,
        feed: TimeSource,
        numbers: Sequence[int],
        times: Sequence[int],
        results: ResultColumns,
    ) -> None:
        """Forward rows that belong to no record, with numbers for offsets."""
        origin = BatchOrigin.of_rows(feed, numbers, times)
        self._forward(origin, range(results.count), results)

    def _forward(self, origin: BatchOrigin, rows: Sequence[int], results: ResultColumns) -> None:
        keys = WindowedKeys(self._node.key, results.raws, results.windows)
        batch = Batch(origin, rows, keys, results.values, results.timestamps)
        batch.keys_are_raw = batch.values_are_raw = False
        if self._sends_old_values:
            batch.old_values = results.old_values or [None] * results.count
        self.forward(batch)
