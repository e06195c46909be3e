"""FetchedBatches: what a leader has sent, looked at before a follower appends it.

Batches are whole, and follow each other and the follower's log without a gap. Two may
begin before the log's end all the same, and only the first of an answer. A batch without records,
in which a compaction of the leader's has put together what it left out: the follower takes the
rest of it. And one in whose middle the leader's log starts, after records were deleted: the
follower takes all of it, if its own log is empty, and starts where the leader does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamlog.broker.storage.cleaned_batch import filler
from streamlog.errors import CorruptData
from streamlog.records.batch import RecordBatch

if TYPE_CHECKING:
    from streamlog.protocol.schema import Buffer


class FetchedBatches(NamedTuple):
    """What may be appended."""

    records: Buffer
    end_offset: int
    begin_offset: int | None = None
    """Where it begins, if that is before the end of the follower's log."""


def fetched_batches(data: Buffer, offset: int, *, is_empty: bool) -> FetchedBatches:
    """The batches in `data`, for a log that ends at `offset`, and holds nothing if `is_empty`.

    Raises:
        CorruptData: one is cut off, or does not follow the one before it. Whether its bytes are
            what they were is the log's to find out.
    """
    begin_offset: int | None = None
    due, position = offset, 0
    while position < len(data):
        batch = RecordBatch(data, position)
        if position == 0 and batch.base_offset < offset < batch.next_offset:
            if batch.record_count == 0:
                rest = filler(offset, batch.last_offset, batch.leader_epoch)
                data = rest + bytes(data[batch.size_bytes :])
                continue
            if is_empty:
                begin_offset = due = batch.base_offset
        if batch.base_offset != due:
            raise CorruptData(f"a batch begins at offset {batch.base_offset}, {due} is due")
        due = batch.next_offset
        position += batch.size_bytes
    return FetchedBatches(data, due, begin_offset)
