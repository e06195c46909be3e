"""Grouped: a stream by key, aggregated into a table; CoGrouped: several streams into one table.

A `Port` per stream numbers its values, so that the aggregation knows which function adds a value.
Rule: only the aggregation sees these numbers; a late record leaves in the form in which it arrived.
Not here: windows (`windowed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

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
from streamlog.replace import replace
from streamlog.serdes import form_of
from streamlog.serdes.erased_types import AnyRecord, AnySerde, UserState, UserValue
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.calendar import Calendar
from streamlog.windows.definitions import Counted, Hopping, Sessions, Sliding, Tumbling, Windows
from streamlog.windows.emit import Emit

INPUTS_MAX = 255
"""The number of streams that one aggregate takes: a stream's number is stored in one byte."""

Numbered = tuple[int, UserValue]
"""The number of an input and one of its values."""


@dataclass(frozen=True, slots=True)
class CogroupInput:
    """A stream and the function that adds its values to the aggregate."""

    position: StreamPosition
    add: Callable[[UserState, UserValue], UserState]


class NumberedSerde:
    """Serializes values of several streams: a byte with the stream's number, then the value."""

    def __init__(self, serdes: Sequence[AnySerde]) -> None:
        self._serdes = tuple(serdes)

    @property
    def form(self) -> object:
        """The form of the bytes, as plain data (`serdes.form_of`)."""
        return {"cogrouped": [form_of(serde) for serde in self._serdes]}

    def dumps(self, obj: Numbered) -> bytes:
        """Serialize the stream's number and the value."""
        number, value = obj
        return bytes((number,)) + self._serdes[number].dumps(value)

    def loads(self, data: bytes) -> Numbered:
        """Return the number and the value of these bytes.

        Raises:
            SerdeError: the bytes do not begin with the number of a stream.
        """
        if not data or data[0] >= len(self._serdes):
            raise SerdeError(
                f"the bytes do not begin with the number of one of the {len(self._serdes)} "
                f"streams: {data[:16]!r}"
            )
        return data[0], self._serdes[data[0]].loads(data[1:])


class LateSerde:
    """Serializes late values without the number of their stream, for the topic of late records."""

    def __init__(self, inner: AnySerde) -> None:
        self._inner = inner

    @property
    def form(self) -> object:
        """The form of the topic's values."""
        return form_of(self._inner)

    def dumps(self, obj: Late[UserValue]) -> bytes:
        """Serialize a late value as the topic does."""
        # The value is a pair of the stream's number and the value that arrived.
        return self._inner.dumps(replace(obj, value=obj.value[1]))

    def loads(self, data: bytes) -> Late[UserValue]:
        """Return the late value of these bytes, without a number."""
        late: Late[UserValue] = self._inner.loads(data)
        return late


def merge_inputs(inputs: Sequence[CogroupInput], name: str) -> StreamPosition:
    """Merge all streams into one position, as the aggregation of this name reads them.

    Raises:
        TopologyError: the streams serialize keys differently or belong to several apps, or there
            are more than `INPUTS_MAX`.
    """
    check_name("a table", name)
    if len(inputs) > INPUTS_MAX:
        raise TopologyError(
            f"aggregate {name!r} has {len(inputs)} streams, but can have at most {INPUTS_MAX}: "
            "merge some of them first"
        )
    # All inputs go to one node, which stores rows by the bytes of keys: an input that is
    # repartitioned writes its keys as the first input has them.
    first = inputs[0].position
    positions: list[StreamPosition] = []
    for number, each in enumerate(inputs):
        check_same_app(first, each.position, "cogroup")
        # Each input has a topic of its own: values of different types can't share one.
        position = repartition_if_needed(each.position, f"{name}-{number + 1}", first.key)
        check_same_keys(position, positions[0] if positions else position, name)
        positions.append(position)
    builder, ports = first.builder, []
    for number, position in enumerate(positions):
        port = Port(name=f"{name}/input-{number + 1}", parents=(position.node,), number=number)
        builder.add(port)
        ports.append(port.name)
    builder.add(Merge(name=f"{name}/inputs", parents=tuple(ports)))
    value = Shape(given=NumberedSerde([position.value.serde_if_needed for position in positions]))
    return StreamPosition(builder, f"{name}/inputs", positions[0].key, value)


def adder_of(inputs: Sequence[CogroupInput]) -> Callable[[UserState, Numbered], UserState]:
    """Return a function that adds a value with the function of its stream.

    It is annotated to return the type of the first function whose type is known.
    """
    adds = tuple(each.add for each in inputs)

    def add(state: UserState, numbered: Numbered) -> UserState:
        number, value = numbered
        return adds[number](state, value)

    # `state_shape` reads the annotation, so that the state has the type that a function declares.
    shapes = [shape for into in adds if (shape := return_shape(into)).is_known]
    add.__annotations__ = {"return": shapes[0].declared} if shapes else {}
    return add


