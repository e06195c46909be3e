"""AsyncMapValuesStep: values by an async function, awaited by the runner.

A commit does not wait for calls: records with open calls are state, stored with the checkpoint in
which their inputs count as taken, and a restarted task makes the calls again. A result is forwarded
in the round in which it arrives, and belongs to the next checkpoint. Rules of the file:

1. A result is forwarded later than its record arrived, and perhaps in another order. So the step is
   a time source of its own (`AsyncTimeSource`), whose time stops at the oldest open record: no
   window after it closes before an open record arrives, and lateness is what it would be without
   the call.
2. Positions only grow, because downstream tasks drop repetitions (`provenance`). With
   `ordered="partition"`, a record's number is its position. With other orders, the order may differ
   after a crash, so positions that may have been used before are never used again.
3. An error or a time-out is the error of the record. A record that the policy (`failures`) skips
   leaves at the point at which its result would have been forwarded. A retry is another call,
   later.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Generic, TypeVar

import msgspec

from streamlog.errors import CorruptData, UsageError
from streamlog.nodes.stream_nodes import AsyncMapValues, Order
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource, processing_error
from streamlog.processing.error_handling import SKIPPED, DeadLetterRecord
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.outbox import CallResult, Collector, TaskCall
from streamlog.processing.step import Step
from streamlog.record import Headers
from streamlog.serdes.erased_types import AnySerde, JsonValue, UserValue
from streamlog.tables.stores.store import Change, KeyValueStore, prefix_end
from streamlog.windows.emit import UNKNOWN_MS, Source

OPEN_RECORDS_MAX = 10_000
"""With this many open calls a task takes no more records; the current batch is added whole."""
OPEN_PER_CALL = 10
"""If few calls may be in flight, the limit is this many records for each of them."""
_POSITIONS = 1 << 24
"""More than the records that are forwarded between two commits."""

_NUMBER = struct.Struct(">q")


class _Row(msgspec.Struct, array_like=True):
    """A record whose call is open, as it is stored."""

    source: Source
    time_ms: int
    watermark_ms: int
    coordinates: tuple[str, int, int]
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    letter: tuple[bytes | None, bytes | None] | None = None
    """Key and value as they were read, if they differ."""
    is_internal: bool = False
    """Whether only the app may write the record."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row).decode


class AsyncRecord:
    """A record whose call is open."""

    __slots__ = ("failed", "is_open", "is_stored", "key", "number", "row", "value")

    def __init__(self, number: int, row: _Row, key: object, value: object) -> None:
        self.number = number
        self.row = row
        self.key = key
        self.value = value
        self.is_open = True
        self.is_stored = False
        self.failed = 0
        """The number of failed attempts since the task was started."""


class AsyncTimeSource(TimeSource):
    """The results: each source upstream, with the time before its oldest open record."""

    def __init__(
        self, name: str, partition: int, feeds: Sequence[TimeSource], key: AnySerde
    ) -> None:
        super().__init__((name, partition), key)
        self._name = name
        self._feeds = feeds
        self._open: defaultdict[Source, deque[AsyncRecord]] = defaultdict(deque)

    def source_behind(self, source: Source) -> Source:
        """Return the name that a source upstream has here, where its time differs."""
        return f"{self._name}/{source[0]}", source[1]

    def source_times(self) -> list[tuple[Source, int, int]]:
        """Return the sources with their stream times and quiet times."""
        times: list[tuple[Source, int, int]] = []
        for feed in self._feeds:
            for source, time_ms, quiet_ms in feed.source_times():
                oldest = self._oldest(source)
                if oldest is None:
                    times.append((self.source_behind(source), time_ms, quiet_ms))
                else:
                    held_ms = min(time_ms, oldest.row.time_ms)
                    times.append((self.source_behind(source), held_ms, 0))
        return times

    def add_open(self, item: AsyncRecord) -> None:
        """Add a record whose call is open."""
        self._open[item.row.source].append(item)

    def time_of(self, item: AsyncRecord) -> int:
        """Return the time of its source that a record carries when it is forwarded."""
        oldest = self._oldest(item.row.source)
        return min(item.row.time_ms, oldest.row.time_ms) if oldest else item.row.time_ms

    def settle(self, oldest: AsyncRecord | None) -> None:
        """Update the time, the quiet time and whether all sources are at their end."""
        # The call of a record at 10:00 is open; the input is at 10:05, and read to its end.
        # 1. The time here stays at 10:00: windows below wait for the result.
        # 2. The source is neither quiet nor at its end: no idle time, and no time mark, may close
        #    the window that the result belongs to.
        # 3. The call is done: the time becomes 10:05.
        time_ms = min((feed.time_ms for feed in self._feeds), default=UNKNOWN_MS)
        self.time_ms = time_ms if oldest is None else min(time_ms, oldest.row.watermark_ms)
        self.update_end(self._feeds, is_holding=oldest is not None)

    def _oldest(self, source: Source) -> AsyncRecord | None:
        items = self._open[source]
        while items and not items[0].is_open:
            items.popleft()
        return items[0] if items else None


