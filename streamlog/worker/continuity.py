"""Continuity: whether a changelog still has what a store was made of.

A changelog that was truncated (unclean leader election, a power cut, a backup that was put back)
and written to by others since may be longer than what a store reflects, and hold other records at
the same offsets: reading on from there would mix two histories. What a follower has read has the
leader epoch of the log, and ends with a record that it knows again; what a task has written itself
ends with its progress, which the log has at that very offset, unless compaction has removed it:
then only what was read before is compared, as nobody knows under which leaders the task has
written. Not done here: a changelog that ends before the store (`tables/state/changelog`), or is
another topic (`restore`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.clock import Clock
from streamlog.errors import RequestTimedOut, UnsupportedVersion
from streamlog.log import Log
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.tables.state.changelog import (
    PROGRESS_KEY,
    TRUNCATED,
    ReadUpTo,
    changelog_offset,
    crc_of,
    stored_read_up_to,
)
from streamlog.tables.stores.store import KeyValueStore

POLL_MS: Final = 20
STALL_MS: Final = 30_000
"""The log has offsets behind the one that is looked at: no answer for this long is a failure."""


async def departure(
    log: Log,
    consumer: Consumer,
    changelog: TopicPartition,
    store: KeyValueStore,
    *,
    topic_id: bytes,
    begin: int,
    clock: Clock,
) -> str:
    """Why the changelog with this id is not what the store was made of; empty if it is.

    `begin` is the changelog's first offset.
    """
    read, position = stored_read_up_to(store), changelog_offset(store)
    if read is None:
        return ""  # An older version has written it, or a snapshot: nothing is known.
    if ZERO_UUID not in (read.topic_id, topic_id) and read.topic_id != topic_id:
        return "it was deleted and created again"
    if read.offset < position:
        # The task has written the rest itself.
        record = await _record(log, changelog, position - 1, clock)
        if record is not None:
            is_own = (record.key, record.value) == (PROGRESS_KEY, store.get(PROGRESS_KEY))
            return "" if is_own else _other_at(position - 1)
    if begin <= read.last_offset < position:
        # A backup that was put back may have come to the same epoch again.
        record = await _record(log, changelog, read.last_offset, clock)
        if record is not None and crc_of(record.key, record.value) != read.last_crc:
            return _other_at(read.last_offset)
    return await _parted(consumer, changelog, read, min(read.offset, position))


def _other_at(offset: int) -> str:
    return f"{TRUNCATED}: offset {offset} has another record"


async def is_truncated(
    consumer: Consumer, places: Mapping[TopicPartition, OffsetAndMetadata]
) -> bool:
    """Whether a log was truncated below one of these places, as far as brokers can tell."""
    try:
        return bool(await consumer.truncated(places))
    except UnsupportedVersion:
        return False


async def _parted(
    consumer: Consumer, changelog: TopicPartition, read: ReadUpTo, position: int
) -> str:
    place = OffsetAndMetadata(position, leader_epoch=read.leader_epoch)
    if not await is_truncated(consumer, {changelog: place}):
        return ""
    return f"{TRUNCATED}: leader epoch {read.leader_epoch} does not reach to offset {position}"


async def _record(
    log: Log, changelog: TopicPartition, offset: int, clock: Clock
) -> LogRecord | None:
    """The record at an offset; None if compaction has removed it. The log goes on behind it."""
    async with log.consumer(auto_offset_reset="none") as consumer:
        consumer.assign([changelog])
        consumer.seek(changelog, offset)
        deadline_ms = clock.now_ms() + STALL_MS
        while consumer.positions()[changelog] <= offset:
            polled = await consumer.poll(timeout_ms=POLL_MS, max_records=1)
            for record in polled.get(changelog, ()):
                return record if record.offset == offset else None
            if clock.now_ms() >= deadline_ms:
                raise RequestTimedOut(
                    f"changelog {changelog.topic}-{changelog.partition} gave nothing for"
                    f" {STALL_MS // 1000} s, though it has offset {offset}"
                )
    return None
