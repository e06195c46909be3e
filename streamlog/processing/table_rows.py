"""TableRows: where the rows of a table are in its task's store, and how to read them.

A task returns rows as bytes, and any process that has the topology can read them: the bytes travel,
the types come from the program. `TaskRows` gives a processor the rows that its own task keeps: it
reads what the task has computed so far, and what it sets is visible to all nodes of the task
immediately and is committed with them. Rules of the module: keys are those of the table, without
the store's prefix; views are applied where rows are read; a scan is a sequence of pages, each of
which costs its task a bounded time and is consistent in itself; a key of another partition is
refused. Not done here: finding the task that has a key, and waiting for it (the worker's job).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from streamlog.durations import moment, when_ms
from streamlog.errors import SerdeError, StreamlogError, TopologyError, UsageError
from streamlog.nodes.stream_nodes import Aggregate, Entry, Node, TableSource, View
from streamlog.nodes.table_nodes import (
    AtCommits,
    ExpiringAggregate,
    ForeignKeyRows,
    StreamTable,
    TableAggregate,
    TableTableJoin,
    VersionedTable,
    WritableTable,
)
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.nodes.window_nodes import (
    CountedAggregate,
    RecordWindowsAggregate,
    SessionAggregate,
    SlidingAggregate,
    WindowedAggregate,
)
from streamlog.processing.joins.stream_table_join import Lookup, apply_view
from streamlog.processing.joins.table_table_join import read_joined_row, read_outcome_row
from streamlog.processing.tables.aggregate import RowFormat
from streamlog.processing.tables.writable_table import (
    TIME_BYTES,
    RowMark,
    RowWrite,
    WritableTableStep,
)
from streamlog.processing.windows.count_windows import read_open_windows
from streamlog.record import Windowed
from streamlog.records.partitioners import DEFAULT, Partitioner, partition_by
from streamlog.replace import replace
from streamlog.serdes import BytesSerde, StrSerde
from streamlog.serdes.erased_types import AnySerde, UserKey, UserValue
from streamlog.tables.stores.store import (
    KeyValueStore,
    prefix_end,
    split_window_key,
    window_bound,
    window_key,
)
from streamlog.topology import Subtopology, Topology
from streamlog.windows.window_assigner import Assigner

PAGE_ROWS_MAX = 1_000
PAGE_BYTES_MAX = 1024 * 1024
"""A page ends with the row that reaches this size."""
PAGE_LOOKED_AT_MAX = 10_000
"""Skipped rows cost time too: this many take the task some 20 ms."""

Scan = Callable[[bytes, bytes | None], Iterator[tuple[bytes, bytes]]]
"""Returns the keys and values from one key up to another one, in order."""

_WINDOW_BYTES = len(window_key(0, 0, b""))


class KeySpan(NamedTuple):
    """A part of a table: the rows from `low` up to `high` whose own key begins with `head`."""

    low: bytes = b""
    high: bytes | None = None
    head: bytes = b""
    own_at: int = 0
    """The index at which the row's own key begins: a window comes before it."""


class RowPage(NamedTuple):
    """Some rows, and the key from which to continue."""

    rows: list[tuple[bytes, bytes]]
    next_key: bytes | None
    """None: there are no more rows."""


def read_page(
    scan: Scan, prefix: bytes, span: KeySpan, *, rows_max: int = PAGE_ROWS_MAX
) -> RowPage:
    """Return the first rows of a scan over a store.

    Args:
        scan: the store's `range`.
        prefix: the prefix of the table's keys in it.
        span: the rows to return.
        rows_max: limits the rows; at most `PAGE_ROWS_MAX`.
    """
    rows: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    high = prefix_end(prefix) if span.high is None else prefix + span.high
    for looked_at, (stored, data) in enumerate(scan(prefix + span.low, high)):
        key = stored[len(prefix) :]
        if len(rows) >= min(rows_max, PAGE_ROWS_MAX) or size_bytes >= PAGE_BYTES_MAX:
            return RowPage(rows, key)
        if looked_at == PAGE_LOOKED_AT_MAX:
            return RowPage(rows, key)
        if key.startswith(span.head, span.own_at):
            rows.append((key, data))
            size_bytes += len(key) + len(data)
    return RowPage(rows, None)