class AsyncMapValuesStep(Step):
    """A step that sets values by an async function."""

    section = "calls"

    def __init__(
        self,
        node: AsyncMapValues,
        store: KeyValueStore,
        collector: Collector,
        *,
        feeds: Sequence[TimeSource],
        partition: int,
        owner: int,
    ) -> None:
        """`owner` is larger for each later owner of the task's state."""
        super().__init__(node.name)
        self.node_time = NodeTime(feeds)
        self._feeds = self.node_time.feeds
        self.feed = AsyncTimeSource(node.name, partition, self._feeds, node.key)
        """The time source of the results."""
        self._node = node
        self._store = store
        self._collector = collector
        self._owner = owner
        self._calls: OpenCalls[AsyncRecord] = OpenCalls(node.ordered, node.in_flight_max)
        self._open_max = min(OPEN_RECORDS_MAX, OPEN_PER_CALL * node.in_flight_max)
        self._next = 0
        self._position = owner * _POSITIONS
        self._fresh: list[AsyncRecord] = []
        """Records that are not in the store yet."""
        self._gone: list[int] = []
        """Numbers of finished records that are still in the store."""

    @property
    def is_full(self) -> bool:
        """Whether the task should take no more records for now."""
        return len(self._calls) >= self._open_max

    def process(self, batch: Batch) -> None:
        """Open a call for each record."""
        batch = self.node_time.of(batch)
        origin, node = batch.origin, self._node
        batch, raw_keys, raw_values = self.serialize_with(batch, node.key, node.value)
        # The time of all inputs together as of each record: its result arrives later, when the
        # inputs may be further.
        others_ms = min((f.time_ms for f in self._feeds if f is not origin.feed), default=None)
        columns = zip(batch.rows, batch.keys, batch.values, batch.timestamps, strict=True)
        for at, (row, key, value, timestamp_ms) in enumerate(columns):
            watermark_ms = origin.watermarks[row]
            record = _Row(
                origin.feed.source if origin.sources is None else origin.sources[row],
                origin.times[row],
                watermark_ms if others_ms is None else min(watermark_ms, others_ms),
                (origin.topic, origin.partition, origin.offsets[row]),
                timestamp_ms,
                raw_keys[at],
                raw_values[at],
                [] if origin.headers is None else list(origin.headers[row]),
                _as_read(origin, row, (raw_keys[at], raw_values[at])),
                origin.raw_keys is None or origin.sources is not None,
            )
            item = AsyncRecord(self._next, record, key, value)
            self._fresh.append(item)
            self._add(item)
        self._begin()

    def resume(self, results: Iterable[CallResult]) -> None:
        """Take results of calls, forward what the order allows, and begin waiting calls.

        Raises:
            ProcessingError: a call has failed, and the policy is `FAIL`, or ends in it.
            UsageError: a call is not open.
        """
        for result in results:
            try:
                item = self._calls.item(result.number)
            except KeyError:
                text = f"{self.name!r} has no open call {result.number}"
                raise UsageError(text) from None
            if result.error is None:
                self._calls.done(result.number, result.value)
            elif not self._is_tried_again(item, result.error):
                self._calls.done(result.number, SKIPPED)
        ready = self._calls.ready()
        for item, _ in ready:
            item.is_open = False
            if item.is_stored:
                self._gone.append(item.number)
        kept = [pair for pair in ready if pair[1] is not SKIPPED]
        for _, run in groupby(kept, key=lambda pair: pair[0].row.coordinates[:2]):
            self._forward_run(list(run))
        self._begin()

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time source of all records that it forwards."""
        return (self.feed,)

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return the times above: they equal the time here, apart from open calls."""
        return [(feed, time_ms) for feed in self._feeds]

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """Update the time source after all available records were taken."""
        self.feed.settle(self._calls.oldest)
        return False

    def flush(self) -> None:
        """Write to the store which calls are open."""
        prefix = self._node.store.prefix
        changes: list[Change] = [(prefix + _NUMBER.pack(number), None) for number in self._gone]
        for item in self._fresh:
            if item.is_open:
                item.is_stored = True
                changes.append((prefix + _NUMBER.pack(item.number), _encode(item.row)))
        self._gone.clear()
        self._fresh.clear()
        self._store.write(changes)

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the open calls."""
        return {"next": self._next, "position": self._position, "owner": self._owner}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned, and make the calls of the stored records again.

        Raises:
            CorruptData: a record in the store is not readable.
        """
        prefix = self._node.store.prefix
        for key, stored in self._store.range(prefix, prefix_end(prefix)):
            try:
                row = _decode(stored)
            except msgspec.MsgspecError as error:
                raise CorruptData(f"a record of {self.name!r} is not readable: {error}") from error
            (number,) = _NUMBER.unpack(key[len(prefix) :])
            item = AsyncRecord(
                number,
                row,
                None if row.key is None else self._node.key.loads(row.key),
                None if row.value is None else self._node.value.loads(row.value),
            )
            item.is_stored = True
            self._add(item)
        self._next = int(data["next"])
        owners = max(self._owner - int(data["owner"]), 0)
        self._position = int(data["position"]) + owners * _POSITIONS
        self._begin()

    def _add(self, item: AsyncRecord) -> None:
        self._next = item.number + 1
        self._calls.add(item.number, item.row.key, item)
        self.feed.add_open(item)

    def _begin(self) -> None:
        for _, item in self._calls.begin():
            self._call(item)

    def _call(self, item: AsyncRecord, *, delay_ms: int = 0) -> None:
        node = self._node
        run = partial(node.fn, item.value)
        self._collector.call(TaskCall(self.name, item.number, run, node.timeout_ms, delay_ms))

    def _is_tried_again(self, item: AsyncRecord, error: Exception) -> bool:
        """Return whether the policy retries the call; otherwise skips the record, or raises."""
        row = item.row
        if self.failures is None:
            raise processing_error(self.name, *row.coordinates, error) from error
        item.failed += 1
        policies = self.failures.policy.chain
        delays_ms = [policy.backoff_ms for policy in policies for _ in range(policy.times)]
        if item.failed <= len(delays_ms):
            self._call(item, delay_ms=delays_ms[item.failed - 1])
            return True
        topic, partition, offset = row.coordinates
        key, value = (row.key, row.value) if row.letter is None else row.letter
        letter = DeadLetterRecord(
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp_ms=row.timestamp_ms,
            key=key,
            value=value,
            headers=tuple(row.headers),
            node=self.name,
            error=error,
            attempt=item.failed,
            is_internal=row.is_internal,
        )
        self.failures.give_up(letter)
        return False

    def _forward_run(self, run: Sequence[tuple[AsyncRecord, UserValue]]) -> None:
        """Forward results of records of one partition."""
        items = [item for item, _ in run]
        rows = [item.row for item in items]
        oldest = self._calls.oldest
        held_ms = None if oldest is None else oldest.row.watermark_ms
        headers: list[Headers] = [tuple(row.headers) for row in rows]
        origin = BatchOrigin(
            self.feed,
            topic=rows[0].coordinates[0],
            partition=rows[0].coordinates[1],
            offsets=[row.coordinates[2] for row in rows],
            positions=self._positions(items),
            times=[self.feed.time_of(item) for item in items],
            watermarks=[
                row.watermark_ms if held_ms is None else min(row.watermark_ms, held_ms)
                for row in rows
            ],
            sources=[self.feed.source_behind(row.source) for row in rows],
            raw_keys=[row.key for row in rows],
            headers=headers if any(headers) else None,
        )
        batch = Batch(
            origin,
            range(len(rows)),
            [item.key for item in items],
            [value for _, value in run],
            [row.timestamp_ms for row in rows],
        )
        batch.values_are_raw = False
        self.forward(batch)

    def _positions(self, items: Sequence[AsyncRecord]) -> Sequence[int]:
        # In the order of the partition, results have the numbers of their records: a restart gives
        # each result the number that it had. Otherwise, results come in the order in which calls
        # finish, which a restart does not repeat: each owner of the state numbers them in a range
        # of its own, so that no other result has the number of one that was sent.
        if self._node.ordered == "partition":
            return [item.number for item in items]
        first, self._position = self._position, self._position + len(items)
        return range(first, self._position)


