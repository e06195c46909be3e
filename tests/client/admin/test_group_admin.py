"""Groups of both protocols are listed, described, deleted and reset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.client.admin import Admin
from streamlog.client.admin.group_admin import GroupListing
from streamlog.client.cluster import Cluster
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.clock import SystemClock
from streamlog.errors import LogError, NotAuthorized, UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import classic_groups as wire
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeletableGroupResult,
    DeleteGroupsResponse,
)
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import TcpTransport

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def heartbeat(log: Log, epoch: int) -> None:
    """Send a heartbeat of the consumer protocol, as another client would."""
    request = ConsumerGroupHeartbeatRequest(
        group_id="new",
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    cluster = log.admin()._cluster
    node_id = await cluster.coordinator("new")
    response = await cluster.call(node_id, request, ConsumerGroupHeartbeatResponse)
    assert response.error_code == 0


def test_groups_of_both_protocols_are_listed_and_described(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log, log.admin() as admin:
            assert await admin.list_groups() == []
            with pytest.raises(LogError, match="no such group"):
                await admin.describe_groups(["nobody"])
            await heartbeat(log, 0)
            while not (await admin.describe_groups(["new"]))[0].members[0].assignment:
                await heartbeat(log, 0)  # Kafka's coordinator learns of the topic a moment later.
            async with log.consumer(group_id="old", group_instance_id="one") as consumer:
                await consumer.subscribe(["t"])
                while not consumer.assignment():
                    await consumer.poll(timeout_ms=50)
                assert await admin.list_groups() == [
                    GroupListing("new", "consumer", "Stable"),
                    GroupListing("old", "classic", "Stable"),
                ]
                assert await admin.list_groups(states=["empty"]) == []
                old, new = await admin.describe_groups(["old", "new"])
                assert (old.kind, old.state, old.assignor) == ("classic", "Stable", "range")
                assert (new.kind, new.state, new.assignor) == ("consumer", "Stable", "uniform")
                assert [member.assignment for member in old.members] == [{T0, T1}]
                assert [member.assignment for member in new.members] == [{T0, T1}]
                assert old.members[0].instance_id == "one"
                with pytest.raises(LogError, match="still has members"):
                    await admin.delete_groups(["old"])
            await heartbeat(log, -1)
            await admin.delete_groups(["new"])

    asyncio.run(main())


def test_offsets_of_a_group_without_members_are_altered(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=2) as log, log.admin() as admin:
            assert await admin.group_offsets("g") == {}
            await admin.alter_group_offsets("g", {T0: 5, T1: 6})
            assert await admin.group_offsets("g") == {T0: 5, T1: 6}
            assert await admin.group_offsets("g", [T1, TopicPartition("t", 2)]) == {T1: 6}
            assert await admin.group_offsets("g", []) == {}
            await admin.delete_group_offsets("g", [T1])
            assert await admin.group_offsets("g") == {T0: 5}
            with pytest.raises(UnknownTopicOrPartition):
                await admin.alter_group_offsets("g", {TopicPartition("t", 7): 1})
            with pytest.raises(UnknownTopicOrPartition):
                await admin.delete_group_offsets("g", [TopicPartition("u", 0)])
            async with log.consumer(group_id="g") as consumer:
                await consumer.subscribe(["t"])
                while not consumer.assignment():
                    await consumer.poll(timeout_ms=50)
                with pytest.raises(LogError, match="still has members"):
                    await admin.alter_group_offsets("g", {T0: 1})
                with pytest.raises(LogError, match="still reads"):
                    await admin.delete_group_offsets("g", [T0])
            await admin.delete_groups(["g"])
            assert await admin.list_groups() == []
            with pytest.raises(LogError, match="no such group"):
                await admin.delete_groups(["g"])

    asyncio.run(main())


def cluster_of(*answers: Message) -> Cluster:
    """Return a cluster whose coordinator returns these responses in order."""
    responses = iter(answers)

    async def coordinator(key: str) -> int:
        return 1

    async def call(node_id: int, request: Message, kind: type[Message]) -> Message:
        return next(responses)

    cluster = Cluster(list, TcpTransport.connect, SystemClock())
    cluster.coordinator, cluster.call = coordinator, call  # type: ignore[method-assign, assignment]
    return cluster


def fetched(code: int, offset: int = -1, partition_code: int = 0) -> Message:
    each = wire.OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=offset, metadata="m", error_code=partition_code
    )
    topic = wire.OffsetFetchResponseTopics(name="t", partitions=[each])
    group = wire.OffsetFetchResponseGroup(group_id="g", topics=[topic], error_code=code)
    return wire.OffsetFetchResponse(groups=[group])


def test_a_moved_coordinator_and_an_unstable_offset_are_retried() -> None:
    async def main() -> None:
        moved, loading = ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        unstable = fetched(0, partition_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        admin = Admin(cluster_of(fetched(moved), fetched(loading), unstable, fetched(0, 7)))
        assert await admin.group_offsets_and_metadata("g", require_stable=True) == {
            T0: OffsetAndMetadata(7, "m")
        }
        answers = [
            DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=code)])
            for code in (moved, 0)
        ]
        await Admin(cluster_of(*answers)).delete_groups(["g"])
        refused = fetched(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(NotAuthorized):
            await Admin(cluster_of(refused)).group_offsets("g")

    asyncio.run(main())
