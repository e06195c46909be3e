"""Tables of topics, and streams joined with them: by the newest row, as of a time, or global.

`TableStep` keeps the latest value per key, and `TableJoinStep` looks up the row that exists when a
stream's record is processed. `VersionedTableStep` also keeps earlier versions, and `AsOfJoinStep`
looks up the version at the record's timestamp; with a grace the record first waits until the stream
has advanced by that much (KIP-923). `GlobalTables` holds the rows that every worker has whole, and
`GlobalJoinStep` looks them up. Rules of the module:

1. Only the stream triggers. "Now" is the order of the task's `RecordQueue`: as for unversioned
   tables in Kafka Streams, arrival wins over timestamps. In a global table a lookup depends on how
   far the table had been read.
2. A row that is older than the newest one of its key becomes an earlier version and is no change of
   the table; a row that is older than the history retention is late.
3. Rows are stored as the bytes that arrived, and decoded rows are cached, so joiners must not
   change their arguments. One thread may apply rows of a global table while another looks them up:
   each row is replaced in one step.

Not done here: reading the topics of global tables (the runner's job).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import Protocol, cast, runtime_checkable

from streamlog.errors import TopologyError
from streamlog.nodes.stream_nodes import TableFilter, TableJoin, TableSource, View
from streamlog.nodes.table_nodes import (
    AsOfJoin,
    GlobalJoin,
    GlobalTableNode,
    StreamTable,
    VersionedTable,
)
from streamlog.processing.column_batch import Batch, BatchOrigin, TimeSource, deserialize_column
from streamlog.processing.inputs.schema_headers import absorb_headers
from streamlog.processing.joins.join_buffer import DueRow, DueRows, due_row_key
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.outbox import Collector
from streamlog.processing.step import Step, without_void_deletions
from streamlog.processing.tables.aggregate import ROW_BYTES, STATE_TIMES
from streamlog.records.record_columns import RecordColumns, has_none
from streamlog.serdes.erased_types import JsonValue, UserKey, UserValue
from streamlog.tables.stores.store import TIME_MS_MAX, Change, KeyValueStore, NamedStore, prefix_end
from streamlog.tables.stores.timed_stores import VersionedStore
from streamlog.windows.emit import UNKNOWN_MS

DECODED_ROWS_MAX = 100_000
"""Rows kept as objects. When there are more, all are dropped."""
PAGE_ROWS = 1_000
"""The number of rows to read from a store at once."""
ROW = b"\x01"
"""The prefix of row keys in a store."""


class RowsInMemory:
    """The rows of a table in the memory of this process."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""
        return self._rows.get(key)

    def write(self, changes: Sequence[Change]) -> None:
        """Apply the changes in their order; None deletes."""
        for key, value in changes:
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value

    def page(self, low: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return all keys from `low` on, with their current values."""
        found = sorted(self._rows.copy().items())
        return [pair for pair in found if pair[0] >= low] if low else found, None


class RowsInStore:
    """The rows of a table in a store, next to what is known of the topic."""

    def __init__(self, store: KeyValueStore) -> None:
        self.store = store

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""
        return self.store.get(ROW + key)

    def write(self, changes: Sequence[Change]) -> None:
        """Apply the changes in their order; None deletes."""
        self.store.write((ROW + key, value) for key, value in changes)

    def page(self, low: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return some keys from `low` on with their values, and the key from which to continue."""
        scan = self.store.range(ROW + low, prefix_end(ROW))
        found = [(key[len(ROW) :], value) for key, value in islice(scan, PAGE_ROWS)]
        return found, found[-1][0] + b"\x00" if len(found) == PAGE_ROWS else None


class GlobalRows:
    """The rows of one table."""

    def __init__(self, table: GlobalTableNode, kept: RowsInMemory | RowsInStore) -> None:
        self.table = table
        self.kept = kept
        self._decoded: dict[bytes, tuple[bytes, object]] = {}
        """Values with the bytes that they were decoded from."""

    def apply(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        """Apply records of the topic, in their order; those without a key belong to no row."""
        pairs = zip(keys, values, strict=True)
        self.kept.write([(key, value) for key, value in pairs if key is not None])

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key as bytes; None if there is none."""
        return self.kept.get(key)

    def page(self, low: bytes = b"") -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return keys from `low` on with their values, in order, and the key to continue from."""
        return self.kept.page(low)

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Return all keys and values, in the order of keys."""
        found: list[tuple[bytes, bytes]] = []
        low: bytes | None = b""
        while low is not None:
            page, low = self.page(low)
            found += page
        return found

    def lookup(self, key: bytes) -> object:
        """Return the value of a key; None if there is none."""
        data = self.kept.get(key)
        if data is None:
            return None
        known = self._decoded.get(key)
        if known is not None and known[0] == data:
            return known[1]
        if len(self._decoded) >= DECODED_ROWS_MAX:
            self._decoded.clear()
        value = self.table.topic.value.loads(data)
        self._decoded[key] = (data, value)
        return value


class GlobalTables:
    """The global tables of an app."""

    def __init__(
        self,
        tables: Iterable[GlobalTableNode] = (),
        stores: Mapping[str, KeyValueStore] | None = None,
    ) -> None:
        """`stores` are for tables kept on disk, by their names; the others are in memory."""
        found = stores or {}
        self._tables = {
            table.name: GlobalRows(
                table, RowsInStore(found[table.name]) if table.name in found else RowsInMemory()
            )
            for table in tables
        }

    @property
    def topics(self) -> list[str]:
        """The topics to read."""
        return sorted({rows.table.topic.name for rows in self._tables.values()})

    @property
    def of_topics(self) -> dict[str, list[str]]:
        """The names of the tables by topic."""
        found: dict[str, list[str]] = {}
        for name, rows in self._tables.items():
            found.setdefault(rows.table.topic.name, []).append(name)
        return found

    def apply(self, topic: str, records: RecordColumns) -> None:
        """Apply records of one of the topics, in their order."""
        for rows in self._tables.values():
            if rows.table.topic.name == topic:
                found = absorb_headers(rows.table.topic.key, rows.table.topic.value, records)
                rows.apply(found.keys, found.values)

    def rows_of(self, table: str) -> GlobalRows:
        """Return the rows of a table.

        Raises:
            TopologyError: there is none of this name.
        """
        found = self._tables.get(table)
        if found is None:
            raise TopologyError(f"there is no global table {table!r} here")
        return found


class GlobalJoinStep(Step):
    """Joins each record with the row that it points to."""

    def __init__(self, node: GlobalJoin, rows: GlobalRows, collector: Collector) -> None:
        super().__init__(node.name)
        self._node = node
        self._rows = rows
        self._key = node.table.topic.key
        self._collector = collector

    def process(self, batch: Batch) -> None:
        """Call the user's function for each record's lookup key, look up its row, call the joiner.

        A left join joins a record whose lookup key is None with None (KIP-962).
        """
        node, collector = self._node, self._collector
        if has_none(batch.values):
            kept = [value is not None for value in batch.values]
            collector.drop(self.name, "null value", kept.count(False))
            batch = batch.where(kept)
        batch, points = self.apply_function(batch, node.on, batch.keys, batch.values)
        if not node.left and has_none(points):
            pointing = [point is not None for point in points]
            collector.drop(self.name, "null key", pointing.count(False))
            batch = batch.where(pointing)
            points = [point for point, keep in zip(points, pointing, strict=True) if keep]
        batch, rows = self.apply_function(batch, self._row, points)
        if not node.left and has_none(rows):
            batch = batch.where([row is not None for row in rows])
            rows = [row for row in rows if row is not None]
        batch, joined = self.apply_function(batch, node.fn, batch.values, rows)
        self.forward(batch.with_values(joined))

    def _row(self, point: object) -> object:
        return None if point is None else self._rows.lookup(self._key.dumps(point))


ROWS_BYTES_MAX = 16 * 1024 * 1024
"""Decoded rows per table, by estimate. Above this, all are dropped."""


@runtime_checkable
class Lookup(Protocol):
    """Port: a step that has a row per key."""

    def lookup(self, raw: bytes) -> object:
        """Return the value for a key as bytes; None if there is none."""

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """Return the value for each key."""

    def table(self) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over all rows: keys and values."""


class TableStep(Step):
    """Keeps the latest value per key."""

    def __init__(
        self,
        node: TableSource | StreamTable,
        store: KeyValueStore,
        collector: Collector,
        *,
        sends_old_values: bool = False,
    ) -> None:
        super().__init__(node.name)
        self._key = node.table_key
        self._value = node.table_value
        self._prefix = node.store.prefix
        self._store = store
        self._collector = collector
        self._sends_old_values = sends_old_values
        self._cache: dict[bytes, object] = {}
        self._cache_bytes = 0
        """An estimate; rows that change count again, which only empties the cache earlier."""

    def process(self, batch: Batch) -> None:
        """Apply rows, and forward the changes."""
        batch, raw_keys, raw_values = self.serialize_with(batch, self._key, self._value)
        if has_none(raw_keys):
            kept = [raw is not None for raw in raw_keys]
            self._collector.drop(self.name, "null key", kept.count(False))
            batch = batch.where(kept)
            raw_keys, raw_values = [*compress(raw_keys, kept)], [*compress(raw_values, kept)]
        rows = zip(cast("Sequence[bytes]", raw_keys), raw_values, strict=True)
        if self._sends_old_values:
            self.forward(without_void_deletions(batch.with_old_values(self._replace_all(rows))))
            return
        changed = [self._replace(raw, data) for raw, data in rows]
        self.forward(batch if all(changed) else batch.where(changed))

    def _replace_all(self, rows: Iterable[tuple[bytes, bytes | None]]) -> list[object]:
        """Apply rows; returns what each of them replaces."""
        replaced: list[object] = []
        for raw, data in rows:
            replaced.append(self.lookup(raw))
            self._replace(raw, data)
        return replaced

    def _replace(self, raw: bytes, data: bytes | None) -> bool:
        """Apply a row; returns False if it deletes a row that did not exist."""
        self._cache.pop(raw, None)
        key = self._prefix + raw
        if data is not None:
            self._store.put(key, data)
        elif self._store.get(key) is None:
            return False
        else:
            self._store.delete(key)
        return True

    def lookup(self, raw: bytes) -> object:
        """Return the value for a key as bytes; None if there is none."""
        found = self._cache.get(raw)
        if found is None:
            data = self._store.get(self._prefix + raw)
            return None if data is None else self._decode(raw, data)
        return found

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """Return the value for each key; rows that are only in the store are read at once."""
        found = list(map(cast("Mapping[bytes | None, object]", self._cache).get, raws))
        if not has_none(found):
            return found
        pairs = zip(raws, found, strict=True)
        wanted = list({raw: None for raw, value in pairs if value is None and raw is not None})
        stored = zip(
            wanted, self._store.get_all([self._prefix + raw for raw in wanted]), strict=True
        )
        read: dict[bytes | None, object] = {
            raw: self._decode(raw, data) for raw, data in stored if data is not None
        }
        pairs = zip(raws, found, strict=True)
        return [read.get(raw) if value is None else value for raw, value in pairs]

    def _decode(self, raw: bytes, data: bytes) -> object:
        """Return the value of a row that was read, and keep it in memory."""
        self._cache_bytes += ROW_BYTES + len(raw) + STATE_TIMES * len(data)
        if self._cache_bytes > ROWS_BYTES_MAX:
            self._cache.clear()
            self._cache_bytes = 0
        value: object = self._value.loads(data)
        self._cache[raw] = value
        return value

    def table(self) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over all rows, by the bytes of the key."""
        for key, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            yield self._key.loads(key[len(self._prefix) :]), self._value.loads(data)


class TableJoinStep(Step):
    """Joins each record with the row of its key."""

    def __init__(self, node: TableJoin, table: Lookup, collector: Collector) -> None:
        super().__init__(node.name)
        self._node = node
        self._table = table
        self._collector = collector

    def process(self, batch: Batch) -> None:
        """Look up the row of each record, and call the joiner for records with a row.

        In a left join, it is called for all records.
        """
        node = self._node
        batch, raw_keys = self.serialize_keys(batch, node.key)
        batch, rows = self._rows(batch, raw_keys)
        if has_none(batch.values) or (has_none(rows) and not node.left):
            kept = [
                value is not None and (node.left or row is not None)
                for value, row in zip(batch.values, rows, strict=True)
            ]
            self._count(batch)
            batch = batch.where(kept)
            rows = [row for row, keep in zip(rows, kept, strict=True) if keep]
        batch, joined = self.apply_function(batch, node.fn, batch.values, rows)
        self.forward(batch.with_values(joined))

    def _rows(self, batch: Batch, raws: Sequence[bytes | None]) -> tuple[Batch, list[object]]:
        # One by one if views apply to each row, and to find the record of an error.
        if self._node.views:
            return self.apply_function(batch, self._row, raws, batch.keys)
        try:
            return batch, self._table.lookup_all(raws)
        except Exception:  # noqa: BLE001 - a serde of the user's: found and raised again below
            return self.apply_function(batch, self._row, raws, batch.keys)

    def _row(self, raw: bytes | None, key: object) -> object:
        found = None if raw is None else self._table.lookup(raw)
        for view in self._node.views:
            if found is None:
                break
            found = apply_view(view, key, found)
        return found

    def _count(self, batch: Batch) -> None:
        empty = sum(value is None for value in batch.values)
        self._collector.drop(self.name, "null value", empty)
        if not self._node.left:
            keyless = sum(
                key is None and value is not None
                for key, value in zip(batch.keys, batch.values, strict=True)
            )
            self._collector.drop(self.name, "null key", keyless)


def apply_view(view: View, key: object, value: object) -> object:
    """Return a row as a filter or a mapping of its table shows it; None: no row."""
    if isinstance(view, TableFilter):
        return value if view.fn(key, value) else None
    found: object = view.fn(value)
    return found


DUE_ROWS = 10_000
"""The most waiting records that are joined in one batch."""
SEEN_ROWS_MAX = 100_000
"""Decoded versions in memory. When there are more, all are dropped."""


@runtime_checkable
class AsOfLookup(Lookup, Protocol):
    """Port: a step that knows the row of a key at a time."""

    def lookup_as_of(self, raw: bytes, timestamp_ms: int) -> object:
        """Return the value of a key, as bytes, at that time; None if none or unknown."""


class VersionedTableStep(TableStep):
    """Keeps the latest value per key by timestamp, and earlier versions."""

    section = "versioned"

    def __init__(
        self,
        node: VersionedTable,
        store: KeyValueStore,
        collector: Collector,
        *,
        sends_old_values: bool = False,
    ) -> None:
        super().__init__(node, store, collector, sends_old_values=sends_old_values)
        self._versions = VersionedStore(
            NamedStore(store, node.versions), history_retention_ms=node.history_ms
        )
        self._history_ms = node.history_ms
        self._time_ms = UNKNOWN_MS
        self._seen: dict[bytes, tuple[int, int, object]] = {}
        """Per key the version that was looked up last: from, until, value."""

    def process(self, batch: Batch) -> None:
        """Store each row as a version, and forward those that are the newest of their keys."""
        batch, raws, datas = self.serialize_with(batch, self._key, self._value)
        kept: list[bool] = []
        replaced: list[object] = []
        for at, (raw, data) in enumerate(zip(raws, datas, strict=True)):
            if self._sends_old_values:
                replaced.append(None if raw is None else self.lookup(raw))
            is_news = raw is not None and self._put(raw, data, batch.timestamps[at])
            kept.append(is_news)
        self._collector.drop(self.name, "null key", sum(raw is None for raw in raws))
        if self._sends_old_values:
            batch = batch.with_old_values(replaced)
        self.forward(batch if all(kept) else batch.where(kept))

    def _put(self, raw: bytes, data: bytes | None, timestamp_ms: int) -> bool:
        """Store one version; returns whether it is the newest of its key, and changes the row."""
        if timestamp_ms > self._time_ms:
            self._time_ms = timestamp_ms
            self._versions.advance(timestamp_ms)
        # history is 1 h; key k has a version at 10:00.
        # 1. A row at 10:30 is the newest: the table's row changes, and the change is forwarded.
        # 2. A row at 10:10 arrives after it: it is the version from 10:10 to 10:30 for as-of joins.
        #    The table's row stays, and nothing is forwarded.
        # 3. The table is at 11:40: a row at 10:20 is before the history, and dropped as late.
        newest_ms = self._versions.newest_ms(raw)
        if not self._versions.put(raw, data, timestamp_ms):
            late_by_ms = self._time_ms - self._history_ms - timestamp_ms
            self._collector.drop(self.name, "late", late_by_ms=late_by_ms)
            return False
        self._seen.pop(raw, None)
        if newest_ms is not None and timestamp_ms < newest_ms:
            return False
        return self._replace(raw, data)

    def lookup_as_of(self, raw: bytes, timestamp_ms: int) -> object:
        """Return the value of a key, as bytes, at that time; None if none or unknown."""
        is_known = timestamp_ms >= self._time_ms - self._history_ms
        seen = self._seen.get(raw)
        if is_known and seen is not None and seen[0] <= timestamp_ms < seen[1]:
            return seen[2]
        found = self._versions.get(raw, timestamp_ms)
        if found is None:
            return None
        value = self._value.loads(found.value)
        if is_known:
            if len(self._seen) >= SEEN_ROWS_MAX:
                self._seen.clear()
            until_ms = TIME_MS_MAX if found.valid_to_ms is None else found.valid_to_ms
            self._seen[raw] = (found.timestamp_ms, until_ms, value)
        return value

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the rows."""
        return {"time_ms": self._time_ms}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; the rows are in the store."""
        self._time_ms = int(data["time_ms"])
        if self._time_ms > UNKNOWN_MS:
            self._versions.advance(self._time_ms)


class AsOfJoinStep(TableJoinStep):
    """Joins each record with the row that its key had at the record's timestamp."""

    def __init__(self, node: AsOfJoin, table: AsOfLookup, collector: Collector) -> None:
        super().__init__(node, table, collector)
        self._versions = table

    def _rows(self, batch: Batch, raws: Sequence[bytes | None]) -> tuple[Batch, list[object]]:
        return self.apply_function(batch, self._row_as_of, raws, batch.keys, batch.timestamps)

    def _row_as_of(self, raw: bytes | None, key: object, timestamp_ms: int) -> object:
        found = None if raw is None else self._versions.lookup_as_of(raw, timestamp_ms)
        for view in self._node.views:
            if found is None:
                break
            found = apply_view(view, key, found)
        return found


class WaitingAsOfJoinStep(AsOfJoinStep):
    """As `AsOfJoinStep`, for records that first wait for rows that arrive late."""

    section = "joins"

    def __init__(
        self,
        node: AsOfJoin,
        table: AsOfLookup,
        collector: Collector,
        *,
        waiting: NamedStore,
        feeds: Sequence[TimeSource],
        partition: int,
    ) -> None:
        super().__init__(node, table, collector)
        self._serde = node.value
        self._grace_ms = node.grace_ms
        self.node_time = NodeTime(feeds)
        self._feeds = self.node_time.feeds
        self.feed = TimeSource((node.name, partition))
        """The time source of records that have waited."""
        self._now_ms = UNKNOWN_MS
        self._waiting = DueRows(waiting)
        self._number = 0
        self._sequence = 0

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time source of records that have waited."""
        return (self.feed,)

    def process(self, batch: Batch) -> None:
        """Join the waiting records that are due; let new ones wait unless they are late."""
        batch = self._without_null_values(batch)
        batch, raws, datas = self.serialize_with(batch, self._node.key, self._serde)
        batch = self.node_time.of(batch)
        moments, headers = batch.of_origin(batch.origin.moments), batch.origin.headers
        at_once: list[int] = []
        for at, (raw, data) in enumerate(zip(raws, datas, strict=True)):
            now_ms = self._now_ms = max(self._now_ms, moments[at])
            # Records that are due come before this one. Those of this batch that need not wait are
            # joined first: they were before it in the order of the task.
            if self._is_due(now_ms):
                self._join_now(batch, at_once)
                at_once = []
                self._release(now_ms)
            timestamp_ms = batch.timestamps[at]
            # grace is 10 s; the stream is at 10:00:20.
            # 1. A record at 10:00:15 waits until the stream reaches 10:00:25. It then sees the
            #    version at 10:00:15, even if that row arrived after the record.
            # 2. A record at 10:00:10 or earlier has waited long enough: joined at once.
            # 3. A record without a key has no row to wait for: joined at once.
            if raw is None or data is None or timestamp_ms <= now_ms - self._grace_ms:
                at_once.append(at)
                continue
            number, self._number = self._number, self._number + 1
            row_key = due_row_key(timestamp_ms, 0, raw, number)
            self._waiting.add(row_key, data, headers[batch.rows[at]] if headers else ())
        self._join_now(batch, at_once)
        self._set_time()

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when the next waiting record is due."""
        next_ms = self._waiting.next_ms
        return () if next_ms is None else self.needs(next_ms)

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:
        """Return the times above that are later by as long as records wait."""
        return [(feed, time_ms + self._grace_ms) for feed in self._feeds]

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - stream time only
        """Update the quiet time and the end of the time source after all available records.

        A waiting record is joined when another record arrives, never between records: rows of the
        table are ordered among the records, and which rows a record sees must not depend on when a
        batch ends.
        """
        self.feed.update_end(self._feeds)
        return False

    def flush(self) -> None:
        """Write the waiting records into the store."""
        self._waiting.flush()

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the records."""
        return {
            "now_ms": self._now_ms,
            "time_ms": self.feed.time_ms,
            "number": self._number,
            "sequence": self._sequence,
        }

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; the records are in the store."""
        self._now_ms = int(data["now_ms"])
        self.feed.time_ms = int(data["time_ms"])
        self._number = int(data["number"])
        self._sequence = int(data["sequence"])
        self._waiting.load()

    def _without_null_values(self, batch: Batch) -> Batch:
        kept = [value is not None for value in batch.values]
        self._collector.drop(self.name, "null value", kept.count(False))
        return batch if all(kept) else batch.where(kept)

    def _is_due(self, now_ms: int) -> bool:
        next_ms = self._waiting.next_ms
        return next_ms is not None and next_ms <= now_ms - self._grace_ms

    def _join_now(self, batch: Batch, ats: Sequence[int]) -> None:
        """Join current records: those that were late on arrival, or have no key."""
        if ats:
            chosen = {*ats}
            super().process(batch.where([at in chosen for at in range(len(batch))]))

    def _release(self, now_ms: int) -> None:
        due = self._waiting.due(now_ms - self._grace_ms + 1)
        while rows := list(islice(due, DUE_ROWS)):
            self._join_later(rows)

    def _join_later(self, rows: Sequence[DueRow]) -> None:
        """Join records that have waited."""
        first, self._sequence = self._sequence, self._sequence + len(rows)
        numbers, times = range(first, self._sequence), [row.due_ms for row in rows]
        keys, values = [row.key for row in rows], [row.value for row in rows]
        origin = BatchOrigin.of_rows(
            self.feed,
            numbers,
            times,
            raw_keys=keys,
            raw_values=values,
            headers=[row.headers for row in rows],
        )
        decoded = deserialize_column(self._node.key, keys), deserialize_column(self._serde, values)
        batch = Batch(origin, range(len(rows)), *decoded, times)
        batch.keys_are_raw = batch.values_are_raw = False
        super().process(batch)

    def _set_time(self) -> None:
        """Set the time that no waiting record precedes."""
        if self._now_ms > UNKNOWN_MS:
            self.feed.time_ms = max(self.feed.time_ms, self._now_ms - self._grace_ms)
