"""WindowedStream: the records of a stream by key and window, for aggregations into a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar

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
from streamlog.replace import replace
from streamlog.serdes.erased_types import UserKey, UserValue
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
    """The records of a stream, grouped by key and window, for aggregations."""

    def __init__(self, position: StreamPosition, windowing: Windowing) -> None:
        self._position = position
        self._windowing = windowing

    def late(self, to: Topic[K, Late[V]] | Callable[[Record[K, V]], object]) -> Self:
        """Choose the target of late records: records whose window has closed.

        Without a target, late records are counted, and the count is logged. A record that lies in
        several windows goes to the target once for each closed window, and counts in the others.

        Args:
            to: a topic with values of type `Late`, or a function that is called with the record.
        """
        late = to.spec if isinstance(to, Topic) else to
        # A late record keeps the key with which it arrived, which may be windowed by a table above.
        if isinstance(late, TopicSpec):
            share_layout(self._position.key, late)
        return type(self)(self._position, replace(self._windowing, late=late))

    def emit(self, when: Emit) -> Self:
        """Choose when results are emitted (KIP-825).

        Args:
            when: `Emit.CLOSE` (default) emits one final row per window, `Emit.UPDATE` every change.
                `Emit.COMMIT` emits the newest value of each changed key and window at every commit
                (`commit_interval`), or after each call of the test driver. `Emit.early("10s")`
                emits the newest value of each changed key and window at the end of every interval,
                and the final row.

        Raises:
            TopologyError: `when` is no `Emit`.
        """
        if not isinstance(when, Emit):
            raise TopologyError(
                f"emit takes Emit.CLOSE, Emit.UPDATE, Emit.COMMIT or Emit.early(...), not {when!r}"
            )
        return type(self)(self._position, replace(self._windowing, emit=when))

    def idle_after(self, wall: Dur) -> Self:
        """Let windows close without sources that are read to their end and quiet.

        A window closes when all sources (the partitions upstream) have passed its end. By default a
        quiet or empty source holds windows open until time marks in the log advance it; a replay
        finds these marks at equal offsets. With `idle_after`, results depend on the wall clock: a
        record that a quiet source brings for a closed window is late.

        Args:
            wall: how long a source must be quiet, by the wall clock; longer than 0.

        Raises:
            TopologyError: `wall` is 0.
        """
        return type(self)(
            self._position, replace(self._windowing, idle_after_ms=idle_after_ms(wall))
        )

    def count(
        self,
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[Windowed[K], int]:
        """Count the records of each key and window; arguments are as for `aggregate`."""
        return self._table(name, count_aggregation(), Shape(int), on_error)

    def reduce(
        self,
        fn: Callable[[V, V], V],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[Windowed[K], V]:
        """Fold the values of each key and window into one value of type V.

        Args:
            fn: returns the result with one more value. The first value is the start.
            name: the table's name, which identifies its state.
            on_error: the policy for records on which `fn` fails; the app's policy by default.
        """
        return self._table(
            name, reduce_aggregation(fn, self._position.value.serde), self._position.value, on_error
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
        """Fold the values of each key and window into a state that starts as `init()`.

        Args:
            init: returns the state of a window without records.
            fn: returns the state with one more value; it may change the state in place.
            merge: returns one state from those of two sessions, the earlier one first; it may
                change and reuse both. Sessions need it, because a record between two sessions
                unites them.
            name: the table's name, which identifies its state.
            on_error: the policy for records on which a function fails; the app's policy by default.

        Raises:
            TopologyError: the windows are sessions and there is no `merge`, or the name is taken.
        """
        shape = state_shape(init, fn)
        return self._table(name, custom_aggregation(init, fn, shape.serde, merge), shape, on_error)

    def agg(
        self,
        into: type[A],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
        **columns: Aggregator[V, UserValue],
    ) -> Table[Windowed[K], A]:
        """Aggregate into one row of type `into` per key and window; see `Grouped.agg`.

        Example:
            >>> from streamlog import agg
            >>> agg.sum("amount").name
            'sum'
        """
        rows = row_aggregation(name, into, columns, self._position.value)
        return self._table(name, rows, Shape(into), on_error)

    def _table(
        self, name: str, aggregation: Aggregation, value: Shape, on_error: ErrorPolicy | None
    ) -> Table[UserKey, UserValue]:
        check_name("a table", name)
        position = repartition_if_needed(self._position, name)
        position.builder.add(self._node(name, position, aggregation, on_error))
        # The keys of the table are `Windowed`: their layout follows from the windows.
        rows = StreamPosition(
            position.builder, name, position.key.windowed(self._windowing.windows), value
        )
        return Table(TableView(rows, name, is_windowed=True))

    def _node(
        self,
        name: str,
        position: StreamPosition,
        aggregation: Aggregation,
        on_error: ErrorPolicy | None,
    ) -> WindowedAggregate | RecordWindowsAggregate | CountedAggregate:
        how = self._windowing
        # Windows that follow from records need a store by key; those of the clock follow from the
        # timestamp alone.
        windows = how.windows
        if isinstance(windows, Sessions | Sliding):
            return record_windows_aggregate(
                name, position, how, windows, aggregation=aggregation, on_error=on_error
            )
        if isinstance(windows, Counted):
            return counted_aggregate(
                name, position, how, windows, aggregation=aggregation, on_error=on_error
            )
        if how.united and how.emit.is_early:
            raise TopologyError(
                f"{name!r} can't use Emit.early, which windows of several streams do not support: "
                "use Emit.CLOSE, Emit.UPDATE or Emit.COMMIT"
            )
        return WindowedAggregate(
            name=name,
            parents=(position.node,),
            store=StoreSpec(name),
            key=position.key.serde,
            aggregation=aggregation,
            on_error=on_error,
            windows=windows,
            emit=how.emit,
            early=StoreSpec(f"{name}/@early") if how.emit.is_early else None,
            late=how.late,
            idle_after_ms=how.idle_after_ms,
            united=how.united,
        )
