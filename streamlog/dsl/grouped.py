"""Grouped and WindowedStream: aggregations by key, and by key and window.

The last step of a chain (`count`, `reduce`, `aggregate`, `agg`) adds the stateful node, and
before it the repartition topic if the key was changed. Rule of the file: a node with state
has the name the user gave, as that is the identity of its state. `late`, `emit` and
`idle_after` return a changed copy, in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from streamlog.dsl.aggregators import Aggregator, row_aggregation
from streamlog.dsl.shapes import UNKNOWN, Shape, returned
from streamlog.dsl.stream import Place, Topic, partitioned
from streamlog.dsl.table import Side, Table
from streamlog.durations import Dur, duration_ms
from streamlog.errors import TopologyError
from streamlog.record import Late, Record, Windowed
from streamlog.serdes import Serde, serde_for
from streamlog.tables.store import StoreSpec
from streamlog.topology import Aggregate, Aggregation, TopicSpec, WindowedAggregate, check_name
from streamlog.windows.definitions import Tumbling, Windows
from streamlog.windows.emit import Emit

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
A = TypeVar("A")
"""The state and result of an aggregation."""

_UNCHANGING = (str, bytes, int, float, bool, datetime, type(None))
"""A result of these types needs no copy."""


class Grouped(Generic[K, V]):
    """The records of a stream by key."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def windowed(self, w: Windows) -> WindowedStream[K, V]:
        """Aggregate per key and window.

        Raises:
            TopologyError: windows of this kind can't be run.
        """
        if not isinstance(w, Tumbling):
            raise TopologyError(f"windows must come from tumbling(...), not {w!r}")
        return WindowedStream(self._place, _Windowing(w))

    def count(self, *, name: str) -> Table[K, int]:
        """How many records each key has had."""
        return self._table(name, _counting(), Shape(int))

    def reduce(self, fn: Callable[[V, V], V], *, name: str) -> Table[K, V]:
        """The values of each key folded into one of the same type; the first is the start."""
        return self._table(name, _reducing(fn, self._place.value.serde), self._place.value)

    def aggregate(
        self, init: Callable[[], A], fn: Callable[[A, V], A], *, name: str
    ) -> Table[K, A]:
        """The values of each key folded into a state that begins as `init()`.

        `fn` may change the state in place, but has to return it. The state's type is what `fn`
        is annotated to return, else what `init()` is.
        """
        shape = _state_shape(init, fn)
        return self._table(name, _aggregating(init, fn, shape.serde), shape)

    def agg(self, into: type[A], *, name: str, **columns: Aggregator[V, Any]) -> Table[K, A]:
        """One row of type `into` per key, a column for each of its fields."""
        return self._table(name, row_aggregation(name, into, columns), Shape(into))

    def _table(self, name: str, aggregation: Aggregation, value: Shape) -> Table[K, Any]:
        check_name("a table", name)
        place = partitioned(self._place, name)
        place.builder.add(
            Aggregate(
                name=name,
                parents=(place.node,),
                store=StoreSpec(name),
                key=place.key.serde,
                aggregation=aggregation,
            )
        )
        return Table(Side(Place(place.builder, name, place.key, value), name))


@dataclass(frozen=True, slots=True)
class _Windowing:
    windows: Tumbling
    emit: Emit = Emit.CLOSE
    late: TopicSpec | Callable[[Any], object] | None = None
    idle_after_ms: int | None = None


