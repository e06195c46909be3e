"""ProducerIds: numbers for producers, none of which is ever given out twice.

They are set aside by the block, durably, before the first of them is told; a crash loses the rest
of a block. Rule of the file: if it is not written down which ones were given out, those that a
log knows were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlog.broker.storage.catalog import Catalog
    from streamlog.broker.storage.partition_log import PartitionLog

PRODUCER_IDS_BLOCK = 1000
"""Set aside with one write."""


class ProducerIds:
    """The numbers of one data directory."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._left = range(0)

    def next(self, logs: Iterable[PartitionLog]) -> int:
        """One that was never given out; `logs` are all that there are.

        Raises:
            OSError: the disk refused.
            CorruptData: the file that counts them is damaged.
        """
        if not self._left:
            first = self._catalog.next_producer_id()
            if first is None:
                known = (max(log.producers.last_offsets(), default=-1) for log in logs)
                first = max(known, default=-1) + 1
            self._catalog.write_next_producer_id(first + PRODUCER_IDS_BLOCK)
            self._left = range(first, first + PRODUCER_IDS_BLOCK)
        producer_id = self._left[0]
        self._left = self._left[1:]
        return producer_id