def late_target(
    late: TopicSpec | Callable[[AnyRecord], object] | None,
) -> TopicSpec | Callable[[AnyRecord], object] | None:
    """Return the target of late records, which removes the number of their stream."""
    if late is None:
        return None
    if isinstance(late, TopicSpec):
        return replace(late, value=LateSerde(late.value))

    def call_late(record: AnyRecord) -> object:
        return late(record.replace(value=record.value[1]))

    return call_late


K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
V2 = TypeVar("V2")
"""A value of another stream."""
A = TypeVar("A")
"""The state and result of an aggregation."""


class Grouped(Generic[K, V]):
    """The records of a stream, grouped by key, for aggregations.

    Records without a key are left out and counted. If an operator before has changed the key, the
    records go through a repartition topic that is named after the table.
    """

    def __init__(self, position: StreamPosition, emit: Emit = Emit.UPDATE) -> None:
        self._position = position
        self._emit = emit

    def emit(self, when: Emit) -> Grouped[K, V]:
        """Choose when an aggregation without windows emits its changes.

        Reading the table shows every change immediately, whatever is chosen here.

        Args:
            when: `Emit.UPDATE` (default) emits every change, `Emit.COMMIT` the newest value of
                each changed row at every commit.

        Raises:
            TopologyError: `when` is for windows only.
        """
        if when not in (Emit.UPDATE, Emit.COMMIT):
            raise TopologyError(
                f"without windows, emit takes Emit.UPDATE or Emit.COMMIT, not {when.name}: use "
                ".windowed(...).emit(...)"
            )
        return Grouped(self._position, when)

    def windowed(self, w: Windows) -> WindowedStream[K, V]:
        """Group by window as well, for aggregations per key and window.

        Args:
            w: what `tumbling`, `hopping`, `sliding`, `session`, `calendar` or `count_window`
                returned.

        Raises:
            TopologyError: `w` is something else, or `emit` was called before.
        """
        if self._emit != Emit.UPDATE:
            raise TopologyError(
                "emit of a windowed aggregation comes after the windows: .windowed(...).emit(...)"
            )
        return WindowedStream(self._position, windowing(w))

    def count(
        self,
        *,
        name: str,
        ttl: Dur | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, int]:
        """Count the records of each key; `name`, `ttl` and `on_error` are as for `aggregate`."""
        return self._table(name, count_aggregation(), Shape(int), on_error, ttl)

    def reduce(
        self,
        fn: Callable[[V, V], V],
        *,
        name: str,
        ttl: Dur | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, V]:
        """Fold the values of each key into one value of type V, starting with the first value.

        Args:
            fn: returns the result with one more value.
            name: the table's name, which identifies its state.
            ttl: as for `aggregate`.
            on_error: the policy for records on which `fn` fails; the app's policy by default.
        """
        folding = reduce_aggregation(fn, self._position.value.serde)
        return self._table(name, folding, self._position.value, on_error, ttl)

    def aggregate(
        self,
        init: Callable[[], A],
        fn: Callable[[A, V], A],
        *,
        name: str,
        ttl: Dur | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, A]:
        """Fold the values of each key into a state that starts as `init()`.

        `fn` may change the state in place, but must return it. The state has the type that `fn` is
        annotated to return, else the type of `init()`.

        Args:
            init: returns the state of a key without records.
            fn: returns the state with one more value.
            name: the table's name, which identifies its state.
            ttl: how far stream time may pass a row's newest record before the row is deleted. A
                record that is older than this and finds no row is late. Rows stay by default.
            on_error: the policy for records on which a function fails; the app's policy by default.
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
        **columns: Aggregator[V, UserValue],
    ) -> Table[K, A]:
        """Aggregate into one row of type `into` per key, with an aggregator for each field.

        Args:
            into: the type of the rows, such as a dataclass.
            name: the table's name, which identifies its state.
            ttl: as for `aggregate`.
            on_error: the policy for records on which a column fails; the app's policy by default.
            columns: an aggregator of `agg` for each field of `into`.

        Raises:
            TopologyError: a column names no field of `into`, or a field has no column.
        """
        rows = row_aggregation(name, into, columns, self._position.value)
        return self._table(name, rows, Shape(into), on_error, ttl)

    def cogroup(self, fn: Callable[[A, V], A]) -> CoGrouped[K, A]:
        """Begin an aggregate of several streams with equal keys (KIP-150).

        Args:
            fn: returns the state with one more value of this stream; it may change the state in
                place.
        """
        return CoGrouped((CogroupInput(self._position, fn),))

    def _table(
        self,
        name: str,
        aggregation: Aggregation,
        value: Shape,
        on_error: ErrorPolicy | None,
        ttl: Dur | None,
    ) -> Table[K, UserValue]:
        check_name("a table", name)
        position = repartition_if_needed(self._position, name)
        node = Aggregate(
            name=name,
            parents=(position.node,),
            store=StoreSpec(name),
            key=position.key.serde,
            aggregation=aggregation,
            on_error=on_error,
        )
        position.builder.add(node if ttl is None else with_ttl(node, ttl))
        # `fetch` and `scan` read the node with the rows, and see every change at once. Only readers
        # of the changes are below the node that waits for commits.
        at = name
        if self._emit == Emit.COMMIT:
            at = f"{name}/commits"
            key, deletes = position.key.serde, ttl is not None
            position.builder.add(AtCommits(name=at, parents=(name,), key=key, deletes=deletes))
        return Table(TableView(StreamPosition(position.builder, at, position.key, value), name))


# The store keeps its name "dues" because it is part of the keys in changelogs, and the field keeps
# it because stored topologies have it (`blueprints`).
def with_ttl(node: Aggregate, ttl: Dur) -> ExpiringAggregate:
    """Return the aggregation with a time to live for its rows.

    Raises:
        TopologyError: `ttl` is 0.
    """
    ttl_ms = duration_ms(ttl)
    if not ttl_ms:
        raise TopologyError(f"table {node.name!r}: ttl must be longer than 0 ms, such as '1h'")
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
    """Several streams with equal keys, for one aggregate (KIP-150)."""

    def __init__(self, inputs: tuple[CogroupInput, ...]) -> None:
        self._inputs = inputs

    def cogroup(self, other: Grouped[K, V2], fn: Callable[[A, V2], A]) -> CoGrouped[K, A]:
        """Add a stream to the aggregate.

        Args:
            other: a grouped stream whose topic has as many partitions as those of the others.
            fn: returns the state with one more value of `other`.
        """
        return CoGrouped((*self._inputs, CogroupInput(other._position, fn)))  # noqa: SLF001 - its kin

    def windowed(self, w: Windows) -> WindowedCoGrouped[K, A]:
        """Group by window as well; see `Grouped.windowed`."""
        return WindowedCoGrouped(self._inputs, replace(windowing(w), united=True))

    def aggregate(
        self, init: Callable[[], A], *, name: str, on_error: ErrorPolicy | None = None
    ) -> Table[K, A]:
        """Fold the values of all streams into a state per key that starts as `init()`.

        Values are added in the order in which the task processes the records, by event time. The
        state has the type that one of the functions is annotated to return, else the type of
        `init()`.

        Args:
            init: returns the state of a key without records.
            name: the table's name, which identifies its state.
            on_error: the policy for records on which a function fails; the app's policy by default.

        Raises:
            TopologyError: the streams serialize keys differently or belong to several apps.
        """
        joined: Grouped[K, UserValue] = Grouped(merge_inputs(self._inputs, name))
        return joined.aggregate(init, adder_of(self._inputs), name=name, on_error=on_error)


class WindowedCoGrouped(Generic[K, A]):
    """Several streams with equal keys, by window, for one aggregate.

    The streams share one stream time, as in a join: the largest time of all streams. A stream that
    has not been read to its end holds it back.
    """

    def __init__(self, inputs: tuple[CogroupInput, ...], how: Windowing) -> None:
        self._inputs = inputs
        self._how: WindowedStream[K, UserValue] = WindowedStream(inputs[0].position, how)

    def late(
        self, to: Topic[K, Late[UserValue]] | Callable[[Record[K, UserValue]], object]
    ) -> Self:
        """Choose the target of late records of all streams; see `WindowedStream.late`."""
        return self._with(self._how.late(to))

    def emit(self, when: Emit) -> Self:
        """Choose when results are emitted; see `WindowedStream.emit`."""
        return self._with(self._how.emit(when))

    def aggregate(
        self,
        init: Callable[[], A],
        *,
        merge: Callable[[A, A], A] | None = None,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[Windowed[K], A]:
        """Fold the values of all streams into a state per key and window that starts as `init()`.

        Arguments are those of `CoGrouped.aggregate`; for `merge` see `WindowedStream.aggregate`.
        """
        how = self._how._windowing  # noqa: SLF001 - its kin
        joined: WindowedStream[K, UserValue] = WindowedStream(
            merge_inputs(self._inputs, name), replace(how, late=late_target(how.late))
        )
        add = adder_of(self._inputs)
        return joined.aggregate(init, add, merge=merge, name=name, on_error=on_error)

    def _with(self, how: WindowedStream[K, UserValue]) -> Self:
        return type(self)(self._inputs, how._windowing)  # noqa: SLF001 - its kin


def windowing(windows: Windows) -> Windowing:
    """Return the options of a windowed aggregation with these windows and defaults otherwise.

    Raises:
        TopologyError: `windows` is none of the window definitions.
    """
    if not isinstance(windows, Tumbling | Hopping | Calendar | Counted | Sessions | Sliding):
        raise TopologyError(
            "windows must come from tumbling(...), hopping(...), calendar(...), session(...), "
            f"sliding(...) or count_window(...), not {windows!r}"
        )
    return Windowing(windows)
