"""GroupedTable: the rows of a table by another key, to be aggregated into a table.

A row counts once, in the group that it is in now: when it changes or goes, its old value is taken
out again. So every aggregation here has two functions, one that adds and one that subtracts. Rule
of the file: rows always go through a repartition topic, as `Revision`s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from streamlog.dsl.aggregations import revising, revising_reduction, state_shape
from streamlog.dsl.place import Place, Side, through_topic
from streamlog.dsl.shapes import Shape, element, returned
from streamlog.dsl.table import Table
from streamlog.errors import TopologyError
from streamlog.serdes import serde_for
from streamlog.tables.revision import RevisionSerde
from streamlog.tables.store import StoreSpec
from streamlog.topology import Aggregation, ErrorPolicy, Regroup, TableAggregate, check_name

K = TypeVar("K")
"""A group."""
V = TypeVar("V")
"""What a row brings into its group."""
A = TypeVar("A")
"""The state and result of an aggregation."""


class GroupedTable(Generic[K, V]):
    """The rows of a table by another key."""

    def __init__(self, place: Place, value: Shape) -> None:
        """`place` is where revisions of values of this shape are, each group in one partition."""
        self._place = place
        self._value = value

    def count(self, *, name: str, on_error: ErrorPolicy | None = None) -> Table[K, int]:
        """How many rows are in each group; 0 once the last one has left."""
        aggregation = revising(int, lambda n, _: n + 1, lambda n, _: n - 1, serde_for(int))
        return self._table(name, aggregation, Shape(int), on_error)

    def reduce(
        self,
        add: Callable[[V, V], V],
        subtract: Callable[[V, V], V],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, V]:
        """The values of each group folded into one of the same type; the first is the start.

        Args:
            add: what comes of the result and a value that is there from now on.
            subtract: what comes of the result and a value that is there no more; None: the
                group is gone, and its row is deleted.
            name: of the table, which is the identity of its state.
            on_error: what becomes of a change on which a function fails; with anything but
                `FAIL` the result may be wrong from there on, as what was left out is subtracted.
        """
        aggregation = revising_reduction(add, subtract, self._value.serde)
        return self._table(name, aggregation, self._value, on_error)

    def aggregate(
        self,
        init: Callable[[], A],
        add: Callable[[A, V], A],
        subtract: Callable[[A, V], A],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Table[K, A]:
        """The values of each group folded into a state that begins as `init()`.

        The functions may change the state in place, but have to return it. Its type is what
        `add` is annotated to return, else what `init()` is.

        Args:
            init: the state of a group without rows.
            add: the state with a value that is there from now on.
            subtract: the state without a value that is there no more; None: the group is gone.
            name: of the table, which is the identity of its state.
            on_error: as with `reduce`.
        """
        shape = state_shape(init, add)
        return self._table(name, revising(init, add, subtract, shape.serde), shape, on_error)

    def _table(
        self, name: str, aggregation: Aggregation, value: Shape, on_error: ErrorPolicy | None
    ) -> Table[K, Any]:
        place = self._place
        place.builder.add(
            TableAggregate(
                name=check_name("a table", name),
                parents=(place.node,),
                store=StoreSpec(name),
                key=place.key.serde,
                aggregation=aggregation,
                on_error=on_error,
            )
        )
        return Table(Side(Place(place.builder, name, place.key, value), name))


def regrouped(
    side: Side,
    fn: Callable[[Any, Any], tuple[Any, Any] | None],
    name: str,
    on_error: ErrorPolicy | None,
) -> GroupedTable[Any, Any]:
    """The rows of a table by what the function says.

    Raises:
        TopologyError: what the changes of the table replace is not known.
    """
    place = side.place
    owner = place.builder.nodes[side.owner]
    if not _knows_old_values(place):
        hint = "with Emit.UPDATE or Emit.CLOSE they do" if side.is_windowed else "group .changes()"
        raise TopologyError(
            f"the rows of {side.owner!r}, a {type(owner).__name__}, can't be grouped by another "
            f"key, as its changes do not say what they replace: {hint}"
        )
    key, value = (returned(fn, place.key, place.value, of=element(at)) for at in (0, 1))
    node = f"{check_name('a grouping', name)}-groups"
    place.builder.add(Regroup(name=node, parents=(place.node,), fn=fn, on_error=on_error))
    revisions = Shape(given=RevisionSerde(value.serde))
    behind = through_topic(Place(place.builder, node, key, revisions), name, key)
    return GroupedTable(behind, value)


def _knows_old_values(place: Place) -> bool:
    nodes = place.builder.nodes
    node = nodes[place.node]
    while node.old_values == "passed on":
        node = nodes[node.parents[0]]
    return node.old_values == "kept"
