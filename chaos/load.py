"""Load: clients beside those of `simulation.load`, for what these are too few or too slow for."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import Final

from simulation.load.mix import ATOMIC, Program, places
from simulation.load.room import Room
from simulation.load.writers import write_transactions
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.client.producer.sender import RecordMetadata
from streamlog.errors import StreamlogError, TopicExists
from streamlog.replace import replace

BULK: Final = "bulk"
BULK_BYTES: Final = 10_000
BULK_PER_S: Final = 85
"""50 MB a minute."""
BULK_PARTITIONS: Final = 3
RETENTION_BYTES: Final = 50_000_000
SEGMENT_BYTES: Final = 10_000_000
BULK_CONFIGS: Final = {
    "retention.bytes": str(RETENTION_BYTES),
    "segment.bytes": str(SEGMENT_BYTES),
    "file.delete.delay.ms": "1000",
}
TRANSACTIONAL: Final = ("b1", "b2", "b3", "b4")


def bulk(room: Room) -> list[Program]:
    """One producer that writes much, and does not write it down: what counts is whether it may."""
    return [_bulk(room)]


def busy_transactions(room: Room) -> list[Program]:
    """Producers of transactions that hardly pause."""
    hurried = replace(room, pace_s=0.0)
    return [write_transactions(hurried, name, places(ATOMIC)) for name in TRANSACTIONAL]


async def _bulk(room: Room) -> None:
    with suppress(TopicExists):
        wanted = NewTopic(BULK, BULK_PARTITIONS, -1, dict(BULK_CONFIGS))
        await room.log.admin().create_topics([wanted])
    value = bytes(range(250)) * (BULK_BYTES // 250)
    while room.goes_on:
        try:
            async with room.log.producer() as producer:
                for number in itertools.count():
                    delivery = await producer.send(BULK, value, partition=number % BULK_PARTITIONS)
                    delivery.add_done_callback(_looked_at)
                    room.counts["bulk"] += 1
                    await asyncio.sleep(1 / BULK_PER_S)
                    if not room.goes_on:
                        break
        except StreamlogError as error:
            await room.after_error("bulk", error)


def _looked_at(delivery: asyncio.Future[RecordMetadata]) -> None:
    """What has become of it is not written down; nor is it to be complained that nobody looked."""
    if not delivery.cancelled():
        delivery.exception()
