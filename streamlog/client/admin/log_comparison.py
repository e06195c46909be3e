"""Log comparison: whether two clusters have the same records at the same offsets of a partition.

Both sides are read as they are stored, aborted transactions and markers included. A mirror has the
batches of its source, so whole batches are compared, byte for byte: records, timestamps, producers,
compression, checksums and leader epochs. Two rules follow from what a mirror may have otherwise:

- Batches without records are left out: they stand for offsets that compaction has removed.
- Each side compacts a compacted topic by itself. There, records are compared one by one, and an
  offset that only one side has is no difference.

Memory holds one fetch of each side.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from streamlog.client.cluster import Cluster, Lane
from streamlog.client.offset_lookup import EARLIEST, LATEST, by_leader, list_offsets
from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from streamlog.protocol.schema import one_buffer
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord, RecordBatch, split_batches

FETCH_BYTES: Final = 1024 * 1024
FETCH_WAIT_MS: Final = 100
NO_SESSION: Final = -1


class LogSide(msgspec.Struct, frozen=True):
    """A partition of one of the two clusters."""

    cluster: Cluster
    partition: TopicPartition


class ComparedRange(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for a partition."""

    start: int
    """The first offset that both sides have."""
    end: int
    """The end of what was compared; without a difference, the end of the shorter side."""
    parts_at: int | None
    """The first offset at which the sides differ; None if they don't."""


async def compare_logs(
    ours: LogSide,
    theirs: LogSide,
    *,
    is_compacted: bool,
    on_progress: Callable[[int], None],
) -> ComparedRange:
    """Compare what both sides have of a partition now.

    Args:
        ours: one side.
        theirs: the other side.
        is_compacted: whether a side removes records of its own accord.
        on_progress: called with the offset that the comparison has reached.

    Raises:
        OffsetOutOfRange: records were deleted while they were compared.
        StreamlogError: a side does not answer, or refuses.
    """
    # The ends as of now: what comes while the comparison runs is left to the next one.
    spans = [await _span(ours), await _span(theirs)]
    start = max(each[0] for each in spans)
    end = min(each[1] for each in spans)
    if start >= end:
        return ComparedRange(start=start, end=start, parts_at=None)
    compare = _compare_records if is_compacted else _compare_batches
    parts_at = await compare(
        stored_batches(ours, start, end), stored_batches(theirs, start, end), on_progress
    )
    return ComparedRange(start=start, end=end if parts_at is None else parts_at, parts_at=parts_at)


async def _span(side: LogSide) -> tuple[int, int]:
    """Return where a partition starts, and where its committed records end."""
    start = await list_offsets(side.cluster, {side.partition: EARLIEST})
    end = await list_offsets(side.cluster, {side.partition: LATEST})
    return start[side.partition].offset, end[side.partition].offset


async def stored_batches(side: LogSide, start: int, end: int) -> AsyncIterator[RecordBatch]:
    """Yield the batches with records of offsets from `start` to before `end`.

    Raises:
        OffsetOutOfRange: the partition does not have `start` any more.
    """
    offset = start
    while offset < end:
        found = [*split_batches(await _fetch(side, offset))]
        # Compaction may have removed all that is left of the range: then nothing comes.
        if not found:
            return
        for batch in found:
            # A fetch may begin with the batch before, and end with one beyond the range.
            if batch.next_offset > offset and batch.base_offset < end and batch.record_count:
                yield batch
        offset = max(offset, found[-1].next_offset)


async def _fetch(side: LogSide, offset: int) -> bytes | bytearray | memoryview:
    cluster, where = side.cluster, side.partition

    async def attempt() -> bytes | bytearray | memoryview:
        (leader,) = await by_leader(cluster, {where: offset})
        asked = FetchPartition(
            partition=where.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        topic = FetchTopic(
            topic=where.topic, topic_id=cluster.topic_id(where.topic), partitions=[asked]
        )
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            session_id=0,
            session_epoch=NO_SESSION,
            topics=[topic],
        )
        answer = await cluster.call(leader, request, FetchResponse, lane=Lane.FETCH)
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        if code:
            # The leader may have moved: the next attempt asks where it is.
            cluster.forget([where.topic])
            raise error_for(code, f"fetch {where.topic}-{where.partition} at offset {offset}")
        return one_buffer(answer.responses[0].partitions[0].records)

    return await cluster.retrying(attempt)


async def _compare_batches(
    ours: AsyncIterator[RecordBatch],
    theirs: AsyncIterator[RecordBatch],
    on_progress: Callable[[int], None],
) -> int | None:
    while True:
        one, other = await anext(ours, None), await anext(theirs, None)
        # Both ranges have the same ends, so that a side which ends first lacks the rest.
        if one is None or other is None:
            rest = one or other
            return None if rest is None else rest.base_offset
        # As bytes, which compare by memcmp; views compare item by item.
        if bytes(one.data) != bytes(other.data):
            return _first_difference(one, other)
        on_progress(one.next_offset)


def _first_difference(one: RecordBatch, other: RecordBatch) -> int:
    """Return the first offset at which two batches differ, which are not the same bytes."""
    if one.base_offset != other.base_offset:
        return min(one.base_offset, other.base_offset)
    try:
        pairs = zip(one.records(), other.records(), strict=False)
        return next((mine.offset for mine, its in pairs if mine != its), one.base_offset)
    except StreamlogError:
        return one.base_offset  # One of them is damaged, which is the difference.


async def _compare_records(
    ours: AsyncIterator[RecordBatch],
    theirs: AsyncIterator[RecordBatch],
    on_progress: Callable[[int], None],
) -> int | None:
    mine, its = _records(ours), _records(theirs)
    one, other = await anext(mine, None), await anext(its, None)
    # Merged by offset: what only one side has, the other one has compacted.
    while one is not None and other is not None:
        if one.offset == other.offset and one != other:
            return one.offset
        on_progress(min(one.offset, other.offset) + 1)
        moves_one, moves_other = one.offset <= other.offset, other.offset <= one.offset
        if moves_one:
            one = await anext(mine, None)
        if moves_other:
            other = await anext(its, None)
    return None


async def _records(batches: AsyncIterator[RecordBatch]) -> AsyncIterator[LogRecord]:
    async for batch in batches:
        for record in batch.records():
            yield record
