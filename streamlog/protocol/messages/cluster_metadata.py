"""Who is there and who leads what: ApiVersions, Metadata, DescribeCluster.

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks.
"""

from __future__ import annotations

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
    uuid,
)


class ApiVersionsRequest(Message, versions="0-4", flexible_from=3):
    """The first request on a connection: which versions do you speak?"""

    client_software_name: str = string("3+")
    client_software_version: str = string("3+")


class ApiVersion(Struct):
    """The versions of one API that the broker speaks."""

    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


class SupportedFeatureKey(Struct):
    """A feature the broker could switch on, and its levels."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


class FinalizedFeatureKey(Struct):
    """A feature that is on, and its levels."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


class ApiVersionsResponse(Message, versions="0-4", flexible_from=3):
    """What the broker speaks.

    Its header is version 0 always. To a version that the broker does not know it answers with
    UNSUPPORTED_VERSION in version 0, and the client takes it from there.
    """

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+")
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2)
    zk_migration_ready: bool = boolean("3+", tag=3)


class MetadataRequestTopic(Struct):
    """A topic by name, or by id (version 10; null name from 12 on)."""

    topic_id: bytes = uuid("10+")
    name: str | None = string("0+", nullable="10+")


class MetadataRequest(Message, versions="0-13", flexible_from=9):
    """Brokers, and topics with their leaders.

    Null topics: all. An empty list: none, but all in version 0, which has no null.
    """

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, "0+", nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class MetadataResponseBroker(Struct):
    """Where a broker can be reached."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("1+", nullable="1+", default=None)


class MetadataResponsePartition(Struct):
    """Who leads a partition and who follows.

    Errors: LEADER_NOT_AVAILABLE, REPLICA_NOT_AVAILABLE.
    """

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("7+", default=-1)
    replica_nodes: list[int] = int32_array("0+")
    isr_nodes: list[int] = int32_array("0+")
    offline_replicas: list[int] = int32_array("5+")


class MetadataResponseTopic(Struct):
    """A topic. `topic_authorized_operations` is the smallest int32 if not asked for.

    Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_ID.
    """

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="12+")
    topic_id: bytes = uuid("10+")
    is_internal: bool = boolean("1+")
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, "0+")
    topic_authorized_operations: int = int32("8+", default=-2147483648)


class MetadataResponse(Message, versions="0-13", flexible_from=9):
    """Brokers and topics; `controller_id` has to be one of the brokers.

    Errors: REBOOTSTRAP_REQUIRED (KIP-1102).
    """

    throttle_time_ms: int = int32("3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, "0+")
    cluster_id: str | None = string("2+", nullable="2+", default=None)
    controller_id: int = int32("1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "0+")
    cluster_authorized_operations: int = int32("8-10", default=-2147483648)
    error_code: int = int16("13+")


class DescribeClusterRequest(Message, versions="0-2", flexible_from=0):
    """Look at the brokers (`endpoint_type` 1) or the controllers (2).

    `include_fenced_brokers`: those too that do not live just now (KIP-1073).
    """

    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")


class DescribeClusterBroker(Struct):
    """Where a broker can be reached, and whether it is taken for dead (KIP-1073)."""

    broker_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)
    is_fenced: bool = boolean("2+")


class DescribeClusterResponse(Message, versions="0-2", flexible_from=0):
    """The cluster."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, "0+")
    cluster_authorized_operations: int = int32("0+", default=-2147483648)


class OffsetForLeaderPartition(Struct):
    """Where did this epoch end? `current_leader_epoch` is as in Fetch."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("2+", default=-1)
    leader_epoch: int = int32("0+")


class OffsetForLeaderTopic(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, "0+")


class OffsetForLeaderEpochRequest(Message, versions="2-4", flexible_from=4):
    """A consumer finds out whether what it has read is still there (KIP-320)."""

    replica_id: int = int32("3+", default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, "0+")


class EpochEndOffset(Struct):
    """The last epoch that is not after the one asked for, and where it ended; -1 if unknown."""

    error_code: int = int16("0+")
    partition: int = int32("0+")
    leader_epoch: int = int32("1+", default=-1)
    end_offset: int = int64("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    """The ends in one topic."""

    topic: str = string("0+")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "0+")


class OffsetForLeaderEpochResponse(Message, versions="2-4", flexible_from=4):
    """The ends found."""

    throttle_time_ms: int = int32("2+")
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, "0+")
