"""Partitions and replicas: their number, directories, elections, reassignments and descriptions.

Declarations only, see `schema`. The fields are Kafka's own, except those under `OWN_TAG`.
"""

from __future__ import annotations

from typing import ClassVar

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
    """The brokers that hold a new partition."""

    broker_ids: list[int] = int32_array("0+")


class CreatePartitionsTopic(Struct):
    """The total number of partitions that a topic is to have.

    With null assignments, the cluster chooses the brokers.
    """

    name: str = string("0+")
    count: int = int32("0+")
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, "0+", nullable="0+"
    )


class CreatePartitionsRequest(Message, versions="0-3", flexible_from=2):
    """Add partitions to topics, or only validate the request."""

    __response__: ClassVar[CreatePartitionsResponse]
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")


class CreatePartitionsTopicResult(Struct):
    """The result for one topic. Errors: INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT, ..."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class CreatePartitionsResponse(Message, versions="0-3", flexible_from=2):
    """The result for each topic."""

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, "0+")


class DescribableLogDirTopic(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = int32_array("0+")


class DescribeLogDirsRequest(Message, versions="1-4", flexible_from=2):
    """Describe the directories that hold partitions; null topics: all partitions."""

    __response__: ClassVar[DescribeLogDirsResponse]
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, "0+", nullable="0+")
    # Under a tag, so that brokers of Kafka skip it (KIP-482); they answer without a report.
    include_report: bool = boolean("2+", tag=OWN_TAG)
    """Whether the broker reports the state of its process and replicas instead of sizes."""


class ReplicaReport(Struct):
    """A replica's state, as its own broker knows it."""

    leader_epoch: int = int32("0+", default=-1)
    """The leader epoch in which the replica leads or follows; -1 before it does either."""
    isr: list[int] | None = int32_array("0+", nullable="0+")
    """The in-sync replicas if this one leads; null if it follows."""
    high_watermark: int = int64("0+", default=-1)
    log_end_offset: int = int64("0+", default=-1)
    """The end of the records that are durable on this broker's disk."""


class RegistrationReport(Struct):
    """A broker's registration in the metadata."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    is_fenced: bool = boolean("0+")
    log_dirs: list[bytes] = uuid_array("0+")


class NodeReport(Struct):
    """The state of a broker process, and the brokers in its metadata."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    """The epoch of this process's registration; -1 while it has none."""
    directory_id: bytes = uuid("0+")
    applied_offset: int = int64("0+", default=-1)
    """The end of the part of the metadata log that this process has applied."""
    quorum_leader: int = int32("0+", default=-1)
    quorum_epoch: int = int32("0+", default=-1)
    is_rejoining: bool = boolean("0+")
    """Whether it is a voter that must not vote yet, because its disk was replaced or damaged."""
    strays: int = int32("0+")
    """The number of folders that were moved away because the cluster has no such topic."""
    registrations: list[RegistrationReport] = array(RegistrationReport, "0+")
    # Under tags, so that older releases skip them.
    clock_ms: int = int64("0+", default=-1, tag=0)
    """The time by the broker's clock, in milliseconds since 1970."""
    software_version: str = string("0+", tag=1)
    """The release of streamlog that it runs."""
    interpreted_modules: int = int32("0+", default=-1, tag=2)
    """The number of its hot modules that run without compilation."""
    connections: int = int32("0+", default=-1, tag=3)
    """The number of connections that its limit of open files allows."""


class DescribeLogDirsPartition(Struct):
    """The size of a replica in bytes, and its lag.

    `offset_lag` counts for a replica that is being copied to another directory (`is_future_key`).
    """

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
    """One directory; a size of -1 bytes is unknown."""

    error_code: int = int16("0+")
    log_dir: str = string("0+")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, "0+")
    # Of the disk, not of the partitions (KIP-827).
    total_bytes: int = int64("4+", default=-1)
    usable_bytes: int = int64("4+", default=-1)


