"""What a windowed aggregation comes to where records make the windows: sessions, sliding windows.

Rule of the file: what such windows can't do is refused here, by the name of the table.
"""

from __future__ import annotations

from typing import Any

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
        TopologyError: sessions have no way to be merged, or rows are to go on at commits.
    """
    if how.emit == Emit.COMMIT:
        raise TopologyError(
            f"{name!r} can't emit with Emit.COMMIT: sessions and sliding windows have final rows "
            "(Emit.CLOSE), every change (Emit.UPDATE), or changes at intervals (Emit.early)"
        )
    fields = _fields(name, place, how)
    if isinstance(windows, Sliding):
        return SlidingAggregate(
            **fields,
            on_error=on_error,
            by_key=StoreSpec(f"{name}/@records"),
            aggregation=aggregation,
            windows=windows,
            value=place.value.serde,
        )
    if aggregation.merge is None:
        raise TopologyError(
            f"{name!r} aggregates sessions, and one record may make one session of two: say what "
            "becomes of their states, with aggregate(..., merge=lambda a, b: ...)"
        )
    return SessionAggregate(
        **fields,
        on_error=on_error,
        by_key=StoreSpec(f"{name}/@sessions"),
        aggregation=aggregation,
        windows=windows,
    )


def _fields(name: str, place: Place, how: Windowing) -> dict[str, Any]:
    """What both kinds have in common."""
    return {
        "name": name,
        "parents": (place.node,),
        "store": StoreSpec(name),
        "key": place.key.serde,
        "emit": how.emit,
        "early": StoreSpec(f"{name}/@early") if how.emit.is_early else None,
        "late": how.late,
        "idle_after_ms": how.idle_after_ms,
        "united": how.united,
    }
