"""Table: the latest value per key, from a source or aggregation; GroupedTable: by another key.

A view stores nothing: it maps rows when they are read. A row of a grouped table counts once, in
its present group: when it changes or is deleted, its old value is subtracted, so each aggregation
has a function that adds and one that subtracts.

Rule: a change to None is a deletion, which views pass on without calling functions. Grouped rows go
through a repartition topic as `Revision`s. A suppressed table keeps no rows: it can be joined and
grouped, but not read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, overload

from streamlog.dsl.aggregations import revision_aggregation, revision_reduction, state_shape
from streamlog.dsl.app_runtime import TableAccess
from streamlog.dsl.stream_position import StreamPosition, TableView, repartition
from streamlog.dsl.table_joins import ForeignKeyOptions, join_on_foreign_key, join_tables
from streamlog.dsl.value_types import Shape, element, is_never_none, return_shape
from streamlog.durations import Dur, When, duration_ms, when_ms
from streamlog.errors import TopologyError, UsageError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.stream_nodes import Aggregation, How, Node, TableFilter, TableMapValues
from streamlog.nodes.table_nodes import (
    Regroup,
    SuppressUntilClosed,
    SuppressWithin,
    TableAggregate,
    TableTableJoin,
)
from streamlog.nodes.topic_spec import check_name
from streamlog.nodes.window_nodes import (
    RecordWindowsAggregate,
    SessionAggregate,
    WindowedAggregate,
    WindowedRows,
)
from streamlog.serdes import serde_for
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.tables.change_serdes import RevisionSerde
from streamlog.tables.local_rows import local_tables
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.definitions import Sessions

if TYPE_CHECKING:
    from streamlog.dsl.stream import Stream


def suppress_until_closed(side: TableView, name: str) -> TableView:
    """Pass each row of a windowed table once, when it is final.

    Raises:
        TopologyError: the table is not windowed, or the name is taken.
    """
    position = side.position
    owner = position.builder.nodes[side.owner]
    if not side.is_windowed:
        raise TopologyError(
            f'suppress(until="closed") needs windows, and {side.owner!r} has none: pass within= or '
            "max_records=, or window the stream before the aggregation"
        )
    closes_after_ms, size_ms, idle_after_ms = _closing(owner)
    position.builder.add(
        SuppressUntilClosed(
            name=check_name("a suppression", name),
            parents=(position.node,),
            store=StoreSpec(name),
            key=position.key.serde,
            value=position.value.serde,
            closes_after_ms=closes_after_ms,
            size_ms=size_ms,
            are_sessions=isinstance(owner, SessionAggregate),
            idle_after_ms=idle_after_ms,
            united=isinstance(owner, WindowedRows) and owner.united,
        )
    )
    return _view_below(side, name)


def suppress_within(
    side: TableView, name: str, *, within: Dur | None, max_records: int | None
) -> TableView:
    """Hold changes back, and pass the last change of each row.

    Raises:
        TopologyError: there is no limit, one is out of range, or the name is taken.
    """
    if within is None and max_records is None:
        raise TopologyError(
            f'suppress {name!r} would hold changes back forever: pass until="closed", within= '
            "or max_records="
        )
    if max_records is not None and max_records < 1:
        raise TopologyError(f"max_records= must be 1 or more, not {max_records}")
    position = side.position
    position.builder.add(
        SuppressWithin(
            name=check_name("a suppression", name),
            parents=(position.node,),
            store=StoreSpec(name),
            key=position.key.serde,
            value=position.value.serde,
            within_ms=None if within is None else duration_ms(within),
            records_max=max_records,
        )
    )
    return _view_below(side, name)


def _view_below(side: TableView, name: str) -> TableView:
    position = side.position
    return TableView(
        StreamPosition(position.builder, name, position.key, position.value),
        name,
        is_windowed=side.is_windowed,
    )


def _closing(owner: Node) -> tuple[int, int, int | None]:
    """Return when windows are final, in ms after their end, their size in ms, and `idle_after`.

    The size is 0 if it is not known. The last is None if the table always waits for quiet sources.
    """
    # A row of a join may change as long as a row of either table may.
    if isinstance(owner, TableTableJoin):
        return owner.kept_ms or 0, 0, None
    if not isinstance(owner, WindowedAggregate | RecordWindowsAggregate):
        raise TopologyError(
            f"suppress can't tell when the windows of {owner.name!r} ({type(owner).__name__}) "
            "close: suppress the windowed table before it"
        )
    windows = owner.windows
    # A session ends with its last record, and a record up to a gap later extends it. So it is final
    # only when the grace has passed after that gap.
    if isinstance(windows, Sessions):
        return windows.gap_ms + windows.grace_ms, 0, owner.idle_after_ms
    return windows.grace_ms, windows.size_ms, owner.idle_after_ms


K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
K2 = TypeVar("K2")
"""A new key."""
V2 = TypeVar("V2")
"""A new value, or the value of a table."""
R = TypeVar("R")
"""The result of a joiner."""


class Table(Generic[K, V]):
    """The latest value of type V per key of type K.

    Operators return a new table. Agents and processors that own a key read and write its row with
    `table[key]`; everything else reads rows with `fetch` and `scan`, from whichever worker has them
    (KIP-67, KIP-535).
    """

    def __init__(self, side: TableView, *, default: Callable[[], V] | None = None) -> None:
        """Create a table over a view; `default` returns the value of keys without a row."""
        self.side = side
        self._default = default

    @property
    def name(self) -> str:
        """The name of the node that keeps the rows."""
        return self.side.owner

    def changes(self) -> Stream[K, V]:
        """Return the changes as a stream; a windowed table that emits on close has final rows only.

        A deleted row is a record with the value None.
        """
        # Stream and Table refer to each other, so one of the two imports is made in a function.
        from streamlog.dsl.stream import Stream  # noqa: PLC0415

        return Stream(self.side.position)

    def map_values(
        self,
        fn: Callable[[V], V2],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, V2]:
        """Map the values of the table; a row for which `fn` returns None does not exist.

        Args:
            fn: returns the new value. It must be deterministic: if its annotation allows None,
                it is also called with the previous value, so that only existing rows are deleted.
            name: the operator's name.
            on_error: the policy for rows on which `fn` fails; the app's policy by default.
        """
        builder, position = self.side.position.builder, self.side.position
        value = return_shape(fn, position.value)
        node = TableMapValues(
            name=_check_optional_name(name) or builder.unique_name("tablemapvalues"),
            parents=(position.node,),
            fn=fn,
            # If `fn` never returns None, every row is visible, and the old value is not needed.
            may_delete=not is_never_none(value.known),
            on_error=on_error,
        )
        builder.add(node)
        # The rows stay those of the owner; a reader applies the views to each row that it reads.
        mapped = StreamPosition(builder, node.name, position.key, value)
        return Table(
            TableView(mapped, self.side.owner, (*self.side.views, node), self.side.is_windowed)
        )

    def filter(
        self,
        fn: Callable[[K, V], bool],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, V]:
        """Keep the rows for which `fn` returns a true value.

        A row that passed and no longer passes is deleted. A change of a row that passes neither
        before nor after produces no change.

        Args:
            fn: decides on key and value. It must be deterministic: it is also called with the
                previous value.
            name: the operator's name.
            on_error: the policy for rows on which `fn` fails; the app's policy by default.
        """
        builder = self.side.position.builder
        node = TableFilter(
            name=_check_optional_name(name) or builder.unique_name("tablefilter"),
            parents=(self.side.position.node,),
            fn=fn,
            on_error=on_error,
        )
        builder.add(node)
        position = self.side.position
        passed = StreamPosition(builder, node.name, position.key, position.value)
        return Table(
            TableView(passed, self.side.owner, (*self.side.views, node), self.side.is_windowed)
        )

    def join(
        self,
        other: Table[K, V2],
        fn: Callable[[V, V2], R],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, R]:
        """Join rows of equal key that both tables have; a change of either produces a new row.

        The join stores the latest row of both tables per key. Rows of windowed tables join on key
        and window. A result has the larger timestamp of both rows.

        Args:
            other: a table with keys of type K and as many partitions.
            fn: returns the value of the result from both values; it must be deterministic.
            name: the identity of the join's state.
            on_error: the policy for rows on which `fn` fails; a row that is left out does not
                exist in the result.

        Raises:
            TopologyError: the tables serialize keys differently or only one is windowed, or the
                name is taken.
        """
        return self._joined(other, fn, "inner", name, on_error)

    def left_join(
        self,
        other: Table[K, V2],
        fn: Callable[[V, V2 | None], R],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, R]:
        """Join each row of this table with the other table's row, or with None; see `join`."""
        return self._joined(other, fn, "left", name, on_error)

    def outer_join(
        self,
        other: Table[K, V2],
        fn: Callable[[V | None, V2 | None], R],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, R]:
        """Join the rows of either table, with None for a missing one; see `join`."""
        return self._joined(other, fn, "outer", name, on_error)

    def join_on(
        self,
        other: Table[K2, V2],
        on: Callable[[V], K2],
        fn: Callable[[V, V2], R],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, R]:
        """Join each row with the row of another table that it refers to by a foreign key (KIP-213).

        A change of a row of `other` updates all rows that refer to it. Results have this table's
        keys. The join uses two repartition topics, `<app>-<name>-references-repartition` and
        `<app>-<name>-results-repartition`.

        Args:
            other: the table that rows refer to, with keys of any type.
            on: returns the foreign key of a value. A row for which it returns None refers to
                nothing, and does not exist in the result.
            fn: returns the value of the result from both values. Like `on`, it must be
                deterministic.
            name: the identity of the join's state.
            on_error: the policy for rows on which a function fails; a row that is left out does not
                exist in the result.

        Raises:
            TopologyError: a table is windowed, or the name is taken.
        """
        options = ForeignKeyOptions(
            left=self.side, right=other.side, on=on, fn=fn, is_left=False, name=name,
            on_error=on_error,
        )  # fmt: skip
        return Table(join_on_foreign_key(options))

    def left_join_on(
        self,
        other: Table[K2, V2],
        on: Callable[[V], K2 | None],
        fn: Callable[[V, V2 | None], R],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, R]:
        """Join as `join_on` does, and join a row that refers to no existing row with None."""
        options = ForeignKeyOptions(
            left=self.side, right=other.side, on=on, fn=fn, is_left=True, name=name,
            on_error=on_error,
        )  # fmt: skip
        return Table(join_on_foreign_key(options))

    def _joined(
        self,
        other: Table[K, V2],
        fn: Callable[..., R],
        kind: How,
        name: str,
        on_error: ErrorPolicy | None,
    ) -> Table[K, R]:
        side = join_tables(self.side, other.side, fn, kind=kind, name=name, on_error=on_error)
        return Table(side)

    @overload
    def suppress(self, *, until: Literal["closed"], name: str) -> Table[K, V]: ...
    @overload
    def suppress(
        self, *, within: Dur | None = None, max_records: int | None = None, name: str
    ) -> Table[K, V]: ...
    def suppress(
        self,
        *,
        until: Literal["closed"] | None = None,
        within: Dur | None = None,
        max_records: int | None = None,
        name: str,
    ) -> Table[K, V]:
        """Hold changes back, and pass only the last change of each row (KIP-328).

        A join with the suppressed table sees the changes that have passed. `fetch` and `scan` can't
        read its rows.

        Args:
            until: "closed" passes each row of a windowed table once, when it is final; it hides a
                deletion before that.
            within: how long, in stream time, a row is held back after its first change.
            max_records: the number of rows that each task holds back, 1 or more; beyond it the
                oldest row passes.
            name: the identity of the state.

        Raises:
            TopologyError: there is no limit, `max_records` is below 1, or `until` is given for a
                table without windows.
        """
        if until is None:
            return Table(suppress_within(self.side, name, within=within, max_records=max_records))
        if until != "closed" or within is not None or max_records is not None:
            raise TopologyError(
                'suppress takes either until="closed", or within= and max_records=: with another '
                "limit some final rows would be lost"
            )
        return Table(suppress_until_closed(self.side, name))

    def group_by(
        self,
        fn: Callable[[K, V], tuple[K2, V2] | None],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> GroupedTable[K2, V2]:
        """Group the rows by another key, for aggregations; each row counts in its present group.

        Args:
            fn: returns the group of a row and the value that it adds to the group. A row is in no
                group if `fn` returns None or a pair that contains None. It must be deterministic:
                when a row changes, it is called again with the old value.
            name: names the repartition topic `<app>-<name>-repartition`.
            on_error: the policy for rows on which `fn` fails; a row that is left out is in no
                group.

        Raises:
            TopologyError: the name is taken, or the table's changes do not contain old values.
        """
        return group_table(self.side, fn, name, on_error)

    def __getitem__(self, key: K) -> V:
        """Return the value of a key, or the table's default, in an agent or processor that owns it.

        The value is a copy: only `table[key] = value` stores a change.

        Raises:
            KeyError: the key has no row, and the table has no default.
            UsageError: the caller is not an agent or processor of this table, or the key belongs to
                another partition.
        """
        found = self.get(key)
        if found is None:
            if self._default is None:
                raise KeyError(key)
            # Not stored: a default becomes a row only when the program assigns it.
            return self._default()
        return found

    def __setitem__(self, key: K, value: V) -> None:
        """Set the value of a key, in an agent or processor that owns it.

        The row and the current record are committed together or not at all.

        Raises:
            UsageError: as for `table[key]`, or the program does not write this table.
            SerdeError: key or value does not have the table's type.
        """
        local_tables(self.name).put(self.side.rows, key, value)

    def __delitem__(self, key: K) -> None:
        """Delete the row of a key; raises KeyError if the key has no row."""
        if self.get(key) is None:
            raise KeyError(key)
        local_tables(self.name).put(self.side.rows, key, None)

    def __contains__(self, key: object) -> bool:
        """Return whether the key has a row; a default does not count."""
        return local_tables(self.name).get(self.side.rows, key) is not None

    __iter__ = None
    """Deliberately not iterable: `for key in table` would see one partition only."""

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None without a row. Raises UsageError as `table[key]`."""
        found: V | None = local_tables(self.name).get(self.side.rows, key)
        return found

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield the rows of the current partition in the order of key bytes; see `table[key]`."""
        return local_tables(self.name).range(self.side.rows)

    async def fetch(self, key: K, *, stale_ok: bool = False) -> V | None:
        """Return the row of a key, from whichever worker has it; None if there is no row.

        The row is that of the worker's last commit: it survives a crash, and uncommitted changes
        are not visible. While the key's task moves between workers, the call waits.

        Args:
            key: the key; for a windowed table a `Windowed`.
            stale_ok: accept the row of a standby, which may lag, instead of waiting (KIP-535).

        Raises:
            UsageError: the app does not run.
            SerdeError: the key does not have the table's type.
            RequestTimedOut: no worker had the key's task within the time limit.
            ConfigError: another worker has the row, and can't answer because it has no `web=`.
        """
        found: V | None = await self._access().fetch(self.side.rows, key, stale_ok=stale_ok)
        return found

    async def put(self, key: K, value: V | None) -> None:
        """Write a row of a topic's table, or of a table that the program writes.

        The row travels through that topic, or through a topic of the table. The call returns when
        the worker that has the row has committed it: a `fetch` that follows returns this row or a
        newer one.

        Args:
            key: the key of the row.
            value: the new value; None deletes the row.

        Raises:
            UsageError: the table is computed from other topics, or the app does not run.
            SerdeError: key or value does not have the table's type.
            RequestTimedOut: the row is written, but was not committed within the time limit.
            ConfigError: as for `fetch`.
        """
        await self._access().put(self.side.rows, key, value)

    def scan(self, *, prefix: object = None, at: When | None = None) -> AsyncIterator[tuple[K, V]]:
        """Yield all rows, from all workers, as of their last commits; see `fetch`.

        The rows of one partition come in the order of their key bytes, those of a windowed table in
        the order of window end, window start and key. The scan reads some rows at a time: a row
        that changes meanwhile appears with its old or its new value.

        Args:
            prefix: yield only keys that begin with it; for keys that are str or bytes.
            at: yield only rows of windows that contain this time; for windowed tables. A table that
                the program writes ignores it, since it has no history.

        Raises:
            UsageError: the app does not run, or `at` is given for another table without windows.
            SerdeError: `prefix` is given, and the keys are neither str nor bytes.
        """
        at_ms = None if at is None else when_ms(at)
        return self._access().scan(self.side.rows, prefix=prefix, at_ms=at_ms)

    def _access(self) -> TableAccess:
        found = self.side.position.builder.runtime.tables
        if found is None:
            raise UsageError(
                f"the app is not running, so no rows of {self.name!r} can be read: read them in an "
                "agent, timer or crontab of a running worker, in `with app.test()`, or over HTTP "
                "(docs/web.md)"
            )
        return found


def _check_optional_name(name: str | None) -> str | None:
    return None if name is None else check_name("an operator", name)


A = TypeVar("A")
"""The state and result of an aggregation."""


class GroupedTable(Generic[K, V]):
    """The rows of a table, grouped by another key."""

    def __init__(self, position: StreamPosition, value: Shape) -> None:
        """Group the revisions at `position`, whose values have this shape."""
        self._position = position
        self._value = value

    def count(self, *, name: str, on_error: ErrorPolicy | None = None) -> Table[K, int]:
        """Count the rows of each group; the count is 0 after the last row has left."""
        # A row that changes within its group is subtracted and added: the count stays.
        aggregation = revision_aggregation(
            int, lambda n, _: n + 1, lambda n, _: n - 1, serde_for(int)
        )
        return self._table(name, aggregation, Shape(int), on_error)

    def reduce(
        self,
        add: Callable[[V, V], V],
        subtract: Callable[[V, V], V],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, V]:
        """Fold the values of each group into one value of type V, starting with the first value.

        Args:
            add: returns the result with a value that has entered the group.
            subtract: returns the result without a value that has left the group. None deletes the
                group's row.
            name: the table's name, which identifies its state.
            on_error: the policy for changes on which a function fails. With any policy but `FAIL`
                the result may be wrong from then on, because a value that was left out is
                subtracted later.
        """
        aggregation = revision_reduction(add, subtract, self._value.serde)
        return self._table(name, aggregation, self._value, on_error)

    def aggregate(
        self,
        init: Callable[[], A],
        add: Callable[[A, V], A],
        subtract: Callable[[A, V], A],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, A]:
        """Fold the values of each group into a state that starts as `init()`.

        The functions may change the state in place, but must return it. The state has the type that
        `add` is annotated to return, else the type of `init()`.

        Args:
            init: returns the state of a group without rows.
            add: returns the state with a value that has entered the group.
            subtract: returns the state without a value that has left the group. None deletes the
                group's row.
            name: the table's name, which identifies its state.
            on_error: as for `reduce`.
        """
        shape = state_shape(init, add)
        return self._table(
            name, revision_aggregation(init, add, subtract, shape.serde), shape, on_error
        )

    def _table(
        self, name: str, aggregation: Aggregation, value: Shape, on_error: ErrorPolicy | None
    ) -> Table[K, UserValue]:
        position = self._position
        position.builder.add(
            TableAggregate(
                name=check_name("a table", name),
                parents=(position.node,),
                store=StoreSpec(name),
                key=position.key.serde,
                aggregation=aggregation,
                on_error=on_error,
            )
        )
        return Table(TableView(StreamPosition(position.builder, name, position.key, value), name))


def group_table(
    side: TableView,
    fn: Callable[[UserKey, UserValue], tuple[UserKey, UserValue] | None],
    name: str,
    on_error: ErrorPolicy | None,
) -> GroupedTable[UserKey, UserValue]:
    """Group the rows of a table by the key that the function returns.

    Raises:
        TopologyError: the table's changes do not contain old values.
    """
    position = side.position
    owner = position.builder.nodes[side.owner]
    if not _knows_old_values(position):
        hint = "use Emit.UPDATE or Emit.CLOSE" if side.is_windowed else "group .changes() instead"
        raise TopologyError(
            f"the rows of {side.owner!r} ({type(owner).__name__}) can't be grouped by another key, "
            f"because its changes do not contain the value that they replace: {hint}"
        )
    key, value = (return_shape(fn, position.key, position.value, of=element(at)) for at in (0, 1))
    node = f"{check_name('a grouping', name)}-groups"
    position.builder.add(Regroup(name=node, parents=(position.node,), fn=fn, on_error=on_error))
    # 1. A row moves from group x to group y: `Regroup` sends a revision to each of the two keys.
    # 2. They may belong to two tasks, so both travel through the repartition topic.
    revisions = Shape(given=RevisionSerde(value.serde))
    behind = repartition(StreamPosition(position.builder, node, key, revisions), name, key)
    return GroupedTable(behind, value)


def _knows_old_values(position: StreamPosition) -> bool:
    nodes = position.builder.nodes
    node = nodes[position.node]
    # Such nodes have one parent. The walk ends at a node that keeps rows, or knows no old values.
    while node.old_values == "passed on":
        node = nodes[node.parents[0]]
    return node.old_values == "kept"
