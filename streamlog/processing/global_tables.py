"""Global tables: the rows that every worker has whole, and streams that look into them.

Whoever runs the app gives what it reads of their topics to `GlobalTables`; tasks look at what is
there when a record has its turn. Rule of the file: rows are bytes until somebody looks at them;
one thread may bring rows while another one looks them up, so each row is replaced in one step. As
in Kafka Streams only the stream triggers, and what a record finds depends on how far the table had
been read. Not done here: reading (`worker/global_tables`, `testing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamlog.errors import TopologyError
from streamlog.processing.columns import Batch
from streamlog.processing.step import Collector, Step
from streamlog.records.columns import has_none
from streamlog.topology import GlobalJoin, GlobalTable

DECODED_ROWS_MAX = 100_000
"""Rows kept as objects; beyond, all are dropped."""


class GlobalRows:
    """The rows of one table."""

    def __init__(self, table: GlobalTable) -> None:
        self.table = table
        self._rows: dict[bytes, bytes] = {}
        self._decoded: dict[bytes, tuple[bytes, object]] = {}
        """Values beside the bytes that they were made from."""

    def apply(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        """Take in records of the topic, in their order; those without a key are none of a row."""
        for key, value in zip(keys, values, strict=True):
            if key is None:
                continue
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value

    def get(self, key: bytes) -> bytes | None:
        """The value of a key as bytes; None if there is none."""
        return self._rows.get(key)

    def rows(self) -> list[tuple[bytes, bytes]]:
        """All keys and values as they are now, in the order of keys."""
        return sorted(self._rows.copy().items())

    def lookup(self, key: bytes) -> object:
        """The value of a key; None if there is none."""
        data = self._rows.get(key)
        if data is None:
            return None
        known = self._decoded.get(key)
        if known is not None and known[0] is data:
            return known[1]
        if len(self._decoded) >= DECODED_ROWS_MAX:
            self._decoded.clear()
        value = self.table.topic.value.loads(data)
        self._decoded[key] = (data, value)
        return value


class GlobalTables:
    """The global tables of an app."""

    def __init__(self, tables: Iterable[GlobalTable] = ()) -> None:
        self._tables = {table.name: GlobalRows(table) for table in tables}

    @property
    def topics(self) -> list[str]:
        """What has to be read."""
        return sorted({rows.table.topic.name for rows in self._tables.values()})

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
        """Ask each record for a key, look up its row, and call the joiner."""
        node, collector = self._node, self._collector
        if has_none(batch.values):
            kept = [value is not None for value in batch.values]
            collector.drop(self.name, "null value", kept.count(False))
            batch = batch.where(kept)
        batch, points = self.applied(batch, node.on, batch.keys, batch.values)
        # As in Kafka Streams a record without any key may go on without a row.
        pointing = [
            point is not None or (node.left and key is None)
            for point, key in zip(points, batch.keys, strict=True)
        ]
        if not all(pointing):
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
