"""StreamJoinStep: pairs of records of two streams with equal keys and near timestamps.

A record is paired with the kept records of the other side, by (timestamp, arrival), and kept for
later ones. `JoinTime` is the stream time of a join: the largest timestamp that has reached it on
any side, as in Kafka Streams; it never goes back, and waits for sources with a time of their own
(windows on close, results of calls). Rules of the module, which are those of Kafka Streams
(KIP-633, KAFKA-10847):

1. A pair belongs to the record that arrived last, and has the later timestamp of both.
2. In left and outer joins a record without a partner is emitted alone, once, when stream time has
   passed its window and grace: with a time source of its own, numbered in the order in which
   windows close. That comes before the pairs of the record that advanced the time, and never after
   a pair.
3. A record after its window and grace is still paired with what is kept. If there is nothing, it is
   emitted alone immediately, or counted as late where its side needs a partner. What is kept, and
   for how long, depends on stream time alone.
4. A pair has the headers that both records have, whichever arrived last; a record that is emitted
   alone has its own.
5. A record without a value is dropped. So is a record without a key, unless it may be emitted
   alone, which happens immediately (KIP-962).

Not done here: the records of one side (`join_buffer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import cast

from streamlog.metrics.tracing import context_of, with_context
from streamlog.nodes.stream_nodes import JoinSide, StreamJoin
from streamlog.processing.async_map import AsyncTimeSource
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource, deserialize_column
from streamlog.processing.inputs.record_queue import Input
from streamlog.processing.joins.join_buffer import (
    DueRow,
    DueRows,
    JoinBuffer,
    JoinEntry,
    agreed_headers,
    due_row_key,
)
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.node_time import NodeTimeSource
from streamlog.processing.outbox import Collector
from streamlog.processing.set_timestamp import SetTimestampSource
from streamlog.processing.step import Step
from streamlog.record import Headers
from streamlog.records.record_columns import has_none
from streamlog.serdes.erased_types import JsonValue, UserValue
from streamlog.tables.stores.store import KeyValueStore, NamedStore
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS
from streamlog.windows.join_windows import JoinWindow


class JoinTime:
    """The stream time of a join."""

    def __init__(self, feeds: Sequence[TimeSource]) -> None:
        inputs = (Input, NodeTimeSource)
        self._inputs = [feed for feed in feeds if isinstance(feed, inputs)]
        self._own: dict[TimeSource, int] = {
            feed: UNKNOWN_MS for feed in feeds if not isinstance(feed, inputs)
        }
        self._reached_ms = UNKNOWN_MS
        self.now_ms = UNKNOWN_MS

    def reach(self, feed: TimeSource, turn_ms: int) -> int:
        """Advance to a record of this time source at one of its `moments`; returns the time."""
        if not self._own:
            if turn_ms > self.now_ms:
                self._reached_ms = self.now_ms = turn_ms
            return self.now_ms
        for each, time_ms in self._own.items():
            # A time source may be ahead of the current row, but not of the rows of others.
            self._own[each] = max(time_ms, turn_ms if each is feed else each.time_ms)
        if feed not in self._own:
            self._reached_ms = max(self._reached_ms, turn_ms)
        return self._advance(self._own.values())

    def settle(self) -> int:
        """Advance, after all available records, to the time that later records can't precede."""
        times = {feed: feed.united_ms for feed in self._inputs}
        behind = [ms for feed, ms in times.items() if not feed.at_end]
        self._reached_ms = max(self._reached_ms, min(behind or [max(times.values(), default=-1)]))
        for feed in self._own:
            self._own[feed] = max(self._own[feed], feed.time_ms)
        # A source that passes on its records' times, or that has no open calls, holds back no more
        # than an input at its end does.
        prompt = (AsyncTimeSource, SetTimestampSource)
        done = {feed for feed in self._own if isinstance(feed, prompt) and feed.at_end}
        return self._advance([ms for feed, ms in self._own.items() if feed not in done])

    def _advance(self, own: Iterable[int]) -> int:
        # Sources with times of their own lag behind the records that their rows are made of.
        self.now_ms = max(self.now_ms, min(own, default=self._reached_ms))
        return self.now_ms


UNMATCHED_ROWS_MAX = 10_000
"""The most unmatched records that are forwarded in one batch."""


class JoinSideStep(Step):
    """The entry of one side, and its buffer."""

    def __init__(self, node: JoinSide, store: KeyValueStore) -> None:
        super().__init__(node.name)
        self.node = node
        self.buffer = JoinBuffer(NamedStore(store, node.store), node.value, keep_ms=node.keep_ms)

    def process(self, batch: Batch) -> None:
        """Pass the records to the join as those of this side."""
        for child in self.children:
            join = cast("StreamJoinStep", child)
            self.hand_over(join, len(batch), partial(join.take, self, batch))


