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
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar, overload

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
    Filter,
    FilterNot,
    FlatMap,
    FlatMapValues,
    How,
    JoinSide,
    Map,
    MapValues,
    Merge,
    Order,
    Peek,
    Rekey,
    SetTimestamp,
    Sink,
    Split,
    StreamJoin,
    TableJoin,
)
from streamlog.nodes.table_nodes import AsOfJoin, GlobalJoin, VersionedTable
from streamlog.nodes.topic_spec import check_name
from streamlog.record import Record
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.join_windows import JoinWindow

_AWAITABLES = (Awaitable, Coroutine)


def add_async_map(
    place: StreamPosition,
    fn: Callable[[Any], Awaitable[Any]],
    name: str | None,
    *,
    in_flight_max: int,
    ordered: Order,
    timeout: Dur | None,
    on_error: ErrorPolicy | None,
) -> StreamPosition:
    """The place behind a node that awaits the function.

    Raises:
        TopologyError: it has no name, or a setting is out of range.
    """
    found = name or str(getattr(fn, "__name__", "<lambda>"))
    if found == "<lambda>":
        raise TopologyError(
            "amap_values keeps the records whose calls are open, and its name is the identity of "
            "that state: give it a name=, or an `async def` with a name"
        )
    check_name("amap_values", found)
    if inspect.isasyncgenfunction(fn):
        raise TopologyError(f"{found!r} yields, but amap_values needs a function that returns")
    if in_flight_max < 1:
        raise TopologyError(f"{found!r}: max_in_flight is 1 or more, not {in_flight_max}")
    if ordered not in ORDERS:
        raise TopologyError(f"{found!r}: ordered is 'key', 'partition' or 'none', not {ordered!r}")
    timeout_ms = None if timeout is None else duration_ms(timeout)
    if timeout_ms == 0:
        raise TopologyError(f"{found!r}: timeout must be longer than 0 ms, such as '5s'")
    place.builder.add(
        AsyncMapValues(
            name=found,
            parents=(place.node,),
            fn=fn,
            store=StoreSpec(found),
            key=place.key.serde,
            value=place.value.serde,
            in_flight_max=in_flight_max,
            ordered=ordered,
            timeout_ms=timeout_ms,
            on_error=on_error,
        )
    )
    return replace(place, node=found, value=return_shape(fn, of=_awaited_type))


def _awaited_type(declared: object) -> object:
    """Picks R out of Awaitable[R]; an `async def` is annotated with R itself."""
    if typing.get_origin(declared) in _AWAITABLES:
        return typing.get_args(declared)[-1]
    return declared


S = TypeVar("S")
"""A stream."""


class Branches(dict[str, S]):
    """Streams by name."""

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - never returns
        """No such branch.

        Raises:
            TopologyError: always, with those that there are.
        """
        raise TopologyError(
            f"there is no branch {name!r}, only {', '.join(self)}{nearest(name, self)}"
        )


def add_dedupe(
    place: StreamPosition,
    by: Callable[[Any], object] | str,
    *,
    within: Dur,
    name: str,
    on_error: ErrorPolicy | None,
) -> StreamPosition:
    """The place behind a node that leaves out what has a twin before it.

    Raises:
        TopologyError: see `Stream.dedupe`.
    """
    check_name("dedupe", name)
    within_ms = duration_ms(within)
    if within_ms == 0:
        raise TopologyError(f"{name!r}: within must be longer than 0 ms, such as '10m'")
    if isinstance(by, str):
        shape = declared_shape(bare(field_type(place.value.known, by, f"dedupe {name!r}")))
        found = getter(place.value.known, by)
        by = attrgetter(found) if isinstance(found, str) else found
    else:
        shape = return_shape(by, place.value)
    there = repartition_if_needed(place, name)
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
"""The key of a row that a record points to."""
V2 = TypeVar("V2")
"""The value of a table or of another stream."""
R = TypeVar("R")
"""What a joiner returns."""