class TableRows(msgspec.Struct, frozen=True):
    """The rows of a table, or of a view of one."""

    name: str
    owner: Node
    """The node that keeps them: one with a `table_key`."""
    views: tuple[View, ...]
    """The views to apply to each row, in order."""
    subtopology: int
    """The sub-topology whose tasks have them."""
    counted_by: tuple[str, ...]
    """The topics that have as many partitions as the table."""
    partitioner: Partitioner = DEFAULT
    """The partitioner of these topics."""

    @property
    def is_windowed(self) -> bool:
        """Whether keys are `Windowed`."""
        return self.owner.rows_kept_ms is not None

    @property
    def key_serde(self) -> AnySerde:
        """The serde of the keys, or of the keys inside `Windowed`."""
        return table_key(self.owner)

    @property
    def source(self) -> TopicSpec:
        """The topic to which rows can be written.

        Raises:
            UsageError: the rows are computed.
        """
        if isinstance(self.owner, WritableTable) and not self.views:
            return self.owner.puts
        if self.views or not isinstance(self.owner, TableSource):
            raise UsageError(
                f"table {self.name!r} is computed, so its rows can't be written: write to the "
                "topics that it is computed from"
            )
        return self.owner.topic

    def partitions(self, counts: Mapping[str, int]) -> int:
        """Return the number of partitions of the table."""
        return max(counts[topic] for topic in self.counted_by)

    def partition_of(self, raw: bytes, count: int) -> int:
        """Return the partition of a key, given as bytes (`own_key`), out of `count`."""
        return partition_by(self.partitioner, raw, count)

    def own_key(self, key: object) -> bytes:
        """Return what decides the partition: the key's bytes, without a window.

        Raises:
            SerdeError: the key is not of the table's type.
        """
        return self._dump_key(key.key if isinstance(key, Windowed) and self.is_windowed else key)

    def row_key(self, key: object) -> bytes:
        """Return the key of the row in the store.

        Raises:
            SerdeError: the key is not of the table's type.
        """
        if not self.is_windowed:
            return self._dump_key(key)
        if isinstance(key, Windowed) and isinstance(self.owner, CountedAggregate):
            return self._dump_key(key.key)  # One row holds all open windows of a key.
        if not isinstance(key, Windowed):
            raise SerdeError(
                f"table {self.name!r} is windowed: its keys are Windowed(key, start, end), "
                f"not {type(key).__name__}"
            )
        return window_key(when_ms(key.end), when_ms(key.start), self._dump_key(key.key))

    def row(self, row_key: bytes, data: bytes) -> tuple[UserKey, UserValue] | None:
        """Return key and value of a row; None if there is none, or a view hides it.

        Raises:
            SerdeError: the bytes are not of the table's types.
        """
        return self._view(self._key(row_key), self._value(data))

    def found(self, key: object, row_key: bytes, data: bytes) -> tuple[UserKey, UserValue] | None:
        """Return the row of a key from the bytes at its row key; see `row`."""
        if not isinstance(self.owner, CountedAggregate):
            return self.row(row_key, data)
        opened = self._open(self.owner, row_key, data)
        return next((pair for pair in opened if pair[0] == key), None)

    def _open(
        self, owner: CountedAggregate, row_key: bytes, data: bytes
    ) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over the open count windows of a key."""
        key = self.key_serde.loads(row_key)
        for first_ms, last_ms, result in read_open_windows(owner, data):
            window = Windowed(key, moment(first_ms), moment(last_ms))
            if (pair := self._view(window, result)) is not None:
                yield pair

    def _view(self, key: object, value: object) -> tuple[UserKey, UserValue] | None:
        """Return the row as the views show it."""
        for view in self.views:
            if value is None:
                return None
            value = apply_view(view, key, value)
        return None if value is None else (key, value)

    def stored(self, data: bytes) -> bytes:
        """Return a value as its task stores it, for `row` to read; without an expiry time."""
        written = isinstance(self.owner, WritableTable) and self.owner.ttl_ms is not None
        return bytes(TIME_BYTES) + data if written else data

    def seen(
        self, rows: Iterable[tuple[bytes, bytes]], *, at_ms: int | None = None
    ) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over keys and values of the rows that no view hides; see `row`.

        `at_ms` is the time passed to `span`: windows that begin later are left out.
        """
        owner = self.owner
        if isinstance(owner, CountedAggregate):
            opened = (pair for row_key, data in rows for pair in self._open(owner, row_key, data))
            yield from (
                pair
                for pair in opened
                if at_ms is None or when_ms(pair[0].start) <= at_ms <= when_ms(pair[0].end)
            )
            return
        for row_key, data in rows:
            if at_ms is not None and self.is_windowed and split_window_key(row_key)[1] > at_ms:
                continue
            found = self.row(row_key, data)
            if found is not None:
                yield found

    def span(self, *, prefix: object = None, at_ms: int | None = None) -> KeySpan:
        """Return the rows whose keys begin with `prefix` and whose window may contain `at_ms`.

        `seen` checks whether the window does.

        Raises:
            SerdeError: keys of this type have no prefix.
            UsageError: the table has no windows.
        """
        head = b"" if prefix is None else self._head(prefix)
        if isinstance(self.owner, CountedAggregate):
            # By key alone: `seen` checks whether a window contains this time.
            return KeySpan(head, prefix_end(head) if head else None, head)
        if not self.is_windowed:
            if at_ms is not None and not isinstance(self.owner, WritableTable):
                raise UsageError(f"table {self.name!r} is not windowed: scan it without at=")
            return KeySpan(head, prefix_end(head) if head else None, head)
        if at_ms is None:
            return KeySpan(head=head, own_at=_WINDOW_BYTES)
        first_ms, last_ms = self._ends_around(at_ms)
        low, high = window_bound(first_ms), window_bound(last_ms + 1)
        return KeySpan(low, high, head, own_at=_WINDOW_BYTES)

    def _ends_around(self, at_ms: int) -> tuple[int, int]:
        owner = self.owner
        if isinstance(owner, RecordWindowsAggregate | TableTableJoin):
            return owner.end_range(at_ms)
        # Rows are in the order of their ends. Hopping windows of 10 min every 5 min, at 10:07: the
        # first one that contains it ends after 10:07, the last one at 10:15.
        if isinstance(owner, WindowedAggregate):
            return at_ms + 1, Assigner(owner.windows).of(at_ms)[-1][1]
        return at_ms + 1, at_ms

    def _dump_key(self, key: object) -> bytes:
        try:
            return self.key_serde.dumps(key)
        except SerdeError as error:
            raise SerdeError(f"the key for table {self.name!r}: {error}") from error

    def _head(self, prefix: object) -> bytes:
        if not isinstance(self.key_serde, StrSerde | BytesSerde):
            raise SerdeError(
                f"the keys of table {self.name!r} have no prefix: only str and bytes keys do"
            )
        return self._dump_key(prefix)

    def _key(self, row_key: bytes) -> object:
        if not self.is_windowed:
            return self.key_serde.loads(row_key)
        end_ms, start_ms, raw = split_window_key(row_key)
        return Windowed(self.key_serde.loads(raw), moment(start_ms), moment(end_ms))

    def _value(self, data: bytes) -> object:
        return _READERS[type(self.owner)](self.owner, data)


