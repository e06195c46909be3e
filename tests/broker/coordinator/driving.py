"""Helpers that send a broker the requests of group members and committers."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.broker.broker import Broker
from streamlog.protocol.codec import encode_versioned
from streamlog.protocol.messages.classic_groups import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.broker.node import ask


def joining(
    member_id: str = "",
    *,
    topics: Sequence[str] | None = None,
    group_id: str = "g",
    protocol_type: str = "consumer",
) -> JoinGroupRequest:
    """Build a JoinGroup request; without topics its subscription cannot be decoded."""
    about = b"about me"
    if topics is not None:
        about = encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name="range", metadata=about)],
    )


async def enter(
    broker: Broker, *, topics: Sequence[str] | None = None, protocol_type: str = "consumer"
) -> str:
    """Join the group as its only member, up to the assignment b"mine"; return the member id."""

    def request(member_id: str = "") -> JoinGroupRequest:
        return joining(member_id, topics=topics, protocol_type=protocol_type)

    named = await ask(broker, request(), JoinGroupResponse)
    joined = await ask(broker, request(named.member_id), JoinGroupResponse)
    syncing = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol_name,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
    )
    synced = await ask(broker, syncing, SyncGroupResponse)
    assert synced.assignment == b"mine"
    return joined.member_id


async def beat(broker: Broker, member_id: str, generation: int = 1) -> int:
    request = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
    return (await ask(broker, request, HeartbeatResponse)).error_code


async def commit(
    broker: Broker,
    offset: int,
    *,
    member_id: str = "",
    generation: int = -1,
    topic: str = "t",
    metadata: str | None = "note",
    group_id: str = "g",
) -> int:
    partition = OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=5,
        committed_metadata=metadata,
    )
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    response = await ask(broker, request, OffsetCommitResponse)
    return response.topics[0].partitions[0].error_code


async def committed(broker: Broker, group_id: str = "g") -> dict[tuple[str, int], int]:
    """Return all committed offsets of a group."""
    asked = OffsetFetchRequestGroup(group_id=group_id, topics=None)
    response = await ask(broker, OffsetFetchRequest(groups=[asked]), OffsetFetchResponse)
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in response.groups[0].topics
        for each in topic.partitions
    }
