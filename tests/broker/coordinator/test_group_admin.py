"""Deletion of groups and committed offsets, and expiry of offsets."""

from __future__ import annotations

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.coordinator.group import group_coordinator
from streamlog.broker.coordinator.shard import Instant
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from streamlog.protocol.messages.consumer_groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tests.broker.coordinator.driving import beat, commit, committed, enter
from tests.broker.node import Node, ask, create

MINUTE_MS = 60_000
CHECK_MS = 1_000


async def delete(broker: Broker, *group_ids: str) -> list[int]:
    request = DeleteGroupsRequest(groups_names=list(group_ids))
    response = await ask(broker, request, DeleteGroupsResponse)
    return [result.error_code for result in response.results]


async def forget(broker: Broker, *topics: str, group_id: str = "g") -> tuple[int, list[int]]:
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
            )
            for name in topics
        ],
    )
    response = await ask(broker, request, OffsetDeleteResponse)
    return response.error_code, [
        partition.error_code for topic in response.topics for partition in topic.partitions
    ]


async def leave(broker: Broker, member_id: str) -> None:
    request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
    await ask(broker, request, LeaveGroupResponse)


async def groups(broker: Broker) -> list[str]:
    listed = await ask(broker, ListGroupsRequest(), ListGroupsResponse)
    return sorted(group.group_id for group in listed.groups)