def _read_value(owner: TableSource | StreamTable, data: bytes) -> object:
    found: object = owner.table_value.loads(data)
    return found


def _read_result(
    owner: Aggregate | WindowedAggregate | RecordWindowsAggregate, data: bytes
) -> object:
    row = RowFormat(owner.name, owner.aggregation).loads(data)
    found: object = owner.aggregation.result(row.state)
    return found


def _read_writable(owner: WritableTable, data: bytes) -> object:
    value = data if owner.ttl_ms is None else data[TIME_BYTES:]
    found: object = owner.table_value.loads(value)
    return found


_READERS: dict[type[Node], Callable[[Any, bytes], object]] = {
    ForeignKeyRows: read_outcome_row,
    StreamTable: _read_value,
    TableSource: _read_value,
    VersionedTable: _read_value,
    WritableTable: _read_writable,
    TableTableJoin: read_joined_row,
    Aggregate: _read_result,
    ExpiringAggregate: _read_result,
    TableAggregate: _read_result,
    WindowedAggregate: _read_result,
    SessionAggregate: _read_result,
    SlidingAggregate: _read_result,
}
"""How to read the bytes of a row: one line per kind of node that keeps a table."""


def table_key(node: Node) -> AnySerde:
    """Return the key serde of the table that this node keeps.

    Raises:
        TopologyError: the node keeps no table.
    """
    if node.table_key is None:
        raise TopologyError(f"{node.name!r} ({type(node).__name__}) keeps no table")
    return node.table_key


