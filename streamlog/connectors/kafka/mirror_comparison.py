"""Mirror comparison: whether a target has the records that `KafkaMirror` has read, in their order.

Offsets differ, so records are compared, one for one: time, key, value and headers. Both sides are
read from a record that is known to be one, and then their committed records have to agree in order
up to the mirror's position. That record is the first of both logs where both begin at 0, else the
oldest one whose two offsets the mirror has stored.

A compacted topic is compacted by each side for itself. There, what is compared is where both have a
record: its offset in the target follows from the stored offsets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from itertools import chain, starmap
from typing import NamedTuple, TypeAlias

from streamlog.client.range_reader import STALL_MS, RangeReader
from streamlog.clock import SystemClock
from streamlog.connect import TopicPartition
from streamlog.connectors.kafka.mirror_positions import KnownPosition
from streamlog.connectors.kafka.offset_runs import OffsetRuns
from streamlog.log import Log
from streamlog.records.record_columns import RecordColumns

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
OnProgress: TypeAlias = Callable[[int], None]


class Compared(NamedTuple):
    """What was compared, by offsets of the source."""

    start: int
    end: int
    parts_at: int | None
    """The first offset at which the sides differ; None if they don't."""


class _Row(NamedTuple):
    """A committed record."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def content(self) -> tuple[object, ...]:
        """What has to be equal on both sides."""
        return self[1:]


Rows: TypeAlias = AsyncGenerator[_Row, None]


async def compare_mirror(
    source: tuple[Log, TopicPartition],
    target: tuple[Log, TopicPartition],
    known: KnownPosition,
    *,
    is_compacted: bool,
    on_progress: OnProgress,
) -> Compared:
    """Compare a partition with its mirror, up to a position that the mirror has stored.

    Args:
        source: the source's log, and the partition there.
        target: the target's log, and the partition there.
        known: what the target had stored before.
        is_compacted: whether the topic is compacted.
        on_progress: called with the offset up to which the sides are equal.
    """
    if not len(known.runs):
        return Compared(known.next_offset, known.next_offset, None)
    begins = await _begin(*source), await _begin(*target)
    at = (0, 0) if begins == (0, 0) else known.runs.oldest_pair(*begins)
    end = known.next_offset
    if at is None or at[0] >= end:
        return Compared(end, end, None)
    # Everything up to the position was committed there before it was read.
    target_end = await _stable_end(*target)
    ours = _rows(*source, at[0], end)
    theirs = _rows(*target, at[1], target_end)
    async with aclosing(ours), aclosing(theirs):
        if is_compacted:
            parts_at = await _by_runs(ours, theirs, known.runs, on_progress)
        else:
            parts_at = await _in_order(ours, theirs, known, on_progress)
    return Compared(at[0], end, parts_at)


async def _in_order(
    ours: Rows, theirs: Rows, known: KnownPosition, on_progress: OnProgress
) -> int | None:
    async for one in ours:
        other = await anext(theirs, None)
        if other is None or one.content != other.content:
            return one.offset
        on_progress(one.offset + 1)
    # What the mirror has written since lies behind the last record of the position.
    surplus = await anext(theirs, None)
    is_before = surplus is not None and surplus.offset < known.runs.end
    return known.next_offset if is_before else None


async def _by_runs(
    ours: Rows, theirs: Rows, runs: OffsetRuns, on_progress: OnProgress
) -> int | None:
    other = await anext(theirs, None)
    async for one in ours:
        there = runs.downstream_of(one.offset)
        if there is None:
            continue
        # What only one side has, the other one has compacted.
        while other is not None and other.offset < there:
            other = await anext(theirs, None)
        if other is None:
            return None
        if other.offset == there and one.content != other.content:
            return one.offset
        on_progress(one.offset + 1)
    return None


async def _begin(log: Log, at: TopicPartition) -> int:
    async with log.consumer() as consumer:
        return (await consumer.begin_offsets([at]))[at]


async def _stable_end(log: Log, at: TopicPartition) -> int:
    async with log.consumer(isolation_level="read_committed") as consumer:
        return (await consumer.end_offsets([at]))[at]


async def _rows(log: Log, at: TopicPartition, start: int, end: int) -> Rows:
    """Yield the committed records of a range; two fetches are in memory."""
    settings = log.consumer(auto_offset_reset="none", isolation_level="read_committed")
    async with settings as consumer:
        consumer.assign([at])
        consumer.seek(at, start)
        reader = RangeReader(consumer, {at: end}, SystemClock(), stall_ms=STALL_MS)
        while not await reader.is_at_end():
            polled = await reader.poll_columns()
            for each in chain.from_iterable(map(_rows_of, polled.values())):
                yield each


def _rows_of(columns: RecordColumns) -> Iterator[_Row]:
    headers = columns.headers or [()] * len(columns)
    fields = zip(
        columns.offsets,
        columns.timestamps,
        columns.keys,
        columns.values,
        map(tuple, headers),
        strict=True,
    )
    return starmap(_Row, fields)
