"""Changes of tables that are held back: until windows close, for a time, or up to a limit of rows.

What is held back is in memory, and in the store as of the last commit. Rules of the file, which are
those of Kafka Streams (KIP-328):

1. Time is the largest timestamp of the changes so far, but no later than the stream time of all
   sources above them. For final rows, time marks of the log and idle sources (`idle_after`) count
   as well. Records of which no change was made never count, nor does the mere absence of records.
2. A change replaces the held change of its row, and keeps its position in the queue.
3. Windowed rows are forwarded by (window's end, start, key), others by (timestamp of the first
   change, key).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from streamlog.durations import when_ms
from streamlog.errors import CorruptData, ProcessingError, SerdeError
from streamlog.nodes.table_nodes import Suppress, SuppressUntilClosed, SuppressWithin
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource, processing_error
from streamlog.processing.inputs.record_queue import Input
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.node_time import NodeTimeSource
from streamlog.processing.outbox import Collector
from streamlog.processing.step import Step
from streamlog.record import Windowed
from streamlog.serdes.erased_types import JsonValue, UserKey, UserValue
from streamlog.tables.stores.store import Change, KeyValueStore, prefix_end
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """A held change, as it is in the store under its key."""

    turn: tuple[int, int]
    timestamp_ms: int
    value: bytes | None
    old_value: bytes | None
    is_new: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


class SuppressedRow:
    """A held change."""

    __slots__ = ("is_new", "key", "old_value", "raw", "source", "timestamp_ms", "turn", "value")

    def __init__(self, raw: bytes, key: object, turn: tuple[int, int]) -> None:
        self.raw = raw
        self.key = key
        self.turn = turn
        """The order in the queue, together with the key."""
        self.timestamp_ms = UNKNOWN_MS
        self.value: UserValue = None
        self.old_value: UserValue = None
        """The last forwarded value, if a step downstream needs it."""
        self.is_new = False
        """Whether the row is known to have had no earlier value."""
        self.source: tuple[str, int, int] | None = None
        """Topic, partition and offset of the record; None after a restart."""


class SuppressStep(Step):
    """Holds back changes; subclasses decide until when."""

    section = "suppressed"

    def __init__(
        self,
        node: Suppress,
        store: KeyValueStore,
        collector: Collector,
    ) -> None:
        super().__init__(node.name)
        self._key, self._value = node.key, node.value
        self._prefix = node.store.prefix
        self._store = store
        self._collector = collector
        self._held: dict[bytes, SuppressedRow] = {}
        self._queue: list[tuple[tuple[int, int], bytes]] = []
        self._changed: set[bytes] = set()
        self._time_ms = UNKNOWN_MS

    @abstractmethod
    def _turn_of(self, key: UserKey, timestamp_ms: int) -> tuple[int, int]:
        """Return the position in the queue for a row that is not held yet."""

    def _hold(self, batch: Batch, at: int, raw: bytes) -> None:
        held = self._held.get(raw)
        if held is None:
            key = batch.keys[at]
            held = SuppressedRow(raw, key, self._turn_of(key, batch.timestamps[at]))
            if batch.old_values is not None:
                held.old_value = batch.old_values[at]
                held.is_new = held.old_value is None
            self._held[raw] = held
            insort(self._queue, (held.turn, raw))
        held.value, held.timestamp_ms = batch.values[at], batch.timestamps[at]
        origin = batch.origin
        held.source = (origin.topic, origin.partition, origin.offsets[batch.rows[at]])
        self._changed.add(raw)

    def _pass(self, batch: Batch, at: int) -> None:
        """Advance the time to that of a change."""
        watermark_ms = batch.origin.watermarks[batch.rows[at]]
        self._time_ms = max(self._time_ms, min(batch.timestamps[at], watermark_ms))

    def _serialize_keyed(self, batch: Batch) -> tuple[Batch, list[bytes]]:
        """Return the changes that have a key and can be stored, with their keys as bytes."""
        if self.failures is not None:
            # Skip them here: when they are stored, at the commit, their batch is long gone.
            batch, _ = self.serialize_values(batch, self._value)
        if batch.has_null_keys:
            kept = [key is not None for key in batch.keys]
            self._collector.drop(self.name, "null key", kept.count(False))
            batch = batch.where(kept)
        return batch, [raw or b"" for raw in batch.raw_keys(self._key, self.name)]

    def _release(self, count: int) -> list[SuppressedRow]:
        """Remove and return the first `count` rows of the queue."""
        released = [self._held.pop(raw) for _, raw in self._queue[:count]]
        del self._queue[:count]
        self._changed.update(held.raw for held in released)
        return released

    def flush(self) -> None:
        """Write the held changes that are new, and remove the others."""
        changes: list[Change] = []
        for raw in sorted(self._changed):
            held = self._held.get(raw)
            changes.append((self._prefix + raw, None if held is None else self._to_stored(held)))
        self._changed.clear()
        self._store.write(changes)

    def _to_stored(self, held: SuppressedRow) -> bytes:
        try:
            value, old_value = self._dump(held.value), self._dump(held.old_value)
        except Exception as error:  # noqa: BLE001 - a serde of the user's
            caught = error
        else:
            row = _Stored(held.turn, held.timestamp_ms, value, old_value, held.is_new)
            return _encode(row)
        reason = SerdeError(f"can't store its row of key {held.raw!r}: {caught}")
        if held.source is None:
            raise ProcessingError(f"{self.name!r}: {reason}", node=self.name) from caught
        raise processing_error(self.name, *held.source, reason) from caught

    def _dump(self, value: UserValue) -> bytes | None:
        return None if value is None else self._value.dumps(value)

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the held changes."""
        return {"time_ms": self._time_ms}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned, and the held changes from the store.

        Raises:
            CorruptData: a stored change is not readable.
        """
        self._time_ms = int(data["time_ms"])
        loads = self._value.loads
        for stored, row in self._store.range(self._prefix, prefix_end(self._prefix)):
            raw = stored[len(self._prefix) :]
            try:
                found = _decode(row)
            except msgspec.MsgspecError as error:
                raise CorruptData(f"a row of {self.name!r} is not readable: {error}") from error
            held = self._held[raw] = SuppressedRow(raw, self._key.loads(raw), found.turn)
            held.timestamp_ms, held.is_new = found.timestamp_ms, found.is_new
            held.value = None if found.value is None else loads(found.value)
            held.old_value = None if found.old_value is None else loads(found.old_value)
        self._queue = sorted((held.turn, raw) for raw, held in self._held.items())


class SuppressWithinStep(SuppressStep):
    """Holds back changes for a time, or up to a limit of rows."""

    def __init__(self, node: SuppressWithin, store: KeyValueStore, collector: Collector) -> None:
        super().__init__(node, store, collector)
        self._node = node

    def process(self, batch: Batch) -> None:
        """Hold the changes, and forward those whose time has passed or that exceed the limit."""
        batch, raws = self._serialize_keyed(batch)
        ats: list[int] = []
        going: list[SuppressedRow] = []
        for at, raw in enumerate(raws):
            self._hold(batch, at, raw)
            self._pass(batch, at)
            released = self._release(self._due())
            going += released
            ats += [at] * len(released)
        rows = [batch.rows[at] for at in ats]
        results = _batch_of(batch.origin, rows, going)
        if batch.old_values is not None:
            results.old_values = [held.old_value for held in going]
            changes = [held.value is not None or not held.is_new for held in going]
            results = results if all(changes) else results.where(changes)
        self.forward(results)

    def _turn_of(self, key: UserKey, timestamp_ms: int) -> tuple[int, int]:  # noqa: ARG002 - of those with windows
        return timestamp_ms, 0

    def _due(self) -> int:
        within_ms, records_max = self._node.within_ms, self._node.records_max
        due = 0 if records_max is None else max(len(self._queue) - records_max, 0)
        if within_ms is None:
            return due
        return max(due, _before(self._queue, self._time_ms - within_ms + 1))


class SuppressUntilClosedStep(SuppressStep):
    """Forwards each row of a windowed table once, when it is final."""

    def __init__(
        self,
        node: SuppressUntilClosed,
        store: KeyValueStore,
        collector: Collector,
        *,
        feeds: Sequence[TimeSource],
        marked_by: Sequence[Collection[Input]],
        partition: int,
        sends_old_values: bool,
    ) -> None:
        """`marked_by`: for each time source, the inputs whose time marks advance it."""
        super().__init__(node, store, collector)
        self._node = node
        self.node_time = NodeTime(feeds)
        self._feeds = self.node_time.feeds
        self._sends_old_values = sends_old_values
        self._marked_by = dict(zip(self._feeds, marked_by, strict=True))
        self._reached_ms = dict.fromkeys(self._feeds, UNKNOWN_MS)
        """The time of each source, by the changes made of its records and by time marks."""
        self._others_ms = FAR_MS
        """The smallest time of the sources other than that of the current changes."""
        self._marked_ms = {each: each.marked_ms for inputs in marked_by for each in inputs}
        """The inputs' time marks that have taken effect here."""
        self._sequence = 0
        # A session that grows backwards changes its start: order sessions by their end, so that
        # the result does not depend on when rows were released.
        self._timed_by = 0 if node.are_sessions else 1
        self.feed = TimeSource((node.name, partition))
        """The time source of final rows."""

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time source of final rows."""
        return (self.feed,)

    def process(self, batch: Batch) -> None:
        """Hold the rows, and forward those of windows that have closed."""
        batch, raws = self._serialize_keyed(batch)
        batch = self.node_time.of(batch)
        own = batch.origin.feed
        self._others_ms = FAR_MS
        if not self._node.united:
            others = (feed.time_ms for feed in self._feeds if feed is not own)
            self._others_ms = min(others, default=FAR_MS)
        for at, raw in enumerate(raws):
            if batch.values[at] is not None:
                self._hold(batch, at, raw)
            elif raw in self._held:
                self._forget(self._held[raw])
            self._pass(batch, at)
            self._close()

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when the first row is final."""
        if not self._queue:
            return ()
        (end_ms, _), _ = self._queue[0]
        return self._marks_for(end_ms + self._node.closes_after_ms)

    def ends_at(self, due_ms: int) -> int:
        """Return the end of the window whose row is final at this stream time."""
        return due_ms - self._node.closes_after_ms

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return when every row of a window that begins before `time_ms` is final."""
        return self._marks_for(time_ms + self._node.closes_after_ms + self._node.size_ms)

    def _pass(self, batch: Batch, at: int) -> None:
        """Advance the time to that of a change, limited by all other sources; see `_reached_ms`."""
        origin = batch.origin
        time_ms = min(batch.timestamps[at], origin.watermarks[batch.rows[at]])
        if time_ms > self._reached_ms.get(origin.feed, FAR_MS):
            self._reached_ms[origin.feed] = time_ms
        self._time_ms = max(self._time_ms, min(time_ms, self._others_ms))

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - event time only
        """Let time marks and idle sources take effect after all available records were taken."""
        feeds = self._feeds
        self.feed.update_end(feeds)
        # Windows of 1 min; the row of 10:00 to 10:01 waits.
        # 1. A change at 10:01:05 arrives: the row is final and was forwarded in `process`.
        # 2. Records up to 10:02 arrive, a filter above drops them: no change, so the row waits,
        #    as in Kafka Streams.
        # 3. A time mark of the log brings its input to 10:03: the row is final now.
        # 4. The source is idle for `idle_after`: its records count as well, and the row is final.
        for feed, inputs in self._marked_by.items():
            if isinstance(feed, NodeTimeSource) or feed in inputs:
                marked_ms = min(feed.marked_ms, feed.time_ms)
                self._reached_ms[feed] = max(self._reached_ms[feed], marked_ms)
            elif any(each.marked_ms > self._marked_ms[each] for each in inputs):
                self._reached_ms[feed] = max(self._reached_ms[feed], feed.time_ms)
        for each in self._marked_ms:
            self._marked_ms[each] = each.marked_ms
        reached_ms = max(min(self._reached_ms.values(), default=UNKNOWN_MS), self._idle_ms())
        is_news = reached_ms > self._time_ms
        if is_news:
            self._time_ms = reached_ms
            self._close()
        self._publish_time()
        return is_news

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the held changes."""
        marked = [[*feed.source, time_ms] for feed, time_ms in self._reached_ms.items()]
        data = {"sequence": self._sequence, "feed_ms": self.feed.time_ms, "marked": marked}
        return {**super().to_data(), **data}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        super().load(data)
        self._sequence = int(data["sequence"])
        self.feed.time_ms = int(data["feed_ms"])
        marked = {(name, number): time_ms for name, number, time_ms in data.get("marked", ())}
        for feed in self._reached_ms:
            self._reached_ms[feed] = marked.get(feed.source, UNKNOWN_MS)
        self._marked_ms = {each: each.marked_ms for each in self._marked_ms}

    def _marks_for(self, time_ms: int) -> list[tuple[TimeSource, int]]:
        """Return the sources that need a time mark before this time is certain."""
        if not all(self._marked_by.values()):
            return []  # No mark could make a difference.
        reached = self._reached_ms.items()
        # Records of which no change was made may be later: then the next mark is enough.
        return [(feed, max(time_ms, feed.time_ms + 1)) for feed, ms in reached if ms < time_ms]

    def _idle_ms(self) -> int:
        """Return the largest time of the sources if all are idle; otherwise UNKNOWN_MS."""
        idle_after_ms = self._node.idle_after_ms
        if idle_after_ms is None or self.feed.quiet_ms < idle_after_ms:
            return UNKNOWN_MS
        return max((feed.time_ms for feed in self._feeds), default=UNKNOWN_MS)

    def _turn_of(self, key: Windowed[UserKey], timestamp_ms: int) -> tuple[int, int]:  # noqa: ARG002 - of those without windows
        return when_ms(key.end), when_ms(key.start)

    def _forget(self, held: SuppressedRow) -> None:
        """Remove a row that was deleted before it was final."""
        del self._held[held.raw]
        del self._queue[bisect_left(self._queue, (held.turn, held.raw))]
        self._changed.add(held.raw)

    def _close(self) -> None:
        closed_ms = self._time_ms - self._node.closes_after_ms
        going = self._release(_before(self._queue, closed_ms + 1))
        if going:
            times = [max(self.feed.time_ms, held.turn[self._timed_by]) for held in going]
            results = _batch_of(self._origin(times), range(len(going)), going)
            if self._sends_old_values:
                results.old_values = [None] * len(going)
            self.forward(results)

    def _publish_time(self) -> None:
        """Set the time that no later row's window begins before; for sessions, ends before."""
        size_ms = self._node.size_ms
        is_first_least = size_ms or self._node.are_sessions
        first = self._queue[:1] if is_first_least else self._queue
        times = [turn[self._timed_by] for turn, _ in first]
        to_come_ms = min([self._time_ms - self._node.closes_after_ms - size_ms, *times])
        self.feed.time_ms = max(self.feed.time_ms, to_come_ms)

    def _origin(self, times: Sequence[int]) -> BatchOrigin:
        first, self._sequence = self._sequence, self._sequence + len(times)
        numbers = range(first, self._sequence)
        return BatchOrigin.of_rows(self.feed, numbers, times)


def _before(queue: Sequence[tuple[tuple[int, int], bytes]], time_ms: int) -> int:
    """Return how many rows of the queue come before a time."""
    return bisect_left(queue, ((time_ms, UNKNOWN_MS), b""))


def _batch_of(origin: BatchOrigin, rows: Sequence[int], going: Sequence[SuppressedRow]) -> Batch:
    results = Batch(
        origin,
        rows,
        [held.key for held in going],
        [held.value for held in going],
        [held.timestamp_ms for held in going],
    )
    results.keys_are_raw = results.values_are_raw = False
    return results
