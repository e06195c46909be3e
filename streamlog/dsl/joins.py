"""Joins: what the records of a stream can be paired with.

Rows of a table by key, the row that held at a record's own time, or the records of another stream
that are near in time. Rule of the file: both sides have equal keys in one partition, written alike;
what a changed key needs for that is put in. Not done here: joins of tables (`table`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from streamlog.dsl.fits import takes_none
from streamlog.dsl.global_table import GlobalTable
from streamlog.dsl.place import Place, Side, check_same_keys, partitioned, same_app
from streamlog.dsl.shapes import returned
from streamlog.dsl.table import Table
from streamlog.durations import Dur, duration_ms
from streamlog.errors import TopologyError
from streamlog.tables.store import StoreSpec
from streamlog.topology import (
    AsOfJoin,
    ErrorPolicy,
    GlobalJoin,
    How,
    JoinSide,
    StreamJoin,
    TableJoin,
    VersionedTable,
    check_name,
)
from streamlog.windows.joins import JoinWindow

if TYPE_CHECKING:
    from streamlog.dsl.stream import Stream

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


class Joining(Generic[K, V]):
    """The joins of a stream."""

    def __init__(self, place: Place) -> None:
        self._at = place

    @property
    def _place(self) -> Place:
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
        other: Table[K, V2] | Joining[K, V2],
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
        said = _Said("inner", fn, within, as_of=as_of, grace=grace, name=name, on_error=on_error)
        return _joined(self._place, other, said)

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
        other: Table[K, V2] | Joining[K, V2],
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
        said = _Said("left", fn, within, as_of=as_of, grace=grace, name=name, on_error=on_error)
        return _joined(self._place, other, said)

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
        said = _Said("outer", fn, within, name=name, on_error=on_error)
        return _joined(self._place, other, said)

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
        from streamlog.dsl.stream import Stream  # noqa: PLC0415 - as below

        place, builder = self._place, other.builder
        if builder is not place.builder:
            raise TopologyError(
                f"global table {other.name!r} belongs to app {builder.app_id!r}, not to "
                f"{place.builder.app_id!r}: declare it here too, with app.global_table"
            )
        if not required:
            takes_none(fn, 1, where="lookup")
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
        return Stream(Place(builder, node, place.key, returned(fn), place.rekeyed))


@dataclass(frozen=True, slots=True)
class _Said:
    """What was said about a join."""

    how: How
    fn: Callable[..., Any]
    within: JoinWindow | Dur | None
    as_of: bool = field(default=False, kw_only=True)
    grace: Dur | None = field(default=None, kw_only=True)
    name: str | None = field(kw_only=True)
    on_error: ErrorPolicy | None = field(kw_only=True)


def _joined(place: Place, other: object, said: _Said) -> Stream[Any, Any]:
    # Each is made of the other, and a module has to come first.
    from streamlog.dsl.stream import Stream  # noqa: PLC0415

    for at in {"inner": (), "left": (1,), "outer": (0, 1)}[said.how]:
        takes_none(said.fn, at, where=f"{said.how}_join")
    if isinstance(other, Table) and said.how != "outer":
        return Stream(_with_table(place, other.side, said))
    if not isinstance(other, Joining):
        raise TopologyError(f"a stream can't be joined with {other!r}")
    return Stream(_with_stream(place, other._place, said))  # noqa: SLF001 - of its own room


def _with_table(place: Place, side: Side, said: _Said) -> Place:
    same_app(place, side.place, "join")
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
    grace_ms = _checked_grace_ms(side, said)
    name = said.name
    place = partitioned(place, name, side.place.key)
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
    joined = returned(said.fn, place.value, side.place.value)
    return Place(builder, node, place.key, joined)


def _checked_grace_ms(side: Side, said: _Said) -> int:
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


def _with_stream(here: Place, there: Place, said: _Said) -> Place:
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
    same_app(here, there, "join")
    left = partitioned(here, f"{name}-left", there.key if there.rekeyed is None else None)
    right = partitioned(there, f"{name}-right", left.key)
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
    return Place(left.builder, name, left.key, returned(said.fn, left.value, right.value))
