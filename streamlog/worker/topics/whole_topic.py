"""Reads a small topic of the app's own from its beginning to its end."""

from __future__ import annotations

from typing import Final

from streamlog.clock import Clock
from streamlog.errors import RequestTimedOut
from streamlog.log import Log
from streamlog.record import TopicPartition

POLL_MS: Final = 200
STALL_MS: Final = 30_000
"""The end was read, so it is there: no record for this long is a broken log."""


async def whole_topic(log: Log, topic: str, clock: Clock) -> list[tuple[int, bytes]]:
    """Offset and value of all records of partition 0 that count; none if there is no such topic.

    Raises:
        RequestTimedOut: the log does not give what it said to have.
    """
    if not any(each.name == topic for each in await log.admin().list_topics()):
        return []
    place = TopicPartition(topic, 0)
    found: list[tuple[int, bytes]] = []
    async with log.consumer(
        auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        deadline_ms = clock.now_ms() + STALL_MS
        while end and await consumer.position(place) < end:
            if clock.now_ms() >= deadline_ms:
                raise RequestTimedOut(f"topic {topic} can't be read to its end")
            polled = await consumer.poll(timeout_ms=POLL_MS)
            found += [(record.offset, record.value or b"") for record in polled.get(place, ())]
    return found


DELETE_RETENTION_MS = 24 * 60 * 60 * 1000
"""`delete.retention.ms` of changelogs."""
