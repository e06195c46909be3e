"""Which partition each sink record goes to: that of its key, as producers choose it.

Pure; the same for a worker, which sends them, and for a history, which stages them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from streamlog.processing.outbox import SinkBatch
from streamlog.records.columns import FieldColumns
from streamlog.records.murmur2 import partitions_of_keys


def parted(
    batches: Iterable[SinkBatch], counts: Mapping[str, int]
) -> dict[tuple[str, int], FieldColumns]:
    """The records by topic and partition, in their order; `counts` are the topics' partitions."""
    together: defaultdict[tuple[str, int], FieldColumns] = defaultdict(FieldColumns)
    for batch in batches:
        count = counts[batch.topic]
        if count == 1 or batch.partition is not None:
            columns = together[batch.topic, batch.partition or 0]
            columns.extend(batch.timestamps, batch.keys, batch.values, batch.headers)
            continue
        columns = FieldColumns()
        columns.extend(batch.timestamps, batch.keys, batch.values, batch.headers)
        parts = columns.parted(partitions_of_keys(batch.routes(), count), count)
        for partition, part in enumerate(parts):
            if part is not None:
                many = together[batch.topic, partition]
                many.extend(part.timestamps, part.keys, part.values, part.headers)
    return together
