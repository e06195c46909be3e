"""Partitions and replicas: growth, log directories, elections, reassignments, topic pages."""

from __future__ import annotations

from streamlog.protocol.messages.produce_and_fetch import OWN_TAG
from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    string,
    struct,
    uuid,
    uuid_array,
)


class CreatePartitionsAssignment(Struct):
    """Which brokers hold a new partition."""

    broker_ids: list[int] = int32_array("0+")


class CreatePartitionsTopic(Struct):
    """How many partitions a topic shall have; null assignments: wherever the cluster wants."""

    name: str = string("0+")
    count: int = int32("0+")
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, "0+", nullable="0+"
    )


class CreatePartitionsRequest(Message, versions="0-3", flexible_from=2):
    """Give topics more partitions, or find out whether they could have them."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")


class CreatePartitionsTopicResult(Struct):
    """What became of one topic. Errors: INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT, ..."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class CreatePartitionsResponse(Message, versions="0-3", flexible_from=2):
    """What became of each topic."""

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, "0+")


class DescribableLogDirTopic(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = int32_array("0+")


class DescribeLogDirsRequest(Message, versions="1-4", flexible_from=2):
    """Where partitions are stored; null: all of them."""

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, "0+", nullable="0+")
    include_report: bool = boolean("2+", tag=OWN_TAG)
    """Whether the broker reports on its own process and replicas, instead of on sizes."""


class ReplicaReport(Struct):
    """What the broker knows of its own replica of a partition."""

    leader_epoch: int = int32("0+", default=-1)
    """The epoch that the replica leads or follows in; -1 before the broker acts on it."""
    isr: list[int] | None = int32_array("0+", nullable="0+")
    """The in-sync replicas if this one leads; null if it follows."""
    high_watermark: int = int64("0+", default=-1)
    log_end_offset: int = int64("0+", default=-1)
    """The end of what is durable on this broker's disk."""


class RegistrationReport(Struct):
    """A broker as the metadata has it."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    is_fenced: bool = boolean("0+")
    log_dirs: list[bytes] = uuid_array("0+")


class NodeReport(Struct):
    """What a broker process says of itself, and which brokers its metadata knows."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    """The epoch of this process's registration; -1 while it has none."""
    directory_id: bytes = uuid("0+")
    applied_offset: int = int64("0+", default=-1)
    """The end of what this process has applied of the metadata log."""
    quorum_leader: int = int32("0+", default=-1)
    quorum_epoch: int = int32("0+", default=-1)
    is_rejoining: bool = boolean("0+")
    """Whether it is a voter that does not vote: its disk was replaced or damaged."""
    strays: int = int32("0+")
    """Folders that were set aside because the cluster does not know their topics."""
    registrations: list[RegistrationReport] = array(RegistrationReport, "0+")


class DescribeLogDirsPartition(Struct):
    """Bytes of a partition, and how far it is behind if it is a copy that is being made."""

    partition_index: int = int32("0+")
    partition_size: int = int64("0+")
    offset_lag: int = int64("0+")
    is_future_key: bool = boolean("0+")
    report: ReplicaReport | None = struct(ReplicaReport, "2+", tag=OWN_TAG)


class DescribeLogDirsTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition, "0+")


class DescribeLogDirsResult(Struct):
    """One directory; -1 bytes: not known."""

    error_code: int = int16("0+")
    log_dir: str = string("0+")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, "0+")
    total_bytes: int = int64("4+", default=-1)
    usable_bytes: int = int64("4+", default=-1)


class DescribeLogDirsResponse(Message, versions="1-4", flexible_from=2):
    """The directories of the broker that was asked."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, "0+")
    report: NodeReport | None = struct(NodeReport, "2+", tag=OWN_TAG)


class ElectedTopicPartitions(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = int32_array("0+")


class ElectLeadersRequest(Message, versions="0-2", flexible_from=2):
    """Elect leaders anew: the preferred ones (0), or anybody where nobody leads (1).

    Null partitions: all of them.
    """

    election_type: int = int8("1+")
    topic_partitions: list[ElectedTopicPartitions] | None = array(
        ElectedTopicPartitions, "0+", nullable="0+"
    )
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


class TopicRequest(Struct):
    """A topic by name."""

    name: str = string("0+")


class Cursor(Struct):
    """The first partition of a page; the topic need not exist any more."""

    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsRequest(Message, versions="0", flexible_from=0):
    """Topics with their partitions, by name, from the cursor on; no topics: all of them."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
    response_partition_limit: int = int32("0+", default=2_000)
    cursor: Cursor | None = struct(Cursor, "0+", nullable="0+")


class DescribeTopicPartitionsResponsePartition(Struct):
    """Who leads a partition, who follows, and who could lead it without being in sync."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1)
    replica_nodes: list[int] = int32_array("0+")
    isr_nodes: list[int] = int32_array("0+")
    eligible_leader_replicas: list[int] | None = int32_array("0+", nullable="0+")
    last_known_elr: list[int] | None = int32_array("0+", nullable="0+")
    offline_replicas: list[int] = int32_array("0+")


class DescribeTopicPartitionsResponseTopic(Struct):
    """A topic, or the part of it that is on this page.

    Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED.
    """

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="0+")
    topic_id: bytes = uuid("0+")
    is_internal: bool = boolean("0+")
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition, "0+"
    )
    topic_authorized_operations: int = int32("0+", default=-2147483648)


class DescribeTopicPartitionsResponse(Message, versions="0", flexible_from=0):
    """One page; without a cursor the last one."""

    throttle_time_ms: int = int32("0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = array(
        DescribeTopicPartitionsResponseTopic, "0+"
    )
    next_cursor: Cursor | None = struct(Cursor, "0+", nullable="0+")
