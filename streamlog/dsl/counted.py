"""What a windowed aggregation comes to where windows have so many records.

Rule of the file: what such windows can't do is refused here, by the name of the table.
"""

from __future__ import annotations

from streamlog.dsl.aggregations import Windowing
from streamlog.dsl.place import Place
from streamlog.errors import TopologyError
from streamlog.tables.store import StoreSpec
from streamlog.topology import Aggregation, CountedAggregate, ErrorPolicy
from streamlog.windows.counted import Counted
from streamlog.windows.emit import Emit


def counted_aggregate(
    name: str,
    place: Place,
    how: Windowing,
    windows: Counted,
    *,
    aggregation: Aggregation,
    on_error: ErrorPolicy | None,
) -> CountedAggregate:
    """The node.

    Raises:
        TopologyError: something was asked for that makes no sense with such windows.
    """
    if how.late is not None:
        raise TopologyError(f"{name!r} counts records as they come, so none is late: no .late()")
    if how.emit not in (Emit.CLOSE, Emit.UPDATE):
        raise TopologyError(
            f"{name!r} can't emit at commits or early: windows of so many records have only final "
            "rows (Emit.CLOSE) or every change (Emit.UPDATE)"
        )
    if how.united:
        raise TopologyError(
            f"{name!r} can't count the records of several streams together: merge them before"
        )
    return CountedAggregate(
        name=name,
        parents=(place.node,),
        on_error=on_error,
        store=StoreSpec(name),
        due=StoreSpec(f"{name}/@due"),
        key=place.key.serde,
        aggregation=aggregation,
        windows=windows,
        emit=how.emit,
        idle_after_ms=how.idle_after_ms,
    )
