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
from streamlog.errors import TopologyError
from streamlog.record import Late, Record, Windowed
from streamlog.tables.store import StoreSpec
from streamlog.topology import (
    Aggregate,
    Aggregation,
    Aggregator,
    ErrorPolicy,
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

    def __init__(self, place: Place) -> None:
        self._place = place

    def windowed(self, w: Windows) -> WindowedStream[K, V]:
        """Aggregate per key and window.

        Raises:
            TopologyError: windows of this kind can't be run.
        """
        return WindowedStream(self._place, windowing(w))

    def count(
        self,
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, int]:
        """How many records each key has had."""
        return self._table(name, counting(), Shape(int), on_error)

    def reduce(
        self,
        fn: Callable[[V, V], V],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, V]:
        """The values of each key folded into one of the same type; the first is the start."""
        return self._table(name, reducing(fn, self._place.value.serde), self._place.value, on_error)

    def aggregate(
        self,
        init: Callable[[], A],
        fn: Callable[[A, V], A],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, A]:
        """The values of each key folded into a state that begins as `init()`.

        `fn` may change the state in place, but has to return it. The state's type is what `fn`
        is annotated to return, else what `init()` is.
        """
        shape = state_shape(init, fn)
        return self._table(name, aggregating(init, fn, shape.serde), shape, on_error)

    def agg(
        self,
        into: type[A],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
        **columns: Aggregator[V, Any],
    ) -> Table[K, A]:
        """One row of type `into` per key, a column for each of its fields."""
        rows = row_aggregation(name, into, columns, self._place.value)
        return self._table(name, rows, Shape(into), on_error)

    def cogroup(self, fn: Callable[[A, V], A]) -> CoGrouped[K, A]:
        """For folding this stream and others of the same keys into one aggregate.

        Args:
            fn: adds a value of this stream; it may change the state in place, but has to return it.
        """
        return CoGrouped((Into(self._place, fn),))

    def _table(
        self, name: str, aggregation: Aggregation, value: Shape, on_error: ErrorPolicy | None
    ) -> Table[K, Any]:
        check_name("a table", name)
        place = partitioned(self._place, name)
        place.builder.add(
            Aggregate(
                name=name,
                parents=(place.node,),
                store=StoreSpec(name),
                key=place.key.serde,
                aggregation=aggregation,
                on_error=on_error,
            )
        )
        return Table(Side(Place(place.builder, name, place.key, value), name))


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