class DescribeLogDirsResponse(Message, versions="1-4", flexible_from=2):
    """The directories of the broker that received the request."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, "0+")
    report: NodeReport | None = struct(NodeReport, "2+", tag=OWN_TAG)


class AlterReplicaLogDirTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[int] = int32_array("0+")


class AlterReplicaLogDir(Struct):
    """A directory, and the partitions that move there."""

    path: str = string("0+")
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic, "0+")


class AlterReplicaLogDirsRequest(Message, versions="1-2", flexible_from=2):
    """Move replicas between the directories of the broker that receives it (KIP-113).

    The directory in which a replica is cancels its move.
    """

    __response__: ClassVar[AlterReplicaLogDirsResponse]
    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir, "0+")


class AlterReplicaLogDirPartitionResult(Struct):
    """The result for one partition.

    Errors: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, REPLICA_NOT_AVAILABLE, ...
    """

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class AlterReplicaLogDirTopicResult(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[AlterReplicaLogDirPartitionResult] = array(
        AlterReplicaLogDirPartitionResult, "0+"
    )


class AlterReplicaLogDirsResponse(Message, versions="1-2", flexible_from=2):
    """The result for each partition."""

    throttle_time_ms: int = int32("0+")
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult, "0+")


class ElectedTopicPartitions(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = int32_array("0+")


class ElectLeadersRequest(Message, versions="0-2", flexible_from=2):
    """Elect leaders: the preferred replicas (0), or any replica where there is no leader (1).

    The number is `election_type` (KIP-460). Null partitions: all of them.
    """

    __response__: ClassVar[ElectLeadersResponse]
    election_type: int = int8("1+")
    topic_partitions: list[ElectedTopicPartitions] | None = array(
        ElectedTopicPartitions, "0+", nullable="0+"
    )
    timeout_ms: int = int32("0+", default=60_000)


class PartitionResult(Struct):
    """The result for one partition. Errors: ELECTION_NOT_NEEDED, ELIGIBLE_LEADERS_..., ..."""

    partition_id: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class ReplicaElectionResult(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partition_result: list[PartitionResult] = array(PartitionResult, "0+")


class ElectLeadersResponse(Message, versions="0-2", flexible_from=2):
    """The result for each partition.

    After a request for all partitions: only for those with a new leader.
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult, "0+")


class ReassignablePartition(Struct):
    """The brokers that are to hold a partition; null cancels its reassignment."""

    partition_index: int = int32("0+")
    replicas: list[int] | None = int32_array("0+", nullable="0+")


class ReassignableTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, "0+")


class AlterPartitionReassignmentsRequest(Message, versions="0", flexible_from=0):
    """Begin to move partitions to other brokers, or cancel such moves (KIP-455)."""

    __response__: ClassVar[AlterPartitionReassignmentsResponse]
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
    """Whether each reassignment has begun; the response does not wait for its end."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse, "0+")


class ListPartitionReassignmentsTopics(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partition_indexes: list[int] = int32_array("0+")


class ListPartitionReassignmentsRequest(Message, versions="0", flexible_from=0):
    """List the partitions that are being moved; null topics: all topics."""

    __response__: ClassVar[ListPartitionReassignmentsResponse]
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
    """The first partition of a page; its topic may have been deleted since."""

    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsRequest(Message, versions="0", flexible_from=0):
    """Describe topics and their partitions in the order of names, from the cursor on (KIP-966).

    No topics: all of them.
    """

    __response__: ClassVar[DescribeTopicPartitionsResponse]
    topics: list[TopicRequest] = array(TopicRequest, "0+")
    response_partition_limit: int = int32("0+", default=2_000)
    # Null begins with the first topic. The next request repeats the response's `next_cursor`.
    cursor: Cursor | None = struct(Cursor, "0+", nullable="0+")


class DescribeTopicPartitionsResponsePartition(Struct):
    """The leader and the replicas of a partition.

    `eligible_leader_replicas` are out of sync but may lead: they have all committed records
    (KIP-966).
    """

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1)
    replica_nodes: list[int] = int32_array("0+")
    isr_nodes: list[int] = int32_array("0+")
    eligible_leader_replicas: list[int] | None = int32_array("0+", nullable="0+")
    # Empty from our brokers.
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
    """One page; without a cursor, the last page."""

    throttle_time_ms: int = int32("0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = array(
        DescribeTopicPartitionsResponseTopic, "0+"
    )
    next_cursor: Cursor | None = struct(Cursor, "0+", nullable="0+")
