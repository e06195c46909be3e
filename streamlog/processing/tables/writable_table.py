"""Tables that the program writes: rows set by agents, processors and puts, and their changes.

The step owns the rows; all writes come through it, one after the other, so the steps below receive
every change once and in order. Changes have a time source of their own and are numbered, because
many belong to no record of the task: an agent's rows arrive with a commit. Rule of the file: the
table's time is that of its newest write, and never that of a clock. If agents or processors write
the table, a put counts as written at the table's time, because it may come in the middle of a
history. A row's time to live starts at the table's time when it is written. Not done here: what may
write which table (`tables/local_rows`, `agents/rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from streamlog.nodes.table_nodes import WritableTable
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource
from streamlog.processing.outbox import Collector
from streamlog.processing.step import Step
from streamlog.records.record_columns import has_none
from streamlog.serdes.erased_types import JsonValue, UserKey, UserValue
from streamlog.tables.stores.store import KeyValueStore, NamedStore, prefix_end, time_at, time_bytes
from streamlog.tables.stores.ttl_queue import TtlQueue
from streamlog.windows.emit import UNKNOWN_MS

POSITIONS = 1 << 24
"""More than the changes between two commits. Each later owner numbers its changes in a range of its
own: what an agent writes again after a crash is not what it wrote before."""


class RowWrite(NamedTuple):
    """A row to set."""

    key: bytes
    data: bytes | None
    """None deletes the row."""
    timestamp_ms: int


class _Change(NamedTuple):
    """A row that was set and not yet forwarded."""

    key: bytes
    data: bytes | None
    old: bytes | None
    """The value that it replaces, if a step downstream needs it."""
    timestamp_ms: int
    time_ms: int
    """The table's time when it was set."""


class RowMark(NamedTuple):
    """A state of a table to return to."""

    changes: int
    time_ms: int


