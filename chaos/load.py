"""Load: clients beside those of `simulation.load`, for what these are too few or too slow for."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import replace
from typing import Final

from simulation.load.mix import ATOMIC, Program, places
from simulation.load.room import Room
from simulation.load.writers import write_transactions
from streamlog.client.topic_admin import NewTopic
from streamlog.errors import StreamlogError, TopicExists

BULK: Final = "bulk"
BULK_BYTES: Final = 10_000
BULK_PER_S: Final = 85
"""50 MB a minute."""
BULK_CONFIGS: Final = {"retention.bytes": "50000000", "segment.bytes": "10000000"}
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
        await room.log.admin().create_topics([NewTopic(BULK, 3, -1, dict(BULK_CONFIGS))])
    value = bytes(range(250)) * (BULK_BYTES // 250)
    while room.goes_on:
        try:
            async with room.log.producer() as producer:
                for number in itertools.count():
                    await producer.send(BULK, value, partition=number % 3)
                    room.counts["bulk"] += 1
                    await asyncio.sleep(1 / BULK_PER_S)
                    if not room.goes_on:
                        break
        except StreamlogError as error:
            await room.after_error("bulk", error)
