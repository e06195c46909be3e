"""Which batches of a log belong to aborted transactions: the one rule of every reader.

A batch is hidden from readers of committed records if a transaction wrote it and the transaction
was aborted, that is, if it lies between the first offset of an aborted transaction of its producer
and that transaction's marker. Brokers, compaction and readers of the files know both ends of each
transaction. An answer to Fetch gives the first offset only: there a transaction ends with its
producer's next ABORT marker.

The first offset of a transaction always comes from its records, or from an index made from them
(`broker.storage.transactions` decides it for both). It is never the offset at which a read began:
an ABORT marker without records in front of it hides nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from streamlog.records.batch import RecordBatch
from streamlog.records.control import ABORT, Marker, marker_of

UNTIL_MARKER: Final = 2**63 - 1
"""The last offset of a transaction whose marker has not been met yet."""

MarkerOf: TypeAlias = Callable[[RecordBatch], Marker | None]
"""Reads the marker of a control batch; raises CorruptData if it is malformed."""


class AbortedRange(NamedTuple):
    """An aborted transaction: its producer's transactional batches in here are hidden."""

    producer_id: int
    first_offset: int
    last_offset: int = UNTIL_MARKER
    """Of its marker."""


class AbortedBatches:
    """The aborted transactions of a partition, asked about its batches."""

    __slots__ = ("_marker_of", "_ranges")

    def __init__(
        self, ranges: Iterable[AbortedRange] = (), *, marker_of: MarkerOf = marker_of
    ) -> None:
        self._marker_of = marker_of
        self._ranges: dict[int, list[AbortedRange]] = {}  # by producer, in order of offset
        for each in sorted(ranges, key=_first_offset):
            self.add(each)

    def add(self, aborted: AbortedRange) -> None:
        """Add a transaction; it begins after the ones that are known of its producer."""
        self._ranges.setdefault(aborted.producer_id, []).append(aborted)

    def hides(self, batch: RecordBatch) -> bool:
        """Whether readers of committed records skip the batch because it was aborted.

        Where the last offsets are not known, pass every batch in order, control batches included.

        Raises:
            CorruptData: a control batch that may end a transaction is malformed.
        """
        if not self._ranges:
            return False
        ranges = self._ranges.get(batch.producer_id)
        if ranges is None:
            return False
        index = bisect_right(ranges, batch.last_offset, key=_first_offset) - 1
        if index < 0 or ranges[index].last_offset < batch.base_offset:
            return False
        if not batch.is_control:
            return batch.is_transactional
        if ranges[index].last_offset == UNTIL_MARKER:
            marker = self._marker_of(batch)
            if marker is not None and marker.kind == ABORT:
                ranges[index] = ranges[index]._replace(last_offset=batch.base_offset)
        return False


def _first_offset(aborted: AbortedRange) -> int:
    return aborted.first_offset
