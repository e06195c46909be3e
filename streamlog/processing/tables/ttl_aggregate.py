"""Aggregations without windows: rows that expire, and changes that wait for a commit.

`TtlAggregateStep` deletes a row when stream time is its time to live past its newest record, before
it folds the record that advances time there, so nothing depends on batches. `AtCommitsStep`
forwards the newest change of each row when a commit is made. Rule of the file: each row has one
entry in the expiry queue, at or before the time at which the row expires; an entry that comes too
early is moved, so a row costs one write for each time to live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from streamlog.nodes.table_nodes import AtCommits, ExpiringAggregate
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.node_time import InputClock
from streamlog.processing.step import Step, StepContext, without_void_deletions
from streamlog.processing.tables.aggregate import AggregateStep, without_nulls
from streamlog.serdes.erased_types import JsonValue, UserValue
from streamlog.tables.folds.folding import Row
from streamlog.tables.stores.store import NamedStore
from streamlog.tables.stores.ttl_queue import TtlQueue
from streamlog.windows.emit import UNKNOWN_MS


class TtlAggregateStep(AggregateStep):
    """One running result per key, which expires when no more records of the key come."""

    section = "expiring"

    def __init__(self, node: ExpiringAggregate, context: StepContext) -> None:
        super().__init__(
            node, context.store, context.collector, sends_old_values=context.sends_old_values
        )
        self.feed = TimeSource((node.name, context.partition))
        """The time source of deletions."""
        self._ttl_ms = node.ttl_ms
        self.node_time = NodeTime(context.feeds)
        self._feeds = self.node_time.feeds
        self._clock = InputClock(self._feeds, None)
        self._ttl_queue = TtlQueue()
        self._due_rows = NamedStore(context.store, node.dues)
        self._next = 0

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time source of deletions."""
        return (self.feed,)

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when the next row may expire."""
        due_ms = self._ttl_queue.next_ms(self._due_rows)
        return () if due_ms is None else [(feed, due_ms) for feed in self._feeds]

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return the times above: they equal the time here."""
        return [(feed, time_ms) for feed in self._feeds]

    def process(self, batch: Batch) -> None:
        """Fold each record, after deleting the rows that have expired by its time."""
        batch, raws = without_nulls(self, batch, self._key, self._collector)
        batch = self.node_time.of(batch)
        first = 0
        for at, raw in enumerate(raws):
            self._clock.move_before(batch.origin, batch.rows[at])
            now_ms = self._clock.now_ms
            # The time to live is 1 h; with this record, the time is 11:30.
            # 1. A row of 10:20 has expired at 11:20: its deletion goes before this record. The
            #    records of the batch so far are folded and forwarded before it.
            # 2. This record is at 10:15 and its key has a row (of 11:00): folded into it.
            # 3. This record is at 10:15 and its key has no row: a new row would expire at once, so
            #    the record is dropped as late.
            is_late = batch.timestamps[at] + self._ttl_ms <= now_ms
            if is_late or self._ttl_queue.may_be_due(now_ms):
                super().process(_slice(batch, first, at))
                first = at
                self._expire()
            if is_late and self.lookup(raw) is None:
                late_by_ms = now_ms - self._ttl_ms - batch.timestamps[at]
                self._collector.drop(self.name, "late", late_by_ms=late_by_ms)
                first = at + 1
        super().process(_slice(batch, first, len(raws)))

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """Delete the rows that have expired; returns whether there were any."""
        self._clock.settle()
        has_expired = self._expire()
        self.feed.time_ms = max(self.feed.time_ms, self._clock.now_ms)
        self.feed.update_end(self._feeds)
        return has_expired

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the rows."""
        return {"clock": self._clock.to_data(), "next": self._next}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        self._clock.load(data["clock"])
        self._next = int(data["next"])
        self.feed.time_ms = self._clock.now_ms

    def _fold(self, raw: bytes, value: object, timestamp_ms: int) -> tuple[UserValue, int]:
        is_new = raw not in self._rows and self._store.get(self._prefix + raw) is None
        folded = super()._fold(raw, value, timestamp_ms)
        if is_new:
            self._ttl_queue.move(self._due_rows, raw, None, folded[1] + self._ttl_ms)
        return folded

    def _expire(self) -> bool:
        """Delete the rows that have expired; returns whether there were any."""
        now_ms = self._clock.now_ms
        gone: list[tuple[bytes, int, object]] = []
        while due := self._ttl_queue.take(self._due_rows, now_ms):
            for raw in due:
                row = self._row(raw)
                if row.state is None:
                    self._forget(raw)  # The aggregation has deleted the row before.
                    continue
                # The time to live is 1 h. A row of 10:00 has its entry at 11:00.
                # 1. A record at 10:40 writes the row, not the entry: at 11:00, the entry moves to
                #    11:40, the row's new end. One write per hour, not one per record.
                # 2. No record came: at 11:00 the row is deleted, with 11:00 as its timestamp.
                over_ms = row.timestamp_ms + self._ttl_ms
                if over_ms > now_ms:
                    self._ttl_queue.move(self._due_rows, raw, None, over_ms)
                    continue
                gone.append((raw, over_ms, self._aggregation.result(row.state)))
                self._forget(raw)
        if gone:
            self._forward_deletions(sorted(gone, key=lambda each: each[1]))
        return bool(gone)

    def _forward_deletions(self, gone: Sequence[tuple[bytes, int, object]]) -> None:
        raws, times, olds = zip(*gone, strict=True)
        numbers = range(self._next, self._next + len(gone))
        self._next = numbers.stop
        watermarks = [max(self.feed.time_ms, time_ms) for time_ms in times]
        keys = [self._key.loads(raw) for raw in raws]
        batch = Batch(
            BatchOrigin.of_rows(self.feed, numbers, watermarks),
            range(len(gone)),
            keys,
            [None] * len(gone),
            times,
        )
        batch.keys_are_raw = batch.values_are_raw = False
        if self._sends_old_values:
            batch.old_values = olds
        self.forward(batch)

    def _row(self, raw: bytes) -> Row:
        row = self._rows.get(raw)
        if row is None:
            data = self._store.get(self._prefix + raw)
            row = Row(None, UNKNOWN_MS, raw) if data is None else self._format.loads(data, raw)
        return row

    def _forget(self, raw: bytes) -> None:
        row = self._rows.pop(raw, None)
        if row is not None and row.dirty:
            self._dirty = [each for each in self._dirty if each is not row]
        self._store.delete(self._prefix + raw)


class _Waiting(NamedTuple):
    """The newest change of a row."""

    number: int
    key: object
    value: object
    old: object
    """The value that the first change since the last commit replaced."""
    timestamp_ms: int
    time_ms: int


class AtCommitsStep(Step):
    """Holds changes until a commit."""

    section = "at commits"

    def __init__(self, node: AtCommits, context: StepContext) -> None:
        super().__init__(node.name)
        self.feed = TimeSource((node.name, context.partition))
        """The time source of the changes that commits forward."""
        self._key = node.key
        self.node_time = NodeTime(context.feeds)
        self._feeds = self.node_time.feeds
        self._knows_old_values = node.deletes or context.sends_old_values
        self._clock = InputClock(self._feeds, None)
        self._waiting: dict[bytes | None, _Waiting] = {}
        self._number = 0
        self._time_ms = UNKNOWN_MS

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time source of the changes that commits forward."""
        return (self.feed,)

    @property
    def has_waiting(self) -> bool:
        """Whether a row has changed since the last commit."""
        return bool(self._waiting)

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return the times above: they equal the time here, apart from waiting changes."""
        return [(feed, time_ms) for feed in self._feeds]

    def process(self, batch: Batch) -> None:
        """Keep the newest change of each row."""
        batch = self.node_time.of(batch)
        waiting, origin = self._waiting, batch.origin
        olds = batch.old_values or [None] * len(batch)
        columns = (batch.rows, batch.raw_keys(self._key, self.name), batch.keys, batch.values)
        for row, raw, key, value, old, timestamp_ms in zip(
            *columns, olds, batch.timestamps, strict=True
        ):
            self._number += 1
            self._time_ms = max(self._time_ms, origin.watermarks[row])
            # Changes 5 to 6 and 6 to 8 of one row between two commits: one change is forwarded,
            # from 5 to 8. `pop` moves the row to the end, the place of its last change.
            before = waiting.pop(raw, None)
            waiting[raw] = _Waiting(
                self._number,
                key,
                value,
                old if before is None else before.old,
                timestamp_ms,
                self._time_ms,
            )

    def emit(self) -> None:
        """Forward the changes since the last commit, in the order of each row's last change."""
        rows, self._waiting = [*self._waiting.values()], {}
        if not rows:
            return
        numbers, keys, values, olds, timestamps, times = zip(*rows, strict=True)
        origin = BatchOrigin.of_rows(self.feed, numbers, times)
        batch = Batch(origin, range(len(rows)), keys, values, timestamps)
        batch.keys_are_raw = batch.values_are_raw = False
        if self._knows_old_values:
            batch.old_values = olds
        self.forward(without_void_deletions(batch))

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """Advance the time, unless changes wait, after all available records were taken."""
        self._clock.settle()
        waits = self.has_waiting
        # A waiting change of 10:00 is forwarded at the commit. Until then, steps below must not
        # pass 10:00, and time marks must not say that nothing comes any more.
        if not waits:
            self.feed.time_ms = max(self.feed.time_ms, self._time_ms, self._clock.now_ms)
        self.feed.update_end(self._feeds, is_holding=waits)
        return False

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs."""
        return {"clock": self._clock.to_data(), "number": self._number, "time_ms": self._time_ms}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        self._clock.load(data["clock"])
        self._number, self._time_ms = int(data["number"]), int(data["time_ms"])
        self.feed.time_ms = max(self._time_ms, self._clock.now_ms)


def _slice(batch: Batch, first: int, until: int) -> Batch:
    """Return the records from index `first` up to but not including `until`."""
    if first == 0 and until == len(batch):
        return batch
    return batch.where([first <= at < until for at in range(len(batch))])
