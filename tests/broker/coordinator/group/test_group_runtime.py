"""Groups and offsets over their log: acknowledged once durable, and kept after a restart."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.coordinator.led_shards import shard_index
from streamlog.errors import ConnectionLost
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.broker.coordinator.driving import beat, commit, committed, enter, joining
from tests.broker.node import Node, ask, create, later


def test_committed_offsets_survive_a_restart(node: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        assert await commit(broker, 42) == ErrorCode.NONE
        assert await commit(broker, 43) == ErrorCode.NONE

    async def after(broker: Broker) -> None:
        assert await committed(broker) == {("t", 0): 43}
        old = OffsetFetchRequest(
            group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        )
        response = await ask(broker, old, OffsetFetchResponse, 7)
        there, not_there = response.topics[0].partitions
        assert (there.committed_offset, there.committed_leader_epoch) == (43, 5)
        assert there.metadata == "note"
        assert (not_there.committed_offset, not_there.metadata) == (-1, "")
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        groups = [OffsetFetchRequestGroup(group_id=name, topics=topics) for name in ("g", "h")]
        many = await ask(broker, OffsetFetchRequest(groups=groups), OffsetFetchResponse)
        offsets = [group.topics[0].partitions[0].committed_offset for group in many.groups]
        assert offsets == [43, -1]

    node.run(before)
    node.run(after)


def test_invalid_commits_are_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        assert await commit(broker, 1, topic="u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(broker, 1, metadata="x" * 5_000) == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await commit(broker, 1, generation=3) == ErrorCode.ILLEGAL_GENERATION
        assert await commit(broker, 1, metadata=None) == ErrorCode.NONE
        member = await enter(broker)
        assert await commit(broker, 2) == ErrorCode.UNKNOWN_MEMBER_ID
        refused = await commit(broker, 2, member_id=member, generation=9)
        assert refused == ErrorCode.ILLEGAL_GENERATION
        assert await commit(broker, 2, member_id=member, generation=1) == ErrorCode.NONE
        assert await committed(broker) == {("t", 0): 2}

    node.run(story)


def test_a_member_keeps_its_session_after_a_restart(node: Node) -> None:
    async def after(broker: Broker) -> None:
        assert await beat(broker, member) == ErrorCode.NONE
        node.pass_time(broker, 9_999)
        assert await beat(broker, member) == ErrorCode.NONE
        node.pass_time(broker, 10_000)
        assert await beat(broker, member) == ErrorCode.UNKNOWN_MEMBER_ID

    member = node.run(enter)
    node.run(after)


def test_a_join_waits_for_the_current_members(node: Node) -> None:
    async def story(broker: Broker) -> None:
        first = await enter(broker)
        named = await ask(broker, joining(), JoinGroupResponse)
        second = later(broker, joining(named.member_id))
        assert await beat(broker, first) == ErrorCode.REBALANCE_IN_PROGRESS
        again = await ask(broker, joining(first), JoinGroupResponse)
        joined = await second
        assert isinstance(joined, JoinGroupResponse)
        assert again.generation_id == joined.generation_id == 2
        assert {m.member_id for m in again.members} == {first, named.member_id}
        assert joined.members == []

    node.run(story)


def test_a_waiting_join_fails_when_the_broker_stops(node: Node) -> None:
    async def story(broker: Broker) -> asyncio.Future[object]:
        await enter(broker)
        named = await ask(broker, joining(), JoinGroupResponse)
        waiting: asyncio.Future[object] = later(broker, joining(named.member_id))
        return waiting

    with pytest.raises(ConnectionLost, match="stopped"):
        node.run(story).result()


def test_groups_are_described_and_listed(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        listed = await ask(broker, ListGroupsRequest(), ListGroupsResponse)
        assert listed.groups == []
        member = await enter(broker)
        await commit(broker, 1, group_id="reader")
        asked = DescribeGroupsRequest(groups=["g", "reader", "nobody"])
        response = await ask(broker, asked, DescribeGroupsResponse)
        states = [group.group_state for group in response.groups]
        assert states == ["Stable", "Empty", "Dead"]
        (described,) = response.groups[0].members
        assert (described.member_id, described.member_assignment) == (member, b"mine")
        assert described.member_metadata == b"about me"
        listed = await ask(broker, ListGroupsRequest(), ListGroupsResponse)
        assert sorted(group.group_id for group in listed.groups) == ["g", "reader"]
        stable = ListGroupsRequest(states_filter=["stable"], types_filter=["Classic"])
        listed = await ask(broker, stable, ListGroupsResponse)
        assert [group.group_id for group in listed.groups] == ["g"]

    node.run(story)


def test_several_members_leave_in_one_request(node: Node) -> None:
    async def story(broker: Broker) -> None:
        member = await enter(broker)
        leaving = [MemberIdentity(member_id=name) for name in (member, "nobody")]
        request = LeaveGroupRequest(group_id="g", members=leaving)
        response = await ask(broker, request, LeaveGroupResponse)
        codes = [each.error_code for each in response.members]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        old = LeaveGroupRequest(group_id="g", member_id=member)
        again = await ask(broker, old, LeaveGroupResponse, 2)
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    node.run(story)


def test_a_group_that_no_member_joined_leaves_no_trace(node: Node) -> None:
    async def before(broker: Broker) -> None:
        named = await ask(broker, joining(), JoinGroupResponse)
        leaving = LeaveGroupRequest(
            group_id="g", members=[MemberIdentity(member_id=named.member_id)]
        )
        await ask(broker, leaving, LeaveGroupResponse)
        await nothing_left(broker)

    async def nothing_left(broker: Broker) -> None:
        assert (await ask(broker, ListGroupsRequest(), ListGroupsResponse)).groups == []

    node.run(before)
    node.run(nothing_left)


def test_offsets_are_removed_with_their_topic(node: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        create(broker, "u")
        await commit(broker, 7)
        await commit(broker, 8, topic="u")
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
        await ask(broker, request, DeleteTopicsResponse)
        assert await committed(broker) == {("u", 0): 8}

    async def after(broker: Broker) -> None:
        create(broker)
        assert await committed(broker) == {("u", 0): 8}

    node.run(before)
    node.run(after)


def test_a_failed_write_is_not_acknowledged(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await commit(broker, 1)
        node.files.fail_next_write()
        assert await commit(broker, 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await committed(broker) == {("t", 0): 1}
        named = await ask(broker, joining(), JoinGroupResponse)
        joined = await ask(broker, joining(named.member_id), JoinGroupResponse)
        request = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
        )
        node.files.fail_next_write()
        synced = await ask(broker, request, SyncGroupResponse)
        assert synced.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        synced = await ask(broker, request, SyncGroupResponse)
        assert synced.error_code == ErrorCode.NONE

    node.run(story)


def test_the_shard_of_a_group_is_the_one_that_kafka_computes() -> None:
    # The Java hash codes are 0, 99162322, -1422446064, and the smallest int, which has no absolute
    # value.
    names = ("", "hello", "testing", "polygenelubricants")
    assert [shard_index(name, 50) for name in names] == [0, 22, 14, 0]
