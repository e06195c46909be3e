"""Where leader epochs end in the logs of a cluster (OffsetsForLeaderEpoch, KIP-320).

A position is kept with the epoch of the record before it. `truncated` compares positions with the
logs of today; the rule is `records.epoch_chains.contains`, and chains of epochs are compared by
`EpochAdmin`, with the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamlog.assignors import TopicPartition
from streamlog.client.cluster import Cluster
from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.client.offsets import by_leader
from streamlog.protocol.apis import api_of
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.cluster import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from streamlog.protocol.messages.publishing import PublishRequest
from streamlog.records.epoch_chains import EpochEnd, contains

REPLICA_ID_OF_A_CONSUMER: Final = -1
OWN_API: Final = api_of(PublishRequest).key
"""Only our brokers have it: they keep all epochs of a compacted log."""


async def truncated(
    cluster: Cluster, positions: Mapping[TopicPartition, OffsetAndMetadata]
) -> frozenset[TopicPartition]:
    """Return the positions whose log lost the record before them; without an epoch, none is asked.

    Raises:
        UnknownTopicOrPartition: a partition does not exist.
        UnsupportedVersion: the brokers don't have the request.
    """
    epochs = {
        partition: position.leader_epoch
        for partition, position in positions.items()
        if position.leader_epoch != NO_EPOCH and position.offset > 0
    }
    ends = await epoch_ends(cluster, epochs)
    return frozenset(
        partition
        for partition, epoch in epochs.items()
        if not contains(ends[partition], epoch, positions[partition].offset)
    )


async def epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EpochEnd]:
    """Where these epochs end: one request to each leader, repeated as a whole while leaders move.

    Raises:
        UnknownTopicOrPartition: a partition does not exist.
        UnsupportedVersion: the brokers don't have the request.
    """

    async def attempt() -> dict[TopicPartition, EpochEnd]:
        found: dict[TopicPartition, EpochEnd] = {}
        for leader, wanted in (await by_leader(cluster, epochs)).items():
            request = _request(cluster, wanted)
            response = await cluster.call(leader, request, OffsetForLeaderEpochResponse)
            is_ours = await cluster.speaks(leader, OWN_API, 0)
            found |= _ends(cluster, response, keeps_epochs=is_ours)
        return found

    return await cluster.retrying(attempt)


def _request(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for partition, epoch in epochs.items():
        wanted = OffsetForLeaderPartition(
            partition=partition.partition,
            current_leader_epoch=cluster.leader_epoch(partition),
            leader_epoch=epoch,
        )
        topics.setdefault(partition.topic, []).append(wanted)
    return OffsetForLeaderEpochRequest(
        replica_id=REPLICA_ID_OF_A_CONSUMER,
        topics=[OffsetForLeaderTopic(topic=name, partitions=many) for name, many in topics.items()],
    )


def _ends(
    cluster: Cluster, response: OffsetForLeaderEpochResponse, *, keeps_epochs: bool
) -> dict[TopicPartition, EpochEnd]:
    found: dict[TopicPartition, EpochEnd] = {}
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code:
                cluster.forget([topic.topic])
                where = f"leader epochs of {topic.topic}-{each.partition}"
                raise error_for(each.error_code, where)
            partition = TopicPartition(topic.topic, each.partition)
            found[partition] = EpochEnd(each.leader_epoch, each.end_offset, keeps_epochs)
    return found
