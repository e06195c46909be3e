"""Mirror positions: what a mirror has stored in its target, as the mirror and `verify` read it.

For each partition there is a position, with the newest runs, and blocks of older runs in slots of
their own. The topic is compacted, so that neither grows with the history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from streamlog.connect import ConnectError, TopicPartition
from streamlog.connectors.kafka.offset_runs import (
    BLOCKS_MAX,
    OffsetRun,
    OffsetRuns,
    StoredRuns,
)
from streamlog.log import Log

FIRST_WINDOW: Final = 10_000
"""How many of the last offsets are looked through first; the newest are of active partitions."""


class StoredPosition(msgspec.Struct, frozen=True):
    """What the target stores of a partition."""

    next_offset: int
    stored: StoredRuns = StoredRuns()


class StoredBlock(msgspec.Struct, frozen=True):
    """A block of runs, in its slot; the number tells it from an older one there."""

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
    """Return what a value says.

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
        # One that compaction or an operator has taken is missing; then less is known, no more.
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
    """Return what a target has stored of partitions, without touching the mirror at work."""
    where = TopicPartition(topic, 0)
    keys = {partition_key(transactional_id, at): at for at in partitions}
    values = await newest_values(log, where, keys)
    positions = {keys[key]: decoded(data, StoredPosition, topic) for key, data in values.items()}
    stored = {at: position.stored for at, position in positions.items()}
    runs = await stored_runs(log, where, transactional_id, stored)
    return {at: KnownPosition(position.next_offset, runs[at]) for at, position in positions.items()}
