"""Committed: what readers of committed records may see of a log whose broker is not asked.

A broker keeps in memory which transactions are open. Beside it, or without it, that follows from
the batches: one that a transaction has written counts once its marker says so, and the marker
stands behind it. So the walk goes on behind what is wanted until all that began there is decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.storage.transactions import Transactions
from streamlog.records.aborted import AbortedRange
from streamlog.records.batch import RecordBatch, split_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamlog.broker.storage.partition_log import PartitionLog

WALK_BYTES = 4 * 1024 * 1024


class CommittedView(NamedTuple):
    """A part of a log as readers of committed records see it."""

    end_offset: int
    """Every transaction with records before it is decided."""
    aborted: tuple[AbortedRange, ...]


def committed_view(log: PartitionLog, start: int, end: int) -> CommittedView:
    """What counts of the offsets from `start` to before `end`.

    A transaction that began before `start` is taken from its first batch at or behind `start`: what
    lies before that is not read. A marker without such a batch ends nothing that is read.

    Raises:
        OffsetOutOfRange: the log does not hold `start`.
        CorruptData: a batch on the way is damaged.
    """
    transactions = Transactions()
    aborted: list[AbortedRange] = []
    for batch in _walk(log, start):
        if batch.base_offset >= end and not _is_open_before(transactions, end):
            break
        decided = transactions.take(batch, batch.base_offset)
        if decided is not None and decided.aborted:
            aborted.append(decided.range)
    first_open = transactions.first_open_offset
    stable = end if first_open is None else max(min(first_open, end), start)
    return CommittedView(stable, tuple(each for each in aborted if each.first_offset < stable))


def _is_open_before(transactions: Transactions, end: int) -> bool:
    first_open = transactions.first_open_offset
    return first_open is not None and first_open < end


def _walk(log: PartitionLog, position: int) -> Iterator[RecordBatch]:
    end_offset = log.log_end_offset
    while position < end_offset:
        before = position
        for batch in split_batches(log.read(position, max_bytes=WALK_BYTES)):
            yield batch
            position = batch.next_offset
        if position == before:
            return
