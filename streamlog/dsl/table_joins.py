"""What joins of tables, and tables made of streams, come to as nodes.

Rule of the file: it gives `Side`s, of which a `Table` is made where it is asked for. Rows meet by
the bytes of their keys, so both tables have to write those alike, and windowed ones only meet
windowed ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlog.dsl.fits import takes_none
from streamlog.dsl.place import Place, Side, check_same_keys, partitioned, same_app
from streamlog.dsl.shapes import Shape, returned
from streamlog.errors import TopologyError
from streamlog.serdes import Serde, WindowedSerde
from streamlog.tables.store import StoreSpec
from streamlog.topology import (
    ErrorPolicy,
    How,
    RecordWindowsAggregate,
    StreamTable,
    TableSide,
    TableTableJoin,
    check_name,
)


def joined_tables(
    left: Side,
    right: Side,
    fn: Callable[..., Any],
    *,
    kind: How,
    name: str,
    on_error: ErrorPolicy | None,
) -> Side:
    """The rows of two tables by key.

    Raises:
        TopologyError: they are of two apps, their keys can't meet, or the name is taken.
    """
    check_name("a join", name)
    takes_none(fn, *{"inner": (), "left": (1,), "outer": (0, 1)}[kind], where=f"{kind}_join")
    same_app(left.place, right.place, "join")
    _check_windows(left, right)
    builder, key = left.place.builder, left.place.key
    sides = (f"{name}/left", f"{name}/right")
    for side, table in zip(sides, (left, right), strict=True):
        builder.add(TableSide(name=side, parents=(table.place.node,), is_left=side == sides[0]))
    builder.add(
        TableTableJoin(
            name=name,
            parents=sides,
            store=StoreSpec(name),
            key=_within_window(key.serde),
            left=left.place.value.serde,
            right=right.place.value.serde,
            fn=fn,
            kind=kind,
            kept_ms=_kept_ms(left, right),
            ends_count=any(_ends_count(side) for side in (left, right)),
            on_error=on_error,
        )
    )
    return Side(
        Place(builder, name, key, returned(fn, left.place.value, right.place.value)),
        name,
        is_windowed=left.is_windowed,
    )


def table_of(place: Place, name: str, on_error: ErrorPolicy | None) -> Side:
    """The latest value per key of a stream."""
    place = partitioned(place, check_name("a table", name))
    place.builder.add(
        StreamTable(
            name=name,
            parents=(place.node,),
            store=StoreSpec(name),
            key=place.key.serde,
            value=place.value.serde,
            on_error=on_error,
        )
    )
    is_windowed = isinstance(place.key.serde, WindowedSerde)
    if is_windowed:
        raise TopologyError(
            f"{name!r} can't be a table by windows, as its rows would stay for ever: the stream "
            "is that of a windowed table, which is one already"
        )
    value = Shape(given=place.value.serde)
    return Side(Place(place.builder, name, place.key, value), name)


def _check_windows(left: Side, right: Side) -> None:
    if left.is_windowed != right.is_windowed:
        raise TopologyError(
            f"{left.owner!r} and {right.owner!r} can't be joined, as only one of them is windowed: "
            "equal keys would not meet"
        )
    mine, others = _unwindowed(left.place), _unwindowed(right.place)
    check_same_keys(mine, others, right.owner)


def _unwindowed(place: Place) -> Place:
    shape = Shape(given=_within_window(place.key.serde))
    return Place(place.builder, place.node, shape, place.value)


def _within_window(serde: Serde[Any]) -> Serde[Any]:
    return serde.key_serde if isinstance(serde, WindowedSerde) else serde


def _kept_ms(left: Side, right: Side) -> int | None:
    """For how long after its window either table may change a row."""
    if not left.is_windowed:
        return None
    nodes = [side.place.builder.nodes[side.owner] for side in (left, right)]
    return max(node.rows_kept_ms or 0 for node in nodes)


def _ends_count(side: Side) -> bool:
    owner = side.place.builder.nodes[side.owner]
    if isinstance(owner, TableTableJoin):
        return owner.ends_count
    return isinstance(owner, RecordWindowsAggregate)