class JoinedPairs:
    """Results of the current records, as columns that are being filled."""

    __slots__ = ("_is_left", "_own", "_partners", "ats", "headers", "lefts", "rights", "timestamps")

    def __init__(self, *, is_left: bool) -> None:
        """`is_left`: the current records are those of the left side."""
        self.ats: list[int] = []
        self.lefts: list[UserValue] = []
        self.rights: list[UserValue] = []
        self.timestamps: list[int] = []
        self.headers: list[Headers] = []
        self._is_left = is_left
        self._own = self.lefts if is_left else self.rights
        self._partners = self.rights if is_left else self.lefts

    def add_pair(
        self, at: int, value: UserValue, headers: Headers, timestamp_ms: int, partner: JoinEntry
    ) -> None:
        """Add the pair of the record at this index of its batch, with these headers, and a partner.

        Its headers do not depend on which of both came last, but for those of a trace, which say
        what caused the pair.
        """
        partner_ms, _, partner_value, others = partner
        kept = headers
        if headers and headers != others:
            kept = (
                agreed_headers(headers, others)
                if self._is_left
                else agreed_headers(others, headers)
            )
            if (context := context_of(headers)) is not None:
                kept = with_context(kept, context)
        self._add(at, value, partner_value, kept, max(timestamp_ms, partner_ms))

    def add_alone(self, at: int, value: UserValue, headers: Headers, timestamp_ms: int) -> None:
        """Add the record at this index of its batch without a partner."""
        self._add(at, value, None, headers, timestamp_ms)

    def _add(
        self, at: int, value: UserValue, partner: UserValue, headers: Headers, timestamp_ms: int
    ) -> None:
        self.ats.append(at)
        self._own.append(value)
        self._partners.append(partner)
        self.headers.append(headers)
        self.timestamps.append(timestamp_ms)