class WindowedStream(Generic[K, V]):
    """The records of a stream by key and window."""

    def __init__(self, place: Place, windowing: _Windowing) -> None:
        self._place = place
        self._windowing = windowing

    def late(self, to: Topic[K, Late[V]] | Callable[[Record[K, V]], object]) -> Self:
        """Where records go whose window has closed: a topic, or a function.

        Without this they are counted, and the count is logged.
        """
        late = to.spec if isinstance(to, Topic) else to
        return type(self)(self._place, replace(self._windowing, late=late))

    def emit(self, when: Emit) -> Self:
        """`Emit.CLOSE` (default): one final row per window. `Emit.UPDATE`: every change."""
        if not isinstance(when, Emit):
            raise TopologyError(f"emit takes Emit.CLOSE or Emit.UPDATE, not {when!r}")
        return type(self)(self._place, replace(self._windowing, emit=when))

    def idle_after(self, wall: Dur) -> Self:
        """Do not wait for sources that are read to their end and quiet for this long.

        Windows close when all sources (the partitions upstream) have passed their end. Without
        this one that is quiet, or empty, holds them open. Results then depend on the clock:
        what such a source brings for a closed window is late.
        """
        idle_after_ms = duration_ms(wall)
        if not idle_after_ms:
            raise TopologyError("idle_after must be longer than 0 ms, such as '30s'")
        return type(self)(self._place, replace(self._windowing, idle_after_ms=idle_after_ms))

    def count(self, *, name: str) -> Table[Windowed[K], int]:
        """How many records."""
        return self._table(name, _counting(), Shape(int))

    def reduce(self, fn: Callable[[V, V], V], *, name: str) -> Table[Windowed[K], V]:
        """The values folded into one of the same type; the first is the start."""
        return self._table(name, _reducing(fn, self._place.value.serde), self._place.value)

    def aggregate(
        self, init: Callable[[], A], fn: Callable[[A, V], A], *, name: str
    ) -> Table[Windowed[K], A]:
        """The values folded into a state that begins as `init()`; see `Grouped.aggregate`."""
        shape = _state_shape(init, fn)
        return self._table(name, _aggregating(init, fn, shape.serde), shape)

    def agg(
        self, into: type[A], *, name: str, **columns: Aggregator[V, Any]
    ) -> Table[Windowed[K], A]:
        """One row of type `into`, a column for each of its fields.

        Example:
            >>> from streamlog import agg
            >>> agg.sum("amount").name
            'sum'
        """
        return self._table(name, row_aggregation(name, into, columns), Shape(into))

    def _table(self, name: str, aggregation: Aggregation, value: Shape) -> Table[Any, Any]:
        check_name("a table", name)
        place = partitioned(self._place, name)
        how = self._windowing
        place.builder.add(
            WindowedAggregate(
                name=name,
                parents=(place.node,),
                store=StoreSpec(name),
                key=place.key.serde,
                aggregation=aggregation,
                windows=how.windows,
                emit=how.emit,
                late=how.late,
                idle_after_ms=how.idle_after_ms,
            )
        )
        rows = Place(place.builder, name, place.key.windowed, value)
        return Table(Side(rows, name, is_windowed=True))


def _counting() -> Aggregation:
    return Aggregation(int, lambda state, _: state + 1, lambda state: state, serde_for(int))


def _reducing(fn: Callable[[Any, Any], Any], serde: Serde[Any]) -> Aggregation:
    def add(state: Any, value: Any) -> Any:  # noqa: ANN401 - the stream's values
        return value if state is None else fn(state, value)

    return Aggregation(lambda: None, add, _copied(serde), serde)


def _aggregating(
    init: Callable[[], Any], fn: Callable[[Any, Any], Any], serde: Serde[Any]
) -> Aggregation:
    return Aggregation(init, fn, _copied(serde), serde)


def _copied(serde: Serde[Any]) -> Callable[[Any], Any]:
    """The state as it is now: what is handed on must not change with the next record."""

    def copy(state: Any) -> Any:  # noqa: ANN401 - a state
        return state if isinstance(state, _UNCHANGING) else serde.loads(serde.dumps(state))

    return copy


def _state_shape(init: Callable[[], Any], fn: Callable[[Any, Any], Any]) -> Shape:
    shape = returned(fn)
    if shape is not UNKNOWN:
        return shape
    start = type(init())
    # Plain containers say nothing of what is in them: they are packed as they are.
    return UNKNOWN if start in (list, dict, tuple, type(None)) else Shape(start)
