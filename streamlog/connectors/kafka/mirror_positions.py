"""Mirror positions: what a mirror has stored in its target, and whether its records are there.

For each partition, a compacted topic has a position, with the newest runs, and blocks of older runs
in a fixed number of slots. So neither grows with the history.

`verify` compares by what is stored. Offsets differ, so it compares records, one for one: time, key,
value and headers. It begins with a record whose offsets on both sides are known: the first record
if both logs begin at 0, else the oldest record whose two offsets the mirror has stored. From there
on, the committed records must agree in order, up to the mirror's position.

Each side compacts a compacted topic independently. There, `verify` compares only the records that
both sides still have, and finds a record in the target by the stored offsets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing
from itertools import chain, starmap
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from streamlog.client.range_reader import STALL_MS, RangeReader
from streamlog.clock import SystemClock
from streamlog.connect import ConnectError, TopicPartition
from streamlog.connectors.kafka.offset_runs import (
    BLOCKS_MAX,
    OffsetRun,
    OffsetRuns,
    StoredRuns,
)
from streamlog.log import Log
from streamlog.records.record_columns import RecordColumns

FIRST_WINDOW: Final = 10_000
"""How many of the last offsets are looked through first; the newest are of active partitions."""


class StoredPosition(msgspec.Struct, frozen=True):
    """What the target stores of a partition."""

    next_offset: int
    stored: StoredRuns = StoredRuns()


class StoredBlock(msgspec.Struct, frozen=True):
    """A block of runs in its slot; the number distinguishes it from older blocks of that slot."""

    number: int
    runs: tuple[OffsetRun, ...]


class KnownPosition(NamedTuple):
    """How far a mirror is in a partition, and where its records are."""

    next_offset: int
    runs: OffsetRuns


Stored = TypeVar("Stored", StoredPosition, StoredBlock)


def partition_key(transactional_id: str, at: TopicPartition) -> bytes:
    """Return the key of a partition's position."""
    return msgspec.json.encode([transactional_id, {"topic": at.topic, "partition": at.partition}])


def block_key(transactional_id: str, at: TopicPartition, number: int) -> bytes:
    """Return the key of a block of runs."""
    # A slot is used again, so that compaction leaves no more than the blocks that count.
    return partition_key(transactional_id, at) + b"#%d" % (number % BLOCKS_MAX)


def decoded(data: bytes, kind: type[Stored], topic: str) -> Stored:
    """Return a stored value, decoded.

    Raises:
        ConnectError: no mirror has written it.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ConnectError(
            f"{topic} of the target has a value that no mirror has written: delete the topic,"
            " after which records are mirrored from the group's offset"
        ) from error


async def newest_values(
    log: Log, where: TopicPartition, wanted: Collection[bytes]
) -> dict[bytes, bytes]:
    """Return the newest value of each key, reading backwards until all are found."""
    async with log.consumer() as consumer:
        first = (await consumer.begin_offsets([where]))[where]
        # The high watermark: behind it, transactions of other partitions may be open, and
        # `read_range` waits for them, as a record of ours may lie between theirs.
        end = (await consumer.end_offsets([where]))[where]
    found: dict[bytes, bytes | None] = {}
    stop, window = end, FIRST_WINDOW
    while stop > first and len(found) < len(wanted):
        start = max(stop - window, first)
        columns = await log.read_range(where, start, stop)
        newest = dict(zip(columns.keys, columns.values, strict=True))
        for key in {*wanted} - found.keys():
            if key in newest:
                found[key] = newest[key]
        stop, window = start, window * 4
    return {key: data for key, data in found.items() if data is not None}


async def stored_runs(
    log: Log,
    where: TopicPartition,
    transactional_id: str,
    stored: Mapping[TopicPartition, StoredRuns],
) -> dict[TopicPartition, OffsetRuns]:
    """Return the runs of partitions, by how they are stored."""
    wanted = {
        block_key(transactional_id, at, number): (at, number)
        for at, each in stored.items()
        for number in each.numbers()
    }
    blocks: dict[TopicPartition, list[StoredBlock]] = {}
    for key, data in (await newest_values(log, where, wanted)).items() if wanted else ():
        at, number = wanted[key]
        # Compaction or an operator may have removed a block: then less is known, but nothing false.
        if (block := decoded(data, StoredBlock, where.topic)).number == number:
            blocks.setdefault(at, []).append(block)
    found = {}
    for at, each in stored.items():
        whole = sorted(blocks.get(at, ()), key=lambda block: block.number)
        runs = [run for block in whole for run in block.runs]
        found[at] = OffsetRuns().with_more([*runs, *each.tail])
    return found


async def known_positions(
    log: Log, topic: str, transactional_id: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, KnownPosition]:
    """Return what a target has stored of partitions; the running mirror does not notice."""
    where = TopicPartition(topic, 0)
    keys = {partition_key(transactional_id, at): at for at in partitions}
    values = await newest_values(log, where, keys)
    positions = {keys[key]: decoded(data, StoredPosition, topic) for key, data in values.items()}
    stored = {at: position.stored for at, position in positions.items()}
    runs = await stored_runs(log, where, transactional_id, stored)
    return {at: KnownPosition(position.next_offset, runs[at]) for at, position in positions.items()}


# ------------------------------------------------------------------------------ comparison

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
OnProgress: TypeAlias = Callable[[int], None]


class Compared(NamedTuple):
    """The range that was compared, by offsets of the source, and where the sides part."""

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
    """Yield the committed records of a range; memory holds two fetches."""
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
