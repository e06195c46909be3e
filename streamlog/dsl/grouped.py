"""Grouped: the records of a stream by key, to be aggregated into a table; CoGrouped: of several.

In one file, as each makes the other. What several streams come to is in `cogrouped`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from streamlog.dsl.aggregations import (
    Windowing,
    aggregating,
    counting,
    reducing,
    state_shape,
)
from streamlog.dsl.cogrouped import Into, adding, joined_inputs, late_as_it_came
from streamlog.dsl.columns import row_aggregation
from streamlog.dsl.place import (
    Place,
    Side,
    partitioned,
)
from streamlog.dsl.shapes import Shape
from streamlog.dsl.table import Table
from streamlog.dsl.topic import Topic
from streamlog.dsl.windowed import WindowedStream
from streamlog.durations import Dur, duration_ms
from streamlog.errors import TopologyError
from streamlog.record import Late, Record, Windowed
from streamlog.tables.store import StoreSpec
from streamlog.topology import (
    Aggregate,
    Aggregation,
    Aggregator,
    AtCommits,
    ErrorPolicy,
    ExpiringAggregate,
    check_name,
)
from streamlog.windows.calendar import Calendar
from streamlog.windows.counted import Counted
from streamlog.windows.definitions import Hopping, Tumbling, Windows
from streamlog.windows.emit import Emit
from streamlog.windows.sessions import Sessions
from streamlog.windows.sliding import Sliding

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
V2 = TypeVar("V2")
"""A value of another stream."""
A = TypeVar("A")
"""The state and result of an aggregation."""


class Grouped(Generic[K, V]):
    """The records of a stream by key."""

    def __init__(self, place: Place, emit: Emit = Emit.UPDATE) -> None:
        self._place = place
        self._emit = emit

    def emit(self, when: Emit) -> Grouped[K, V]:
        """When changes go on, of what follows without windows.

        `Emit.UPDATE` (default): every one. `Emit.COMMIT`: of each row the newest, at every commit.
        Who looks into the table sees every change at once.

        Raises:
            TopologyError: it is another one, which only windows have.
        """
        if when not in (Emit.UPDATE, Emit.COMMIT):
            raise TopologyError(
                "without windows, changes go on as they are made (Emit.UPDATE) or at commits "
                f"(Emit.COMMIT), not by {when.name}: that is for .windowed(...).emit(...)"
            )
        return Grouped(self._place, when)

    def windowed(self, w: Windows) -> WindowedStream[K, V]:
        """Aggregate per key and window.

        Raises:
            TopologyError: windows of this kind can't be run, or `emit` was said before.
        """
        if self._emit != Emit.UPDATE:
            raise TopologyError("say when windows emit behind them: .windowed(...).emit(...)")
        return WindowedStream(self._place, windowing(w))

    def count(
        self,
        *,
        name: str,
        ttl: Dur | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, int]:
        """How many records each key has had; `ttl` as for `aggregate`."""
        return self._table(name, counting(), Shape(int), on_error, ttl)

    def reduce(
        self,
        fn: Callable[[V, V], V],
        *,
        name: str,
        ttl: Dur | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, V]:
        """The values of each key folded into one of the same type; the first is the start.

        `ttl` as for `aggregate`.
        """
        folding = reducing(fn, self._place.value.serde)
        return self._table(name, folding, self._place.value, on_error, ttl)

    def aggregate(
        self,
        init: Callable[[], A],
        fn: Callable[[A, V], A],
        *,
        name: str,
        ttl: Dur | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, A]:
        """The values of each key folded into a state that begins as `init()`.

        `fn` may change the state in place, but has to return it. The state's type is what `fn`
        is annotated to return, else what `init()` is.

        Args:
            init: gives the state of a key without records.
            fn: adds a value.
            name: of the table, which is the identity of its state.
            ttl: a row is deleted when stream time is so far beyond its newest record; a record that
                is as old as that, and finds no row, is late.
            on_error: what becomes of records on which a function fails.
        """
        shape = state_shape(init, fn)
        return self._table(name, aggregating(init, fn, shape.serde), shape, on_error, ttl)

    def agg(
        self,
        into: type[A],
        *,
        name: str,
        ttl: Dur | None = None,
        on_error: ErrorPolicy | None = None,
        **columns: Aggregator[V, Any],
    ) -> Table[K, A]:
        """One row of type `into` per key, a column for each field; `ttl` as for `aggregate`."""
        rows = row_aggregation(name, into, columns, self._place.value)
        return self._table(name, rows, Shape(into), on_error, ttl)

    def cogroup(self, fn: Callable[[A, V], A]) -> CoGrouped[K, A]:
        """For folding this stream and others of the same keys into one aggregate.

        Args:
            fn: adds a value of this stream; it may change the state in place, but has to return it.
        """
        return CoGrouped((Into(self._place, fn),))

    def _table(
        self,
        name: str,
        aggregation: Aggregation,
        value: Shape,
        on_error: ErrorPolicy | None,
        ttl: Dur | None,
    ) -> Table[K, Any]:
        check_name("a table", name)
        place = partitioned(self._place, name)
        node = Aggregate(
            name=name,
            parents=(place.node,),
            store=StoreSpec(name),
            key=place.key.serde,
            aggregation=aggregation,
            on_error=on_error,
        )
        place.builder.add(node if ttl is None else expiring(node, ttl))
        at = name
        if self._emit == Emit.COMMIT:
            at = f"{name}/commits"
            key, deletes = place.key.serde, ttl is not None
            place.builder.add(AtCommits(name=at, parents=(name,), key=key, deletes=deletes))
        return Table(Side(Place(place.builder, at, place.key, value), name))


def expiring(node: Aggregate, ttl: Dur) -> ExpiringAggregate:
    """The same with rows that are over some time.

    Raises:
        TopologyError: it is no time at all.
    """
    ttl_ms = duration_ms(ttl)
    if not ttl_ms:
        raise TopologyError(f"table {node.name!r}: a time to live must be longer than 0 ms")
    return ExpiringAggregate(
        name=node.name,
        parents=node.parents,
        store=node.store,
        dues=StoreSpec(f"{node.name}/dues"),
        ttl_ms=ttl_ms,
        key=node.key,
        aggregation=node.aggregation,
        on_error=node.on_error,
    )


class CoGrouped(Generic[K, A]):
    """Several streams by the same key, to be folded into one aggregate."""

    def __init__(self, inputs: tuple[Into, ...]) -> None:
        self._inputs = inputs

    def cogroup(self, other: Grouped[K, V2], fn: Callable[[A, V2], A]) -> CoGrouped[K, A]:
        """One more stream, whose values `fn` adds.

        Its topic has as many partitions as those of the others, as for a join.
        """
        return CoGrouped((*self._inputs, Into(other._place, fn)))  # noqa: SLF001 - its kin

    def windowed(self, w: Windows) -> WindowedCoGrouped[K, A]:
        """Aggregate per key and window; see `Grouped.windowed`."""
        return WindowedCoGrouped(self._inputs, replace(windowing(w), united=True))

    def aggregate(
        self, init: Callable[[], A], *, name: str, on_error: ErrorPolicy | None = None
    ) -> Table[K, A]:
        """The values of all streams folded into a state that begins as `init()`, per key.

        They are taken in the order of time, as the task has it. The state's type is what one of
        the functions is annotated to return, else what `init()` is.

        Raises:
            TopologyError: the streams write their keys differently, or are of several apps.
        """
        joined: Grouped[K, Any] = Grouped(joined_inputs(self._inputs, name))
        return joined.aggregate(init, adding(self._inputs), name=name, on_error=on_error)


class WindowedCoGrouped(Generic[K, A]):
    """Several streams by the same key and window; methods as of `WindowedStream`.

    The streams have one time, as in a join: the largest of any of them, those aside that are not
    read to their end yet.
    """

    def __init__(self, inputs: tuple[Into, ...], how: Windowing) -> None:
        self._inputs = inputs
        self._how: WindowedStream[K, Any] = WindowedStream(inputs[0].place, how)

    def late(self, to: Topic[K, Late[Any]] | Callable[[Record[K, Any]], object]) -> Self:
        """Where records of any of the streams go whose window has closed."""
        return self._with(self._how.late(to))

    def emit(self, when: Emit) -> Self:
        """When results are emitted."""
        return self._with(self._how.emit(when))

    def aggregate(
        self,
        init: Callable[[], A],
        *,
        merge: Callable[[A, A], A] | None = None,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[Windowed[K], A]:
        """The values of all streams folded into a state that begins as `init()`.

        See `CoGrouped.aggregate`, and `WindowedStream.aggregate` for `merge`.
        """
        how = self._how._windowing  # noqa: SLF001 - its kin
        joined: WindowedStream[K, Any] = WindowedStream(
            joined_inputs(self._inputs, name), replace(how, late=late_as_it_came(how.late))
        )
        add = adding(self._inputs)
        return joined.aggregate(init, add, merge=merge, name=name, on_error=on_error)

    def _with(self, how: WindowedStream[K, Any]) -> Self:
        return type(self)(self._inputs, how._windowing)  # noqa: SLF001 - its kin


def windowing(windows: Windows) -> Windowing:
    """With these windows, and nothing else said.

    Raises:
        TopologyError: windows of this kind can't be run.
    """
    if not isinstance(windows, Tumbling | Hopping | Calendar | Counted | Sessions | Sliding):
        raise TopologyError(
            "windows must come from tumbling(...), hopping(...), calendar(...), session(...), "
            f"sliding(...) or count_window(...), not {windows!r}"
        )
    return Windowing(windows)
