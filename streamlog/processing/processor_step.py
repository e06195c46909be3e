"""ProcessorStep: runs a user's processor, with its stores, its timers and stream time.

Records are processed one by one, in the order of the task. What the processor forwards is collected
and forwarded as a batch. Rules of the module:

1. A forwarded record takes over the identity of the current record: that record's position in the
   source, stream time and headers. So a downstream task drops repetitions after a crash and judges
   lateness as if the processor were a `map`. Records that a timer or a punctuation forwards have a
   time source of their own, numbered by the firings.
2. Stream time is the minimum over the inputs, each with the time that it had reached at this record
   in the order of the task. It is part of the progress.
3. A record advances stream time first. Timers that this makes due fire at their own times, before
   the record is processed, so what a processor sees depends on the order of the task alone.
4. Using what a processor does not have at the moment (such as the record, while a timer fires)
   raises an error.
5. A store of the processor converts the user's types and writes straight into the task's
   transaction. A value of None is a missing key. Under an error policy `UndoLog` remembers what a
   record changed, and a failed record changes nothing.

Not done here: which timer is due (`timers`), commits and the changelog (`tables/state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from streamlog.durations import EPOCH, Dur, When, duration_ms, moment, when_ms
from streamlog.errors import ProcessingError, UsageError
from streamlog.nodes.process_nodes import (
    ClockName,
    ExpiringProcessorStore,
    Process,
    ProcessorStore,
    TimerStore,
)
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource, exit_failure
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.step import Step
from streamlog.processing.table_rows import TaskRows
from streamlog.processing.timers import DueTimer, DueTimers, KeyTimers
from streamlog.processing.written_headers import written_headers
from streamlog.random_source import UUID, Chance, Random
from streamlog.record import GivenHeaders, Headers
from streamlog.serdes.erased_types import AnyRecord, JsonValue, UserKey, UserValue
from streamlog.tables.local_rows import use_local_tables
from streamlog.tables.stores.memory_store import CachedStore, MemoryStore
from streamlog.tables.stores.store import Change, KeyValueStore, NamedStore
from streamlog.tables.stores.ttl_queue import END_BUCKET_MS, ExpiringStore
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, StreamTime

AT_ONCE_MAX = 1_000_000
"""If firing timers set this many timers for times that have passed, they count as an endless chain.
"""


class Forwarded:
    """Records forwarded by the user's code and not yet passed on: columns of one origin."""

    __slots__ = ("headers", "keys", "rows", "timestamps", "values")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.keys: list[UserKey] = []
        self.values: list[UserValue] = []
        self.timestamps: list[int] = []
        self.headers: list[Headers | None] = []
        """None: those of the row."""

    def cut(self, length: int) -> None:
        """Remove all but the first `length` records."""
        for column in (self.rows, self.keys, self.values, self.timestamps, self.headers):
            del column[length:]

    def add(
        self,
        row: int,
        key: object,
        value: object,
        timestamp_ms: int,
        *,
        headers: Headers | None = None,
    ) -> None:
        """Add a record that was made at this row of the origin."""
        self.rows.append(row)
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp_ms)
        self.headers.append(headers)

    def batch(self, origin: BatchOrigin) -> Batch:
        """Return the records as a batch."""
        batch = Batch(origin, self.rows, self.keys, self.values, self.timestamps)
        batch.keys_are_raw = batch.values_are_raw = False
        if any(each is not None for each in self.headers):
            kept = (
                [()] * len(self.rows) if origin.headers is None else batch.of_origin(origin.headers)
            )
            given = zip(self.headers, kept, strict=True)
            batch = batch.with_headers([own if each is None else each for each, own in given])
        return batch