class StreamJoinStep(Step):
    """The join of two sides."""

    section = "joins"

    def __init__(
        self,
        node: StreamJoin,
        sides: Sequence[JoinSideStep],
        store: KeyValueStore,
        collector: Collector,
        *,
        feeds: Sequence[TimeSource],
        partition: int,
        one_by_one: bool = False,
    ) -> None:
        """`one_by_one`: unmatched records are forwarded one at a time, as the task's are."""
        super().__init__(node.name)
        self._node = node
        self._alone_rows = 1 if one_by_one else UNMATCHED_ROWS_MAX
        self._window = node.window
        self._left, self._right = sides
        self._collector = collector
        self.node_time = NodeTime(feeds)
        self._feeds = self.node_time.feeds
        self.feed = TimeSource((node.name, partition))
        """The time source of unmatched records."""
        self._time = JoinTime(self._feeds)
        self._number = 0
        """Of the next record to keep."""
        self._sequence = 0
        """Of the next unmatched record to forward."""
        spec = node.unmatched
        self._unmatched = None if spec is None else DueRows(NamedStore(store, spec))
        reaches = [self._window.reach_ms(left=s.node.is_left) for s in sides if self._is_outer(s)]
        self._gate_ms = FAR_MS
        """Up to this time, no window closes and no record expires."""
        self._held_ms = max(max(reaches, default=0) + self._window.grace_ms, 0)
        """The longest time between an unmatched record's timestamp and the time of its emission."""

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time source of unmatched records."""
        return () if self._unmatched is None else (self.feed,)

    def take(self, side: JoinSideStep, batch: Batch) -> None:
        """Join the records of one side with what is kept of the other."""
        batch, raws, datas = self._serialize_joinable(side, batch)
        batch = self.node_time.of(batch)
        pairs = JoinedPairs(is_left=side.node.is_left)
        origin = batch.origin
        moments, timestamps = batch.of_origin(origin.moments), batch.timestamps
        for at, (raw, data) in enumerate(zip(raws, datas, strict=True)):
            now_ms = self._time.reach(origin.feed, moments[at])
            if now_ms > self._gate_ms:
                self._forward_pairs(batch, pairs)
                pairs = JoinedPairs(is_left=side.node.is_left)
                self._close(now_ms)
            if raw is None:
                pairs.add_alone(at, batch.values[at], _headers(batch, at), timestamps[at])
            else:
                self._match(side, batch, at, (raw, data), pairs)
        # Steps below see the time as of the last record, however marks arrived between records.
        self._set_time()
        self._forward_pairs(batch, pairs)

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when the next unmatched record is due."""
        next_ms = None if self._unmatched is None else self._unmatched.next_ms
        return () if next_ms is None else [(feed, next_ms + 1) for feed in self._feeds]

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return the times above that are later by as long as an unmatched record may wait."""
        return [(feed, time_ms + self._held_ms) for feed in self._feeds]

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """Emit the unmatched records whose windows have closed, after all available records."""
        before = self._sequence
        time_ms = self._time.settle()
        if time_ms > self._gate_ms:
            self._close(time_ms)
        self.feed.update_end(self._feeds)
        self._set_time()
        return self._sequence > before

    def flush(self) -> None:
        """Write new records into the stores."""
        self._left.buffer.flush()
        self._right.buffer.flush()
        if self._unmatched is not None:
            self._unmatched.flush()

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the records."""
        window = self._window
        return {
            "now_ms": self._time.now_ms,
            "time_ms": self.feed.time_ms,
            "number": self._number,
            "sequence": self._sequence,
            "window": [window.before_ms, window.after_ms, window.grace_ms],
            "bucket_ms": self._left.buffer.bucket_ms,
        }

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; the records are in the stores."""
        self._time.now_ms = int(data["now_ms"])
        self.feed.time_ms = int(data["time_ms"])
        self._number = int(data["number"])
        self._sequence = int(data["sequence"])
        for side in (self._left, self._right):
            side.buffer.load(int(data["bucket_ms"]))
        if self._unmatched is not None:
            before_ms, after_ms, grace_ms = data["window"]
            window = JoinWindow(before_ms=before_ms, after_ms=after_ms, grace_ms=grace_ms)
            if window != self._window:
                self._unmatched.rewrite(self._new_key_of(window))
            self._unmatched.load()
        self._set_gate()

    def _is_outer(self, side: JoinSideStep) -> bool:
        """Return whether the side's records may be emitted alone."""
        return self._node.how == "outer" or (self._node.how == "left" and side.node.is_left)

    def _serialize_joinable(
        self, side: JoinSideStep, batch: Batch
    ) -> tuple[Batch, Sequence[bytes | None], Sequence[bytes | None]]:
        """Return the records that can be joined or emitted alone, with keys and values as bytes."""
        if has_none(batch.values) or (batch.has_null_keys and not self._is_outer(side)):
            takes_keyless = self._is_outer(side)
            kept = [
                value is not None and (key is not None or takes_keyless)
                for key, value in zip(batch.keys, batch.values, strict=True)
            ]
            empty = sum(value is None for value in batch.values)
            self._collector.drop(self.name, "null value", empty)
            self._collector.drop(self.name, "null key", kept.count(False) - empty)
            batch = batch.where(kept)
        return self.serialize_with(batch, side.node.key, side.node.value)

    def _match(
        self,
        side: JoinSideStep,
        batch: Batch,
        at: int,
        raw: tuple[bytes, bytes | None],
        pairs: JoinedPairs,
    ) -> None:
        """Pair a record with what is kept of the other side, and keep it."""
        key, data = raw
        is_left, window = side.node.is_left, self._window
        other = self._right if is_left else self._left
        timestamp_ms, value, now_ms = batch.timestamps[at], batch.values[at], self._time.now_ms
        first_ms = timestamp_ms - window.reach_ms(left=not is_left)
        last_ms = timestamp_ms + window.reach_ms(left=is_left)
        found = other.buffer.find(key, max(first_ms, now_ms - window.keep_ms), last_ms)
        # A left join within 5 s, no grace. Stream time is 10:00:20.
        # 1. A left record at 10:00:18 has no partner: its window closes at 10:00:23, until then it
        #    waits among the unmatched.
        # 2. A right record at 10:00:20 arrives: they are a pair, and the left one no longer waits.
        #    It stays in its buffer, because further right records may match it.
        # 3. A left record at 10:00:10 arrives late and has no partner: its window closed at
        #    10:00:15, so it is emitted alone immediately.
        # 4. A left record at 10:00:10 has a partner that is still kept: they are a pair.
        other_is_outer = self._is_outer(other)
        headers = _headers(batch, at)
        for partner in found:
            pairs.add_pair(at, value, headers, timestamp_ms, partner)
            partner_ms, number = partner[:2]
            if other_is_outer and self._unmatched is not None:
                closes_ms = window.closes_ms(partner_ms, left=not is_left)
                self._unmatched.discard(due_row_key(closes_ms, not is_left, key, number))
        number, self._number = self._number, self._number + 1
        if not found:
            closes_ms = window.closes_ms(timestamp_ms, left=is_left)
            if self._unmatched is None or not self._is_outer(side):
                # Its partner may have been here, and is gone: that is worth a line in the log.
                if closes_ms < now_ms:
                    self._collector.drop(self.name, "late", late_by_ms=now_ms - closes_ms)
            elif closes_ms < now_ms:
                pairs.add_alone(at, value, headers, timestamp_ms)
            else:
                row_key = due_row_key(closes_ms, is_left, key, number)
                self._unmatched.add(row_key, data or b"", headers)
                self._gate_ms = min(self._gate_ms, closes_ms)
        if timestamp_ms + window.keep_ms >= now_ms:
            side.buffer.add(key, (timestamp_ms, number, value, headers), data or b"")
            self._gate_ms = min(self._gate_ms, side.buffer.over_ms)

    def _forward_pairs(self, batch: Batch, pairs: JoinedPairs) -> None:
        if not pairs.ats:
            return
        made = Batch(
            batch.origin,
            [batch.rows[at] for at in pairs.ats],
            [batch.keys[at] for at in pairs.ats],
            [batch.values[at] for at in pairs.ats],
            pairs.timestamps,
        )
        made.keys_are_raw = batch.keys_are_raw
        made.values_are_raw = batch.values_are_raw
        fn, sides = self._node.fn, (pairs.lefts, pairs.rights)
        if batch.origin.headers is None:
            made, joined = self.apply_function(made, fn, *sides)
            self.forward(made.with_values(joined))
            return

        def join(left: UserValue, right: UserValue, headers: Headers) -> tuple[UserValue, Headers]:
            return fn(left, right), headers

        # Set behind the function: the dead letter of a record has its headers as they were read.
        made, found = self.apply_function(made, join, *sides, pairs.headers)
        made = made.with_values([value for value, _ in found])
        self.forward(made.with_headers([headers for _, headers in found]))

    def _set_gate(self) -> None:
        next_ms = None if self._unmatched is None else self._unmatched.next_ms
        over_ms = min(self._left.buffer.over_ms, self._right.buffer.over_ms)
        self._gate_ms = over_ms if next_ms is None else min(over_ms, next_ms)

    def _close(self, now_ms: int) -> None:
        """Emit unmatched records whose windows have closed, and remove expired ones."""
        if self._unmatched is not None:
            # After a change from an outer to a left join, stored rows of the right side remain:
            # they may no longer be emitted alone.
            due = (row for row in self._unmatched.due(now_ms) if self._is_outer(self._side(row)))
            while rows := list(islice(due, self._alone_rows)):
                self._forward_unmatched(rows)
        self._left.buffer.expire(now_ms)
        self._right.buffer.expire(now_ms)
        self._set_gate()

    def _forward_unmatched(self, rows: Sequence[DueRow]) -> None:
        window, node = self._window, self._node
        first, self._sequence = self._sequence, self._sequence + len(rows)
        times = [row.due_ms - self._held_ms for row in rows]
        numbers = range(first, self._sequence)
        right, left = node.values[::-1]
        values = [(left if row.rank else right).loads(row.value) for row in rows]
        origin = BatchOrigin.of_rows(
            self.feed,
            numbers,
            times,
            raw_keys=[row.key for row in rows],
            raw_values=[row.value for row in rows],
            headers=[row.headers for row in rows],
        )
        batch = Batch(
            origin,
            range(len(rows)),
            deserialize_column(node.key, [row.key for row in rows]),
            values,
            [row.due_ms - window.closes_ms(0, left=bool(row.rank)) for row in rows],
        )
        batch.keys_are_raw = batch.values_are_raw = False
        lefts = [value if row.rank else None for row, value in zip(rows, values, strict=True)]
        rights = [None if row.rank else value for row, value in zip(rows, values, strict=True)]
        batch, joined = self.apply_function(batch, node.fn, lefts, rights)
        self.forward(batch.with_values(joined))

    def _side(self, row: DueRow) -> JoinSideStep:
        return self._left if row.rank else self._right

    def _set_time(self) -> None:
        """Set the time that no later unmatched record precedes."""
        if self._time.now_ms > UNKNOWN_MS:
            self.feed.time_ms = max(self.feed.time_ms, self._time.now_ms - self._held_ms)

    def _new_key_of(self, before: JoinWindow) -> Callable[[DueRow], bytes]:
        """Return a function that returns a row's key for the current window."""

        def key_of(row: DueRow) -> bytes:
            timestamp_ms = row.due_ms - before.closes_ms(0, left=bool(row.rank))
            closes_ms = self._window.closes_ms(timestamp_ms, left=bool(row.rank))
            return due_row_key(closes_ms, row.rank, row.key, row.number)

        return key_of


def _headers(batch: Batch, at: int) -> Headers:
    headers = batch.origin.headers
    return () if headers is None else headers[batch.rows[at]]