def _as_read(
    origin: BatchOrigin, row: int, given: tuple[bytes | None, bytes | None]
) -> tuple[bytes | None, bytes | None] | None:
    """Return key and value of the record that was read, if they differ from `given`."""
    if origin.raw_keys is None or origin.raw_values is None:
        return None
    read = (origin.raw_keys[row], origin.raw_values[row])
    return None if read == given else read


T = TypeVar("T")
"""The record of a call."""


class _Entry(Generic[T]):
    """An open call."""

    __slots__ = ("is_done", "item", "lane", "number", "value")

    def __init__(self, number: int, lane: Hashable | None, item: T) -> None:
        self.number = number
        self.lane = lane
        self.item = item
        self.is_done = False
        self.value: UserValue = None


class OpenCalls(Generic[T]):
    """Calls whose results have not been forwarded yet."""

    def __init__(self, ordered: Order, in_flight_max: int) -> None:
        self._ordered = ordered
        self._in_flight_max = in_flight_max
        self._open: dict[int, _Entry[T]] = {}
        """All of them by number, in the order of the records."""
        self._waiting: deque[_Entry[T]] = deque()
        self._in_flight = 0
        self._lanes: dict[Hashable | None, deque[_Entry[T]]] = {}
        self._ready: list[_Entry[T]] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def oldest(self) -> T | None:
        """The record of the first open call."""
        return next(iter(self._open.values())).item if self._open else None

    def add(self, number: int, lane: Hashable | None, item: T) -> None:
        """Add a call; numbers grow. Calls wait for earlier ones of their lane; None: for none."""
        entry = self._open[number] = _Entry(number, lane, item)
        self._waiting.append(entry)
        if self._is_queued(entry):
            self._lanes.setdefault(self._lane(entry), deque()).append(entry)

    def begin(self) -> list[tuple[int, T]]:
        """Return the waiting calls that may be in flight from now on."""
        begun: list[tuple[int, T]] = []
        while self._waiting and self._in_flight < self._in_flight_max:
            entry = self._waiting.popleft()
            self._in_flight += 1
            begun.append((entry.number, entry.item))
        return begun

    def item(self, number: int) -> T:
        """Return the record of a call.

        Raises:
            KeyError: the call is not open.
        """
        return self._open[number].item

    def done(self, number: int, value: object) -> None:
        """Store the result of a call that was in flight."""
        entry = self._open[number]
        entry.is_done, entry.value = True, value
        self._in_flight -= 1
        # Calls 1 (key a), 2 (key b) and 3 (key a) are open, and 3 is the first to finish.
        # 1. ordered="key": 3 waits for 1, which is before it in lane a. Then 2 finishes and is
        #    ready at once. When 1 finishes, 1 and 3 are ready together.
        # 2. ordered="partition": there is one lane, so 3 waits for 1 and 2.
        # 3. ordered by nothing, or a record without a key: ready at once.
        if not self._is_queued(entry):
            self._finish(entry)
            return
        lane = self._lane(entry)
        queue = self._lanes[lane]
        while queue and queue[0].is_done:
            self._finish(queue.popleft())
        if not queue:
            del self._lanes[lane]

    def ready(self) -> list[tuple[T, UserValue]]:
        """Remove and return the records that may be forwarded now, with results, by number."""
        ready, self._ready = self._ready, []
        ready.sort(key=lambda entry: entry.number)
        return [(entry.item, entry.value) for entry in ready]

    def _finish(self, entry: _Entry[T]) -> None:
        del self._open[entry.number]
        self._ready.append(entry)

    def _is_queued(self, entry: _Entry[T]) -> bool:
        return self._ordered == "partition" or (self._ordered == "key" and entry.lane is not None)

    def _lane(self, entry: _Entry[T]) -> Hashable | None:
        return entry.lane if self._ordered == "key" else None
