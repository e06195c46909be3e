"""TableRows: where the rows of a table lie in its task's store, and how they are read.

A task returns rows as bytes, and any process that has the topology can read them: the bytes travel,
the types come from the program. `TaskRows` gives a processor the rows that its own task keeps: it
reads what the task has computed so far, and what it sets is visible to all nodes of the task at
once and committed with them. Rules of the module: keys are those of the table, without the store's
prefix; views are applied where rows are read; a scan is a sequence of pages, each of which costs
its task a bounded time and is consistent in itself; a key of another partition is refused. Not done
here: finding the task that has a key, and waiting for it (the worker's).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
from streamlog.serdes import BytesSerde, Serde, StrSerde
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
"""A page ends with the row that reaches it."""
PAGE_LOOKED_AT_MAX = 10_000
"""Rows that are passed over cost time too: some 20 ms of the task's."""

Scan = Callable[[bytes, bytes | None], Iterator[tuple[bytes, bytes]]]
"""Keys and values from a key up to another one, in order."""

_WINDOW_BYTES = len(window_key(0, 0, b""))


class KeySpan(NamedTuple):
    """Which rows of a table: those from `low` up to `high` whose own key begins with `head`."""

    low: bytes = b""
    high: bytes | None = None
    head: bytes = b""
    own_at: int = 0
    """Where the row's own key begins: a window comes before it."""


class RowPage(NamedTuple):
    """Some rows, and where to go on."""

    rows: list[tuple[bytes, bytes]]
    next_key: bytes | None
    """None: there are no more."""


