"""Look-ups of offsets: a log's start and end, the first at a time, and the end of a leader epoch.

ListOffsets and OffsetForLeaderEpoch (KIP-320) send one request to each leader, and repeat all of
them while leaders move. As in Kafka, time -1 means the end, and -2 the start. Not done here:
whether a log still holds a position (`records.epoch_chains.contains`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from streamlog.client.cluster import Cluster
from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.errors import NotLeader, UnknownTopicOrPartition
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.cluster_metadata import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from streamlog.protocol.messages.produce_and_fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from streamlog.protocol.messages.publishing import PublishRequest
from streamlog.record import TopicPartition
from streamlog.records.epoch_chains import EpochEnd, contains

LATEST: Final = -1
EARLIEST: Final = -2
NEWEST: Final = -3
"""The record with the greatest timestamp (KIP-734)."""
REPLICA_ID_OF_A_CONSUMER: Final = -1
Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time: its offset and its timestamp in ms since 1970."""

    offset: int
    timestamp_ms: int


async def list_offsets(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = "read_uncommitted",
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Return the first record at or after a time, per partition; offset -1 if there is none.

    Args:
        cluster: the brokers.
        times: partition to milliseconds since 1970, or to `EARLIEST`, `LATEST` or `NEWEST`.
        isolation: with "read_committed", a partition ends at its last stable offset.

    Raises:
        UnknownTopicOrPartition: a partition does not exist.
    """

    async def attempt() -> dict[TopicPartition, OffsetAndTimestamp]:
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        for leader, wanted in (await by_leader(cluster, times)).items():
            request = _request(cluster, wanted)
            request.isolation_level = ISOLATION_LEVELS[isolation]
            response = await cluster.call(leader, request, ListOffsetsResponse)
            found |= _found(cluster, response)
        return found

    return await cluster.retrying(attempt)


async def by_leader(
    cluster: Cluster, values: Mapping[TopicPartition, int]
) -> dict[int, dict[TopicPartition, int]]:
    """Group `values` by the leader of their partition.

    Raises:
        UnknownTopicOrPartition: a partition does not exist; not retriable if its topic exists.
        NotLeader: a partition has no leader now.
    """
    leaders: dict[int, dict[TopicPartition, int]] = {}
    for partition, value in values.items():
        topic = await cluster.topic(partition.topic)
        if partition.partition not in topic.leaders:
            cluster.forget([partition.topic])
            topic = await cluster.topic(partition.topic)  # The topic may have grown.
        if partition.partition not in topic.leaders:
            raise UnknownTopicOrPartition(
                f"topic {partition.topic!r} has no partition {partition.partition}; its number of "
                f"partitions is {len(topic.leaders)}",
                retriable=False,
            )
        leader = cluster.leader(partition)
        if leader is None:
            cluster.forget([partition.topic])
            raise NotLeader(
                f"{partition.topic}-{partition.partition} has no leader at present: `streamlog"
                " cluster status` names the brokers that are missing"
            )
        leaders.setdefault(leader, {})[partition] = value
    return leaders


def _request(cluster: Cluster, times: Mapping[TopicPartition, int]) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for partition, time_ms in times.items():
        wanted = ListOffsetsPartition(
            partition_index=partition.partition,
            # A broker of an older epoch refuses instead of answering from an old log (KIP-320).
            current_leader_epoch=cluster.leader_epoch(partition),
            timestamp=time_ms,
        )
        topics.setdefault(partition.topic, []).append(wanted)
    return ListOffsetsRequest(
        replica_id=REPLICA_ID_OF_A_CONSUMER,
        topics=[ListOffsetsTopic(name=name, partitions=many) for name, many in topics.items()],
    )


def _found(
    cluster: Cluster, response: ListOffsetsResponse
) -> dict[TopicPartition, OffsetAndTimestamp]:
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code:
                cluster.forget([topic.name])
                where = f"offsets of {topic.name}-{each.partition_index}"
                raise error_for(each.error_code, where)
            partition = TopicPartition(topic.name, each.partition_index)
            found[partition] = OffsetAndTimestamp(each.offset, each.timestamp)
    return found


OWN_API: Final = api_of(PublishRequest).key
"""An API that only streamlog's brokers serve. These keep all leader epochs of a compacted log;
Kafka's brokers may lose the epochs of records that compaction removed."""


async def find_truncated(
    cluster: Cluster, positions: Mapping[TopicPartition, OffsetAndMetadata]
) -> frozenset[TopicPartition]:
    """Return the partitions whose log lost the record before the position (KIP-320).

    Positions without a leader epoch can't be checked, and are left out.

    Raises:
        UnknownTopicOrPartition: a partition does not exist.
        UnsupportedVersion: the brokers don't serve OffsetForLeaderEpoch.
    """
    # Offset 0 has no record before it that the log could have lost.
    epochs = {
        partition: position.leader_epoch
        for partition, position in positions.items()
        if position.leader_epoch != NO_EPOCH and position.offset > 0
    }
    ends = await list_epoch_ends(cluster, epochs)
    return frozenset(
        partition
        for partition, epoch in epochs.items()
        if not contains(ends[partition], epoch, positions[partition].offset)
    )


async def list_epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EpochEnd]:
    """Return the end of each leader epoch, as the partition's leader knows it.

    Raises:
        UnknownTopicOrPartition: a partition does not exist.
        UnsupportedVersion: the brokers don't serve OffsetForLeaderEpoch.
    """

    async def attempt() -> dict[TopicPartition, EpochEnd]:
        found: dict[TopicPartition, EpochEnd] = {}
        for leader, wanted in (await by_leader(cluster, epochs)).items():
            request = _epoch_request(cluster, wanted)
            response = await cluster.call(leader, request, OffsetForLeaderEpochResponse)
            is_ours = await cluster.speaks(leader, OWN_API, 0)
            found |= _found_ends(cluster, response, keeps_epochs=is_ours)
        return found

    return await cluster.retrying(attempt)


def _epoch_request(
    cluster: Cluster, epochs: Mapping[TopicPartition, int]
) -> OffsetForLeaderEpochRequest:
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


def _found_ends(
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
