"""Partitions as files of a broker: CreatePartitions (KIP-195), DescribeLogDirs (KIP-113).

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks, but for
those under `OWN_TAG`: what a node says of itself and of its replicas, if a request asks for it.
"""

from __future__ import annotations

from streamlog.protocol.messages.data import OWN_TAG
from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
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
