"""WindowedStream: the records of a stream by key and window, to be aggregated into a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from streamlog.dsl.aggregations import (
    Windowing,
    count_aggregation,
    counted_aggregate,
    custom_aggregation,
    record_windows_aggregate,
    reduce_aggregation,
    state_shape,
)
from streamlog.dsl.columns import row_aggregation
from streamlog.dsl.stream_position import (
    StreamPosition,
    TableView,
    idle_after_ms,
    repartition_if_needed,
)
from streamlog.dsl.table import Table
from streamlog.dsl.topic import Topic
from streamlog.dsl.value_types import Shape, share_layout
from streamlog.durations import Dur
from streamlog.errors import TopologyError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.stream_nodes import Aggregation, Aggregator
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.nodes.window_nodes import CountedAggregate, RecordWindowsAggregate, WindowedAggregate
from streamlog.record import Late, Record, Windowed
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.definitions import Counted, Sessions, Sliding
from streamlog.windows.emit import Emit

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
A = TypeVar("A")
"""The state and result of an aggregation."""


class WindowedStream(Generic[K, V]):
    """The records of a stream by key and window."""

    def __init__(self, place: StreamPosition, windowing: Windowing) -> None:
        self._place = place
        self._windowing = windowing

    def late(self, to: Topic[K, Late[V]] | Callable[[Record[K, V]], object]) -> Self:
        """Where records go whose window has closed: a topic, or a function.

        Without this they are counted, and the count is logged. A record that lies in several
        windows goes there once for each that has closed to it, and counts in the others.
        """
        late = to.spec if isinstance(to, Topic) else to
        if isinstance(late, TopicSpec):
            share_layout(self._place.key, late)
        return type(self)(self._place, replace(self._windowing, late=late))

    def emit(self, when: Emit) -> Self:
        """`Emit.CLOSE` (default): one final row per window. `Emit.UPDATE`: every change.

        `Emit.COMMIT`: the newest value of each key and window that has changed, at every commit
        of the worker (`commit_interval`); in the test driver, after each call.
        `Emit.early("10s")`: the newest value of each that has changed, at the end of every such
        interval, and the final row.
        """
        if not isinstance(when, Emit):
            raise TopologyError(
                f"emit takes Emit.CLOSE, Emit.UPDATE, Emit.COMMIT or Emit.early(...), not {when!r}"
            )
        return type(self)(self._place, replace(self._windowing, emit=when))

    def idle_after(self, wall: Dur) -> Self:
        """Do not wait for sources that are read to their end and quiet for this long.

        Windows close when all sources (the partitions upstream) have passed their end. Without
        this, one that is quiet or empty holds them open until time marks of the log bring it on,
        which a replay finds in the same place. With it, results depend on the clock: what such
        a source brings for a closed window is late.
        """
        return type(self)(self._place, replace(self._windowing, idle_after_ms=idle_after_ms(wall)))

    def count(
        self,
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[Windowed[K], int]:
        """How many records."""
        return self._table(name, count_aggregation(), Shape(int), on_error)

    def reduce(
        self,
        fn: Callable[[V, V], V],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[Windowed[K], V]:
        """The values folded into one of the same type; the first is the start."""
        return self._table(
            name, reduce_aggregation(fn, self._place.value.serde), self._place.value, on_error
        )

    def aggregate(
        self,
        init: Callable[[], A],
        fn: Callable[[A, V], A],
        *,
        merge: Callable[[A, A], A] | None = None,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[Windowed[K], A]:
        """The values folded into a state that begins as `init()`; see `Grouped.aggregate`.

        `merge` makes one state of those of two sessions, the earlier one first: sessions need it,
        as a record between two makes one of them. It may change either, and use both up.
        """
        shape = state_shape(init, fn)
        return self._table(name, custom_aggregation(init, fn, shape.serde, merge), shape, on_error)

    def agg(
        self,
        into: type[A],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
        **columns: Aggregator[V, Any],
    ) -> Table[Windowed[K], A]:
        """One row of type `into`, a column for each of its fields.

        Example:
            >>> from streamlog import agg
            >>> agg.sum("amount").name
            'sum'
        """
        rows = row_aggregation(name, into, columns, self._place.value)
        return self._table(name, rows, Shape(into), on_error)

    def _table(
        self, name: str, aggregation: Aggregation, value: Shape, on_error: ErrorPolicy | None
    ) -> Table[Any, Any]:
        check_name("a table", name)
        place = repartition_if_needed(self._place, name)
        place.builder.add(self._node(name, place, aggregation, on_error))
        rows = StreamPosition(
            place.builder, name, place.key.windowed(self._windowing.windows), value
        )
        return Table(TableView(rows, name, is_windowed=True))

    def _node(
        self,
        name: str,
        place: StreamPosition,
        aggregation: Aggregation,
        on_error: ErrorPolicy | None,
    ) -> WindowedAggregate | RecordWindowsAggregate | CountedAggregate:
        how = self._windowing
        windows = how.windows
        if isinstance(windows, Sessions | Sliding):
            return record_windows_aggregate(
                name, place, how, windows, aggregation=aggregation, on_error=on_error
            )
        if isinstance(windows, Counted):
            return counted_aggregate(
                name, place, how, windows, aggregation=aggregation, on_error=on_error
            )
        if how.united and how.emit.is_early:
            raise TopologyError(
                f"{name!r} can't emit early: windows of several streams have only final rows "
                "(Emit.CLOSE), every change (Emit.UPDATE) or those of commits (Emit.COMMIT)"
            )
        return WindowedAggregate(
            name=name,
            parents=(place.node,),
            store=StoreSpec(name),
            key=place.key.serde,
            aggregation=aggregation,
            on_error=on_error,
            windows=windows,
            emit=how.emit,
            early=StoreSpec(f"{name}/@early") if how.emit.is_early else None,
            late=how.late,
            idle_after_ms=how.idle_after_ms,
            united=how.united,
        )
