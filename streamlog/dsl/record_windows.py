"""What a windowed aggregation comes to where records make the windows: sessions, sliding windows.

Rule of the file: what such windows can't do is refused here, by the name of the table.
"""

from __future__ import annotations

from streamlog.dsl.aggregations import Windowing
from streamlog.dsl.place import Place
from streamlog.errors import TopologyError
from streamlog.tables.store import StoreSpec
from streamlog.topology import (
    Aggregation,
    ErrorPolicy,
    RecordWindowsAggregate,
    SessionAggregate,
    SlidingAggregate,
)
from streamlog.windows.emit import Emit
from streamlog.windows.sessions import Sessions
from streamlog.windows.sliding import Sliding


def record_windows_aggregate(
    name: str,
    place: Place,
    how: Windowing,
    windows: Sessions | Sliding,
    *,
    aggregation: Aggregation,
    on_error: ErrorPolicy | None,
) -> RecordWindowsAggregate:
    """The node.

    Raises:
        TopologyError: sessions have no way to be merged, or rows are to go on at commits or early.
    """
    if how.emit == Emit.COMMIT or how.emit.is_early:
        raise TopologyError(
            f"{name!r} can't emit at commits or early: sessions and sliding windows have only "
            "final rows (Emit.CLOSE) or every change (Emit.UPDATE)"
        )
    if isinstance(windows, Sliding):
        return SlidingAggregate(
            name=name,
            parents=(place.node,),
            on_error=on_error,
            store=StoreSpec(name),
            by_key=StoreSpec(f"{name}/@records"),
            key=place.key.serde,
            aggregation=aggregation,
            emit=how.emit,
            late=how.late,
            idle_after_ms=how.idle_after_ms,
            united=how.united,
            windows=windows,
            value=place.value.serde,
        )
    if aggregation.merge is None:
        raise TopologyError(
            f"{name!r} aggregates sessions, and one record may make one session of two: say what "
            "becomes of their states, with aggregate(..., merge=lambda a, b: ...)"
        )
    return SessionAggregate(
        name=name,
        parents=(place.node,),
        on_error=on_error,
        store=StoreSpec(name),
        by_key=StoreSpec(f"{name}/@sessions"),
        key=place.key.serde,
        aggregation=aggregation,
        emit=how.emit,
        late=how.late,
        idle_after_ms=how.idle_after_ms,
        united=how.united,
        windows=windows,
    )
