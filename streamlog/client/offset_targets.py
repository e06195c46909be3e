"""Offset targets: where a group is to continue, as functions of the log as it is now.

A target outside a partition becomes its nearest end. The command line and the console use these to
reset groups. Not done here: the change itself (`Admin.alter_group_offsets`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from streamlog.client.consumer import Consumer
from streamlog.record import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]
Target: TypeAlias = Callable[[Consumer, list[TopicPartition]], Awaitable[Offsets]]


async def earliest(consumer: Consumer, parts: list[TopicPartition]) -> Offsets:
    """Return the first offset that each partition holds."""
    return await consumer.begin_offsets(parts)


async def latest(consumer: Consumer, parts: list[TopicPartition]) -> Offsets:
    """Return the end of each partition, after its last record."""
    return await consumer.end_offsets(parts)


def at_offset(offset: int) -> Target:
    """Return the target of one offset in all partitions."""

    async def target(consumer: Consumer, parts: list[TopicPartition]) -> Offsets:
        return await _within(consumer, dict.fromkeys(parts, offset))

    return target


def at_time(time_ms: int) -> Target:
    """Return the target of the first record at or after a time, in milliseconds since 1970."""

    async def target(consumer: Consumer, parts: list[TopicPartition]) -> Offsets:
        found = await consumer.offsets_for_times(dict.fromkeys(parts, time_ms))
        # A partition without a record at or after the time moves to its end.
        ends = await consumer.end_offsets(parts)
        return {
            part: ends[part] if (committed := found[part]) is None else committed.offset
            for part in parts
        }

    return target


def shifted(committed: Mapping[TopicPartition, int], by: int) -> Target:
    """Return the target that is some offsets ahead of what a group has committed, or behind it."""

    async def target(consumer: Consumer, parts: list[TopicPartition]) -> Offsets:
        # A partition without a committed offset has nothing to be moved from.
        known = {part: committed[part] + by for part in parts if part in committed}
        return await _within(consumer, known)

    return target


async def _within(consumer: Consumer, wanted: Mapping[TopicPartition, int]) -> Offsets:
    begins, ends = await consumer.begin_offsets([*wanted]), await consumer.end_offsets([*wanted])
    return {part: min(max(at, begins[part]), ends[part]) for part, at in wanted.items()}
