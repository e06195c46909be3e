"""Grouped: the records of a stream by key, aggregated into a table; CoGrouped: of several streams.

Several streams are folded into one aggregate through a `Port` each, which tells the aggregation
which function adds a value. Rule: only the aggregation sees these pairs; a late record leaves in
the form in which it came. Not here: windows (`windowed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from streamlog.dsl.aggregations import (
    Windowing,
    count_aggregation,
    custom_aggregation,
    reduce_aggregation,
    state_shape,
)
from streamlog.dsl.columns import row_aggregation
from streamlog.dsl.stream_position import (
    StreamPosition,
    TableView,
    check_same_app,
    check_same_keys,
    repartition_if_needed,
)
from streamlog.dsl.table import Table
from streamlog.dsl.topic import Topic
from streamlog.dsl.value_types import Shape, return_shape
from streamlog.dsl.windowed import WindowedStream
from streamlog.durations import Dur, duration_ms
from streamlog.errors import SerdeError, TopologyError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.stream_nodes import Aggregate, Aggregation, Aggregator, Merge, Port
from streamlog.nodes.table_nodes import AtCommits, ExpiringAggregate
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.record import Late, Record, Windowed
from streamlog.serdes import Serde, form_of
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.calendar import Calendar
from streamlog.windows.definitions import Counted, Hopping, Sessions, Sliding, Tumbling, Windows
from streamlog.windows.emit import Emit

INPUTS_MAX = 255
"""Streams that go into one aggregate: their numbers are written in one byte."""

Numbered = tuple[int, Any]
"""The number of an input, and a value of it."""


@dataclass(frozen=True, slots=True)
class Into:
    """A stream, and how its values are added."""

    place: StreamPosition
    add: Callable[[Any, Any], Any]


class NumberedSerde:
    """Values of several streams: a byte with the stream's number, then the value as it is there."""

    def __init__(self, serdes: Sequence[Serde[Any]]) -> None:
        self._serdes = tuple(serdes)

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"cogrouped": [form_of(serde) for serde in self._serdes]}

    def dumps(self, obj: Numbered) -> bytes:
        """The number and the value."""
        number, value = obj
        return bytes((number,)) + self._serdes[number].dumps(value)

    def loads(self, data: bytes) -> Numbered:
        """What `dumps` was given.

        Raises:
            SerdeError: it was not written here.
        """
        if not data or data[0] >= len(self._serdes):
            raise SerdeError(f"not a value of one of {len(self._serdes)} streams: {data[:16]!r}")
        return data[0], self._serdes[data[0]].loads(data[1:])


class LateSerde:
    """Late values without their numbers, for the topic that takes them."""

    def __init__(self, inner: Serde[Any]) -> None:
        self._inner = inner

    @property
    def form(self) -> object:
        """That of the topic."""
        return form_of(self._inner)

    def dumps(self, obj: Late[Any]) -> bytes:
        """As the topic has it."""
        return self._inner.dumps(replace(obj, value=obj.value[1]))

    def loads(self, data: bytes) -> Late[Any]:
        """As the topic has it."""
        late: Late[Any] = self._inner.loads(data)
        return late


def merge_inputs(inputs: Sequence[Into], name: str) -> StreamPosition:
    """All streams in one place, as the aggregation of this name takes them.

    Raises:
        TopologyError: their keys are not written alike, or they are of several apps.
    """
    check_name("a table", name)
    if len(inputs) > INPUTS_MAX:
        raise TopologyError(f"{name!r} has {len(inputs)} streams: there can be {INPUTS_MAX}")
    first = inputs[0].place
    places: list[StreamPosition] = []
    for number, into in enumerate(inputs):
        check_same_app(first, into.place, "cogroup")
        place = repartition_if_needed(into.place, f"{name}-{number + 1}", first.key)
        check_same_keys(place, places[0] if places else place, name)
        places.append(place)
    builder, ports = first.builder, []
    for number, place in enumerate(places):
        port = Port(name=f"{name}/input-{number + 1}", parents=(place.node,), number=number)
        builder.add(port)
        ports.append(port.name)
    builder.add(Merge(name=f"{name}/inputs", parents=tuple(ports)))
    value = Shape(given=NumberedSerde([place.value.serde_if_needed for place in places]))
    return StreamPosition(builder, f"{name}/inputs", places[0].key, value)


def adder_of(inputs: Sequence[Into]) -> Callable[[Any, Numbered], Any]:
    """Adds a value by the function of its stream; annotated as the first of them that is."""
    adds = tuple(into.add for into in inputs)

    def add(state: Any, numbered: Numbered) -> Any:  # noqa: ANN401 - a state
        number, value = numbered
        return adds[number](state, value)

    shapes = [shape for into in adds if (shape := return_shape(into)).is_known]
    add.__annotations__ = {"return": shapes[0].declared} if shapes else {}
    return add


def late_target(
    late: TopicSpec | Callable[[Any], object] | None,
) -> TopicSpec | Callable[[Any], object] | None:
    """Where late records go, without the number of their stream."""
    if late is None:
        return None
    if isinstance(late, TopicSpec):
        return replace(late, value=LateSerde(late.value))

    def told(record: Record[Any, Any]) -> object:
        return late(record.replace(value=record.value[1]))

    return told


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

    def __init__(self, place: StreamPosition, emit: Emit = Emit.UPDATE) -> None:
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
        return self._table(name, count_aggregation(), Shape(int), on_error, ttl)

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
        folding = reduce_aggregation(fn, self._place.value.serde)
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
        return self._table(name, custom_aggregation(init, fn, shape.serde), shape, on_error, ttl)

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
        place = repartition_if_needed(self._place, name)
        node = Aggregate(
            name=name,
            parents=(place.node,),
            store=StoreSpec(name),
            key=place.key.serde,
            aggregation=aggregation,
            on_error=on_error,
        )
        place.builder.add(node if ttl is None else with_ttl(node, ttl))
        at = name
        if self._emit == Emit.COMMIT:
            at = f"{name}/commits"
            key, deletes = place.key.serde, ttl is not None
            place.builder.add(AtCommits(name=at, parents=(name,), key=key, deletes=deletes))
        return Table(TableView(StreamPosition(place.builder, at, place.key, value), name))


def with_ttl(node: Aggregate, ttl: Dur) -> ExpiringAggregate:
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
        joined: Grouped[K, Any] = Grouped(merge_inputs(self._inputs, name))
        return joined.aggregate(init, adder_of(self._inputs), name=name, on_error=on_error)


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
            merge_inputs(self._inputs, name), replace(how, late=late_target(how.late))
        )
        add = adder_of(self._inputs)
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
