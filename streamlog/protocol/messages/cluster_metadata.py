"""ApiVersions, Metadata, DescribeCluster and OffsetForLeaderEpoch: a client's view of the cluster.

Declarations only, see `schema`. The fields are Kafka's own, which a test checks.
"""

from __future__ import annotations

from typing import ClassVar

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
    """The first request on a connection: asks which versions the broker supports."""

    __response__: ClassVar[ApiVersionsResponse]
    client_software_name: str = string("3+")
    client_software_version: str = string("3+")


class ApiVersion(Struct):
    """The versions of one API that the broker supports."""

    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


class SupportedFeatureKey(Struct):
    """A feature that the broker supports, with its levels."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


class FinalizedFeatureKey(Struct):
    """A feature that is enabled, with its levels."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


class ApiVersionsResponse(Message, versions="0-4", flexible_from=3):
    """The versions that the broker supports.

    Its header always has version 0. A broker that does not know the version of the request answers
    in version 0 with UNSUPPORTED_VERSION, and the client asks again in a version that the broker
    knows.
    """

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+")
    # Tags, although the response's header never has any: the body is flexible (KIP-511).
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2)
    # For Kafka's migration from ZooKeeper; unused here.
    zk_migration_ready: bool = boolean("3+", tag=3)


class MetadataRequestTopic(Struct):
    """A topic by name, or by id (version 10; the name is null from version 12 on)."""

    topic_id: bytes = uuid("10+")
    name: str | None = string("0+", nullable="10+")


class MetadataRequest(Message, versions="0-13", flexible_from=9):
    """Look up brokers, and topics with their leaders.

    Null topics mean all topics. An empty list means none, except in version 0: it has no null, and
    an empty list means all topics.
    """

    __response__: ClassVar[MetadataResponse]
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, "0+", nullable="1+")
    # Versions before 4 always allow it.
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class MetadataResponseBroker(Struct):
    """The address of a broker."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("1+", nullable="1+", default=None)


class MetadataResponsePartition(Struct):
    """The leader and the replicas of a partition.

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
    """A topic with its partitions.

    `topic_authorized_operations` is the smallest int32 if the request did not ask for it.
    Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_ID.
    """

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="12+")
    topic_id: bytes = uuid("10+")
    is_internal: bool = boolean("1+")
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, "0+")
    # The bits of the operations (KIP-430).
    topic_authorized_operations: int = int32("8+", default=-2147483648)


class MetadataResponse(Message, versions="0-13", flexible_from=9):
    """Brokers and topics. `controller_id` must be the id of one of the brokers.

    Errors: REBOOTSTRAP_REQUIRED (KIP-1102).
    """

    throttle_time_ms: int = int32("3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, "0+")
    cluster_id: str | None = string("2+", nullable="2+", default=None)
    controller_id: int = int32("1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "0+")
    # Version 11 moved these to DescribeCluster (KIP-700).
    cluster_authorized_operations: int = int32("8-10", default=-2147483648)
    error_code: int = int16("13+")


class DescribeClusterRequest(Message, versions="0-2", flexible_from=0):
    """List the brokers (`endpoint_type` 1) or the controllers (2).

    With `include_fenced_brokers`, the answer includes brokers that are fenced (KIP-1073).
    """

    __response__: ClassVar[DescribeClusterResponse]
    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")


class DescribeClusterBroker(Struct):
    """The address of a broker, and whether it is fenced (KIP-1073)."""

    broker_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("0+", nullable="0+", default=None)
    is_fenced: bool = boolean("2+")


class DescribeClusterResponse(Message, versions="0-2", flexible_from=0):
    """The id of the cluster, its controller and its brokers."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, "0+")
    cluster_authorized_operations: int = int32("0+", default=-2147483648)


class OffsetForLeaderPartition(Struct):
    """The leader epoch whose end the client looks up.

    `current_leader_epoch` has the meaning that it has in Fetch.
    """

    partition: int = int32("0+")
    current_leader_epoch: int = int32("2+", default=-1)
    leader_epoch: int = int32("0+")


class OffsetForLeaderTopic(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, "0+")


class OffsetForLeaderEpochRequest(Message, versions="2-4", flexible_from=4):
    """Look up where leader epochs end, to detect a truncated log (KIP-320)."""

    __response__: ClassVar[OffsetForLeaderEpochResponse]
    replica_id: int = int32("3+", default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, "0+")


class EpochEndOffset(Struct):
    """The last epoch that is not after the requested one, and where it ends; -1 if unknown."""

    error_code: int = int16("0+")
    partition: int = int32("0+")
    leader_epoch: int = int32("1+", default=-1)
    end_offset: int = int64("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    """The ends in one topic."""

    topic: str = string("0+")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "0+")


class OffsetForLeaderEpochResponse(Message, versions="2-4", flexible_from=4):
    """The ends of the requested epochs."""

    throttle_time_ms: int = int32("2+")
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, "0+")
