"""Who leads and who holds partitions: ElectLeaders (KIP-183, KIP-460), reassignments (KIP-455).

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks.
"""

from __future__ import annotations

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int32_array,
    string,
)


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = int32_array("0+")


class ElectLeadersRequest(Message, versions="0-2", flexible_from=2):
    """Elect leaders anew: the preferred ones (0), or anybody where nobody leads (1).

    Null partitions: all of them.
    """

    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, "0+", nullable="0+")
    timeout_ms: int = int32("0+", default=60_000)


class PartitionResult(Struct):
    """What became of one partition. Errors: ELECTION_NOT_NEEDED, ELIGIBLE_LEADERS_..., ..."""

    partition_id: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class ReplicaElectionResult(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partition_result: list[PartitionResult] = array(PartitionResult, "0+")


class ElectLeadersResponse(Message, versions="0-2", flexible_from=2):
    """What became of each partition; if all were meant, of each that got another leader."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult, "0+")


class ReassignablePartition(Struct):
    """Which brokers shall hold a partition; null: give up moving it."""

    partition_index: int = int32("0+")
    replicas: list[int] | None = int32_array("0+", nullable="0+")


class ReassignableTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, "0+")


class AlterPartitionReassignmentsRequest(Message, versions="0", flexible_from=0):
    """Begin to move partitions to other brokers, or give it up."""

    timeout_ms: int = int32("0+", default=60_000)
    topics: list[ReassignableTopic] = array(ReassignableTopic, "0+")


class ReassignablePartitionResponse(Struct):
    """One partition. Errors: INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, ..."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class ReassignableTopicResponse(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse, "0+")


class AlterPartitionReassignmentsResponse(Message, versions="0", flexible_from=0):
    """Whether each partition is being moved; the end is not waited for."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse, "0+")


class ListPartitionReassignmentsTopics(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partition_indexes: list[int] = int32_array("0+")


class ListPartitionReassignmentsRequest(Message, versions="0", flexible_from=0):
    """Which partitions are being moved; null: of all."""

    timeout_ms: int = int32("0+", default=60_000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, "0+", nullable="0+"
    )


class OngoingPartitionReassignment(Struct):
    """A partition that is being moved."""

    partition_index: int = int32("0+")
    replicas: list[int] = int32_array("0+")
    adding_replicas: list[int] = int32_array("0+")
    removing_replicas: list[int] = int32_array("0+")


class OngoingTopicReassignment(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment, "0+")


class ListPartitionReassignmentsResponse(Message, versions="0", flexible_from=0):
    """Partitions that are being moved."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment, "0+")