def tables_of(topology: Topology) -> dict[str, TableRows]:
    """Return all tables of a topology and their views, by the names of their nodes."""
    found: dict[str, TableRows] = {}
    for sub in topology.subtopologies:
        found |= tables_in(sub)
    return found


def tables_in(sub: Subtopology) -> dict[str, TableRows]:
    """Return the tables of a sub-topology and their views, by the names of their nodes."""
    found: dict[str, TableRows] = {}
    behind: dict[str, str] = {}
    for node in sub.nodes:
        above = behind.get(node.parents[0], node.parents[0]) if node.parents else ""
        if node.table_key is not None:
            counted_by = _entry_topics(sub, node)
            partitioner = _partitioner(sub, counted_by)
            found[node.name] = TableRows(node.name, node, (), sub.number, counted_by, partitioner)
        elif isinstance(node, AtCommits):
            behind[node.name] = above  # Its rows are those of the table above.
        elif isinstance(node, View) and above in found:
            of = found[above]
            views = (*of.views, node)
            found[node.name] = replace(of, name=node.name, views=views)
    return found


def _partitioner(sub: Subtopology, topics: Iterable[str]) -> Partitioner:
    """Return the partitioner of a table's topics: joined topics have equal partitioners."""
    return next((sub.topics[name].partitioner for name in topics if name in sub.topics), DEFAULT)


def prefix_of(subtopology: Subtopology, table: str) -> bytes:
    """Return the prefix of a table's keys in the store of its task.

    Raises:
        TopologyError: the sub-topology has no such table.
    """
    node = subtopology.by_name.get(table)
    if node is None or node.table_key is None:
        raise TopologyError(f"sub-topology {subtopology.number} has no table {table!r}")
    return node.specs[0].prefix


def table_named(tables: Mapping[str, TableRows], name: str) -> TableRows:
    """Return the table of this name.

    Raises:
        UsageError: there is none.
    """
    found = tables.get(name)
    if found is None:
        there = ", ".join(sorted(tables)) or "none"
        raise UsageError(f"there is no table {name!r}; tables of this app: {there}")
    return found


def _entry_topics(sub: Subtopology, node: Node) -> tuple[str, ...]:
    if isinstance(node, Entry):
        return (node.topic.name,)
    return tuple(each.topic.name for each in sub.ancestors(node) if isinstance(each, Entry))


def local_key(
    rows: TableRows, key: object, who: str, *, partitions: int, mine: frozenset[int]
) -> bytes:
    """Return the bytes of a key whose row is in one of these partitions.

    Raises:
        UsageError: the key is in another partition, so another task has its row.
        SerdeError: the key is not of the table's type.
    """
    raw = rows.own_key(key)
    partition = rows.partition_of(raw, partitions) if partitions > 1 else 0
    if partition not in mine:
        here = ", ".join(map(str, sorted(mine)))
        raise UsageError(
            f"{who!r} has partition {here} of table {rows.name!r}, and key {key!r} is in "
            f"partition {partition}: read it with `await table.fetch(key)`, write it with `await "
            "table.put(key, value)`, or give the records the table's key (rekey before it)"
        )
    return raw