class TaskTimers:
    """`self.ctx.timers` of a processor."""

    def __init__(self, node: Process, clocks: Mapping[ClockName, KeyTimers | None]) -> None:
        self._node = node
        self._clocks = clocks
        self._is_closed = False
        self._firing_ms = UNKNOWN_MS
        self._at_once = 0

    def set(self, key: object, at: When, tag: str = "", *, clock: ClockName = "event") -> None:
        """Call `on_timer` at this time; replaces the timer of this key and tag."""
        timers = self._of(clock)
        at_ms = when_ms(at)
        if at_ms < 0:
            raise UsageError(f"a timer can't be set for a time before 1970: {at!r}")
        if at_ms <= self._firing_ms:
            self._at_once += 1
            if self._at_once > AT_ONCE_MAX:
                raise UsageError("on_timer keeps setting timers for times that have passed")
        timers.set(self._raw(key), at_ms, tag)

    def cancel(self, key: object, tag: str = "", *, clock: ClockName = "event") -> None:
        """Remove the timer of this key and tag."""
        self._of(clock).cancel(self._raw(key), tag)

    def fire(self, at_ms: int) -> None:
        """Set the time of the timer that fires; UNKNOWN_MS: none fires."""
        self._firing_ms = at_ms
        if at_ms == UNKNOWN_MS:
            self._at_once = 0

    def close(self) -> None:
        """Refuse changes from now on: there is no commit left that would contain them."""
        self._is_closed = True

    def key_of(self, timer: DueTimer) -> object:
        """Return the key of a timer as the user passed it."""
        return self._declared.key.loads(timer.key)

    @property
    def _declared(self) -> TimerStore:
        if self._node.timers is None:
            raise UsageError(f"{self._node.name!r} can't set timers: its class has no on_timer")
        return self._node.timers

    def _of(self, clock: ClockName) -> KeyTimers:
        timers = self._clocks.get(clock)
        if timers is None:
            _ = self._declared
            raise UsageError(f"a timer's clock must be 'event' or 'wall', not {clock!r}")
        if self._is_closed:
            raise UsageError("timers can't be set in close(): the last commit has been made")
        return timers

    def _raw(self, key: object) -> bytes:
        if key is None:
            raise UsageError("None can't be the key of a timer")
        return self._declared.key.dumps(key)


class TaskContext:
    """`self.ctx` of a processor."""

    def __init__(self, app_id: str, node: str, timers: TaskTimers) -> None:
        self._chance = Chance(f"{app_id}/{node}".encode())
        self._record: AnyRecord | None = None
        self._origin: BatchOrigin | None = None
        self._feed: TimeSource | None = None
        self._row = self._number = self._timestamp_ms = 0
        self._is_drawn = False
        self.timers = timers
        self.forwarded = Forwarded()
        self.time_ms = UNKNOWN_MS
        self.wall_ms = UNKNOWN_MS

    def take(self, batch: Batch, at: int, *, index: int) -> AnyRecord:
        """Make this the current record; `index` counts the records at one position."""
        record = self._record = batch.record(at)
        self._origin, self._row, self._number = batch.origin, batch.rows[at], index
        self._feed = batch.origin.feed
        self._timestamp_ms = batch.timestamps[at]
        self._is_drawn = False
        return record

    def fire(self, alarm: DueTimer, feed: TimeSource, *, row: int, number: int) -> None:
        """Make this timer or punctuation current; `number` is that of the firing."""
        self._record = self._origin = None
        self._feed, self._row, self._number = feed, row, number
        self._timestamp_ms = alarm.at_ms
        self._is_drawn = False

    def let_go(self) -> None:
        """Leave no record or timer current."""
        self._record = self._origin = self._feed = None

    @property
    def written_ms(self) -> int:
        """The time of the current record or timer; in `init`, stream time."""
        return max(self.time_ms, 0) if self._feed is None else self._timestamp_ms

    @property
    def record(self) -> AnyRecord:
        """The current record."""
        if self._record is None:
            raise UsageError("ctx.record is set in process() only: there is no record here")
        return self._record

    @property
    def stream_time(self) -> datetime:
        """The event time that all sources have reached."""
        return moment(self.time_ms) if self.time_ms > UNKNOWN_MS else EPOCH

    @property
    def wall_time(self) -> datetime:
        """The time of the machine, as of this round of work."""
        if self.wall_ms == UNKNOWN_MS:
            raise UsageError("ctx.wall_time is not known in init(): the task has not started yet")
        return moment(self.wall_ms)

    @property
    def random(self) -> Random:
        """Random numbers seeded by the identity of the current record or timer."""
        return self._drawn().random

    def uuid(self) -> UUID:
        """Return a UUID derived from the identity of the current record or timer."""
        return self._drawn().uuid()

    def forward(
        self,
        key: object,
        value: object,
        *,
        timestamp: When | None = None,
        headers: GivenHeaders | None = None,
    ) -> None:
        """Forward a record."""
        if self._feed is None:
            raise UsageError(
                "call ctx.forward in process(), on_timer() or a punctuation only: there is no "
                "record or timer here"
            )
        timestamp_ms = self._timestamp_ms if timestamp is None else when_ms(timestamp)
        if timestamp_ms < 0:
            raise UsageError(f"a record can't be forwarded with a time before 1970: {timestamp!r}")
        written = None if headers is None else written_headers(headers)
        self.forwarded.add(self._row, key, value, timestamp_ms, headers=written)

    def _drawn(self) -> Chance:
        if self._feed is None:
            raise UsageError(
                "use ctx.random and ctx.uuid() in process(), on_timer() or a punctuation only: "
                "they are derived from the record or timer"
            )
        if not self._is_drawn:
            self._is_drawn = True
            if self._origin is None:
                seed = b"%d " % self._number + self._feed.identity
            else:
                seed = self._origin.record_id(self._row) + self._number.to_bytes(4)
            self._chance.move(seed)
        return self._chance