class StreamJoins(Generic[K, V]):
    """The joins of a stream."""

    def __init__(self, place: StreamPosition) -> None:
        self._at = place

    @property
    def _place(self) -> StreamPosition:
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
        """Each record with what has its key in a table or in another stream; without, it goes.

        With a table, the row is the one at the moment when the record is processed, or with
        `as_of` the one that held at the record's timestamp. Only the stream triggers.

        With a stream, a record is joined with each one of the other whose timestamp is near
        enough, whichever comes first; the result has the later timestamp of both.

        Args:
            other: a table, or a stream.
            fn: gives the value of the result from both values.
            within: with a stream: how far timestamps may lie apart; see `JoinWindow.of`.
            as_of: with a table that has a history: look at the row of the record's own time.
            grace: with `as_of`: let each record wait until one of the stream comes that is so
                much later, for rows of the table that come late.
            name: with a stream or grace, the identity of the join's state; else it names the
                repartition topic if the key was changed by an unnamed operator.
            on_error: what becomes of a record on which the function fails; the app's policy by
                default.

        Raises:
            TopologyError: keys of both are written differently, or `other` can't be joined so.
        """
        said = _JoinOptions(
            "inner", fn, within, as_of=as_of, grace=grace, name=name, on_error=on_error
        )
        return _join(self._place, other, said)

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
        """As `join`, but a record that finds nothing is joined with None.

        With a table that is at once; with a stream once, when stream time is beyond its window
        and grace, so that there will be no partner any more.
        """
        said = _JoinOptions(
            "left", fn, within, as_of=as_of, grace=grace, name=name, on_error=on_error
        )
        return _join(self._place, other, said)

    def outer_join(
        self,
        other: Stream[K, V2],
        fn: Callable[[V | None, V2 | None], R],
        *,
        within: JoinWindow | Dur,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, R]:
        """As `left_join` with a stream, and the other one's records without a partner as well."""
        said = _JoinOptions("outer", fn, within, name=name, on_error=on_error)
        return _join(self._place, other, said)

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
        fn: Callable[[V, Any], R],
        *,
        required: bool = False,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, R]:
        """Each record with a row of a global table, whatever its own key is, or with None.

        The row is the one that this worker has read when the record has its turn. Only the
        stream triggers. A record for which `on` gives None is joined with None (KIP-962); if a row
        is required, it is left out and counted.

        Args:
            other: the table.
            on: gives the key of the row, from key and value of the record.
            fn: gives the value of the result, from the record's value and the row's.
            required: leave out records that find no row.
            name: of the operator.
            on_error: what becomes of a record on which a function fails; the app's policy by
                default.

        Raises:
            TopologyError: the table belongs to another app.
        """
        place, builder = self._place, other.builder
        if builder is not place.builder:
            raise TopologyError(
                f"global table {other.name!r} belongs to app {builder.app_id!r}, not to "
                f"{place.builder.app_id!r}: declare it here too, with app.global_table"
            )
        if not required:
            check_takes_none(fn, 1, where="lookup")
        node = builder.unique_name("lookup") if name is None else check_name("a lookup", name)
        builder.add(
            GlobalJoin(
                name=node,
                parents=(place.node,),
                table=other.definition,
                on=on,
                fn=fn,
                left=not required,
                on_error=on_error,
            )
        )
        return Stream(StreamPosition(builder, node, place.key, return_shape(fn), place.rekeyed))


@dataclass(frozen=True, slots=True)
class _JoinOptions:
    """What was said about a join."""

    how: How
    fn: Callable[..., Any]
    within: JoinWindow | Dur | None
    as_of: bool = field(default=False, kw_only=True)
    grace: Dur | None = field(default=None, kw_only=True)
    name: str | None = field(kw_only=True)
    on_error: ErrorPolicy | None = field(kw_only=True)


