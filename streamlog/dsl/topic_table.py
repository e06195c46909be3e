"""The table of a topic: its latest value per key, with or without a history."""

from __future__ import annotations

from typing import Any

from streamlog.dsl.place import AppBuilder, Place, Side
from streamlog.dsl.shapes import Shape
from streamlog.dsl.table import Table
from streamlog.durations import Dur, duration_ms
from streamlog.tables.store import StoreSpec
from streamlog.topology import TableSource, TopicSpec, VersionedTable, check_name


def topic_table(
    builder: AppBuilder, spec: TopicSpec, *, name: str | None, history: Dur | None
) -> Table[Any, Any]:
    """Declare one; see `App.table`."""
    node = check_name("a table", name or spec.name)
    if history is None:
        builder.add(TableSource(name=node, topic=spec, store=StoreSpec(node)))
    else:
        versions = StoreSpec(f"{node}/versions")
        history_ms = duration_ms(history)
        builder.add(
            VersionedTable(
                name=node,
                topic=spec,
                store=StoreSpec(node),
                versions=versions,
                history_ms=history_ms,
            )
        )
    return Table(Side(Place(builder, node, Shape(given=spec.key), Shape(given=spec.value)), node))
