"""Topics and settings: create, delete, describe, alter and list them, and delete records.

Declarations only, see `schema`.
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int8_array,
    int16,
    int32,
    int32_array,
    int64,
    string,
    string_array,
    uuid,
)


class CreatableReplicaAssignment(Struct):
    """The brokers that hold a partition."""

    partition_index: int = int32("0+")
    broker_ids: list[int] = int32_array("0+")


class CreatableTopicConfig(Struct):
    """A setting of the new topic."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class CreatableTopic(Struct):
    """A topic to create.

    -1 partitions or -1 replicas stand for the broker's default (version 4).
    """

    name: str = string("0+")
    num_partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


class CreateTopicsRequest(Message, versions="2-7", flexible_from=5):
    """Create topics, or only validate the request."""

    __response__: ClassVar[CreateTopicsResponse]
    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+")


class CreatableTopicConfigs(Struct):
    """A setting of the created topic."""

    name: str = string("5+")
    value: str | None = string("5+", nullable="5+")
    read_only: bool = boolean("5+")
    config_source: int = int8("5+", default=-1)
    is_sensitive: bool = boolean("5+")


class CreatableTopicResult(Struct):
    """The result for one topic.

    Errors: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR, INVALID_CONFIG, ...
    """

    name: str = string("0+")
    topic_id: bytes = uuid("7+")
    error_code: int = int16("0+")
    error_message: str | None = string("1+", nullable="0+", default=None)
    # Why there are no `configs`: the client may create the topic, but not describe its settings.
    topic_config_error_code: int = int16("5+", tag=0)
    num_partitions: int = int32("5+", default=-1)
    replication_factor: int = int16("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, "5+", nullable="5+")


class CreateTopicsResponse(Message, versions="2-7", flexible_from=5):
    """The result for each topic."""

    throttle_time_ms: int = int32("2+")
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "0+")


# With an id, a delayed request does not delete a newer topic of the same name (KIP-516).
class DeleteTopicState(Struct):
    """A topic to delete, by name or by id (version 6)."""

    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: bytes = uuid("6+")


class DeleteTopicsRequest(Message, versions="1-6", flexible_from=4):
    """Delete topics: `topic_names` up to version 5, `topics` from version 6 on."""

    __response__: ClassVar[DeleteTopicsResponse]
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = string_array("0-5")
    timeout_ms: int = int32("0+")


class DeletableTopicResult(Struct):
    """The result for one topic. Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID."""

    name: str | None = string("0+", nullable="6+")
    topic_id: bytes = uuid("6+")
    error_code: int = int16("0+")
    error_message: str | None = string("5+", nullable="5+", default=None)


class DeleteTopicsResponse(Message, versions="1-6", flexible_from=4):
    """The result for each topic."""

    throttle_time_ms: int = int32("1+")
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, "0+")


class DescribeConfigsResource(Struct):
    """A topic (type 2) or a broker (type 4) to describe; null keys: all settings."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configuration_keys: list[str] | None = string_array("0+", nullable="0+")


class DescribeConfigsRequest(Message, versions="1-4", flexible_from=4):
    """Describe settings."""

    __response__: ClassVar[DescribeConfigsResponse]
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, "0+")
    # Synonyms are all sources of a value, for tools that show why it applies (KIP-226).
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


class DescribeConfigsSynonym(Struct):
    """A source of the value, with its value; the one with the highest precedence comes first."""

    name: str = string("1+")
    value: str | None = string("1+", nullable="0+")
    source: int = int8("1+")


class DescribeConfigsResourceResult(Struct):
    """One setting.

    `config_source`: 1 topic, 2 this broker, 3 all brokers, 4 the broker's start, 5 the default.
    `config_type`: 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class,
    9 password.
    """

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")
    # Whether a change needs a restart of the broker.
    read_only: bool = boolean("0+")
    config_source: int = int8("1+", default=-1)
    is_sensitive: bool = boolean("0+")
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+")
    config_type: int = int8("3+")
    documentation: str | None = string("3+", nullable="0+")


class DescribeConfigsResult(Struct):
    """The settings of one resource."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, "0+")


class DescribeConfigsResponse(Message, versions="1-4", flexible_from=4):
    """The settings."""

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, "0+")


class AlterableConfig(Struct):
    """A change: `config_operation` 0 sets, 1 deletes, 2 appends to a list, 3 subtracts from it."""

    name: str = string("0+")
    config_operation: int = int8("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """Changes to the settings of a topic (type 2) or a broker (type 4).

    A broker without a name stands for all brokers.
    """

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class IncrementalAlterConfigsRequest(Message, versions="0-1", flexible_from=1):
    """Change some settings (KIP-339)."""

    __response__: ClassVar[IncrementalAlterConfigsResponse]
    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResourceResponse(Struct):
    """The result for one resource: all of its changes were made, or none."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    resource_type: int = int8("0+")
    resource_name: str = string("0+")


class IncrementalAlterConfigsResponse(Message, versions="0-1", flexible_from=1):
    """The results."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")


class DeleteRecordsPartition(Struct):
    """Delete the records before an offset; -1: before the high watermark."""

    partition_index: int = int32("0+")
    offset: int = int64("0+")


class DeleteRecordsTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, "0+")


class DeleteRecordsRequest(Message, versions="0-2", flexible_from=2):
    """Delete the oldest records of partitions (KIP-107)."""

    __response__: ClassVar[DeleteRecordsResponse]
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "0+")
    timeout_ms: int = int32("0+")


class DeleteRecordsPartitionResult(Struct):
    """The new log start offset. Errors: OFFSET_OUT_OF_RANGE, POLICY_VIOLATION, ..."""

    partition_index: int = int32("0+")
    low_watermark: int = int64("0+")
    error_code: int = int16("0+")


class DeleteRecordsTopicResult(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult, "0+")


class DeleteRecordsResponse(Message, versions="0-2", flexible_from=2):
    """The new log start offsets."""

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, "0+")


class ListConfigResourcesRequest(Message, versions="0-1", flexible_from=0):
    """List the resources of these types; without types, of all types.

    Version 0 lists only subscriptions of client metrics.
    """

    __response__: ClassVar[ListConfigResourcesResponse]
    resource_types: list[int] = int8_array("1+")


class ListedConfigResource(Struct):
    """A resource; see DescribeConfigs for the numbers of types."""

    resource_name: str = string("0+")
    # 16 is the type of client metrics, the only one of version 0.
    resource_type: int = int8("1+", default=16)


class ListConfigResourcesResponse(Message, versions="0-1", flexible_from=0):
    """The resources.

    Errors: UNSUPPORTED_VERSION (for an unknown type), CLUSTER_AUTHORIZATION_FAILED.
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ListedConfigResource] = array(ListedConfigResource, "0+")


class ReplacedConfig(Struct):
    """A setting and its value."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class ReplaceConfigsResource(Struct):
    """All settings of a topic (type 2) or a broker (type 4) that are not at their defaults."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    # A setting that is missing here returns to its default, so the caller must know all of them:
    # IncrementalAlterConfigs has no such race (KIP-339).
    configs: list[ReplacedConfig] = array(ReplacedConfig, "0+")


class AlterConfigsRequest(Message, versions="0-2", flexible_from=2):
    """Replace settings: those that are not in the request return to their defaults."""

    __response__: ClassVar[AlterConfigsResponse]
    resources: list[ReplaceConfigsResource] = array(ReplaceConfigsResource, "0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResponse(Message, versions="0-2", flexible_from=2):
    """The results."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")