def _join(place: StreamPosition, other: object, said: _JoinOptions) -> Stream[Any, Any]:
    # Each is made of the other, and a module has to come first.

    for at in {"inner": (), "left": (1,), "outer": (0, 1)}[said.how]:
        check_takes_none(said.fn, at, where=f"{said.how}_join")
    if isinstance(other, Table) and said.how != "outer":
        return Stream(_join_table(place, other.side, said))
    if not isinstance(other, StreamJoins):
        raise TopologyError(f"a stream can't be joined with {other!r}")
    return Stream(_join_stream(place, other._place, said))  # noqa: SLF001 - of its own room


def _join_table(place: StreamPosition, side: TableView, said: _JoinOptions) -> StreamPosition:
    check_same_app(place, side.place, "join")
    if said.within is not None:
        raise TopologyError(
            f"within= is for joins of streams: table {side.owner!r} has one row per key; "
            "look at the row of the record's own time with as_of=True"
        )
    if place.builder.nodes[side.owner].table_key is None:
        raise TopologyError(
            f"{side.owner!r} keeps no rows that a stream could be joined with: join with the table "
            "before it, or with .changes().to_table(name=...)"
        )
    if side.is_windowed:
        raise TopologyError(
            f"table {side.owner!r} is windowed, and a stream can't be joined with it: "
            "send .changes() to a topic keyed as the stream is, and join with its table"
        )
    grace_ms = _join_grace_ms(side, said)
    name = said.name
    place = repartition_if_needed(place, name, side.place.key)
    check_same_keys(place, side.place, side.owner)
    builder = place.builder
    node = builder.unique_name("join") if name is None else check_name("a join", name)
    join: dict[str, Any] = {
        "name": node,
        "parents": (place.node,),
        "table": side.owner,
        "on_error": said.on_error,
        "views": side.views,
        "key": side.place.key.serde,
        "fn": said.fn,
        "left": said.how == "left",
    }
    if said.as_of:
        waiting = StoreSpec(f"{node}/waiting") if grace_ms else None
        value = place.value.serde if grace_ms else place.value.serde_if_needed
        builder.add(AsOfJoin(**join, value=value, grace_ms=grace_ms, waiting=waiting))
    else:
        builder.add(TableJoin(**join))
    joined = return_shape(said.fn, place.value, side.place.value)
    return StreamPosition(builder, node, place.key, joined)


def _join_grace_ms(side: TableView, said: _JoinOptions) -> int:
    table = side.place.builder.nodes[side.owner]
    if said.as_of and not isinstance(table, VersionedTable):
        raise TopologyError(
            f"table {side.owner!r} has no history, so what held as of a record is not known: "
            "declare it with app.table(topic, history='1d'), or leave as_of out"
        )
    if said.grace is None:
        return 0
    if not isinstance(table, VersionedTable) or not said.as_of:
        raise TopologyError("grace= of a join with a table needs as_of=True, and a history")
    grace_ms = duration_ms(said.grace)
    if grace_ms > table.history_ms:
        raise TopologyError(
            f"a grace of {grace_ms} ms is longer than the history of table {side.owner!r}, "
            f"{table.history_ms} ms: rows would be gone before they are looked up"
        )
    if grace_ms and said.name is None:
        raise TopologyError("a join with grace= has state: give it a name=")
    return grace_ms


