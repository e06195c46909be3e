"""What a join by foreign keys comes to as nodes, and the topics between them.

Rule of the file: everything is named after the join, and what the user has not named has a suffix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from streamlog.dsl.place import AppBuilder, Place, Side, same_app, through_topic
from streamlog.dsl.shapes import Shape, returned
from streamlog.errors import TopologyError
from streamlog.serdes import Serde
from streamlog.tables.references import Outcome, OutcomeSerde, Reference, ReferenceSerde
from streamlog.tables.store import StoreSpec
from streamlog.topology import (
    ErrorPolicy,
    Filter,
    ForeignKeyJoin,
    ForeignKeyRows,
    Refer,
    RepartitionSink,
    Source,
    TableSide,
    check_name,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointing:
    """A join by foreign keys, as far as it has been said."""

    left: Side
    right: Side
    on: Callable[[Any], Any]
    fn: Callable[..., Any]
    is_left: bool
    name: str
    on_error: ErrorPolicy | None


def joined_on(said: Pointing) -> Side:
    """Each row of a table with the row of another one that it points to.

    Raises:
        TopologyError: a table is windowed, they are of two apps, or the name is taken.
    """
    name, left, right = check_name("a join", said.name), said.left, said.right
    same_app(left.place, right.place, "join")
    for side in (left, right):
        if side.is_windowed:
            raise TopologyError(
                f"table {side.owner!r} is windowed, and can't be joined by a foreign key: its rows "
                "would stay for ever"
            )
    builder, key, value = (
        left.place.builder,
        left.place.key,
        returned(said.fn, left.place.value, right.place.value),
    )
    _add_refer(said)
    outcomes = OutcomeSerde(value.serde)
    met = Place(builder, _add_join(said), key, Shape(given=outcomes))
    behind = through_topic(met, f"{name}-results", key)
    topic = cast("Source", builder.nodes[behind.node]).topic
    alone = _only(builder, name, Outcome, key, outcomes)
    builder.add(RepartitionSink(name=f"{name}-alone", parents=(alone.node,), topic=topic))
    builder.add(
        ForeignKeyRows(
            name=name,
            parents=(behind.node,),
            store=StoreSpec(name),
            gone=StoreSpec(f"{name}/gone"),
            key=key.serde,
            value=value.serde,
        )
    )
    return Side(Place(builder, name, key, value), name)


def _add_refer(said: Pointing) -> None:
    place = said.left.place
    place.builder.add(
        Refer(
            name=f"{said.name}-refers",
            parents=(place.node,),
            on=said.on,
            fn=said.fn,
            is_left=said.is_left,
            key=place.key.serde,
            on_error=said.on_error,
        )
    )


def _add_join(said: Pointing) -> str:
    """Where references meet what they point to."""
    name, left, right = said.name, said.left.place, said.right.place
    pointing = _only(left.builder, name, Reference, right.key, ReferenceSerde(left.value.serde))
    referring = through_topic(pointing, f"{name}-references", right.key)
    sides = (f"{name}/references", f"{name}/rows")
    for each, node in zip(sides, (referring.node, right.node), strict=True):
        left.builder.add(TableSide(name=each, parents=(node,), is_left=each == sides[0]))
    node = f"{name}-meets"
    left.builder.add(
        ForeignKeyJoin(
            name=node,
            parents=sides,
            store=StoreSpec(f"{name}/references"),
            rows=StoreSpec(f"{name}/rows"),
            fn=said.fn,
            is_left=said.is_left,
            key=right.key.serde,
            value=right.value.serde,
            row_key=left.key.serde,
            row_value=left.value.serde,
            on_error=said.on_error,
        )
    )
    return node


def _only(builder: AppBuilder, name: str, kind: type, key: Shape, serde: Serde[Any]) -> Place:
    """Of the messages that rows of the left table become, those of one kind."""
    node = f"{name}-{kind.__name__.lower()}s"
    wanted = Filter(name=node, parents=(f"{name}-refers",), fn=lambda _, m: isinstance(m, kind))
    builder.add(wanted)
    return Place(builder, node, key, Shape(given=serde))
