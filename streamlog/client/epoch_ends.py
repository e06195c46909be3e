"""Whether logs still have what was read: leader epochs, and where they end (KIP-320).

A position is told together with the epoch of the record before it. In a log that still has this
record the epoch does not end before the position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamlog.assignors import TopicPartition
from streamlog.client.cluster import Cluster
from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.client.offsets import by_leader
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.cluster import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

REPLICA_ID_OF_A_CONSUMER: Final = -1


async def truncated(
    cluster: Cluster, places: Mapping[TopicPartition, OffsetAndMetadata]
) -> frozenset[TopicPartition]:
    """Those of these positions whose log lacks the record before; unknown epochs are not asked.

    Raises:
        UnknownTopicOrPartition: a partition does not exist.
        UnsupportedVersion: the brokers can't tell.
    """
    epochs = {
        part: place.leader_epoch
        for part, place in places.items()
        if place.leader_epoch != NO_EPOCH and place.offset > 0
    }

    async def attempt() -> frozenset[TopicPartition]:
        found: set[TopicPartition] = set()
        for leader, wanted in (await by_leader(cluster, epochs)).items():
            request = _request(cluster, wanted)
            response = await cluster.call(leader, request, OffsetForLeaderEpochResponse)
            found |= _truncated(cluster, response, places)
        return frozenset(found)

    return await cluster.retrying(attempt)


def _request(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for part, epoch in epochs.items():
        wanted = OffsetForLeaderPartition(
            partition=part.partition,
            current_leader_epoch=cluster.leader_epoch(part),
            leader_epoch=epoch,
        )
        topics.setdefault(part.topic, []).append(wanted)
    return OffsetForLeaderEpochRequest(
        replica_id=REPLICA_ID_OF_A_CONSUMER,
        topics=[OffsetForLeaderTopic(topic=name, partitions=each) for name, each in topics.items()],
    )


def _truncated(
    cluster: Cluster,
    response: OffsetForLeaderEpochResponse,
    places: Mapping[TopicPartition, OffsetAndMetadata],
) -> set[TopicPartition]:
    found: set[TopicPartition] = set()
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code:
                cluster.forget([topic.topic])
                where = f"leader epochs of {topic.topic}-{each.partition}"
                raise error_for(each.error_code, where)
            part = TopicPartition(topic.topic, each.partition)
            place = places[part]
            # An earlier epoch, or none: the log never had the one that was read, or lost it.
            if each.leader_epoch != place.leader_epoch or each.end_offset < place.offset:
                found.add(part)
    return found