def _join_stream(here: StreamPosition, there: StreamPosition, said: _JoinOptions) -> StreamPosition:
    name, within = said.name, said.within
    if within is None or name is None:
        raise TopologyError(
            "a join of streams needs within=, how far timestamps may lie apart, and name=, the "
            "identity of its state: .join(other, fn, within='5m', name='orders-payments')"
        )
    if said.as_of or said.grace is not None:
        raise TopologyError(
            "as_of= and grace= are for joins with a table; the grace of a join of streams is a "
            "part of its window: within=JoinWindow.of('5m', grace='1m')"
        )
    window = within if isinstance(within, JoinWindow) else JoinWindow.of(within)
    check_name("a join", name)
    check_same_app(here, there, "join")
    left = repartition_if_needed(here, f"{name}-left", there.key if there.rekeyed is None else None)
    right = repartition_if_needed(there, f"{name}-right", left.key)
    check_same_keys(left, right, right.node)
    sides = [
        JoinSide(
            name=f"{name}/{'left' if is_left else 'right'}",
            parents=(place.node,),
            is_left=is_left,
            keep_ms=window.keep_ms,
            store=StoreSpec(f"{name}/{'left' if is_left else 'right'}"),
            key=left.key.serde,
            value=place.value.serde,
        )
        for place, is_left in ((left, True), (right, False))
    ]
    join = StreamJoin(
        name=name,
        parents=tuple(side.name for side in sides),
        how=said.how,
        window=window,
        key=left.key.serde,
        values=(left.value.serde, right.value.serde),
        fn=said.fn,
        unmatched=None if said.how == "inner" else StoreSpec(f"{name}/unmatched"),
        on_error=said.on_error,
    )
    for node in (*sides, join):
        left.builder.add(node)
    return StreamPosition(
        left.builder, name, left.key, return_shape(said.fn, left.value, right.value)
    )


"""A key."""
"""A value."""
"""A new key."""
"""A new value, or the value of a table."""
KO = TypeVar("KO")
"""A key that a processor forwards."""
VO = TypeVar("VO")
"""A value that a processor forwards."""
"""What a joiner returns."""
A = TypeVar("A")
"""The state and result of an aggregation."""


