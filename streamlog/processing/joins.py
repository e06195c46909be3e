"""Tables of topics, and streams joined with them.

`TableStep` keeps the latest value per key; `TableJoinStep` asks for the row that is there at
the moment a stream's record comes by. Rule of the file: only the stream triggers, and what
"at the moment" means is the order of the task's `RecordQueue`. Arrival order wins over
timestamps, as for unversioned tables in Kafka Streams. Rows are stored as the bytes they came
in; decoded ones are cached, so joiners must not change what they are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, Protocol, cast, runtime_checkable

from streamlog.processing.aggregate import ROW_BYTES, STATE_TIMES
from streamlog.processing.changes import real_changes
from streamlog.processing.columns import Batch
from streamlog.processing.step import Collector, Step
from streamlog.records.columns import has_none
from streamlog.tables.store import KeyValueStore, prefix_end
from streamlog.topology import StreamTable, TableFilter, TableJoin, TableSource, View

ROWS_BYTES_MAX = 16 * 1024 * 1024
"""Decoded rows per table, by estimate. Beyond, all are dropped."""


@runtime_checkable
class Lookup(Protocol):
    """Port: a step that has a row per key."""

    def lookup(self, raw: bytes) -> object:
        """The value for a key as bytes; None if there is none."""

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """The value for each key."""

    def table(self) -> Iterator[tuple[Any, Any]]:
        """All rows: keys and values."""


class TableStep(Step):
    """The latest value per key."""

    def __init__(
        self,
        node: TableSource | StreamTable,
        store: KeyValueStore,
        collector: Collector,
        *,
        tells_old_values: bool = False,
    ) -> None:
        super().__init__(node.name)
        self._key = node.table_key
        self._value = node.table_value
        self._prefix = node.store.prefix
        self._store = store
        self._collector = collector
        self._tells_old_values = tells_old_values
        self._cache: dict[bytes, object] = {}
        self._cache_bytes = 0
        """By estimate; rows that change count again, which only empties it earlier."""

    def process(self, batch: Batch) -> None:
        """Take in rows; hand on the changes."""
        batch, raw_keys, raw_values = self.written_with(batch, self._key, self._value)
        if has_none(raw_keys):
            kept = [raw is not None for raw in raw_keys]
            self._collector.drop(self.name, "null key", kept.count(False))
            batch = batch.where(kept)
            raw_keys, raw_values = [*compress(raw_keys, kept)], [*compress(raw_values, kept)]
        rows = zip(cast("Sequence[bytes]", raw_keys), raw_values, strict=True)
        if self._tells_old_values:
            self.forward(real_changes(batch.with_old_values(self._replaced(rows))))
            return
        changed = [self._replace(raw, data) for raw, data in rows]
        self.forward(batch if all(changed) else batch.where(changed))

    def _replaced(self, rows: Iterable[tuple[bytes, bytes | None]]) -> list[object]:
        """Take in rows; what each of them replaces."""
        replaced: list[object] = []
        for raw, data in rows:
            replaced.append(self.lookup(raw))
            self._replace(raw, data)
        return replaced

    def _replace(self, raw: bytes, data: bytes | None) -> bool:
        """Take in a row; False: it is deleted, and was not there."""
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
        """The value for a key as bytes; None if there is none."""
        found = self._cache.get(raw)
        if found is None:
            data = self._store.get(self._prefix + raw)
            if data is None:
                return None
            self._cache_bytes += ROW_BYTES + len(raw) + STATE_TIMES * len(data)
            if self._cache_bytes > ROWS_BYTES_MAX:
                self._cache.clear()
                self._cache_bytes = 0
            found = self._cache[raw] = self._value.loads(data)
        return found

    def lookup_all(self, raws: Sequence[bytes | None]) -> list[object]:
        """The value for each key."""
        found = list(map(cast("Mapping[bytes | None, object]", self._cache).get, raws))
        if has_none(found):
            for at, raw in enumerate(raws):
                if found[at] is None and raw is not None:
                    found[at] = self.lookup(raw)
        return found

    def table(self) -> Iterator[tuple[Any, Any]]:
        """All rows, by the bytes of the key."""
        for key, data in self._store.range(self._prefix, prefix_end(self._prefix)):
            yield self._key.loads(key[len(self._prefix) :]), self._value.loads(data)


class TableJoinStep(Step):
    """Each record with the row of its key."""

    def __init__(self, node: TableJoin, table: Lookup, collector: Collector) -> None:
        super().__init__(node.name)
        self._node = node
        self._table = table
        self._collector = collector

    def process(self, batch: Batch) -> None:
        """Look up the row of each record, and call the joiner where there is one to call for."""
        node = self._node
        batch, raw_keys = self.written_keys(batch, node.key)
        batch, rows = self._rows(batch, raw_keys)
        if has_none(batch.values) or (has_none(rows) and not node.left):
            kept = [
                value is not None and (node.left or row is not None)
                for value, row in zip(batch.values, rows, strict=True)
            ]
            self._count(batch)
            batch = batch.where(kept)
            rows = [row for row, keep in zip(rows, kept, strict=True) if keep]
        batch, joined = self.applied(batch, node.fn, batch.values, rows)
        self.forward(batch.with_values(joined))

    def _rows(self, batch: Batch, raws: Sequence[bytes | None]) -> tuple[Batch, list[object]]:
        # One by one where each row is looked at through views, and to find the record of an error.
        if self._node.views:
            return self.applied(batch, self._row, raws, batch.keys)
        try:
            return batch, self._table.lookup_all(raws)
        except Exception:  # noqa: BLE001 - a serde of the user's: found and raised again below
            return self.applied(batch, self._row, raws, batch.keys)

    def _row(self, raw: bytes | None, key: object) -> object:
        found = None if raw is None else self._table.lookup(raw)
        for view in self._node.views:
            if found is None:
                break
            found = viewed(view, key, found)
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


def viewed(view: View, key: object, value: object) -> object:
    """A row as it is seen through a filter or a mapping of its table."""
    if isinstance(view, TableFilter):
        return value if view.fn(key, value) else None
    found: object = view.fn(value)
    return found
