"""Table: the latest value per key, kept by a source or aggregation; GroupedTable: by another key.

A view stores nothing: rows are mapped when they are read. A row of a grouped table counts once, in
its present group: when it changes or is deleted, its old value is subtracted, so each aggregation
has a function that adds and one that subtracts.

Rule: a change to None is a deletion, which views pass on without calling functions. Grouped rows go
through a repartition topic as `Revision`s. A suppressed table keeps no rows: it can be joined and
grouped, but not read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from streamlog.dsl.aggregations import revision_aggregation, revision_reduction, state_shape
from streamlog.dsl.app_runtime import TableAccess
from streamlog.dsl.stream_position import StreamPosition, TableView, repartition
from streamlog.dsl.table_joins import Pointing, join_on_foreign_key, join_tables
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
from streamlog.tables.change_serdes import RevisionSerde
from streamlog.tables.local_rows import local_tables
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.definitions import Sessions

if TYPE_CHECKING:
    from streamlog.dsl.stream import Stream


def suppress_until_closed(side: TableView, name: str) -> TableView:
    """Each row of a windowed table once, when it is final.

    Raises:
        TopologyError: the table is not windowed, or the name is taken.
    """
    place = side.place
    owner = place.builder.nodes[side.owner]
    if not side.is_windowed:
        raise TopologyError(
            f"{side.owner!r} has no windows that could close: give suppress within= or "
            "max_records=, or window the stream before it is aggregated"
        )
    closes_after_ms, size_ms, idle_after_ms = _closing(owner)
    place.builder.add(
        SuppressUntilClosed(
            name=check_name("a suppression", name),
            parents=(place.node,),
            store=StoreSpec(name),
            key=place.key.serde,
            value=place.value.serde,
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
    """The last change of each row, later.

    Raises:
        TopologyError: there is no limit, one is out of range, or the name is taken.
    """
    if within is None and max_records is None:
        raise TopologyError(
            f'{name!r} would hold changes back for ever: give suppress until="closed", within= '
            "or max_records="
        )
    if max_records is not None and max_records < 1:
        raise TopologyError(f"max_records= must be 1 or more, not {max_records}")
    place = side.place
    place.builder.add(
        SuppressWithin(
            name=check_name("a suppression", name),
            parents=(place.node,),
            store=StoreSpec(name),
            key=place.key.serde,
            value=place.value.serde,
            within_ms=None if within is None else duration_ms(within),
            records_max=max_records,
        )
    )
    return _view_below(side, name)


def _view_below(side: TableView, name: str) -> TableView:
    place = side.place
    return TableView(
        StreamPosition(place.builder, name, place.key, place.value),
        name,
        is_windowed=side.is_windowed,
    )


def _closing(owner: Node) -> tuple[int, int, int | None]:
    """How far behind its end a window is final, and how long it is; 0 if that is not known.

    And after how long a quiet its sources are not waited for.
    """
    if isinstance(owner, TableTableJoin):
        return owner.kept_ms or 0, 0, None
    if not isinstance(owner, WindowedAggregate | RecordWindowsAggregate):
        raise TopologyError(
            f"it is not known when windows of {owner.name!r}, a {type(owner).__name__}, close"
        )
    windows = owner.windows
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
"""What a joiner returns."""


class Table(Generic[K, V]):
    """The latest value of type V per key of type K."""

    def __init__(self, side: TableView, *, default: Callable[[], V] | None = None) -> None:
        """`default` makes the value of keys that have none."""
        self.side = side
        self._default = default

    @property
    def name(self) -> str:
        """The name of what keeps the rows."""
        return self.side.owner

    def changes(self) -> Stream[K, V]:
        """Every change as a record; of a windowed table that emits on close, the final rows."""
        # Each is made of the other, and a module has to come first.
        from streamlog.dsl.stream import Stream  # noqa: PLC0415

        return Stream(self.side.place)

    def map_values(
        self,
        fn: Callable[[V], V2],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, V2]:
        """The same table with mapped values; a row whose value is None is not there.

        Unless it is annotated to return something else, the function is called with the value
        before, too: a row that was not there is not deleted. So it has to be deterministic.
        """
        builder, place = self.side.place.builder, self.side.place
        value = return_shape(fn, place.value)
        node = TableMapValues(
            name=_check_optional_name(name) or builder.unique_name("tablemapvalues"),
            parents=(place.node,),
            fn=fn,
            may_delete=not is_never_none(value.known),
            on_error=on_error,
        )
        builder.add(node)
        mapped = StreamPosition(builder, node.name, place.key, value)
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
        """The rows for which the function is true; the others are not there.

        A row that passed before and does not pass any more is deleted. Changes of rows that pass
        neither before nor after are not handed on; the function is called with the value before,
        too, so it has to be deterministic.
        """
        builder = self.side.place.builder
        node = TableFilter(
            name=_check_optional_name(name) or builder.unique_name("tablefilter"),
            parents=(self.side.place.node,),
            fn=fn,
            on_error=on_error,
        )
        builder.add(node)
        place = self.side.place
        passed = StreamPosition(builder, node.name, place.key, place.value)
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
        """The rows that both tables have, by key: a change of either gives a new one.

        It keeps what both tables have told it per key. Of windowed tables, rows of the same key
        and window meet. A result has the larger timestamp of both rows.

        Args:
            other: a table with the same keys, of as many partitions.
            fn: gives the row of both values; it has to be deterministic.
            name: of the join, which is the identity of its state.
            on_error: what becomes of a row on which `fn` fails: if it is left out, it is not there.

        Raises:
            TopologyError: the keys of both tables can't meet, or the name is taken.
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
        """The rows of this table, each with that of the other one, or with None; see `join`."""
        return self._joined(other, fn, "left", name, on_error)

    def outer_join(
        self,
        other: Table[K, V2],
        fn: Callable[[V | None, V2 | None], R],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, R]:
        """The rows of either table, with None for the one that is not there; see `join`."""
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
        """Each row with that row of another table that it points to, by a foreign key (KIP-213).

        A change of the other table's row reaches all rows that point to it. The rows lie by this
        table's keys. Everything goes through two repartition topics, `<app>-<name>-references-...`
        and `<app>-<name>-results-...`.

        Args:
            other: the table that is pointed to, with keys of any type.
            on: the key that a row points to; None: to nothing, and the row is not there.
            fn: gives the row of both values. Like `on` it has to be deterministic.
            name: of the join, which is the identity of its state.
            on_error: what becomes of a row on which a function fails: if it is left out, it is not
                there.

        Raises:
            TopologyError: a table is windowed, or the name is taken.
        """
        said = Pointing(
            left=self.side, right=other.side, on=on, fn=fn, is_left=False, name=name,
            on_error=on_error,
        )  # fmt: skip
        return Table(join_on_foreign_key(said))

    def left_join_on(
        self,
        other: Table[K2, V2],
        on: Callable[[V], K2 | None],
        fn: Callable[[V, V2 | None], R],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, R]:
        """As `join_on`; a row that points to nothing that is there comes with None."""
        said = Pointing(
            left=self.side, right=other.side, on=on, fn=fn, is_left=True, name=name,
            on_error=on_error,
        )  # fmt: skip
        return Table(join_on_foreign_key(said))

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
        """The same table with fewer changes: of each row the last one, later (KIP-328).

        Whoever is joined with it sees what has gone on. Its rows can't be asked for.

        Args:
            until: "closed": each row of a windowed table once, when it is final. Its deletion
                before that is not seen.
            within: for how long, by event time, a row is held back since its first change.
            max_records: how many rows each task holds back; the oldest one goes on if there are
                more.
            name: the identity of what is held back.

        Raises:
            TopologyError: no limit is given, or the table is not windowed.
        """
        if until is None:
            return Table(suppress_within(self.side, name, within=within, max_records=max_records))
        if until != "closed" or within is not None or max_records is not None:
            raise TopologyError(
                'suppress takes until="closed", or within= and max_records=; final rows have no '
                "other limit, as some of them would be lost"
            )
        return Table(suppress_until_closed(self.side, name))

    def group_by(
        self,
        fn: Callable[[K, V], tuple[K2, V2] | None],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> GroupedTable[K2, V2]:
        """For aggregating rows by another key, each counted where it is now.

        Args:
            fn: the group of a row and what it brings into it. It has to be deterministic: it is
                called again with the old value when the row changes. None, or a None in the
                pair: the row is in no group.
            name: of the repartition topic, `<app>-<name>-repartition`.
            on_error: what becomes of a row on which `fn` fails; if it is left out, it is in no
                group.

        Raises:
            TopologyError: the name is taken, or what the table's changes replace is not known.
        """
        return group_table(self.side, fn, name, on_error)

    def __getitem__(self, key: K) -> V:
        """The value of a key, or the table's default; for agents and processors that own the key.

        It is the asker's own copy: what is changed in it is kept by `table[key] = value` only.

        Raises:
            KeyError: there is none, and the table has no default.
            UsageError: nobody that owns keys is at work, or the key is in another partition.
        """
        found = self.get(key)
        if found is None:
            if self._default is None:
                raise KeyError(key)
            return self._default()
        return found

    def __setitem__(self, key: K, value: V) -> None:
        """Set the value of a key; likewise.

        It counts with the record in hand: both are committed, or neither.

        Raises:
            UsageError: as for `table[key]`, or the rows are not for the program to set.
            SerdeError: key or value are not of the table's types.
        """
        local_tables(self.name).put(self.side.rows, key, value)

    def __delitem__(self, key: K) -> None:
        """Delete the row of a key; raises KeyError if there is none."""
        if self.get(key) is None:
            raise KeyError(key)
        local_tables(self.name).put(self.side.rows, key, None)

    def __contains__(self, key: object) -> bool:
        """Whether the key has a row: a default is none."""
        return local_tables(self.name).get(self.side.rows, key) is not None

    __iter__ = None
    """Not by chance: `for key in table` would be every row of one partition."""

    def get(self, key: K) -> V | None:
        """The value of a key, or None; raises UsageError as `table[key]`."""
        found: V | None = local_tables(self.name).get(self.side.rows, key)
        return found

    def items(self) -> Iterator[tuple[K, V]]:
        """All rows of the partition in hand, by the bytes of their keys; see `table[key]`."""
        return local_tables(self.name).range(self.side.rows)

    async def fetch(self, key: K, *, stale_ok: bool = False) -> V | None:
        """The row of a key, from whichever worker has it; None if there is none.

        It is the row as of that worker's last commit: what is shown outlives a crash, and what
        is not committed yet is not shown. While the key's task moves from one worker to another
        this waits.

        Args:
            key: of a windowed table a `Windowed`.
            stale_ok: take the row from a standby copy, which may be behind, rather than wait.

        Raises:
            UsageError: nobody runs the app.
            SerdeError: the key is not of the table's type.
            RequestTimedOut: nobody had the row within the time that is waited.
            ConfigError: another worker has it, which can't be asked as it has no `web=`.
        """
        found: V | None = await self._access().fetch(self.side.rows, key, stale_ok=stale_ok)
        return found

    async def put(self, key: K, value: V | None) -> None:
        """Write a row of a table that is kept from a topic, or that the program writes.

        It travels through that topic, or through one of the table's own. Returns when the worker
        that has the row has taken it in and committed it: a `fetch` that follows shows it, or what
        was written after it. None deletes the row.

        Raises:
            UsageError: the rows of the table are computed; or nobody runs the app.
            SerdeError: key or value are not of the topic's types.
            RequestTimedOut: it is written, but was not committed within the time that is waited.
            ConfigError: as with `fetch`.
        """
        await self._access().put(self.side.rows, key, value)

    def scan(self, *, prefix: object = None, at: When | None = None) -> AsyncIterator[tuple[K, V]]:
        """All rows, from all workers, as of their last commits; see `fetch`.

        The rows of one partition come in the order of their keys' bytes, those of a windowed
        table by window (end, start, key). They are read as they are looped over, some at a
        time: a row that changes meanwhile is seen as it was or as it is.

        Args:
            prefix: only keys that begin with it, if they are str or bytes.
            at: only rows of windows that have this time in them, of a windowed table. Rows that
                the program writes have no history: they are as of the last commits.

        Raises:
            UsageError: as `fetch`, or `at` is given for another table without windows.
        """
        at_ms = None if at is None else when_ms(at)
        return self._access().scan(self.side.rows, prefix=prefix, at_ms=at_ms)

    def _access(self) -> TableAccess:
        found = self.side.place.builder.outlet.tables
        if found is None:
            raise UsageError(
                f"nobody runs the app, so there are no rows of {self.name!r} to be had: ask from "
                "an agent, timer or crontab of a running worker, in `with app.test()`, or over "
                "HTTP (docs/web.md)"
            )
        return found


def _check_optional_name(name: str | None) -> str | None:
    return None if name is None else check_name("an operator", name)


"""A group."""
"""What a row brings into its group."""
A = TypeVar("A")
"""The state and result of an aggregation."""


class GroupedTable(Generic[K, V]):
    """The rows of a table by another key."""

    def __init__(self, place: StreamPosition, value: Shape) -> None:
        """`place` is where revisions of values of this shape are, each group in one partition."""
        self._place = place
        self._value = value

    def count(self, *, name: str, on_error: ErrorPolicy | None = None) -> Table[K, int]:
        """How many rows are in each group; 0 once the last one has left."""
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
        """The values of each group folded into one of the same type; the first is the start.

        Args:
            add: what comes of the result and a value that is there from now on.
            subtract: what comes of the result and a value that is there no more; None: the
                group is gone, and its row is deleted.
            name: of the table, which is the identity of its state.
            on_error: what becomes of a change on which a function fails; with anything but
                `FAIL` the result may be wrong from there on, as what was left out is subtracted.
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
        """The values of each group folded into a state that begins as `init()`.

        The functions may change the state in place, but have to return it. Its type is what
        `add` is annotated to return, else what `init()` is.

        Args:
            init: the state of a group without rows.
            add: the state with a value that is there from now on.
            subtract: the state without a value that is there no more; None: the group is gone.
            name: of the table, which is the identity of its state.
            on_error: as with `reduce`.
        """
        shape = state_shape(init, add)
        return self._table(
            name, revision_aggregation(init, add, subtract, shape.serde), shape, on_error
        )

    def _table(
        self, name: str, aggregation: Aggregation, value: Shape, on_error: ErrorPolicy | None
    ) -> Table[K, Any]:
        place = self._place
        place.builder.add(
            TableAggregate(
                name=check_name("a table", name),
                parents=(place.node,),
                store=StoreSpec(name),
                key=place.key.serde,
                aggregation=aggregation,
                on_error=on_error,
            )
        )
        return Table(TableView(StreamPosition(place.builder, name, place.key, value), name))


def group_table(
    side: TableView,
    fn: Callable[[Any, Any], tuple[Any, Any] | None],
    name: str,
    on_error: ErrorPolicy | None,
) -> GroupedTable[Any, Any]:
    """The rows of a table by what the function says.

    Raises:
        TopologyError: what the changes of the table replace is not known.
    """
    place = side.place
    owner = place.builder.nodes[side.owner]
    if not _knows_old_values(place):
        hint = "with Emit.UPDATE or Emit.CLOSE they do" if side.is_windowed else "group .changes()"
        raise TopologyError(
            f"the rows of {side.owner!r}, a {type(owner).__name__}, can't be grouped by another "
            f"key, as its changes do not say what they replace: {hint}"
        )
    key, value = (return_shape(fn, place.key, place.value, of=element(at)) for at in (0, 1))
    node = f"{check_name('a grouping', name)}-groups"
    place.builder.add(Regroup(name=node, parents=(place.node,), fn=fn, on_error=on_error))
    revisions = Shape(given=RevisionSerde(value.serde))
    behind = repartition(StreamPosition(place.builder, node, key, revisions), name, key)
    return GroupedTable(behind, value)


def _knows_old_values(place: StreamPosition) -> bool:
    nodes = place.builder.nodes
    node = nodes[place.node]
    while node.old_values == "passed on":
        node = nodes[node.parents[0]]
    return node.old_values == "kept"
