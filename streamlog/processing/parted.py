"""Which partition each sink record goes to: that of its key, as producers choose it.

Pure; the same for a worker, which sends them, and for a history, which stages them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlog.processing.outbox import SinkBatch
from streamlog.records.columns import FieldColumns


def parted(
    batches: Iterable[SinkBatch], counts: Mapping[str, int]
) -> dict[tuple[str, int], FieldColumns]:
    """The records by topic and partition, in their order; `counts` are the topics' partitions."""
    together: dict[tuple[str, int], FieldColumns] = {}
    for batch in batches:
        columns = FieldColumns()
        columns.extend(batch.timestamps, batch.keys, batch.values, batch.headers)
        count = counts[batch.topic]
        if count == 1 or batch.partition is not None:
            _join(together, (batch.topic, batch.partition or 0), columns)
            continue
        parts = columns.parted(batch.partitions(count), count)
        for partition, part in enumerate(parts):
            if part is not None:
                _join(together, (batch.topic, partition), part)
    return together


def _join(
    together: dict[tuple[str, int], FieldColumns], place: tuple[str, int], more: FieldColumns
) -> None:
    known = together.setdefault(place, more)
    if known is not more:
        known.extend(more.timestamps, more.keys, more.values, more.headers)
