"""Grouped: the records of a stream by key, to be aggregated into a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from streamlog.dsl.aggregations import (
    Windowing,
    aggregating,
    counting,
    reducing,
    state_shape,
)
from streamlog.dsl.columns import row_aggregation
from streamlog.dsl.place import (
    Place,
    Side,
    partitioned,
)
from streamlog.dsl.shapes import Shape
from streamlog.dsl.table import Table
from streamlog.dsl.windowed import WindowedStream
from streamlog.errors import TopologyError
from streamlog.tables.store import StoreSpec
from streamlog.topology import (
    Aggregate,
    Aggregation,
    Aggregator,
    ErrorPolicy,
    check_name,
)
from streamlog.windows.calendar import Calendar
from streamlog.windows.definitions import Hopping, Tumbling, Windows
from streamlog.windows.sessions import Sessions
from streamlog.windows.sliding import Sliding

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
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
        if not isinstance(w, Tumbling | Hopping | Calendar | Sessions | Sliding):
            raise TopologyError(
                "windows must come from tumbling(...), hopping(...), calendar(...), session(...) "
                f"or sliding(...), not {w!r}"
            )
        return WindowedStream(self._place, Windowing(w))

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