class WritableTableStep(Step):
    """Keeps the rows of a table that the program writes."""

    section = "written tables"

    def __init__(
        self,
        node: WritableTable,
        store: KeyValueStore,
        collector: Collector,
        *,
        partition: int,
        owner: int,
        has_writers: bool,
        sends_old_values: bool = False,
    ) -> None:
        """`owner` is larger for each later owner of the state.

        `has_writers`: agents or processors write the table, not puts only.
        """
        super().__init__(node.name)
        self._node = node
        self._prefix = node.store.prefix
        self._store = store
        self._collector = collector
        self._owner = owner
        self._has_writers = has_writers
        self._sends_old_values = sends_old_values
        self._feed = TimeSource((node.name, partition), node.table_key, node.table_value)
        self._ttl_queue = TtlQueue()
        self._changes: list[_Change] = []
        self._time_ms = UNKNOWN_MS
        self._next = owner * POSITIONS

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time source of its changes."""
        return (self._feed,)

    def process(self, batch: Batch) -> None:
        """Set rows that were put through the table's topic."""
        node = self._node
        batch, keys, values = self.serialize_with(batch, node.table_key, node.table_value)
        if has_none(keys):
            self._collector.drop(self.name, "null key", sum(key is None for key in keys))
        for key, data, put_ms in zip(keys, values, batch.timestamps, strict=True):
            if key is not None:
                is_timed = self._has_writers and self._time_ms > UNKNOWN_MS
                at_ms = self._time_ms if is_timed else put_ms
                self._set(RowWrite(key, data, at_ms), self._store)
        self.forward_changes()

    def write(self, rows: Sequence[RowWrite]) -> None:
        """Set rows that an agent has written, in this order."""
        for row in rows:
            self._set(row, self._store)
        self.forward_changes()

    def set(self, row: RowWrite, store: KeyValueStore) -> None:
        """Set a row for a processor, through its view of the store; `forward_changes` follows."""
        self._set(row, store)

    def mark(self) -> RowMark:
        """Return the current state, for `go_back`."""
        return RowMark(len(self._changes), self._time_ms)

    def go_back(self, mark: RowMark) -> None:
        """Forget what was set since `mark`; the caller has undone it in the store."""
        del self._changes[mark.changes :]
        self._time_ms = mark.time_ms
        self._ttl_queue.look_again()

    def forward_changes(self) -> None:
        """Forward all changes that have not been forwarded."""
        changes, self._changes = self._changes, []
        if not changes:
            return
        first, self._next = self._next, self._next + len(changes)
        self._feed.time_ms = self._time_ms
        self._feed.at_end = True
        if self.children:
            self.forward(self._batch(changes, range(first, self._next)))

    def lookup(self, raw: bytes) -> object:
        """Return the value for a key as bytes, decoded for each call; None if there is none."""
        data = self.row(self._store.get(self._prefix + raw))
        return None if data is None else self._node.table_value.loads(data)

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """Return the value for each key."""
        return [None if raw is None else self.lookup(raw) for raw in raws]

    def table(self) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over all rows, by the bytes of the key."""
        for key, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            found = self.row(data) or b""
            own = key[len(self._prefix) :]
            yield self._node.table_key.loads(own), self._node.table_value.loads(found)

    def row(self, stored: bytes | None) -> bytes | None:
        """Return the value in the stored bytes."""
        if stored is None or self._node.ttl_ms is None:
            return stored
        return stored[TIME_BYTES:]

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the rows."""
        return {"time_ms": self._time_ms, "next": self._next, "owner": self._owner}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        self._time_ms = self._feed.time_ms = int(data["time_ms"])
        self._feed.at_end = self._time_ms > UNKNOWN_MS
        # Changes that were forwarded after the last commit may have been sent. A restart may write
        # other changes, so each owner of the state numbers changes in a range of its own: no other
        # change has the number of one that was sent.
        owners = max(self._owner - int(data["owner"]), 0)
        self._next = int(data["next"]) + owners * POSITIONS

    def _set(self, row: RowWrite, store: KeyValueStore) -> None:
        self._time_ms = max(self._time_ms, row.timestamp_ms)
        at = self._prefix + row.key
        ttl_ms = self._node.ttl_ms
        if ttl_ms is None:
            old = store.get(at) if self._sends_old_values or row.data is None else None
            self._put(store, at, row.data)
        else:
            due_rows = NamedStore(store, self._node.due_times)
            self._expire(store, due_rows)
            old = store.get(at)
            was_ms = None if old is None else time_at(old) + ttl_ms
            is_ms = None if row.data is None else self._time_ms + ttl_ms
            self._ttl_queue.move(due_rows, row.key, was_ms, is_ms)
            self._put(store, at, None if row.data is None else time_bytes(self._time_ms) + row.data)
        if row.data is not None or old is not None:  # Not a deletion of a row that did not exist.
            self._note(row.key, row.data, self.row(old), row.timestamp_ms)

    def _expire(self, store: KeyValueStore, due_rows: NamedStore) -> None:
        """Delete the rows that have expired at the table's time."""
        for key in self._ttl_queue.take(due_rows, self._time_ms):
            old = store.get(self._prefix + key)
            store.delete(self._prefix + key)
            self._note(key, None, self.row(old), self._time_ms)

    def _put(self, store: KeyValueStore, at: bytes, data: bytes | None) -> None:
        if data is None:
            store.delete(at)
        else:
            store.put(at, data)

    def _note(self, key: bytes, data: bytes | None, old: bytes | None, timestamp_ms: int) -> None:
        self._changes.append(_Change(key, data, old, timestamp_ms, self._time_ms))

    def _batch(self, changes: Sequence[_Change], numbers: Sequence[int]) -> Batch:
        keys, values, olds, timestamps, times = zip(*changes, strict=True)
        name, partition = self._feed.source
        origin = BatchOrigin(
            self._feed,
            topic=name,
            partition=partition,
            offsets=numbers,
            positions=numbers,
            times=times,
            watermarks=times,
            raw_keys=keys,
            raw_values=values,
        )
        loads = self._node.table_value.loads
        batch = Batch(
            origin,
            range(len(changes)),
            [self._node.table_key.loads(key) for key in keys],
            [None if data is None else loads(data) for data in values],
            timestamps,
        )
        if self._sends_old_values:
            batch.old_values = [None if data is None else loads(data) for data in olds]
        return batch


TIME_BYTES = 8
"""Size of the time of writing, which precedes the value of a row with a time to live."""