def not_local_error(who: str, table: str) -> UsageError:
    """Return the error for an agent or processor that uses a table whose rows it does not have."""
    return UsageError(
        f"{who!r} has no rows of table {table!r}, because its code does not appear to name it: "
        "declare the table first, or pass tables=[...] where the agent or processor is declared"
    )


def serialize_value(rows: TableRows, value: object) -> bytes | None:
    """Return a value of a table as bytes; None deletes a row.

    Raises:
        UsageError: the program can't set rows of this table.
        SerdeError: the value is not of the table's type.
    """
    owner = rows.owner
    if rows.views or not isinstance(owner, WritableTable):
        raise UsageError(
            f"the rows of table {rows.name!r} can't be set here, because they are computed or come "
            'from a topic: declare a table to write with app.table("name", key=, value=)'
        )
    if value is None:
        return None
    try:
        return owner.table_value.dumps(value)
    except StreamlogError as error:
        raise SerdeError(f"the value for table {rows.name!r}: {error}") from error


class TaskRows:
    """The rows that a processor can read and write in its own task."""

    def __init__(
        self,
        who: str,
        tables: Mapping[str, TableRows],
        steps: Mapping[str, Lookup],
        partition: int,
        counts: Mapping[str, int],
    ) -> None:
        """`steps` keep the rows, by the names of nodes; `counts` are the partition counts."""
        self._who = who
        self._tables = tables
        self._steps = steps
        self._counts = counts
        self._mine = frozenset((partition,))
        self._written_ms: Callable[[], int] = _no_time
        self._store: KeyValueStore | None = None
        self._marks: dict[str, RowMark] = {}

    def bind(self, written_ms: Callable[[], int], store: KeyValueStore) -> None:
        """Write rows with this function's time, through this view of the task's store."""
        self._written_ms, self._store = written_ms, store

    def get(self, table: str, key: object) -> UserValue:
        """See `LocalTables`."""
        rows, raw = self._of(table, key)
        found = self._steps[rows.owner.name].lookup(raw)
        for view in rows.views:
            if found is None:
                break
            found = apply_view(view, key, found)
        return found

    def put(self, table: str, key: object, value: object) -> None:
        """See `LocalTables`."""
        rows, raw = self._of(table, key)
        data = serialize_value(rows, value)
        step = self._steps[rows.owner.name]
        if self._store is None or not isinstance(step, WritableTableStep):
            raise UsageError(f"{self._who!r} can't set rows before its task has started")
        step.set(RowWrite(raw, data, self._written_ms()), self._store)

    def range(self, table: str) -> Iterator[tuple[UserKey, UserValue]]:
        """See `LocalTables`."""
        rows = self._table_of(table)
        for key, value in self._steps[rows.owner.name].table():
            seen = value
            for view in rows.views:
                seen = None if seen is None else apply_view(view, key, seen)
            if seen is not None:
                yield key, seen

    def begin(self) -> None:
        """Keep the rows that were set until now: `undo` returns to this state."""
        self._marks = {name: step.mark() for name, step in self._writable_steps}

    def undo(self) -> None:
        """Forget the rows set since `begin`; the caller has undone them in the store."""
        for name, step in self._writable_steps:
            step.go_back(self._marks[name])

    def forward_changes(self) -> None:
        """Forward the rows that were set to the steps below the tables."""
        for _, step in self._writable_steps:
            step.forward_changes()

    @property
    def _writable_steps(self) -> list[tuple[str, WritableTableStep]]:
        return [(n, each) for n, each in self._steps.items() if isinstance(each, WritableTableStep)]

    def _of(self, table: str, key: object) -> tuple[TableRows, bytes]:
        rows = self._table_of(table)
        count = rows.partitions(self._counts)
        return rows, local_key(rows, key, self._who, partitions=count, mine=self._mine)

    def _table_of(self, table: str) -> TableRows:
        rows = self._tables.get(table)
        if rows is None:
            raise not_local_error(self._who, table)
        return rows


def _no_time() -> int:
    return 0
