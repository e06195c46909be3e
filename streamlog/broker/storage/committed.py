"""Committed: what readers of committed records may see of a log whose broker is not asked.

A broker keeps in memory which transactions are open. Beside it, or without it, that follows from
the batches: one that a transaction has written counts once its marker says so, and the marker
stands behind it. So the walk goes on behind what is wanted until all that began there is decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamlog.records.batch import RecordBatch, split_batches
from streamlog.records.control import ABORT, MARKERS, marker_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamlog.broker.storage.partition_log import PartitionLog

WALK_BYTES = 4 * 1024 * 1024


class AbortedRange(NamedTuple):
    """Records of this producer from `first_offset` to `last_offset` do not count."""

    producer_id: int
    first_offset: int
    last_offset: int


class CommittedView(NamedTuple):
    """A part of a log as readers of committed records see it."""

    end_offset: int
    """Up to here all transactions are decided."""
    aborted: tuple[AbortedRange, ...]


def committed_view(log: PartitionLog, start: int, end: int) -> CommittedView:
    """What counts of the offsets from `start` to before `end`.

    Raises:
        OffsetOutOfRange: the log does not hold `start`.
        CorruptData: a batch on the way is damaged.
    """
    open_at: dict[int, int] = {}
    aborted: list[AbortedRange] = []
    for batch in _walk(log, start):
        if batch.base_offset >= end and not any(first < end for first in open_at.values()):
            break
        if not batch.is_transactional:
            continue
        if not batch.is_control:
            open_at.setdefault(batch.producer_id, batch.base_offset)
            continue
        marker = marker_of(batch)
        if marker is None or marker.kind not in MARKERS:
            continue
        first = open_at.pop(batch.producer_id, None)
        if marker.kind == ABORT:
            # It may have begun before `start`.
            begun = start if first is None else first
            aborted.append(AbortedRange(batch.producer_id, begun, batch.base_offset))
    stable = min([end, *open_at.values()])
    return CommittedView(stable, tuple(each for each in aborted if each.first_offset < stable))


def _walk(log: PartitionLog, position: int) -> Iterator[RecordBatch]:
    end_offset = log.log_end_offset
    while position < end_offset:
        before = position
        for batch in split_batches(log.read(position, max_bytes=WALK_BYTES)):
            yield batch
            position = batch.next_offset
        if position == before:
            return
