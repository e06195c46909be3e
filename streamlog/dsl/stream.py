"""Stream: a position in the topology; an operator adds a node and returns the next position.

A stream is joined with the rows of a table by key, with the row that was valid at a record's own
time, with a global table by any key, or with the records of another stream that are near in time.
Both sides of a join have equal keys in one partition and serialize them alike; a changed key gets
a repartition topic.

Rule: nothing runs here. A node with state has the name that the user gave, because it identifies
the state; other nodes need none. Not here: `grouped`, `windowed`, `table`, joins of tables
(`table_joins`).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

from streamlog.connect.declared_connectors import (
    SinkConnector,
    check_sink,
    check_transforms,
    named_policy,
)
from streamlog.connect.sink import Sink as SinkPort
from streamlog.connect.source import Transform
from streamlog.dsl.global_table import GlobalTable
from streamlog.dsl.grouped import Grouped
from streamlog.dsl.processor import (
    Processor,
    check_processor,
    has_timers,
    output_shapes,
    punctuations_of,
    stores_of,
)
from streamlog.dsl.stream_position import (
    StreamPosition,
    TableView,
    check_alike,
    check_same_app,
    check_same_keys,
    check_takes_none,
    check_topic,
    idle_after_ms,
    repartition,
    repartition_if_needed,
)
from streamlog.dsl.table import Table
from streamlog.dsl.table_joins import table_of
from streamlog.dsl.table_references import local_tables, tables_of_class
from streamlog.dsl.topic import Topic
from streamlog.dsl.value_types import (
    bare,
    common_key_shape,
    declared_shape,
    element,
    field_type,
    getter,
    item,
    item_element,
    nearest,
    return_shape,
    share_layout,
)
from streamlog.durations import Dur, When, duration_ms
from streamlog.errors import TopologyError, UsageError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.process_nodes import Process, TimerStore
from streamlog.nodes.stream_nodes import (
    ORDERS,
    AsyncMapValues,
    Branch,
    Dedupe,
    Field,
    Filter,
    FilterNot,
    FlatMap,
    FlatMapValues,
    How,
    JoinSide,
    Map,
    MapValues,
    Merge,
    Node,
    Order,
    Peek,
    Rekey,
    SetTimestamp,
    Sink,
    Split,
    StreamJoin,
    TableJoin,
    WithHeaders,
)
from streamlog.nodes.table_nodes import AsOfJoin, GlobalJoin, VersionedTable
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.record import GivenHeaders, Record
from streamlog.replace import replace
from streamlog.serdes.erased_types import UserFunction, UserKey, UserValue
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.join_windows import JoinWindow

_AWAITABLES = (Awaitable, Coroutine)


def add_async_map(
    position: StreamPosition,
    fn: Callable[[UserValue], Awaitable[UserValue]],
    name: str | None,
    *,
    in_flight_max: int,
    ordered: Order,
    timeout: Dur | None,
    on_error: ErrorPolicy | None,
) -> StreamPosition:
    """Add a node that awaits the function, and return the position behind it.

    Raises:
        TopologyError: the node has no name, or a setting is out of range.
    """
    # The name identifies the state: after a restart, the records with open calls are found by it.
    found = name or str(getattr(fn, "__name__", "<lambda>"))
    if found == "<lambda>":
        raise TopologyError(
            "amap_values needs a name, under which it stores the records with open calls: pass "
            "name=, or an `async def` function, whose name it takes"
        )
    check_name("amap_values", found)
    if inspect.isasyncgenfunction(fn):
        raise TopologyError(
            f"{found!r} yields, but amap_values needs a function that returns a value"
        )
    if in_flight_max < 1:
        raise TopologyError(f"{found!r}: max_in_flight must be 1 or more, not {in_flight_max}")
    if ordered not in ORDERS:
        raise TopologyError(
            f"{found!r}: ordered must be 'key', 'partition' or 'none', not {ordered!r}"
        )
    timeout_ms = None if timeout is None else duration_ms(timeout)
    if timeout_ms == 0:
        raise TopologyError(f"{found!r}: timeout must be longer than 0 ms, such as '5s'")
    position.builder.add(
        AsyncMapValues(
            name=found,
            parents=(position.node,),
            fn=fn,
            store=StoreSpec(found),
            key=position.key.serde,
            value=position.value.serde,
            in_flight_max=in_flight_max,
            ordered=ordered,
            timeout_ms=timeout_ms,
            on_error=on_error,
        )
    )
    return replace(position, node=found, value=return_shape(fn, of=_awaited_type))


def _awaited_type(declared: object) -> object:
    """Return R of Awaitable[R]; an `async def` is annotated with R itself."""
    if typing.get_origin(declared) in _AWAITABLES:
        return typing.get_args(declared)[-1]
    return declared


S = TypeVar("S")
"""A stream."""


class Branches(dict[str, S]):
    """The streams of a split, by branch name."""

    def __missing__(self, name: str) -> NoReturn:
        """Report an unknown branch.

        Raises:
            TopologyError: always, with the names of all branches.
        """
        raise TopologyError(
            f"there is no branch {name!r}, only {', '.join(self)}{nearest(name, self)}"
        )


def add_dedupe(
    position: StreamPosition,
    by: Field[UserValue],
    *,
    within: Dur,
    name: str,
    on_error: ErrorPolicy | None,
) -> StreamPosition:
    """Add a node that drops duplicates, and return the position behind it.

    Raises:
        TopologyError: see `Stream.dedupe`.
    """
    check_name("dedupe", name)
    within_ms = duration_ms(within)
    if within_ms == 0:
        raise TopologyError(f"{name!r}: within must be longer than 0 ms, such as '10m'")
    if isinstance(by, str):
        shape = declared_shape(bare(field_type(position.value.known, by, f"dedupe {name!r}")))
        found = getter(position.value.known, by)
        by = attrgetter(found) if isinstance(found, str) else found
    else:
        shape = return_shape(by, position.value)
    # Duplicates meet only if equal keys are in one task.
    there = repartition_if_needed(position, name)
    there.builder.add(
        Dedupe(
            name=name,
            parents=(there.node,),
            by=by,
            identity=shape.serde,
            key=there.key.serde,
            store=StoreSpec(name),
            within_ms=within_ms,
            on_error=on_error,
        )
    )
    return replace(there, node=name)


K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
K2 = TypeVar("K2")
"""A new key, or the key of a row that a record refers to."""
V2 = TypeVar("V2")
"""A new value, or the value of a table or of another stream."""
R = TypeVar("R")
"""The result of a joiner."""


class StreamJoins(Generic[K, V]):
    """The joins of a stream."""

    def __init__(self, position: StreamPosition) -> None:
        self._at = position

    @property
    def _position(self) -> StreamPosition:
        return self._at

    @overload
    def join(
        self,
        other: Table[K, V2],
        fn: Callable[[V, V2], R],
        *,
        as_of: bool = ...,
        grace: Dur | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[K, R]: ...
    @overload
    def join(
        self,
        other: Stream[K, V2],
        fn: Callable[[V, V2], R],
        *,
        within: JoinWindow | Dur,
        name: str,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[K, R]: ...
    def join(
        self,
        other: Table[K, V2] | StreamJoins[K, V2],
        fn: Callable[[V, V2], R],
        *,
        within: JoinWindow | Dur | None = None,
        as_of: bool = False,
        grace: Dur | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, R]:
        """Join each record with a table row or with another stream's records of equal key.

        With a table, a record meets the row at the moment of processing, or with `as_of` the row
        that was valid at the record's timestamp. Only records of the stream produce results.

        With a stream, a record meets each record of the other stream whose timestamp lies within
        the window, whichever arrives first. A result has the later of both timestamps.

        A record without a partner produces no result.

        Args:
            other: a table or a stream with keys of type K.
            fn: returns the value of the result from both values.
            within: with a stream: how far the timestamps may lie apart; see `JoinWindow.of`.
            as_of: with a table that has a history: use the row that was valid at the record's
                timestamp.
            grace: with `as_of`: how long, in stream time, each record waits for late rows of the
                table; at most the table's history.
            name: with a stream or with `grace`, the identity of the join's state. Otherwise it
                names the repartition topic, if an operator without a name has changed the key.
            on_error: the policy for records on which `fn` fails; the app's policy by default.

        Returns:
            The stream of results, with the key of the record.

        Raises:
            TopologyError: the two sides serialize keys differently, or `other` can't be joined in
                this way.
        """
        options = _JoinOptions(
            "inner", fn, within, as_of=as_of, grace=grace, name=name, on_error=on_error
        )
        return _join(self._position, other, options)

    @overload
    def left_join(
        self,
        other: Table[K, V2],
        fn: Callable[[V, V2 | None], R],
        *,
        as_of: bool = ...,
        grace: Dur | None = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[K, R]: ...
    @overload
    def left_join(
        self,
        other: Stream[K, V2],
        fn: Callable[[V, V2 | None], R],
        *,
        within: JoinWindow | Dur,
        name: str,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[K, R]: ...
    def left_join(
        self,
        other: Table[K, V2] | StreamJoins[K, V2],
        fn: Callable[[V, V2 | None], R],
        *,
        within: JoinWindow | Dur | None = None,
        as_of: bool = False,
        grace: Dur | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, R]:
        """Join as `join` does, and join a record without a partner with None.

        With a table, the result with None comes immediately. With a stream, it comes once, when
        stream time has passed the record's window and grace, so that no partner can follow
        (KIP-633). Arguments and errors are those of `join`.
        """
        options = _JoinOptions(
            "left", fn, within, as_of=as_of, grace=grace, name=name, on_error=on_error
        )
        return _join(self._position, other, options)

    def outer_join(
        self,
        other: Stream[K, V2],
        fn: Callable[[V | None, V2 | None], R],
        *,
        within: JoinWindow | Dur,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, R]:
        """Join two streams as `left_join` does, including unmatched records of `other`.

        A record without a partner is joined with None in place of the missing side. Arguments and
        errors are those of `join`.
        """
        options = _JoinOptions("outer", fn, within, name=name, on_error=on_error)
        return _join(self._position, other, options)

    @overload
    def lookup(
        self,
        other: GlobalTable[K2, V2],
        on: Callable[[K, V], K2 | None],
        fn: Callable[[V, V2], R],
        *,
        required: Literal[True],
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[K, R]: ...
    @overload
    def lookup(
        self,
        other: GlobalTable[K2, V2],
        on: Callable[[K, V], K2 | None],
        fn: Callable[[V, V2 | None], R],
        *,
        required: Literal[False] = ...,
        name: str | None = ...,
        on_error: ErrorPolicy | None = ...,
    ) -> Stream[K, R]: ...
    def lookup(
        self,
        other: GlobalTable[K2, V2],
        on: Callable[[K, V], K2 | None],
        fn: Callable[[V, UserValue], R],
        *,
        required: bool = False,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, R]:
        """Join each record with the row of a global table whose key `on` returns.

        The row is the one that this worker has read when it processes the record. Only records of
        the stream produce results. A record for which `on` returns None has no row (KIP-962).

        Args:
            other: the global table.
            on: returns the key of the row, from the record's key and value.
            fn: returns the value of the result, from the record's value and the row, which is None
                if there is no row.
            required: leave out records without a row; those for which `on` returns None are
                counted.
            name: the operator's name.
            on_error: the policy for records on which a function fails; the app's policy by default.

        Returns:
            The stream of results, with the key of the record.

        Raises:
            TopologyError: the table belongs to another app, or `fn` does not take None for the row.
        """
        position, builder = self._position, other.builder
        if builder is not position.builder:
            raise TopologyError(
                f"global table {other.name!r} belongs to app {builder.app_id!r}, not to "
                f"{position.builder.app_id!r}: declare it here too, with app.global_table"
            )
        if not required:
            check_takes_none(fn, 1, where="lookup")
        node = builder.unique_name("lookup") if name is None else check_name("a lookup", name)
        builder.add(
            GlobalJoin(
                name=node,
                parents=(position.node,),
                table=other.definition,
                on=on,
                fn=fn,
                left=not required,
                on_error=on_error,
            )
        )
        # Every worker has all rows of a global table, so changed keys need no repartition topic
        # yet.
        return Stream(
            StreamPosition(builder, node, position.key, return_shape(fn), position.rekeyed)
        )


@dataclass(frozen=True, slots=True)
class _JoinOptions:
    """The arguments of a join."""

    how: How
    fn: UserFunction
    within: JoinWindow | Dur | None
    as_of: bool = field(default=False, kw_only=True)
    grace: Dur | None = field(default=None, kw_only=True)
    name: str | None = field(kw_only=True)
    on_error: ErrorPolicy | None = field(kw_only=True)


def _join(
    position: StreamPosition, other: object, options: _JoinOptions
) -> Stream[UserKey, UserValue]:
    # The parameters that are None for a record without a partner: the right one in a left join,
    # either one in an outer join.
    for at in {"inner": (), "left": (1,), "outer": (0, 1)}[options.how]:
        check_takes_none(options.fn, at, where=f"{options.how}_join")
    if isinstance(other, Table) and options.how != "outer":
        return Stream(_join_table(position, other.side, options))
    if not isinstance(other, StreamJoins):
        raise TopologyError(
            f"a stream can't be joined with {other!r}, only with a stream or a table"
        )
    return Stream(_join_stream(position, other._position, options))  # noqa: SLF001 - of its own room


def _join_table(position: StreamPosition, side: TableView, options: _JoinOptions) -> StreamPosition:
    check_same_app(position, side.position, "join")
    if options.within is not None:
        raise TopologyError(
            f"within= is for joins of two streams, and table {side.owner!r} has one row per key: "
            "use as_of=True for the row that was valid at the record's timestamp"
        )
    if position.builder.nodes[side.owner].table_key is None:
        raise TopologyError(
            f"a stream can't be joined with {side.owner!r}, which keeps no rows: join with the "
            "table before it, or with .changes().to_table(name=...)"
        )
    if side.is_windowed:
        raise TopologyError(
            f"a stream can't be joined with table {side.owner!r}, which is windowed: write "
            "its .changes() to a topic with the stream's keys, and join with that topic's table"
        )
    grace_ms = _join_grace_ms(side, options)
    # The stream moves to the table: its keys are written as the table's, so that they have equal
    # bytes and reach the task that has the row.
    name = options.name
    position = repartition_if_needed(position, name, side.position.key)
    check_same_keys(position, side.position, side.owner)
    builder = position.builder
    node = builder.unique_name("join") if name is None else check_name("a join", name)
    join: dict[str, Any] = {
        "name": node,
        "parents": (position.node,),
        "table": side.owner,
        "on_error": options.on_error,
        "views": side.views,
        "key": side.position.key.serde,
        "fn": options.fn,
        "left": options.how == "left",
    }
    if options.as_of:
        # Records are stored only while they wait. Without a grace their type need not be declared.
        waiting = StoreSpec(f"{node}/waiting") if grace_ms else None
        value = position.value.serde if grace_ms else position.value.serde_if_needed
        builder.add(AsOfJoin(**join, value=value, grace_ms=grace_ms, waiting=waiting))
    else:
        builder.add(TableJoin(**join))
    joined = return_shape(options.fn, position.value, side.position.value)
    return StreamPosition(builder, node, position.key, joined)


def _join_grace_ms(side: TableView, options: _JoinOptions) -> int:
    table = side.position.builder.nodes[side.owner]
    if options.as_of and not isinstance(table, VersionedTable):
        raise TopologyError(
            f"as_of= needs a table with a history, and table {side.owner!r} has none: declare it "
            "with app.table(topic, history='1d'), or leave as_of= out"
        )
    if options.grace is None:
        return 0
    if not isinstance(table, VersionedTable) or not options.as_of:
        raise TopologyError(
            "grace= of a join with a table needs as_of=True and a table with a history"
        )
    grace_ms = duration_ms(options.grace)
    # 1. A record of time 100 waits until stream time is 100 + grace.
    # 2. By then the table has removed versions older than its stream time minus the history.
    # 3. A longer grace would look for a row of time 100 that is removed already.
    if grace_ms > table.history_ms:
        raise TopologyError(
            f"a grace of {grace_ms} ms is longer than the history of table {side.owner!r} "
            f"({table.history_ms} ms), so rows would expire before the join reads them: "
            "lower grace= or raise history="
        )
    if grace_ms and options.name is None:
        raise TopologyError("a join with grace= has state: pass name=, which identifies the state")
    return grace_ms


def _join_stream(
    here: StreamPosition, there: StreamPosition, options: _JoinOptions
) -> StreamPosition:
    name, within = options.name, options.within
    if within is None or name is None:
        raise TopologyError(
            "a join of two streams needs within=, how far timestamps may lie apart, and name=, "
            "which identifies its state: .join(other, fn, within='5m', name='orders-payments')"
        )
    if options.as_of or options.grace is not None:
        raise TopologyError(
            "as_of= and grace= are for joins with a table: set the grace of a join of two streams "
            "in its window, within=JoinWindow.of('5m', grace='1m')"
        )
    window = within if isinstance(within, JoinWindow) else JoinWindow.of(within)
    check_name("a join", name)
    check_same_app(here, there, "join")
    # Partners meet by the bytes of their keys. A side that is repartitioned anyway writes its keys
    # as the other side has them; if both are, the right one follows the left one.
    left = repartition_if_needed(here, f"{name}-left", there.key if there.rekeyed is None else None)
    right = repartition_if_needed(there, f"{name}-right", left.key)
    check_same_keys(left, right, right.node)
    # Each side keeps its own records, and finds the partners of a record among those of the other.
    sides = [
        JoinSide(
            name=f"{name}/{'left' if is_left else 'right'}",
            parents=(position.node,),
            is_left=is_left,
            keep_ms=window.keep_ms,
            store=StoreSpec(f"{name}/{'left' if is_left else 'right'}"),
            key=left.key.serde,
            value=position.value.serde,
        )
        for position, is_left in ((left, True), (right, False))
    ]
    join = StreamJoin(
        name=name,
        parents=tuple(side.name for side in sides),
        how=options.how,
        window=window,
        key=left.key.serde,
        values=(left.value.serde, right.value.serde),
        fn=options.fn,
        unmatched=None if options.how == "inner" else StoreSpec(f"{name}/unmatched"),
        on_error=options.on_error,
    )
    for node in (*sides, join):
        left.builder.add(node)
    return StreamPosition(
        left.builder, name, left.key, return_shape(options.fn, left.value, right.value)
    )


KO = TypeVar("KO")
"""A key that a processor forwards."""
VO = TypeVar("VO")
"""A value that a processor forwards."""


class Stream(StreamJoins[K, V]):
    """A stream of records with keys of type K and values of type V.

    Each operator adds a node to the topology and returns the stream behind it. Every `on_error` is
    the policy for records on which the operator's function fails; the app's policy by default.
    """

    def map(
        self,
        fn: Callable[[K, V], tuple[K2, V2]],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K2, V2]:
        """Replace key and value of each record; prefer `map_values` if the key stays.

        Args:
            fn: returns the new key and value.
            name: the operator's name, also of a repartition topic that the new key requires.
            on_error: the policy for records on which `fn` fails; the app's policy by default.
        """
        # A new key may belong to another partition: `rekeyed` notes it, and the first operator
        # below that needs equal keys together adds a repartition topic.
        position = self._add(Map, name, fn=fn, on_error=on_error)
        key, value = (
            return_shape(fn, position.key, position.value, of=element(at)) for at in (0, 1)
        )
        return Stream(StreamPosition(position.builder, position.node, key, value, name or ""))

    def map_values(
        self,
        fn: Callable[[V], V2],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V2]:
        """Replace the value of each record by what `fn` returns."""
        position = self._add(MapValues, name, fn=fn, on_error=on_error)
        return Stream(replace(position, value=return_shape(fn, position.value)))

    def amap_values(
        self,
        fn: Callable[[V], Awaitable[V2]],
        *,
        max_in_flight: int = 100,
        ordered: Order = "key",
        timeout: Dur | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V2]:
        """Replace the value of each record by the result of an async function.

        Several calls are open at a time, and a commit does not wait for them. Records whose calls
        are open belong to the task's state; after a restart or a move to another worker the
        function is called again for them.

        Args:
            fn: returns the new value. Its effects outside the app happen at least once.
            max_in_flight: the number of calls that each task awaits at a time; 1 or more.
            ordered: which results keep the order of their records: those of one "key" (records
                without a key do not wait), those of one "partition", or "none".
            timeout: how long a call may take before it fails; no limit by default.
            name: the identity of the state; by default the function's name.
            on_error: the policy for records whose call fails; the app's policy by default.

        Raises:
            TopologyError: `fn` is a lambda and there is no name, or a setting is out of range.
        """
        return Stream(
            add_async_map(
                self._position,
                fn,
                name,
                in_flight_max=max_in_flight,
                ordered=ordered,
                timeout=timeout,
                on_error=on_error,
            )
        )

    def flat_map(
        self,
        fn: Callable[[K, V], Iterable[tuple[K2, V2]]],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K2, V2]:
        """Replace each record by any number of keys and values, in the order that `fn` returns.

        Prefer `flat_map_values` if the key stays.
        """
        position = self._add(FlatMap, name, fn=fn, on_error=on_error)
        key, value = (
            return_shape(fn, position.key, position.value, of=item_element(at)) for at in (0, 1)
        )
        return Stream(StreamPosition(position.builder, position.node, key, value, name or ""))

    def flat_map_values(
        self,
        fn: Callable[[V], Iterable[V2]],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V2]:
        """Replace each record by any number of values, in the order that `fn` returns."""
        position = self._add(FlatMapValues, name, fn=fn, on_error=on_error)
        value = return_shape(fn, position.value, of=item)
        return Stream(
            StreamPosition(position.builder, position.node, position.key, value, position.rekeyed)
        )

    def filter(
        self,
        fn: Callable[[K, V], bool],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """Keep the records for which `fn` returns a true value."""
        return Stream(self._add(Filter, name, fn=fn, on_error=on_error))

    def filter_not(
        self,
        fn: Callable[[K, V], bool],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """Drop the records for which `fn` returns a true value."""
        return Stream(self._add(FilterNot, name, fn=fn, on_error=on_error))

    def split(self, **branches: Callable[[K, V], bool]) -> Mapping[str, Stream[K, V]]:
        """Split into branches; a record takes the first one whose function returns a true value.

        A record that no branch takes is dropped. A last branch `rest=lambda key, value: True` takes
        all of these.

        Args:
            branches: a function per branch name, tried in the order given.

        Returns:
            The streams by branch name. An unknown name raises TopologyError.

        Raises:
            TopologyError: there are no branches.
        """
        if not branches:
            raise TopologyError("split needs a branch: .split(large=lambda key, value: value > 10)")
        # One node chooses the branch, so each function is called at most once for a record.
        split = self._add(Split, None, branches=branches)
        found: Branches[Stream[K, V]] = Branches()
        for branch in branches:
            name = split.builder.unique_name("branch")
            split.builder.add(Branch(name=name, parents=(split.node,), branch=branch))
            found[branch] = Stream(replace(split, node=name))
        return found

    def set_timestamp(
        self,
        fn: Callable[[V], When],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """Replace the timestamp of each record.

        All operators behind this one use the new timestamps, also for stream time. If the values of
        a topic contain the event time, prefer `app.topic(timestamp=)`.

        Args:
            fn: returns the timestamp of a value: an aware datetime, ISO-8601 text, or milliseconds
                since 1970. A missing time, a time without a zone or one before 1970 is an error.
            name: the identity of the operator's stream time, which is state.
            on_error: the policy for records without a valid timestamp; the app's policy by default.
        """
        return Stream(self._add(SetTimestamp, name, fn=fn, on_error=on_error))

    def peek(
        self,
        fn: Callable[[Record[K, V]], object],
        *,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """Call `fn` with each record and pass the record on unchanged."""
        return Stream(self._add(Peek, None, fn=fn, on_error=on_error))

    def with_headers(
        self,
        fn: Callable[[Record[K, V]], GivenHeaders],
        *,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """Replace the headers of each record by what `fn` returns.

        The records that are made from it have these headers, and so have those that are written to
        a topic.

        Args:
            fn: returns the headers: a dict of names to bytes, text or None, or pairs of both if
                names repeat. `{**dict(record.headers), "source": "web"}` adds one.
            on_error: the policy for records on which `fn` fails; the app's policy by default.

        Example:
            >>> from streamlog import App
            >>> app = App("shop")
            >>> orders = app.topic("orders", key=str, value=int)
            >>> big = app.topic("big", key=str, value=int)
            >>> app.stream(orders).with_headers(lambda r: {"size": str(r.value)}).to(big)
            >>> with app.test() as t:
            ...     t.input(orders).send(7, key="a")
            ...     t.output(big).pop().headers
            (('size', b'7'),)
        """
        return Stream(self._add(WithHeaders, None, fn=fn, on_error=on_error))

    def rekey(
        self,
        fn: Callable[[K, V], K2],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K2, V]:
        """Replace the key of each record by what `fn` returns.

        Args:
            fn: returns the new key.
            name: the operator's name, also of the repartition topic if a later operator needs one.
            on_error: the policy for records on which `fn` fails; the app's policy by default.
        """
        position = self._add(Rekey, name, fn=fn, on_error=on_error)
        return Stream(
            replace(
                position, key=return_shape(fn, position.key, position.value), rekeyed=name or ""
            )
        )

    def repartition(self, *, name: str, partitions: int | None = None) -> Stream[K, V]:
        """Send the records through a repartition topic, which puts equal keys in one partition.

        Args:
            name: names the topic `<app>-<name>-repartition`.
            partitions: the topic's number of partitions, 1 or more; by default that of the largest
                topic upstream.
        """
        position = self._position
        return Stream(repartition(position, name, position.key, partitions=partitions))

    def merge(self, *others: Stream[K, V]) -> Stream[K, V]:
        """Merge the records of these streams, in the order in which the task processes them.

        Raises:
            TopologyError: the streams belong to several apps or have records of different types.
        """
        position = self._position
        for other in others:
            check_same_app(position, other._position, "merge")  # noqa: SLF001 - its own class
            check_alike(position, other._position)  # noqa: SLF001 - as above
        rekeyed = [s._position.rekeyed for s in (self, *others)]  # noqa: SLF001 - its own class
        name = position.builder.unique_name("merge")
        parents = (position.node, *(other._position.node for other in others))  # noqa: SLF001 - the same
        position.builder.add(Merge(name=name, parents=parents))
        # If one of the streams has changed keys, equal keys of the merged stream may be in any
        # partition.
        shaken = next((each for each in rekeyed if each is not None), None)
        key = common_key_shape(position.key, *(other._position.key for other in others))  # noqa: SLF001 - the same
        return Stream(StreamPosition(position.builder, name, key, position.value, shaken))

    def group_by_key(self) -> Grouped[K, V]:
        """Group the records by their key, for aggregations."""
        return Grouped(self._position)

    def group_by(
        self,
        fn: Callable[[K, V], K2],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Grouped[K2, V]:
        """Group the records by a new key, for aggregations.

        Args:
            fn: returns the new key. Records for which it returns None are left out and counted.
            name: names the repartition topic `<app>-<name>-repartition`.
            on_error: the policy for records on which `fn` fails; the app's policy by default.
        """
        return self.rekey(fn, name=name, on_error=on_error).group_by_key()

    def dedupe(
        self,
        by: Callable[[V], object] | str,
        *,
        within: Dur,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """Drop duplicates: records whose key and identity equal those of an earlier record.

        A record passes unless a duplicate of it has passed while stream time advanced by `within`;
        a duplicate that arrives later counts as new. Records without a key are compared with each
        other, per partition. If an operator before has changed the key, the records go through a
        repartition topic.

        Args:
            by: the identity of a record beside its key: a function of the value, or the name of a
                field.
            within: how long, in stream time, the operator remembers a record. State grows with it.
            name: the identity of the operator's state.
            on_error: the policy for records whose identity can't be determined; the app's policy by
                default.

        Raises:
            TopologyError: the name is taken, `within` is 0, or there is no such field.
        """
        position = add_dedupe(self._position, by, within=within, name=name, on_error=on_error)
        return Stream(position)

    def process(
        self,
        p: type[Processor[K, V, KO, VO]],
        *,
        name: str,
        idle_after: Dur | None = None,
        on_error: ErrorPolicy | None = None,
        tables: Sequence[Table[UserKey, UserValue]] | None = None,
    ) -> Stream[KO, VO]:
        """Pass each record to a `Processor`, a class of your own that may have state.

        A processor with stores or timers receives equal keys in one partition: if an operator
        before has changed the key, the records go through a repartition topic. The processor may
        forward any key.

        Args:
            p: the class; each task creates one object of it.
            name: the identity of the processor's state.
            idle_after: how long a source that is read to its end may be quiet, by the wall clock,
                before stream time stops waiting for it. By default a quiet or empty source holds
                stream time back until time marks in the log advance it.
            on_error: the policy for records on which `process` fails, and which leave no effect
                then; the app's policy by default. A timer that fails ends the task.
            tables: tables with the same keys whose rows the processor reads and writes directly; by
                default those tables of the program that its code names (see docs/tables.md).
                Declare them before the processor.

        Raises:
            TopologyError: the name is taken, or the class has a method that can't be run.
        """
        check_processor(p)
        check_name("a processor", name)
        stores, position = stores_of(p, name), self._position
        who = f"processor {name!r}"
        direct = local_tables(who, tables, tables_of_class(p), position.builder)
        # A processor without state treats each record alone, so it needs no repartition topic.
        if stores or direct or has_timers(p):
            position = repartition_if_needed(position, f"{name}-input")
        position.builder.add(
            Process(
                name=name,
                parents=(position.node,),
                make=p,
                stores=stores,
                tables=direct,
                tables_said=tables is not None,
                timers=TimerStore.of(name, position.key.serde) if has_timers(p) else None,
                punctuations=punctuations_of(p),
                idle_after_ms=idle_after_ms(idle_after),
                on_error=on_error,
            )
        )
        # The processor may forward any key, so operators below can't rely on the partition.
        out_key, out_value = output_shapes(p)
        return Stream(StreamPosition(position.builder, name, out_key, out_value, rekeyed=name))

    def to_table(self, *, name: str, on_error: ErrorPolicy | None = None) -> Table[K, V]:
        """Keep the latest value per key as a table; a value of None deletes the row (KIP-523).

        Records without a key are left out and counted. If an operator before has changed the key,
        the records go through a repartition topic.

        Args:
            name: the table's name, which identifies its state.
            on_error: the policy for records that can't be serialized; the app's policy by default.

        Raises:
            TopologyError: the name is taken, or the keys are `Windowed`.
        """
        return Table(table_of(self._position, name, on_error))

    def to(
        self,
        topic: Topic[K, V],
        *,
        on_error: ErrorPolicy | None = None,
    ) -> None:
        """Write the records to a topic.

        Args:
            topic: what `app.topic` returned.
            on_error: the policy for records that can't be written; by default the topic's policy,
                else the app's.

        Raises:
            TopologyError: the topic's declared types differ from the known types of the stream.
        """
        check_topic(self._position, topic)
        # Kafka's windowed keys have no end: readers of the topic in this app learn the windows
        # from the table that writes it.
        share_layout(self._position.key, topic.spec)
        self._add(Sink, None, topic=topic.spec, on_error=on_error)

    def sink(
        self,
        connector: SinkPort[K, V],
        *,
        name: str,
        tasks: int = 1,
        partitions: int | None = None,
        transforms: Sequence[Transform] = (),
        on_error: ErrorPolicy | None = None,
    ) -> None:
        """Let a connector carry the records outside, by way of a topic of the app's own.

        The topic, `<app>-NAME-sink`, is a buffer between unlike speeds. What the target has is
        removed from it.

        Args:
            connector: the sink.
            name: names the topic, and the consumer group, `<app>-NAME`.
            tasks: the largest number of tasks, which share the partitions.
            partitions: the number of partitions of the topic; the log's default by default.
            transforms: functions of a record that return the record to carry, or None.
            on_error: the policy for records that can't be carried; by default the app's.

        Raises:
            TopologyError: the name is taken, or the connector is no sink.
            ConfigError: the settings of the connector contradict each other.
            SerdeError: the values of the stream can't be serialized.
        """
        check_sink(connector)
        position = self._position
        builder = position.builder
        if partitions is not None and partitions < 1:
            raise TopologyError(f"sink {name!r}: partitions must be 1 or more, not {partitions}")
        topic = check_name("a topic", f"{builder.app_id}-{check_name('a connector', name)}-sink")
        spec = TopicSpec(topic, position.key.serde, position.value.serde, partitions=partitions)
        builder.connectors.add(
            SinkConnector(
                name=name,
                sink=connector,
                topics=[spec],
                tasks=tasks,
                transforms=check_transforms(transforms),
                policy=named_policy(on_error or builder.policy, builder.app_id, name),
                is_own_topic=True,
            )
        )
        # After the checks of the connector: a declaration that is refused adds no node.
        self._add(Sink, f"{name}-sink", topic=spec)

    def __aiter__(self) -> AsyncIterator[V]:
        """Iterate over the values, inside an agent; elsewhere it raises UsageError."""
        raise self._outside()

    def items(self) -> AsyncIterator[tuple[K, V]]:
        """Iterate over keys and values, inside an agent; elsewhere it raises UsageError."""
        raise self._outside()

    def records(self) -> AsyncIterator[Record[K, V]]:
        """Iterate over records with coordinates, inside an agent; elsewhere raises UsageError."""
        raise self._outside()

    def take(
        self,
        n: int,  # noqa: ARG002 - used inside an agent
        within: Dur,  # noqa: ARG002 - used inside an agent
    ) -> AsyncIterator[list[Record[K, V]]]:
        """Iterate over lists of `n` records, inside an agent; elsewhere it raises UsageError.

        A list counts as handled when the agent asks for the next one.

        Args:
            n: the length of a list; 1 or more.
            within: the longest time from a list's first record until the agent receives the list,
                which is shorter then.
        """
        raise self._outside()

    def _outside(self) -> UsageError:
        return UsageError(
            "this stream is part of the topology, and a program can't iterate over it: use "
            "`async for` in a function under @app.agent(topic), which receives a stream"
        )

    def _add(self, kind: Callable[..., Node], name: str | None, **fields: object) -> StreamPosition:
        position = self._position
        if name is not None:
            check_name("an operator", name)
        node = name or position.builder.unique_name(kind.__name__.lower())
        position.builder.add(kind(name=node, parents=(position.node,), **fields))
        return StreamPosition(
            position.builder, node, position.key, position.value, position.rekeyed
        )
