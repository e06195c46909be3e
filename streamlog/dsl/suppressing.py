"""What `Table.suppress` comes to as a node.

Rule of the file: it gives a `Side` that keeps no rows of its own, so what has gone on can be joined
and grouped, but not asked for.
"""

from __future__ import annotations

from streamlog.dsl.place import Place, Side
from streamlog.durations import Dur, duration_ms
from streamlog.errors import TopologyError
from streamlog.tables.store import StoreSpec
from streamlog.topology import (
    Node,
    RecordWindowsAggregate,
    SessionAggregate,
    SuppressUntilClosed,
    SuppressWithin,
    TableTableJoin,
    WindowedAggregate,
    check_name,
)
from streamlog.topology.windowed import WindowedRows
from streamlog.windows.sessions import Sessions


def suppressed_until_closed(side: Side, name: str) -> Side:
    """Each row of a windowed table once, when it is final.

    Raises:
        TopologyError: the table is not windowed, or the name is taken.
    """
    place = side.place
    owner = place.builder.nodes[side.owner]
    if not side.is_windowed:
        raise TopologyError(
            f"{side.owner!r} has no windows that could close: give suppress within= or "
            "max_records=, or window the stream before it is aggregated"
        )
    closes_after_ms, size_ms, idle_after_ms = _closing(owner)
    place.builder.add(
        SuppressUntilClosed(
            name=check_name("a suppression", name),
            parents=(place.node,),
            store=StoreSpec(name),
            key=place.key.serde,
            value=place.value.serde,
            closes_after_ms=closes_after_ms,
            size_ms=size_ms,
            are_sessions=isinstance(owner, SessionAggregate),
            idle_after_ms=idle_after_ms,
            united=isinstance(owner, WindowedRows) and owner.united,
        )
    )
    return _behind(side, name)


def suppressed_within(
    side: Side, name: str, *, within: Dur | None, max_records: int | None
) -> Side:
    """The last change of each row, later.

    Raises:
        TopologyError: there is no limit, one is out of range, or the name is taken.
    """
    if within is None and max_records is None:
        raise TopologyError(
            f'{name!r} would hold changes back for ever: give suppress until="closed", within= '
            "or max_records="
        )
    if max_records is not None and max_records < 1:
        raise TopologyError(f"max_records= must be 1 or more, not {max_records}")
    place = side.place
    place.builder.add(
        SuppressWithin(
            name=check_name("a suppression", name),
            parents=(place.node,),
            store=StoreSpec(name),
            key=place.key.serde,
            value=place.value.serde,
            within_ms=None if within is None else duration_ms(within),
            records_max=max_records,
        )
    )
    return _behind(side, name)


def _behind(side: Side, name: str) -> Side:
    place = side.place
    return Side(
        Place(place.builder, name, place.key, place.value), name, is_windowed=side.is_windowed
    )


def _closing(owner: Node) -> tuple[int, int, int | None]:
    """How far behind its end a window is final, and how long it is; 0 if that is not known.

    And after how long a quiet its sources are not waited for.
    """
    if isinstance(owner, TableTableJoin):
        return owner.kept_ms or 0, 0, None
    if not isinstance(owner, WindowedAggregate | RecordWindowsAggregate):
        raise TopologyError(
            f"it is not known when windows of {owner.name!r}, a {type(owner).__name__}, close"
        )
    windows = owner.windows
    if isinstance(windows, Sessions):
        return windows.gap_ms + windows.grace_ms, 0, owner.idle_after_ms
    return windows.grace_ms, windows.size_ms, owner.idle_after_ms