class Stream(StreamJoins[K, V]):
    """Records with keys of type K and values of type V."""

    def map(
        self,
        fn: Callable[[K, V], tuple[K2, V2]],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K2, V2]:
        """A new key and value for each record. Prefer `map_values` if the key stays."""
        place = self._add(Map, name, fn=fn, on_error=on_error)
        key, value = (return_shape(fn, place.key, place.value, of=element(at)) for at in (0, 1))
        return Stream(StreamPosition(place.builder, place.node, key, value, name or ""))

    def map_values(
        self,
        fn: Callable[[V], V2],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V2]:
        """A new value for each record."""
        place = self._add(MapValues, name, fn=fn, on_error=on_error)
        return Stream(replace(place, value=return_shape(fn, place.value)))

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
        """A new value for each record, by an async function; several are awaited at a time.

        A commit does not wait for them: records whose calls are open are state, and are given
        to the function again after a restart or a move to another worker.

        Args:
            fn: gives the value; what it does outside, it does at least once.
            max_in_flight: how many calls of it each task awaits at a time.
            ordered: which results keep the order of their records: those of one "key" (records
                without a key wait for nobody), of one "partition", or "none".
            timeout: a call that takes longer fails.
            name: the identity of the open calls; the function's own by default.
            on_error: what becomes of a record whose call fails; the app's policy by default.

        Raises:
            TopologyError: it is a lambda and has no name, or a setting is out of range.
        """
        return Stream(
            add_async_map(
                self._place,
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
        """Any number of new keys and values for each record, in the order they are given.

        Prefer `flat_map_values` if the key stays.
        """
        place = self._add(FlatMap, name, fn=fn, on_error=on_error)
        key, value = (
            return_shape(fn, place.key, place.value, of=item_element(at)) for at in (0, 1)
        )
        return Stream(StreamPosition(place.builder, place.node, key, value, name or ""))

    def flat_map_values(
        self,
        fn: Callable[[V], Iterable[V2]],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V2]:
        """Any number of new values for each record, in the order they are given."""
        place = self._add(FlatMapValues, name, fn=fn, on_error=on_error)
        value = return_shape(fn, place.value, of=item)
        return Stream(StreamPosition(place.builder, place.node, place.key, value, place.rekeyed))

    def filter(
        self,
        fn: Callable[[K, V], bool],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """The records for which the function is true."""
        return Stream(self._add(Filter, name, fn=fn, on_error=on_error))

    def filter_not(
        self,
        fn: Callable[[K, V], bool],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """The records for which the function is not true."""
        return Stream(self._add(FilterNot, name, fn=fn, on_error=on_error))

    def split(self, **branches: Callable[[K, V], bool]) -> Mapping[str, Stream[K, V]]:
        """Streams by name, each record in the first one whose function is true for it.

        A record that no function is true for goes nowhere; with `rest=lambda key, value: True`
        as the last one there is a stream for those.

        Raises:
            TopologyError: there are no branches; or one is asked for that is not there.
        """
        if not branches:
            raise TopologyError("split needs a name and a function for each branch")
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
        """A new timestamp for each record: an aware datetime, ISO-8601 text, or milliseconds.

        Everything behind it is judged by the new timestamps, stream time included; a time that
        is missing, without a zone or before 1970 is an error of the record. Where a topic has its
        time in its values from the start, say so at `app.topic(timestamp=)` instead.

        Args:
            fn: the timestamp, of a value.
            name: of how far the new timestamps have come, which is kept.
            on_error: what becomes of a record whose timestamp can't be had.
        """
        return Stream(self._add(SetTimestamp, name, fn=fn, on_error=on_error))

    def peek(
        self,
        fn: Callable[[Record[K, V]], object],
        *,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """Call the function with each record; the records go on unchanged."""
        return Stream(self._add(Peek, None, fn=fn, on_error=on_error))

    def rekey(
        self,
        fn: Callable[[K, V], K2],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K2, V]:
        """A new key for each record.

        `name` names the repartition topic, should an operator follow that needs one.
        """
        place = self._add(Rekey, name, fn=fn, on_error=on_error)
        return Stream(
            replace(place, key=return_shape(fn, place.key, place.value), rekeyed=name or "")
        )

    def repartition(self, *, name: str, partitions: int | None = None) -> Stream[K, V]:
        """Through a topic of the app's own, so that equal keys lie in one partition.

        Args:
            name: of the topic, `<app>-<name>-repartition`.
            partitions: by default as many as the largest topic upstream.
        """
        place = self._place
        return Stream(repartition(place, name, place.key, partitions=partitions))

    def merge(self, *others: Stream[K, V]) -> Stream[K, V]:
        """The records of all these streams, in the order of the task."""
        place = self._place
        for other in others:
            check_same_app(place, other._place, "merge")  # noqa: SLF001 - its own class
            check_alike(place, other._place)  # noqa: SLF001 - as above
        rekeyed = [s._place.rekeyed for s in (self, *others)]  # noqa: SLF001 - its own class
        name = place.builder.unique_name("merge")
        parents = (place.node, *(other._place.node for other in others))  # noqa: SLF001 - the same
        place.builder.add(Merge(name=name, parents=parents))
        shaken = next((each for each in rekeyed if each is not None), None)
        key = common_key_shape(place.key, *(other._place.key for other in others))  # noqa: SLF001 - the same
        return Stream(StreamPosition(place.builder, name, key, place.value, shaken))

    def group_by_key(self) -> Grouped[K, V]:
        """For aggregating the records of each key."""
        return Grouped(self._place)

    def group_by(
        self,
        fn: Callable[[K, V], K2],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Grouped[K2, V]:
        """For aggregating by a new key; `name` names the repartition topic.

        Records for which the function gives None are left out, and counted.
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
        """Only the first of several records with equal keys and equal identities.

        A record goes on if no twin of it has gone on while stream time moved by `within`, so one
        that comes again later than that is taken for new. Records without a key are held against
        each other, in their partition. If the key was changed before, they go through a
        repartition topic.

        Args:
            by: what identifies a record beside its key: a function of the value, or the name of
                a field.
            within: for how long it is remembered; what is kept grows with it.
            name: of what is remembered, which is state.
            on_error: what becomes of a record whose identity can't be had.

        Raises:
            TopologyError: the name is taken, `within` is 0, or there is no such field.
        """
        place = add_dedupe(self._place, by, within=within, name=name, on_error=on_error)
        return Stream(place)

    def process(
        self,
        p: type[Processor[K, V, KO, VO]],
        *,
        name: str,
        idle_after: Dur | None = None,
        on_error: ErrorPolicy | None = None,
        tables: Sequence[Table[Any, Any]] | None = None,
    ) -> Stream[KO, VO]:
        """Each record to an object of a class of your own, which has state; see `Processor`.

        A processor with stores or timers gets equal keys in one partition: if the key was
        changed before, the records go through a repartition topic. What it forwards may have
        any key.

        Args:
            p: the class; each task makes an object of it.
            name: of the processor, which is the identity of its state.
            idle_after: do not wait for sources that are read to their end and quiet for this
                long. Without this, one that is quiet or empty holds stream time back until
                time marks of the log bring it on.
            on_error: what becomes of a record on which `process` fails, and of which nothing
                stays then; the app's policy by default. A timer that fails ends the task.
            tables: those whose rows it has at hand, of the same keys; by default those that the
                program writes and its code names (see docs/tables.md). They are declared before.

        Raises:
            TopologyError: the name is taken, or the class has methods that can't be run.
        """
        check_processor(p)
        check_name("a processor", name)
        stores, place = stores_of(p, name), self._place
        who = f"processor {name!r}"
        at_hand = local_tables(who, tables, tables_of_class(p), place.builder)
        if stores or at_hand or has_timers(p):
            place = repartition_if_needed(place, f"{name}-input")
        place.builder.add(
            Process(
                name=name,
                parents=(place.node,),
                make=p,
                stores=stores,
                tables=at_hand,
                tables_said=tables is not None,
                timers=TimerStore.of(name, place.key.serde) if has_timers(p) else None,
                punctuations=punctuations_of(p),
                idle_after_ms=idle_after_ms(idle_after),
                on_error=on_error,
            )
        )
        out_key, out_value = output_shapes(p)
        return Stream(StreamPosition(place.builder, name, out_key, out_value, rekeyed=name))

    def to_table(self, *, name: str, on_error: ErrorPolicy | None = None) -> Table[K, V]:
        """A table of the latest value per key; a record with None deletes the row.

        Records without a key are left out, and counted. If the key was changed before, they go
        through a repartition topic.

        Args:
            name: of the table, which is the identity of its state.
            on_error: what becomes of a record that can't be written down.

        Raises:
            TopologyError: the name is taken, or keys are those of windows.
        """
        return Table(table_of(self._place, name, on_error))

    def to(
        self,
        topic: Topic[K, V],
        *,
        on_error: ErrorPolicy | None = None,
    ) -> None:
        """Write the records to a topic.

        Raises:
            TopologyError: it is declared for other types than those that are known here.
        """
        check_topic(self._place, topic)
        share_layout(self._place.key, topic.spec)
        self._add(Sink, None, topic=topic.spec, on_error=on_error)

    def __aiter__(self) -> AsyncIterator[V]:
        """The values, inside an agent."""
        raise self._outside()

    def items(self) -> AsyncIterator[tuple[K, V]]:
        """Keys and values, inside an agent."""
        raise self._outside()

    def records(self) -> AsyncIterator[Record[K, V]]:
        """The records with their coordinates, inside an agent."""
        raise self._outside()

    def take(
        self,
        n: int,  # noqa: ARG002 - used inside an agent
        within: Dur,  # noqa: ARG002 - used inside an agent
    ) -> AsyncIterator[list[Record[K, V]]]:
        """Lists of `n` records, inside an agent.

        Args:
            n: the length of the lists.
            within: of the first record; a list goes out shorter when this time is over.

        A list counts as handled when the next one is asked for.
        """
        raise self._outside()

    def _outside(self) -> UsageError:
        return UsageError(
            "this stream is a part of the topology and can't be iterated over: `async for` "
            "belongs into a function under @app.agent(topic), which is given a stream"
        )

    def _add(self, kind: type[Any], name: str | None, **fields: object) -> StreamPosition:
        place = self._place
        if name is not None:
            check_name("an operator", name)
        node = name or place.builder.unique_name(kind.__name__.lower())
        place.builder.add(kind(name=node, parents=(place.node,), **fields))
        return StreamPosition(place.builder, node, place.key, place.value, place.rekeyed)
