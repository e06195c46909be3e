"""Global tables: the rows that every worker has whole, and streams that look into them.

Whoever runs the app gives what it reads of their topics to `GlobalTables`; tasks look at what is
there when a record has its turn. Rule of the file: rows are bytes until somebody looks at them;
one thread may bring rows while another one looks them up, so each row is replaced in one step. As
in Kafka Streams only the stream triggers, and what a record finds depends on how far the table had
been read. Not done here: reading (`worker/global_tables`, `testing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from streamlog.errors import TopologyError
from streamlog.processing.columns import Batch
from streamlog.processing.step import Collector, Step
from streamlog.records.columns import has_none
from streamlog.tables.store import Change, KeyValueStore, prefix_end
from streamlog.topology import GlobalJoin, GlobalTable

DECODED_ROWS_MAX = 100_000
"""Rows kept as objects; beyond, all are dropped."""
PAGE_ROWS = 1_000
"""Of a store, at once."""
ROW = b"\x01"
"""What the keys of rows begin with in a store."""


class RowsInMemory:
    """The rows of a table in the memory of this process."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none."""
        return self._rows.get(key)

    def write(self, changes: Sequence[Change]) -> None:
        """Take in the changes in their order; None deletes."""
        for key, value in changes:
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value

    def page(self, low: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """All keys from `low` on, and their values, as they are now."""
        found = sorted(self._rows.copy().items())
        return [pair for pair in found if pair[0] >= low] if low else found, None


class RowsInStore:
    """The rows of a table in a store, beside what is known of the topic."""

    def __init__(self, store: KeyValueStore) -> None:
        self.store = store

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if there is none."""
        return self.store.get(ROW + key)

    def write(self, changes: Sequence[Change]) -> None:
        """Take in the changes in their order; None deletes."""
        self.store.write((ROW + key, value) for key, value in changes)

    def page(self, low: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Some keys from `low` on, and their values, as they are now; and where to go on."""
        scan = self.store.range(ROW + low, prefix_end(ROW))
        found = [(key[len(ROW) :], value) for key, value in islice(scan, PAGE_ROWS)]
        return found, found[-1][0] + b"\x00" if len(found) == PAGE_ROWS else None


class GlobalRows:
    """The rows of one table."""

    def __init__(self, table: GlobalTable, kept: RowsInMemory | RowsInStore) -> None:
        self.table = table
        self.kept = kept
        self._decoded: dict[bytes, tuple[bytes, object]] = {}
        """Values beside the bytes that they were made from."""

    def apply(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        """Take in records of the topic, in their order; those without a key are none of a row."""
        pairs = zip(keys, values, strict=True)
        self.kept.write([(key, value) for key, value in pairs if key is not None])

    def get(self, key: bytes) -> bytes | None:
        """The value of a key as bytes; None if there is none."""
        return self.kept.get(key)

    def page(self, low: bytes = b"") -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Keys from `low` on with their values, in order; where to go on if these are not all."""
        return self.kept.page(low)

    def rows(self) -> list[tuple[bytes, bytes]]:
        """All keys and values, in the order of keys."""
        found: list[tuple[bytes, bytes]] = []
        low: bytes | None = b""
        while low is not None:
            page, low = self.page(low)
            found += page
        return found

    def lookup(self, key: bytes) -> object:
        """The value of a key; None if there is none."""
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
        self, tables: Iterable[GlobalTable] = (), stores: Mapping[str, KeyValueStore] | None = None
    ) -> None:
        """`stores` are for tables that are kept on disk, by their names; by default none is."""
        found = stores or {}
        self._tables = {
            table.name: GlobalRows(
                table, RowsInStore(found[table.name]) if table.name in found else RowsInMemory()
            )
            for table in tables
        }

    @property
    def topics(self) -> list[str]:
        """What has to be read."""
        return sorted({rows.table.topic.name for rows in self._tables.values()})

    @property
    def of_topics(self) -> dict[str, list[str]]:
        """The names of the tables by topic."""
        found: dict[str, list[str]] = {}
        for name, rows in self._tables.items():
            found.setdefault(rows.table.topic.name, []).append(name)
        return found

    def apply(
        self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None]
    ) -> None:
        """Take in records of one of the topics, in their order."""
        for rows in self._tables.values():
            if rows.table.topic.name == topic:
                rows.apply(keys, values)

    def rows_of(self, table: str) -> GlobalRows:
        """The rows of a table.

        Raises:
            TopologyError: there is none of this name.
        """
        found = self._tables.get(table)
        if found is None:
            raise TopologyError(f"there is no global table {table!r} here")
        return found


class GlobalJoinStep(Step):
    """Each record with the row that it points to."""

    def __init__(self, node: GlobalJoin, rows: GlobalRows, collector: Collector) -> None:
        super().__init__(node.name)
        self._node = node
        self._rows = rows
        self._key = node.table.topic.key
        self._collector = collector

    def process(self, batch: Batch) -> None:
        """Ask each record for a key, look up its row, and call the joiner.

        A left join joins a record whose lookup key is None with None (KIP-962).
        """
        node, collector = self._node, self._collector
        if has_none(batch.values):
            kept = [value is not None for value in batch.values]
            collector.drop(self.name, "null value", kept.count(False))
            batch = batch.where(kept)
        batch, points = self.applied(batch, node.on, batch.keys, batch.values)
        if not node.left and has_none(points):
            pointing = [point is not None for point in points]
            collector.drop(self.name, "null key", pointing.count(False))
            batch = batch.where(pointing)
            points = [point for point, keep in zip(points, pointing, strict=True) if keep]
        batch, rows = self.applied(batch, self._row, points)
        if not node.left and has_none(rows):
            batch = batch.where([row is not None for row in rows])
            rows = [row for row in rows if row is not None]
        batch, joined = self.applied(batch, node.fn, batch.values, rows)
        self.forward(batch.with_values(joined))

    def _row(self, point: object) -> object:
        return None if point is None else self._rows.lookup(self._key.dumps(point))
