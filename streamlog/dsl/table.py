"""Table: the latest value per key, kept by a source, an aggregation or a windowed one.

What is joined with, looked at in tests and turned into a stream of changes. `map_values` and
`filter` make views: nothing more is stored, rows are mapped when they are looked up. Rule of
the file: a change to None is a deletion, which views hand on and do not show to functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from streamlog.dsl.shapes import returned
from streamlog.dsl.stream import Place, Stream
from streamlog.topology import TableFilter, TableMapValues, View, check_name

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
V2 = TypeVar("V2")
"""A mapped value."""


@dataclass(frozen=True, slots=True)
class Side:
    """A table as its joins and readers see it."""

    place: Place
    """Where its changes come from."""
    owner: str
    """The node that keeps the rows."""
    views: tuple[View, ...] = ()
    """Applied to each row, in order."""
    is_windowed: bool = False


class Table(Generic[K, V]):
    """The latest value of type V per key of type K."""

    def __init__(self, side: Side) -> None:
        self.side = side

    @property
    def name(self) -> str:
        """The name of what keeps the rows."""
        return self.side.owner

    def changes(self) -> Stream[K, V]:
        """Every change as a record; of a windowed table that emits on close, the final rows."""
        return Stream(self.side.place)

    def map_values(self, fn: Callable[[V], V2], *, name: str | None = None) -> Table[K, V2]:
        """The same table with mapped values."""
        builder = self.side.place.builder
        node = TableMapValues(
            name=_name(name) or builder.unique_name("tablemapvalues"),
            parents=(self.side.place.node,),
            fn=fn,
        )
        builder.add(node)
        place = self.side.place
        mapped = Place(builder, node.name, place.key, returned(fn))
        return Table(Side(mapped, self.side.owner, (*self.side.views, node), self.side.is_windowed))

    def filter(self, fn: Callable[[K, V], bool], *, name: str | None = None) -> Table[K, V]:
        """The rows for which the function is true; the others are not there."""
        builder = self.side.place.builder
        node = TableFilter(
            name=_name(name) or builder.unique_name("tablefilter"),
            parents=(self.side.place.node,),
            fn=fn,
        )
        builder.add(node)
        place = self.side.place
        passed = Place(builder, node.name, place.key, place.value)
        return Table(Side(passed, self.side.owner, (*self.side.views, node), self.side.is_windowed))


def _name(name: str | None) -> str | None:
    return None if name is None else check_name("an operator", name)
