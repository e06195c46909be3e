"""Clusters of three brokers and more."""

from __future__ import annotations

import errno

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.errors import ConfigError, LogDirectoryFailed
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.quorum_messages import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.broker.three_brokers import Cluster, Node, Unstarted, call, run_cluster, until


def create_request(name: str, *, replicas: int = 3) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=3, replication_factor=replicas)
    return CreateTopicsRequest(topics=[topic], timeout_ms=20_000)


async def create(broker: Broker, name: str, *, replicas: int = 3) -> None:
    response = await call(broker, create_request(name, replicas=replicas), CreateTopicsResponse)
    code = response.topics[0].error_code
    assert code in (0, ErrorCode.TOPIC_ALREADY_EXISTS), response.topics[0].error_message


async def wait_for_topic(cluster: Cluster, name: str) -> None:
    await until(
        lambda: all(each._member.metadata.topic(name) is not None for each in cluster.brokers)
    )


def test_a_topic_created_at_any_broker_is_known_to_all() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        for number, broker in enumerate(cluster.brokers):
            await create(broker, f"topic-{number}")
        for number in range(3):
            await wait_for_topic(cluster, f"topic-{number}")
        ids = {each._member.quorum.controller_id for each in cluster.brokers}
        assert ids == {(await cluster.controller()).node_id}
        await until(
            lambda: all(
                {*each.directory.topics} == {"topic-0", "topic-1", "topic-2"}
                for each in cluster.brokers
            )
        )

    run_cluster(Cluster, story)


def test_new_voters_cannot_override_the_log_of_a_single_voter() -> None:
    async def story(cluster: Cluster) -> None:
        first, *new = cluster.nodes.values()
        one_of_three, alone = first.config, BrokerConfig().override({"node.id": "1"})
        first.config = alone
        await create(await first.start(), "orders", replicas=1)
        await first.stop()
        for each in new:
            await each.start()
        await cluster.controller()
        first.config = one_of_three
        with pytest.raises(
            ConfigError, match=r"is that of node 1 alone, .* of nodes 1, 2, 3: voters"
        ):
            await first.start()
        first.config = alone
        assert "orders" in (await first.start()).directory.topics

    run_cluster(Unstarted, story)


def test_another_node_becomes_controller_and_the_old_one_returns() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        gone = await cluster.controller()
        await gone.kill()
        await create(cluster.brokers[0], "while-it-was-away", replicas=2)
        second = await cluster.controller()
        assert second is not gone
        await gone.start()
        await cluster.ready()
        await wait_for_topic(cluster, "while-it-was-away")

    run_cluster(Cluster, story)


def test_a_clean_stop_moves_all_leadership_away_first() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        await create(cluster.brokers[0], "t")
        await wait_for_topic(cluster, "t")
        leaving = await cluster.controller()
        await leaving.stop()
        left = cluster.brokers[0]._member.metadata
        leaders = {each.leader for _, _, each in left.partitions()}
        assert leaders <= {*cluster.nodes} - {leaving.node_id}
        await leaving.start()
        await cluster.ready()

    run_cluster(Cluster, story)


def test_all_nodes_can_stop_and_start_again() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        await create(cluster.brokers[0], "t")
        for node in cluster.nodes.values():
            await node.stop()
        for node in cluster.nodes.values():
            await node.start()
        await cluster.ready()
        await wait_for_topic(cluster, "t")

    run_cluster(Cluster, story)


def test_a_broker_without_a_vote_follows_controllers_without_a_broker_role() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        broker = cluster.nodes[4].broker
        assert broker is not None
        await create(broker, "t", replicas=1)
        await wait_for_topic(cluster, "t")
        described = await call(broker, about_quorum(), DescribeQuorumResponse)
        (partition,) = described.topics[0].partitions
        assert partition.error_code == 0, partition.error_message
        assert partition.leader_id == (await cluster.controller()).node_id
        assert {each.replica_id for each in partition.current_voters} == {1, 2, 3}
        assert [each.replica_id for each in partition.observers] == [4]

    run_cluster(lambda: Cluster(brokers=1, controllers_only=True), story)


def test_a_failed_disk_stops_its_node_with_the_reason_and_no_other() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        failing = await cluster.controller()
        ended = failing.ended
        failing.files.fail_next_sync(errno.EIO)
        other = next(each for each in cluster.brokers if each is not failing.broker)
        # The topic is on another broker, so the failing disk syncs only metadata.
        elsewhere = CreatableReplicaAssignment(
            partition_index=0, broker_ids=[other.directory.node_id]
        )
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=[elsewhere]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
        refused = await call(other, request, CreateTopicsResponse)
        assert refused.topics[0].error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
        with pytest.raises(LogDirectoryFailed, match="check the disk"):
            await ended
        assert failing.broker is None
        await create(cluster.brokers[0], "u", replicas=1)
        await wait_for_topic(cluster, "u")

    run_cluster(Cluster, story)


def test_a_node_of_another_cluster_logs_that_and_gets_no_metadata(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        member = cluster.nodes[1]
        voters = {"controller.quorum.voters": member.config.quorum.voters}
        # No other node uses its port, so any will do.
        stranger = Node(7, {**voters, "process.roles": "broker"}, 0, cluster_id="other")
        broker = await stranger.start()
        await until(lambda: "it belongs to another cluster" in caplog.text)
        assert broker._member.quorum.controller_id is None
        assert broker._member.metadata.offset == -1
        await stranger.kill()
        warnings = [each for each in caplog.messages if "it belongs to another cluster" in each]
        assert len(warnings) <= 3, "one for each of the voters"

    run_cluster(Cluster, story)


def about_quorum() -> DescribeQuorumRequest:
    partition = DescribeQuorumPartition(partition_index=0)
    topic = DescribeQuorumTopic(topic_name="__cluster_metadata", partitions=[partition])
    return DescribeQuorumRequest(topics=[topic])