def test_groups_are_deleted_with_their_offsets(node: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        member = await enter(broker)
        await commit(broker, 1, member_id=member, generation=1)
        await commit(broker, 2, group_id="reader")
        await commit(broker, 3, group_id="other")
        codes = await delete(broker, "g", "reader", "nobody", "")
        assert codes == [
            ErrorCode.NON_EMPTY_GROUP,
            ErrorCode.NONE,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.INVALID_GROUP_ID,
        ]
        await leave(broker, member)
        assert await committed(broker) == {("t", 0): 1}
        assert await delete(broker, "g") == [ErrorCode.NONE]
        await left(broker)

    async def left(broker: Broker) -> None:
        assert await groups(broker) == ["other"]
        assert await committed(broker) == {}
        assert await committed(broker, "other") == {("t", 0): 3}

    node.run(before)
    node.run(left)


def test_only_offsets_of_unsubscribed_topics_can_be_deleted(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        create(broker, "u")
        assert await forget(broker, "t") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
        member = await enter(broker, topics=["t"])
        for topic in ("t", "u"):
            await commit(broker, 1, member_id=member, generation=1, topic=topic)
        assert await forget(broker, "t", "u", "v") == (
            ErrorCode.NONE,
            [
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ],
        )
        assert await committed(broker) == {("t", 0): 1}
        await leave(broker, member)
        assert await forget(broker, "t") == (ErrorCode.NONE, [ErrorCode.NONE])
        assert await groups(broker) == ["g"]

    node.run(story)


def test_an_empty_group_without_offsets_stays_until_the_next_clean_up(forgetful: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        await leave(broker, await enter(broker))
        await stays(broker)

    async def stays(broker: Broker) -> None:
        described = DescribeGroupsRequest(groups=["g"])
        (group,) = (await ask(broker, described, DescribeGroupsResponse)).groups
        assert (group.error_code, group.group_state) == (ErrorCode.NONE, "Empty")
        assert await groups(broker) == ["g"]

    async def cleaned(broker: Broker) -> None:
        await stays(broker)
        pass_seconds(forgetful, broker, 2)
        assert await groups(broker) == []
        assert await delete(broker, "g") == [ErrorCode.GROUP_ID_NOT_FOUND]

    forgetful.run(before)
    forgetful.run(cleaned)


def test_an_empty_group_without_offsets_can_be_deleted(node: Node) -> None:
    async def story(broker: Broker) -> None:
        await leave(broker, await enter(broker))
        assert await delete(broker, "g") == [ErrorCode.NONE]
        assert await groups(broker) == []

    node.run(story)


def test_offsets_of_a_connect_group_can_be_deleted_once_it_is_empty(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        member = await enter(broker, protocol_type="connect")
        await commit(broker, 1, member_id=member, generation=1)
        assert await forget(broker, "t") == (ErrorCode.NON_EMPTY_GROUP, [])
        await leave(broker, member)
        assert await forget(broker, "t") == (ErrorCode.NONE, [ErrorCode.NONE])

    node.run(story)


def test_an_unknown_group_is_dead_or_in_new_versions_not_found(node: Node) -> None:
    async def story(broker: Broker) -> None:
        asked = DescribeGroupsRequest(groups=["nobody"])
        (new,) = (await ask(broker, asked, DescribeGroupsResponse)).groups
        assert (new.error_code, new.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        (old,) = (await ask(broker, asked, DescribeGroupsResponse, 5)).groups
        assert (old.error_code, old.group_state) == (ErrorCode.NONE, "Dead")

    node.run(story)


@pytest.fixture
def forgetful() -> Node:
    """Return a node that keeps unused offsets for two minutes and checks every second."""
    config = GroupConfig(
        initial_rebalance_delay_ms=0,
        offsets_retention_minutes=2,
        offsets_retention_check_interval_ms=CHECK_MS,
    )
    return Node(config=BrokerConfig(group=config))


def pass_seconds(node: Node, broker: Broker, count: int) -> None:
    for _ in range(count):
        node.pass_time(broker, 1_000)


def test_an_unused_offset_expires(forgetful: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        await commit(broker, 1, group_id="reader")
        pass_seconds(forgetful, broker, 60)
        await commit(broker, 2, group_id="later")

    async def after(broker: Broker) -> None:
        pass_seconds(forgetful, broker, 59)
        assert await groups(broker) == ["later", "reader"]
        pass_seconds(forgetful, broker, 2)
        assert await groups(broker) == ["later"]
        pass_seconds(forgetful, broker, 60)
        assert await groups(broker) == []
        assert broker.directory.log("__consumer_offsets", 0).log_end_offset >= 0

    forgetful.run(before)
    forgetful.run(after)


def test_a_group_keeps_its_subscribed_offsets_while_it_has_members(forgetful: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        create(broker, "u")
        member = await enter(broker, topics=["t"])
        await commit(broker, 1, member_id=member, generation=1)
        await commit(broker, 2, member_id=member, generation=1, topic="u")
        for _ in range(150):
            pass_seconds(forgetful, broker, 1)
            assert await beat(broker, member) == ErrorCode.NONE
        # No member subscribes to u; t would have expired by its age alone.
        assert await committed(broker) == {("t", 0): 1}
        await leave(broker, member)
        pass_seconds(forgetful, broker, 119)
        assert await committed(broker) == {("t", 0): 1}
        pass_seconds(forgetful, broker, 2)
        assert await groups(broker) == []

    forgetful.run(story)


def test_a_commit_may_set_its_own_retention_time(forgetful: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=7, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id="g",
            retention_time_ms=10 * MINUTE_MS,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        await ask(broker, request, OffsetCommitResponse, 4)

    async def after(broker: Broker) -> None:
        pass_seconds(forgetful, broker, 9 * 60)
        assert await committed(broker) == {("t", 0): 7}
        pass_seconds(forgetful, broker, 62)
        assert await committed(broker) == {}

    forgetful.run(before)
    forgetful.run(after)


def test_offsets_expire_in_batches(forgetful: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_coordinator, "FORGOTTEN_AT_ONCE", 2)

    async def story(broker: Broker) -> None:
        for number in range(5):
            create(broker, f"t{number}")
            await commit(broker, 1, topic=f"t{number}")
        pass_seconds(forgetful, broker, 119)
        forgetful.clock.advance(1_000)
        at = Instant(forgetful.clock.now_ms(), forgetful.clock.wall_ms())
        shards = broker._coordinator.shards()
        assert sum(len(shard.on_tick(at).records) for shard in shards) == 2
        assert min(due for s in shards if (due := s.next_deadline_ms()) is not None) <= at.now_ms
        while await committed(broker):
            broker.tick()

    forgetful.run(story)


def test_a_leap_of_the_wall_clock_expires_no_offset(forgetful: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await commit(broker, 1)
        pass_seconds(forgetful, broker, 2)
        forgetful.clock._wall_ms += 1_000 * MINUTE_MS
        pass_seconds(forgetful, broker, 2)
        assert await committed(broker) == {("t", 0): 1}

    forgetful.run(story)