class BoundStore:
    """A processor's store, bound to the attribute that declares it."""

    __slots__ = ("_is_closed", "_key", "_name", "_named", "_ordered", "_store", "_value")

    _store: NamedStore | ExpiringStore
    """The store to read and delete from."""

    def __init__(self, declared: ProcessorStore, store: KeyValueStore) -> None:
        self._name = declared.store.name
        self._store = self._named = NamedStore(store, declared.store)
        self._key = declared.key
        self._value = declared.value
        self._ordered = declared.is_ordered
        self._is_closed = False

    def get(self, key: object) -> UserValue:
        """Return the value, or None if there is none."""
        data = self._store.get(self._raw(key))
        return None if data is None else self._value.loads(data)

    def put(self, key: object, value: object, *, ttl: Dur | None = None) -> None:
        """Set a value; `ttl` is how long after the current record or timer it expires."""
        if value is None:
            raise UsageError(f"store {self._name!r} can't hold None: use delete({key!r})")
        self._check_open()
        ttl_ms = None if ttl is None else duration_ms(ttl)
        if ttl_ms == 0:
            raise UsageError(f"store {self._name!r}: ttl must be longer than 0 ms, such as '1h'")
        self._put(self._raw(key), self._value.dumps(value), ttl_ms)

    def delete(self, key: object) -> None:
        """Remove a key, if it is there."""
        self._check_open()
        self._store.delete(self._raw(key))

    def range(
        self, lo: object = None, hi: object = None, *, reverse: bool = False
    ) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over the keys from `lo` up to but not including `hi`, in order."""
        if not self._ordered and not (lo is None and hi is None):
            raise UsageError(
                f"the order of the keys of store {self._name!r} is unknown, so a range can't have "
                "bounds: declare the keys as str, bytes, int, float or datetime"
            )
        low = b"" if lo is None else self._raw(lo)
        high = None if hi is None else self._raw(hi)
        # Stores scan forwards only: read the whole range first.
        pairs = self._store.range(low, high)
        found = reversed([*pairs]) if reverse else pairs
        return ((self._key.loads(key), self._value.loads(data)) for key, data in found)

    def close(self) -> None:
        """Refuse writes from now on: there is no commit left that would contain them."""
        self._is_closed = True

    def _put(self, key: bytes, value: bytes, ttl_ms: int | None) -> None:
        if ttl_ms is not None:
            raise UsageError(
                f"store {self._name!r} keeps no times: for put(..., ttl=), declare it with "
                "kv_store(..., ttl=), where 'forever' keeps all other rows"
            )
        self._named.put(key, value)

    def _raw(self, key: object) -> bytes:
        if key is None:
            raise UsageError(f"None can't be a key of store {self._name!r}")
        return self._key.dumps(key)

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError(
                f"store {self._name!r} can't be written in close(): the last commit has been made"
            )


class ExpiringBoundStore(BoundStore):
    """A store whose rows expire a time after the last record that wrote them, in event time."""

    __slots__ = ("_expiring", "_written_ms")

    def __init__(
        self,
        declared: ExpiringProcessorStore,
        store: KeyValueStore,
        written_ms: Callable[[], int],
    ) -> None:
        """`written_ms` returns the time of the current record or timer."""
        super().__init__(declared, store)
        self._store = self._expiring = ExpiringStore(
            self._named, ttl_ms=declared.ttl_ms, bucket_ms_max=END_BUCKET_MS
        )
        self._written_ms = written_ms

    def advance(self, stream_time_ms: int) -> None:
        """Set stream time: rows that have expired by it no longer exist."""
        self._expiring.advance(stream_time_ms)

    def _put(self, key: bytes, value: bytes, ttl_ms: int | None) -> None:
        self._expiring.put(key, value, self._written_ms(), ttl_ms=ttl_ms)


class UndoLog:
    """A KeyValueStore over that of the task, whose latest writes can be undone."""

    __slots__ = ("_before", "_store")

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._before: dict[bytes, bytes | None] = {}

    def begin(self) -> None:
        """Keep the writes until now: `undo` returns to this state."""
        self._before.clear()

    def undo(self) -> None:
        """Undo the writes since `begin`."""
        self._store.write(self._before.items())
        self._before.clear()

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None if there is none."""
        return self._store.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key; None for a key that has none."""
        return self._store.get_all(keys)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self._remember(key)
        self._store.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._remember(key)
        self._store.delete(key)

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys from `low` up to but not including `high`, in order."""
        return self._store.range(low, high)

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`."""
        for key, _ in self._store.range(low, high):
            self.delete(key)

    def write(self, changes: Iterable[Change]) -> None:
        """Apply the changes in their order."""
        for key, value in changes:
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)

    def close(self) -> None:
        """Do nothing: the task closes the store."""

    def _remember(self, key: bytes) -> None:
        if key not in self._before:
            self._before[key] = self._store.get(key)


FIRINGS_MAX = 1_000
"""The number of firings after which their records are forwarded."""


class _Firings:
    """What the timers of one clock have forwarded and is not passed on: numbers and times."""

    def __init__(self, alarms: DueTimers) -> None:
        self.alarms = alarms
        self.numbers: list[int] = []
        self.times: list[int] = []

    def origin(self) -> BatchOrigin:
        """Return the origin of these records and start a new one."""
        numbers, self.numbers = self.numbers, []
        times, self.times = self.times, []
        return BatchOrigin.of_rows(self.alarms.feed, numbers, times)


class ProcessorStep(Step):
    """A step that runs a user's processor object."""

    section = "processors"

    def __init__(
        self,
        node: Process,
        store: KeyValueStore,
        *,
        app_id: str,
        partition: int,
        feeds: Sequence[TimeSource],
        is_watched: bool,
        rows: TaskRows | None = None,
    ) -> None:
        """Create the step and its processor object.

        Args:
            node: the node.
            store: the task's store.
            app_id: the app's id.
            partition: the task's partition.
            feeds: the time sources that its event time comes from.
            is_watched: whether another processor of the task needs the time at every record.
            rows: the tables that the processor can read and write.
        """
        super().__init__(node.name)
        self._node = node
        self.node_time = NodeTime(feeds)
        self._feeds = self.node_time.feeds
        self._is_watched = is_watched
        self._stream = StreamTime(feed.source for feed in self._feeds)
        self._undo = UndoLog(store) if _has_policy(node) else None
        store = self._undo or store
        passing: KeyValueStore = MemoryStore()
        self._passing = UndoLog(passing) if _has_policy(node) else None
        self._event = _firings(node, store, "event", partition)
        self._wall = _firings(node, store, "wall", partition)
        self.clock = self._event.alarms.feed
        """The time source with the event time of this processor."""
        timers = {name: firings.alarms.timers for name, firings in self._firings.items()}
        self._timers = TaskTimers(node, timers)
        self._context = TaskContext(app_id, node.name, self._timers)
        self._rows = rows
        if rows is not None:
            rows.bind(lambda: self._context.written_ms, store)
        self._whole: list[CachedStore] = []
        self._stores = {
            each.attribute: self._bound(
                each, store if each.has_changelog else self._passing or passing
            )
            for each in node.stores
        }
        self._expiring = [
            each for each in self._stores.values() if isinstance(each, ExpiringBoundStore)
        ]
        self._last: tuple[TimeSource | None, int] = (None, 0)
        self._index = 0
        self._is_timed = bool(node.feeds)
        self._has_begun = False
        self._has_fired = False
        self._processor = node.make()
        self._processor.ctx = self._context
        for attribute, bound in self._stores.items():
            setattr(self._processor, attribute, bound)

    @property
    def clocks(self) -> Sequence[TimeSource]:
        """The time source with the event time of this processor."""
        return (self.clock,)

    @property
    def own_time_sources(self) -> list[TimeSource]:
        """The time sources of records forwarded by timers and punctuations."""
        feeds = (firings.alarms.feed for firings in self._firings.values())
        return [feed for feed in feeds if feed.source[0] in self._node.feeds]

    @property
    def next_wall_ms(self) -> int:
        """The wall-clock time before which nothing is due."""
        return self._wall.alarms.next_ms

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when the next timer of event time is due.

        Punctuations fire as time advances and are no reason to advance it: they never end.
        """
        timers = self._event.alarms.timers
        next_ms = FAR_MS if timers is None else timers.first_ms
        return () if next_ms == FAR_MS else self.needs(next_ms)

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return the times above: they equal the time here."""
        return [(feed, time_ms) for feed in self._feeds]

    def init(self) -> None:
        """Call the user's `init`: the state is restored.

        Raises:
            ProcessingError: the user's method raised.
        """
        with use_local_tables(self._rows):
            self._call("init()", self._processor.init)

    def process(self, batch: Batch) -> None:
        """Pass the records to the processor one by one; forwards what it forwards."""
        batch = self.node_time.of(batch)
        with use_local_tables(self._rows):
            self._process_all(batch)

    def _process_all(self, batch: Batch) -> None:
        context = self._context
        origin, positions, alarms = batch.origin, batch.origin.positions, self._event.alarms
        feed = origin.feed if origin.feed in self._feeds else None
        held_ms = FAR_MS if feed is None else feed.held_ms(self._node.idle_after_ms)
        self._learn(but=feed)
        for at, row in enumerate(batch.rows):
            if feed is not None:
                self._advance(feed, min(origin.watermarks[row], held_ms))
            time_ms = self._stream.now_ms
            if time_ms > context.time_ms or (self._is_timed and alarms.next_ms <= time_ms):
                self._catch_up(origin)
            if not self._has_begun:
                self._begin()
            # Two sources of one input: stream time is 10:00, held by the slower one. This record
            # of the faster one is at 10:30, and its key has a timer at 10:15.
            # 1. The timer fires now, before the record: for this key, 10:15 has passed.
            # 2. Timers of other keys at 10:15 wait until stream time gets there, since the slower
            #    source may still have records of them.
            if alarms.may_have_due(origin.times[row]):
                self._fire_key(batch, at)
            # `ctx.uuid()` has to differ between two records that one record above has produced:
            # both have its position. The index tells them apart, also across batches.
            record_id = (origin.feed, positions[row])
            self._index = self._index + 1 if record_id == self._last else 0
            self._last = record_id
            if self.failures is None:
                self._process(batch, at)
            else:
                self.failures.attempt_record(batch, at, self._try, batch, at)
            if self._is_watched:
                self._forward_collected(origin)
        context.let_go()
        self._forward_collected(origin)

    def _process(self, batch: Batch, at: int) -> None:
        try:
            self._processor.process(self._context.take(batch, at, index=self._index))
        except Exception as error:
            raise batch.failure(self.name, at, error) from error
        except SystemExit as stop:
            raise batch.failure(self.name, at, exit_failure(stop)) from stop

    def _try(self, batch: Batch, at: int) -> None:
        """Process a record; if that fails, undo all of its effects."""
        undo, forwarded = self._undo, self._context.forwarded
        length = len(forwarded.rows)
        if undo is not None:
            undo.begin()
        if self._passing is not None:
            self._passing.begin()
        if self._rows is not None:
            self._rows.begin()
        try:
            self._processor.process(self._context.take(batch, at, index=self._index))
        except BaseException:  # sys.exit, too: a failed record must leave no effect
            # A retry starts afresh, and a skipped record leaves nothing: what it forwarded, and its
            # rows in stores with and without a changelog and in writable tables.
            forwarded.cut(length)
            if undo is not None:
                undo.undo()
            if self._passing is not None:
                self._passing.undo()
            for whole in self._whole:
                whole.look_again()
            if self._rows is not None:
                self._rows.undo()
            raise

    def settle(self, now_ms: int | None) -> bool:
        """Let both clocks take effect after all available records were taken.

        Returns whether a timer or punctuation fired.
        """
        if now_ms is None:
            return False  # After `emit`, until the checkpoint: no timer may fire in between.
        idle_after_ms = self._node.idle_after_ms
        for feed in self._feeds:
            idle = idle_after_ms is not None and feed.quiet_ms >= idle_after_ms
            if not idle or self._is_news(feed):
                self._advance(feed, self._time_of(feed))
            if idle:
                self._stream.set_idle(feed.source)
        with use_local_tables(self._rows):
            self._catch_up(None)
            self._fire(self._wall, now_ms, each=False)
        for feed in {self.clock, *self.own_time_sources}:
            feed.time_ms = self._context.time_ms
            feed.update_end(self._feeds)
        has_fired, self._has_fired = self._has_fired, False
        return has_fired

    def look(self, now_ms: int) -> None:
        """Set the wall-clock time."""
        if self._context.wall_ms == UNKNOWN_MS:
            self._wall.alarms.start(now_ms)
        self._context.wall_ms = now_ms

    def close(self) -> None:
        """Call the user's `close`: the task ends.

        Raises:
            ProcessingError: the user's method raised.
        """
        for bound in self._stores.values():
            bound.close()
        self._timers.close()
        self._call("close()", self._processor.close)

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the stores."""
        clocks = {name: firings.alarms.to_data() for name, firings in self._firings.items()}
        return {"stream": self._stream.to_data(), "clocks": clocks}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; the rows are in the stores."""
        self._stream.load(data["stream"])
        self._move(self._stream.now_ms)
        for name, firings in self._firings.items():
            firings.alarms.load(data["clocks"][name])

    def _bound(self, declared: ProcessorStore, store: KeyValueStore) -> BoundStore:
        if declared.backend == "memory" and declared.has_changelog:
            whole = CachedStore(store, declared.store)
            self._whole.append(whole)
            store = whole
        if isinstance(declared, ExpiringProcessorStore):
            return ExpiringBoundStore(declared, store, lambda: self._context.written_ms)
        return BoundStore(declared, store)

    @property
    def _firings(self) -> dict[ClockName, _Firings]:
        return {"event": self._event, "wall": self._wall}

    def _learn(self, *, but: TimeSource | None = None) -> None:
        """Take over the times of the inputs, except `but`, whose records carry them."""
        for feed in self._feeds:
            if feed is not but and self._is_news(feed):
                self._advance(feed, self._time_of(feed))

    def _time_of(self, feed: TimeSource) -> int:
        return min(feed.time_ms, feed.held_ms(self._node.idle_after_ms))

    def _is_news(self, feed: TimeSource) -> bool:
        """Return whether the time source counts: an idle one that has not advanced stays idle."""
        stream, source = self._stream, feed.source
        return not stream.is_idle(source) or feed.time_ms > stream.time_of(source)

    def _advance(self, feed: TimeSource, time_ms: int) -> None:
        if time_ms > UNKNOWN_MS:
            self._stream.advance(feed.source, time_ms)

    def _begin(self) -> None:
        """Start the punctuations at the first record whose time is known."""
        if self._context.time_ms > UNKNOWN_MS:
            self._has_begun = True
            self._event.alarms.start(self._context.time_ms)

    def _catch_up(self, origin: BatchOrigin | None) -> None:
        """Fire what is due at the new stream time, each at its own time."""
        # A record at 10:05 advances stream time from 10:00; timers are due at 10:02 and 10:04.
        # 1. What earlier records forwarded goes downstream first: it belongs to their times.
        # 2. Each timer fires with `ctx.stream_time` at its own time, so that a backlog that is read
        #    fast gives the same as live records.
        # 3. Then the time becomes 10:05, and the record is processed.
        time_ms = self._stream.now_ms
        if self._event.alarms.next_ms <= time_ms:
            if origin is not None:
                self._forward_collected(origin)
            self._fire(self._event, time_ms, each=True)
        self._move(time_ms)

    def _move(self, time_ms: int) -> None:
        """Set the event time of the context and the stores."""
        self._context.time_ms = time_ms
        if time_ms > UNKNOWN_MS:
            for store in self._expiring:
                store.advance(time_ms)

    def _fire(self, firings: _Firings, limit_ms: int, *, each: bool) -> None:
        alarms, context = firings.alarms, self._context
        while alarms.next_ms <= limit_ms and (alarm := alarms.due(limit_ms, each=each)):
            self._has_fired = True
            self._begin_undo()
            if each:
                self._move(max(context.time_ms, alarm.at_ms))
            context.fire(alarm, alarms.feed, row=len(firings.numbers), number=alarms.last)
            firings.numbers.append(alarms.last)
            firings.times.append(context.time_ms)
            self._timers.fire(alarm.at_ms)
            self._call_alarm(alarm)
            if len(firings.numbers) >= FIRINGS_MAX or self._is_watched:
                self._forward_collected(firings.origin())
        self._timers.fire(UNKNOWN_MS)
        context.let_go()
        self._forward_collected(firings.origin())

    def _fire_key(self, batch: Batch, at: int) -> None:
        """Fire the due timers of a record's key, by the time of the record's source.

        Stream time stays where it is, so that no forwarded record is late downstream.
        """
        declared, context, alarms = self._node.timers, self._context, self._event.alarms
        key = None if declared is None else batch.raw_keys(declared.key, self.name)[at]
        limit_ms, time_ms = batch.origin.times[batch.rows[at]], context.time_ms
        while key is not None and (alarm := alarms.due_of(key, limit_ms)):
            self._forward_collected(batch.origin)
            self._begin_undo()
            context.time_ms = max(time_ms, alarm.at_ms)
            context.fire(alarm, alarms.feed, row=0, number=alarms.last)
            self._timers.fire(alarm.at_ms)
            self._call_alarm(alarm)
            context.time_ms = time_ms
            self._forward_collected(BatchOrigin.of_rows(alarms.feed, [alarms.last], [time_ms]))
        self._timers.fire(UNKNOWN_MS)
        context.let_go()

    def _begin_undo(self) -> None:
        for undo in (self._undo, self._passing):
            if undo is not None:
                undo.begin()

    def _call_alarm(self, alarm: DueTimer) -> None:
        at = moment(alarm.at_ms)
        if alarm.method:
            method = getattr(self._processor, alarm.method)
            self._call(f"{alarm.method}({at.isoformat()})", lambda: method(at))
            return
        key = self._timers.key_of(alarm)
        try:
            self._processor.on_timer(key, at, alarm.tag)
        except Exception as error:
            call = f"on_timer({key!r}, {at.isoformat()}, {alarm.tag!r})"
            raise self._failure(call, error) from error
        except SystemExit as stop:
            call = f"on_timer({key!r}, {at.isoformat()}, {alarm.tag!r})"
            raise self._failure(call, exit_failure(stop)) from stop

    def _forward_collected(self, origin: BatchOrigin) -> None:
        self.clock.time_ms = self._context.time_ms
        if self._rows is not None:
            self._rows.forward_changes()
        if self._context.forwarded.rows:
            forwarded, self._context.forwarded = self._context.forwarded, Forwarded()
            self.forward(forwarded.batch(origin))

    def _call(self, call: str, method: Callable[[], object]) -> None:
        try:
            method()
        except Exception as error:
            raise self._failure(call, error) from error
        except SystemExit as stop:
            raise self._failure(call, exit_failure(stop)) from stop

    def _failure(self, call: str, error: Exception) -> ProcessingError:
        text = f"{self.name!r} failed in {call}: {type(error).__name__}: {error}"
        return ProcessingError(text, node=self.name)


def _has_policy(node: Process) -> bool:
    return node.on_error is not None and node.on_error.action != "fail"


def _firings(node: Process, store: KeyValueStore, clock: ClockName, partition: int) -> _Firings:
    timers = None
    if node.timers is not None:
        timers = KeyTimers(NamedStore(store, node.timers.store), clock[:1].encode())
    punctuations = [each for each in node.punctuations if each.clock == clock]
    return _Firings(DueTimers(TimeSource((node.feed(clock), partition)), punctuations, timers))
