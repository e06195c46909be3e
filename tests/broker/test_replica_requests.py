"""Elections and reassignments, as cluster tools request them of a single broker."""

from __future__ import annotations

import pytest

from streamlog.broker.broker import Broker
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.broker.node import Node, ask, create


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("election_type", [0, 1])
def test_an_election_is_not_needed_on_a_single_broker(
    node: Node, version: int, election_type: int
) -> None:
    async def story(broker: Broker) -> None:
        create(broker, partitions=2)
        request = ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=[
                ElectedTopicPartitions(topic="t", partitions=[1, 2, -1]),
                ElectedTopicPartitions(topic="u", partitions=[0]),
            ],
        )
        answer = await ask(broker, request, ElectLeadersResponse, version)
        assert answer.error_code == 0
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [
            (topic.topic, [(each.partition_id, each.error_code) for each in topic.partition_result])
            for topic in answer.replica_election_results
        ] == [
            ("t", [(1, ErrorCode.ELECTION_NOT_NEEDED), (2, unknown), (-1, unknown)]),
            ("u", [(0, unknown)]),
        ]

    node.run(story)


def test_electing_all_partitions_lists_none(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, partitions=2)
        request = ElectLeadersRequest(topic_partitions=None)
        (topic,) = (await ask(broker, request, ElectLeadersResponse)).replica_election_results
        assert (topic.topic, topic.partition_result) == ("t", [])

    node.run(story)


def test_an_unknown_election_type_is_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        request = ElectLeadersRequest(
            election_type=2, topic_partitions=[ElectedTopicPartitions(topic="t", partitions=[0])]
        )
        answer = await ask(broker, request, ElectLeadersResponse)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        (partition,) = answer.replica_election_results[0].partition_result
        assert partition.error_code == ErrorCode.INVALID_REQUEST
        assert "election type 2" in (partition.error_message or "")

    node.run(story)


@pytest.mark.parametrize(
    ("index", "replicas", "code", "message"),
    [
        (0, [1], ErrorCode.NONE, None),
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "t-0 is not being reassigned"),
        (0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "brokers []"),
        (0, [2], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the cluster has brokers [1]"),
        (0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "brokers [1, 1]"),
        (1, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no partition 1"),
    ],
)
def test_only_a_reassignment_to_this_broker_is_accepted(
    node: Node, index: int, replicas: list[int] | None, code: int, message: str | None
) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        wanted = ReassignablePartition(partition_index=index, replicas=replicas)
        topics = [
            ReassignableTopic(name="t", partitions=[wanted]),
            ReassignableTopic(name="u", partitions=[wanted]),
        ]
        request = AlterPartitionReassignmentsRequest(topics=topics)
        answer = await ask(broker, request, AlterPartitionReassignmentsResponse)
        assert (answer.error_code, answer.error_message) == (0, None)
        ((here,), (nowhere,)) = (topic.partitions for topic in answer.responses)
        assert here.error_code == code
        assert (here.error_message is None) == (message is None)
        assert (message or "") in (here.error_message or "")
        assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    node.run(story)


def test_no_reassignment_is_listed(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        named = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]
        for topics in (None, [], named):
            request = ListPartitionReassignmentsRequest(topics=topics)
            answer = await ask(broker, request, ListPartitionReassignmentsResponse)
            assert (answer.error_code, answer.error_message, answer.topics) == (0, None, [])

    node.run(story)
