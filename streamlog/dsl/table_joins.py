"""Joins of tables, by key and by foreign key, and tables made of streams.

Rule: the functions return a `TableView`, from which the caller makes a `Table`. Rows meet by the
bytes of their keys, so both tables have to serialize keys alike, and a windowed table is joined
only with a windowed one. Nodes and topics of a join by foreign keys are named after the join.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from streamlog.dsl.stream_position import (
    AppBuilder,
    StreamPosition,
    TableView,
    check_same_app,
    check_same_keys,
    check_takes_none,
    repartition,
    repartition_if_needed,
)
from streamlog.dsl.value_types import Shape, return_shape
from streamlog.errors import TopologyError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.stream_nodes import Filter, How, RepartitionSink, Source
from streamlog.nodes.table_nodes import (
    ForeignKeyJoin,
    ForeignKeyRows,
    Refer,
    StreamTable,
    TableSide,
    TableTableJoin,
)
from streamlog.nodes.topic_spec import check_name
from streamlog.nodes.window_nodes import RecordWindowsAggregate
from streamlog.serdes import WindowedSerde
from streamlog.serdes.erased_types import AnySerde, UserFunction, UserKey, UserValue
from streamlog.tables.change_serdes import OutcomeSerde, Reference, ReferenceOutcome, ReferenceSerde
from streamlog.tables.stores.store import StoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyOptions:
    """The arguments of a join by foreign keys."""

    left: TableView
    right: TableView
    on: Callable[[UserValue], UserKey]
    fn: UserFunction
    is_left: bool
    name: str
    on_error: ErrorPolicy | None


def join_on_foreign_key(options: ForeignKeyOptions) -> TableView:
    """Join each row of a table with the row of another one that it refers to (KIP-213).

    Raises:
        TopologyError: a table is windowed, the tables belong to two apps, or the name is taken.
    """
    name, left, right = check_name("a join", options.name), options.left, options.right
    check_same_app(left.position, right.position, "join")
    for side in (left, right):
        if side.is_windowed:
            raise TopologyError(
                f"table {side.owner!r} is windowed, and can't be joined by a foreign key, because "
                "its rows would never be deleted"
            )
    builder, key, value = (
        left.position.builder,
        left.position.key,
        return_shape(options.fn, left.position.value, right.position.value),
    )
    # Orders refer to customers.
    # 1. Order 7 changes: `Refer` sends a reference to the task of its customer, A.
    # 2. `ForeignKeyJoin` stores it there, joins it with the row of A, and sends the outcome to the
    #    task of order 7. It does so again whenever the row of A changes.
    # 3. `ForeignKeyRows` keeps the outcome, if it belongs to the newest version of order 7.
    # An order that refers to nothing has an outcome at once, on the same topic.
    _add_refer(options)
    outcomes = OutcomeSerde(value.serde)
    met = StreamPosition(builder, _add_join(options), key, Shape(given=outcomes))
    behind = repartition(met, f"{name}-results", key)
    topic = cast("Source", builder.nodes[behind.node]).topic
    alone = _only(builder, name, ReferenceOutcome, key, outcomes)
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
    return TableView(StreamPosition(builder, name, key, value), name)


def _add_refer(options: ForeignKeyOptions) -> None:
    position = options.left.position
    position.builder.add(
        Refer(
            name=f"{options.name}-refers",
            parents=(position.node,),
            on=options.on,
            fn=options.fn,
            is_left=options.is_left,
            key=position.key.serde,
            on_error=options.on_error,
        )
    )


def _add_join(options: ForeignKeyOptions) -> str:
    """Add the node that joins references with rows of the right table, and return its name."""
    name, left, right = options.name, options.left.position, options.right.position
    pointing = _only(left.builder, name, Reference, right.key, ReferenceSerde(left.value.serde))
    referring = repartition(pointing, f"{name}-references", right.key)
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
            fn=options.fn,
            is_left=options.is_left,
            key=right.key.serde,
            value=right.value.serde,
            row_key=left.key.serde,
            row_value=left.value.serde,
            on_error=options.on_error,
        )
    )
    return node


def _only(
    builder: AppBuilder, name: str, kind: type, key: Shape, serde: AnySerde
) -> StreamPosition:
    """Add a filter for one class of the messages that `Refer` sends, and return its position."""
    node = f"{name}-{kind.__name__.lower()}s"
    wanted = Filter(name=node, parents=(f"{name}-refers",), fn=lambda _, m: isinstance(m, kind))
    builder.add(wanted)
    return StreamPosition(builder, node, key, Shape(given=serde))


def join_tables(
    left: TableView,
    right: TableView,
    fn: UserFunction,
    *,
    kind: How,
    name: str,
    on_error: ErrorPolicy | None,
) -> TableView:
    """Join the rows of two tables by key.

    Raises:
        TopologyError: the tables belong to two apps, serialize keys differently, only one of them
            is windowed, or the name is taken.
    """
    check_name("a join", name)
    check_takes_none(fn, *{"inner": (), "left": (1,), "outer": (0, 1)}[kind], where=f"{kind}_join")
    check_same_app(left.position, right.position, "join")
    _check_windows(left, right)
    builder, key = left.position.builder, left.position.key
    sides = (f"{name}/left", f"{name}/right")
    for side, table in zip(sides, (left, right), strict=True):
        builder.add(TableSide(name=side, parents=(table.position.node,), is_left=side == sides[0]))
    builder.add(
        TableTableJoin(
            name=name,
            parents=sides,
            store=StoreSpec(name),
            key=_within_window(key.serde),
            left=left.position.value.serde,
            right=right.position.value.serde,
            fn=fn,
            kind=kind,
            kept_ms=_kept_ms(left, right),
            ends_count=any(_ends_count(side) for side in (left, right)),
            on_error=on_error,
        )
    )
    return TableView(
        StreamPosition(
            builder, name, key, return_shape(fn, left.position.value, right.position.value)
        ),
        name,
        is_windowed=left.is_windowed,
    )


def table_of(position: StreamPosition, name: str, on_error: ErrorPolicy | None) -> TableView:
    """Return the table of the latest value per key of a stream.

    Raises:
        TopologyError: the keys are windowed, or the name is taken.
    """
    position = repartition_if_needed(position, check_name("a table", name))
    position.builder.add(
        StreamTable(
            name=name,
            parents=(position.node,),
            store=StoreSpec(name),
            key=position.key.serde,
            value=position.value.serde,
            on_error=on_error,
        )
    )
    is_windowed = isinstance(position.key.serde, WindowedSerde)
    if is_windowed:
        raise TopologyError(
            f"{name!r} can't be a table: its keys are windows, so its rows would never be deleted; "
            "use the windowed table that the stream comes from"
        )
    value = Shape(given=position.value.serde)
    return TableView(StreamPosition(position.builder, name, position.key, value), name)


def _check_windows(left: TableView, right: TableView) -> None:
    if left.is_windowed != right.is_windowed:
        raise TopologyError(
            f"{left.owner!r} and {right.owner!r} can't be joined, because only one of them is "
            "windowed: equal keys would not match"
        )
    # The join stores rows by key and window in a layout of its own, so only the keys inside the
    # windows have to be serialized alike.
    mine, others = _unwindow_keys(left.position), _unwindow_keys(right.position)
    check_same_keys(mine, others, right.owner)


def _unwindow_keys(position: StreamPosition) -> StreamPosition:
    shape = Shape(given=_within_window(position.key.serde))
    return StreamPosition(position.builder, position.node, shape, position.value)


def _within_window(serde: AnySerde) -> AnySerde:
    return serde.key_serde if isinstance(serde, WindowedSerde) else serde


def _kept_ms(left: TableView, right: TableView) -> int | None:
    """Return how long after its window a row of either table may change, in milliseconds."""
    if not left.is_windowed:
        return None
    nodes = [side.position.builder.nodes[side.owner] for side in (left, right)]
    return max(node.rows_kept_ms or 0 for node in nodes)


def _ends_count(side: TableView) -> bool:
    owner = side.position.builder.nodes[side.owner]
    if isinstance(owner, TableTableJoin):
        return owner.ends_count
    # Sessions and sliding windows end with a record, which they contain; windows of the clock
    # exclude their end.
    return isinstance(owner, RecordWindowsAggregate)
