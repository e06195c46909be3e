"""Starts: where an assigned partition is read from, by the log and by the group."""

from __future__ import annotations

from collections.abc import Collection

from streamlog.agents.offsets import places_of
from streamlog.assignors import TopicPartition
from streamlog.client.consumer import Consumer
from streamlog.worker.tasks import Place


async def look_up(
    consumer: Consumer, partitions: Collection[TopicPartition], *, agents_read: Collection[str]
) -> dict[TopicPartition, Place]:
    """What is known of these partitions; `agents_read` are the topics that agents read."""
    begins = await consumer.begin_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    committed = await consumer.committed_metadata(partitions)
    places = {}
    for partition in partitions:
        stored, begin = committed[partition], begins[partition]
        places[partition] = Place(
            begin=begin,
            end=ends[partition],
            committed=begin if stored is None else stored.offset,
            has_agent=partition.topic in agents_read,
            ahead={} if stored is None else places_of(stored.offset, stored.metadata),
        )
    return places