def read_page(
    scan: Scan, prefix: bytes, span: KeySpan, *, rows_max: int = PAGE_ROWS_MAX
) -> RowPage:
    """The first rows of a scan over a store.

    Args:
        scan: the store's `range`.
        prefix: of the table's keys in it.
        span: what is looked for.
        rows_max: fewer than `PAGE_ROWS_MAX`.
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


@dataclass(frozen=True)
class TableRows:
    """The rows of one table or of a view of one."""

    name: str
    owner: Node
    """What keeps them: a node with a `table_key`."""
    views: tuple[View, ...]
    """Applied to each, in order."""
    subtopology: int
    """Of the tasks that have them."""
    counted_by: tuple[str, ...]
    """The topics whose partitions are the table's."""
    partitioner: Partitioner = DEFAULT
    """Of these topics."""

    @property
    def is_windowed(self) -> bool:
        """Whether keys are `Windowed`."""
        return self.owner.rows_kept_ms is not None

    @property
    def key_serde(self) -> Serde[Any]:
        """Of keys, or of those within a window."""
        return table_key(self.owner)

    @property
    def source(self) -> TopicSpec:
        """The topic that rows can be written to.

        Raises:
            UsageError: the rows are computed.
        """
        if isinstance(self.owner, WritableTable) and not self.views:
            return self.owner.puts
        if self.views or not isinstance(self.owner, TableSource):
            raise UsageError(
                f"table {self.name!r} is computed, its rows can't be put: write to what it is "
                "computed from"
            )
        return self.owner.topic

    def partitions(self, counts: Mapping[str, int]) -> int:
        """How many partitions it has."""
        return max(counts[topic] for topic in self.counted_by)

    def partition_of(self, raw: bytes, count: int) -> int:
        """Where the row of a key is, as its bytes (`own_key`), among so many partitions."""
        return partition_by(self.partitioner, raw, count)

    def own_key(self, key: object) -> bytes:
        """What decides the partition: the key's bytes, without a window.

        Raises:
            SerdeError: it is not of the table's type.
        """
        return self._dumped(key.key if isinstance(key, Windowed) and self.is_windowed else key)

    def row_key(self, key: object) -> bytes:
        """Where the row of this key lies.

        Raises:
            SerdeError: it is not of the table's type.
        """
        if not self.is_windowed:
            return self._dumped(key)
        if isinstance(key, Windowed) and isinstance(self.owner, CountedAggregate):
            return self._dumped(key.key)  # All that is open of a key is in one place.
        if not isinstance(key, Windowed):
            raise SerdeError(
                f"table {self.name!r} is windowed: its keys are Windowed(key, start, end), "
                f"not {type(key).__name__}"
            )
        return window_key(when_ms(key.end), when_ms(key.start), self._dumped(key.key))

    def row(self, row_key: bytes, data: bytes) -> tuple[Any, Any] | None:
        """Key and value of a row; None if there is none, or a view hides it.

        Raises:
            SerdeError: the bytes are not of the table's types.
        """
        return self._viewed(self._key(row_key), self._value(data))

    def found(self, key: object, row_key: bytes, data: bytes) -> tuple[Any, Any] | None:
        """The row that was asked for by its key, in what lies where it is; see `row`."""
        if not isinstance(self.owner, CountedAggregate):
            return self.row(row_key, data)
        opened = self._open(self.owner, row_key, data)
        return next((pair for pair in opened if pair[0] == key), None)

    def _open(
        self, owner: CountedAggregate, row_key: bytes, data: bytes
    ) -> Iterator[tuple[Any, Any]]:
        """The windows of so many records that are open of a key."""
        key = self.key_serde.loads(row_key)
        for first_ms, last_ms, result in read_open_windows(owner, data):
            window = Windowed(key, moment(first_ms), moment(last_ms))
            if (pair := self._viewed(window, result)) is not None:
                yield pair

    def _viewed(self, key: object, value: object) -> tuple[Any, Any] | None:
        """The row as the views show it."""
        for view in self.views:
            if value is None:
                return None
            value = apply_view(view, key, value)
        return None if value is None else (key, value)

    def stored(self, data: bytes) -> bytes:
        """A value as its task keeps it, for `row` to read; not when it is over."""
        written = isinstance(self.owner, WritableTable) and self.owner.ttl_ms is not None
        return bytes(TIME_BYTES) + data if written else data

    def seen(
        self, rows: Iterable[tuple[bytes, bytes]], *, at_ms: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Keys and values of those that no view hides; see `row`.

        `at_ms` is what `span` was asked for: windows that begin later are left out.
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
        """The rows whose keys begin with `prefix` and whose window may have `at_ms` in it.

        Whether it has is looked at by `seen`.

        Raises:
            SerdeError: keys of this type have no beginning.
            UsageError: the table has no windows, or none has this time in it.
        """
        head = b"" if prefix is None else self._head(prefix)
        if isinstance(self.owner, CountedAggregate):
            # By key alone: whether a window has this time in it is looked at by `seen`.
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
        if isinstance(owner, WindowedAggregate):
            return at_ms + 1, Assigner(owner.windows).of(at_ms)[-1][1]
        return at_ms + 1, at_ms

    def _dumped(self, key: object) -> bytes:
        try:
            return self.key_serde.dumps(key)
        except SerdeError as error:
            raise SerdeError(f"the key for table {self.name!r}: {error}") from error

    def _head(self, prefix: object) -> bytes:
        if not isinstance(self.key_serde, StrSerde | BytesSerde):
            raise SerdeError(
                f"the keys of table {self.name!r} have no prefix: only those of str and bytes do"
            )
        return self._dumped(prefix)

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
"""What the bytes of a row stand for: one line per kind of node that keeps a table."""


def table_key(node: Node) -> Serde[Any]:
    """How the keys of the table that this node keeps are written.

    Raises:
        TopologyError: it keeps none.
    """
    if node.table_key is None:
        raise TopologyError(f"{node.name!r} is a {type(node).__name__} and keeps no table")
    return node.table_key


def tables_of(topology: Topology) -> dict[str, TableRows]:
    """All tables of a topology and the views of them, by the names of their nodes."""
    found: dict[str, TableRows] = {}
    for sub in topology.subtopologies:
        found |= tables_in(sub)
    return found


def tables_in(sub: Subtopology) -> dict[str, TableRows]:
    """The tables of a sub-topology and the views of them, by the names of their nodes."""
    found: dict[str, TableRows] = {}
    behind: dict[str, str] = {}
    for node in sub.nodes:
        above = behind.get(node.parents[0], node.parents[0]) if node.parents else ""
        if node.table_key is not None:
            counted_by = _entry_topics(sub, node)
            partitioner = _partitioner(sub, counted_by)
            found[node.name] = TableRows(node.name, node, (), sub.number, counted_by, partitioner)
        elif isinstance(node, AtCommits):
            behind[node.name] = above  # Its rows are those of the table.
        elif isinstance(node, View) and above in found:
            of = found[above]
            views = (*of.views, node)
            found[node.name] = replace(of, name=node.name, views=views)
    return found


def _partitioner(sub: Subtopology, topics: Iterable[str]) -> Partitioner:
    """Of the topics that a table's keys come by: those of joined ones are alike."""
    return next((sub.topics[name].partitioner for name in topics if name in sub.topics), DEFAULT)


def prefix_of(subtopology: Subtopology, table: str) -> bytes:
    """What keys of a table begin with in the store of its task.

    Raises:
        TopologyError: the sub-topology has no such table.
    """
    node = subtopology.by_name.get(table)
    if node is None or node.table_key is None:
        raise TopologyError(f"sub-topology {subtopology.number} has no table {table!r}")
    return node.specs[0].prefix


def table_named(tables: Mapping[str, TableRows], name: str) -> TableRows:
    """The table of this name.

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
    """The bytes of a key whose row is in one of these partitions.

    Raises:
        UsageError: it is in another one, so its row is with another task.
        SerdeError: it is not of the table's type.
    """
    raw = rows.own_key(key)
    partition = rows.partition_of(raw, partitions) if partitions > 1 else 0
    if partition not in mine:
        here = ", ".join(map(str, sorted(mine)))
        raise UsageError(
            f"{who!r} has partition {here} of table {rows.name!r} in hand, and key {key!r} is in "
            f"partition {partition}: ask with `await table.fetch(key)`, write with `await "
            "table.put(key, value)`, or let the records have the table's key (rekey before it)"
        )
    return raw


def not_local_error(who: str, table: str) -> UsageError:
    """What those hear who ask for rows of a table that is not with them."""
    return UsageError(
        f"{who!r} has no rows of table {table!r} at hand, as its code was not seen to name it: "
        "declare the table first, or say tables=[...] where the agent or processor is declared"
    )


def serialize_value(rows: TableRows, value: object) -> bytes | None:
    """A value of a table as bytes; None deletes a row.

    Raises:
        UsageError: the rows of the table are not for the program to set.
        SerdeError: it is not of the table's type.
    """
    owner = rows.owner
    if rows.views or not isinstance(owner, WritableTable):
        raise UsageError(
            f"the rows of table {rows.name!r} can't be set here, they are computed or come from a "
            'topic: a table that the program writes is declared by app.table("name", key=, value=)'
        )
    if value is None:
        return None
    try:
        return owner.table_value.dumps(value)
    except StreamlogError as error:
        raise SerdeError(f"the value for table {rows.name!r}: {error}") from error


class TaskRows:
    """The rows that a processor has at hand."""

    def __init__(
        self,
        who: str,
        tables: Mapping[str, TableRows],
        steps: Mapping[str, Lookup],
        partition: int,
        counts: Mapping[str, int],
    ) -> None:
        """`steps` keep the rows, by the names of the nodes; `counts` has the topics' partitions."""
        self._who = who
        self._tables = tables
        self._steps = steps
        self._counts = counts
        self._mine = frozenset((partition,))
        self._written_ms: Callable[[], int] = _no_time
        self._store: KeyValueStore | None = None
        self._marks: dict[str, RowMark] = {}

    def bind(self, written_ms: Callable[[], int], store: KeyValueStore) -> None:
        """Write at this time, through this view of the task's store."""
        self._written_ms, self._store = written_ms, store

    def get(self, table: str, key: object) -> Any:  # noqa: ANN401 - of the user's type
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
            raise UsageError(f"{self._who!r} can't set rows before its task has begun")
        step.set(RowWrite(raw, data, self._written_ms()), self._store)

    def range(self, table: str) -> Iterator[tuple[Any, Any]]:
        """See `LocalTables`."""
        rows = self._named(table)
        for key, value in self._steps[rows.owner.name].table():
            seen = value
            for view in rows.views:
                seen = None if seen is None else apply_view(view, key, seen)
            if seen is not None:
                yield key, seen

    def begin(self) -> None:
        """What has been set until now stays."""
        self._marks = {name: step.mark() for name, step in self._written}

    def undo(self) -> None:
        """What has been set since `begin` was taken back in the store."""
        for name, step in self._written:
            step.go_back(self._marks[name])

    def hand_on(self) -> None:
        """Tell those below the tables what has been set."""
        for _, step in self._written:
            step.hand_on()

    @property
    def _written(self) -> list[tuple[str, WritableTableStep]]:
        return [(n, each) for n, each in self._steps.items() if isinstance(each, WritableTableStep)]

    def _of(self, table: str, key: object) -> tuple[TableRows, bytes]:
        rows = self._named(table)
        count = rows.partitions(self._counts)
        return rows, local_key(rows, key, self._who, partitions=count, mine=self._mine)

    def _named(self, table: str) -> TableRows:
        rows = self._tables.get(table)
        if rows is None:
            raise not_local_error(self._who, table)
        return rows


def _no_time() -> int:
    return 0
