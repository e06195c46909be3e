"""CreateTopics, DeleteTopics, and the requests that describe, alter, and list configs."""

from __future__ import annotations

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
    """Which brokers hold a partition."""

    partition_index: int = int32("0+")
    broker_ids: list[int] = int32_array("0+")


class CreatableTopicConfig(Struct):
    """A setting of the new topic."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class CreatableTopic(Struct):
    """A topic to create; -1 partitions or replicas: the broker's default (version 4)."""

    name: str = string("0+")
    num_partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


class CreateTopicsRequest(Message, versions="2-7", flexible_from=5):
    """Create topics, or find out whether they could be created."""

    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+")


class CreatableTopicConfigs(Struct):
    """A setting of the topic as it came out."""

    name: str = string("5+")
    value: str | None = string("5+", nullable="5+")
    read_only: bool = boolean("5+")
    config_source: int = int8("5+", default=-1)
    is_sensitive: bool = boolean("5+")


class CreatableTopicResult(Struct):
    """What became of one topic.

    Errors: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR, INVALID_CONFIG, ...
    """

    name: str = string("0+")
    topic_id: bytes = uuid("7+")
    error_code: int = int16("0+")
    error_message: str | None = string("1+", nullable="0+", default=None)
    topic_config_error_code: int = int16("5+", tag=0)
    num_partitions: int = int32("5+", default=-1)
    replication_factor: int = int16("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, "5+", nullable="5+")


class CreateTopicsResponse(Message, versions="2-7", flexible_from=5):
    """What became of each topic."""

    throttle_time_ms: int = int32("2+")
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "0+")


class DeleteTopicState(Struct):
    """A topic to delete, by name or by id (version 6)."""

    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: bytes = uuid("6+")


class DeleteTopicsRequest(Message, versions="1-6", flexible_from=4):
    """Delete topics: `topic_names` until version 5, `topics` from 6 on."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = string_array("0-5")
    timeout_ms: int = int32("0+")


class DeletableTopicResult(Struct):
    """What became of one topic. Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID."""

    name: str | None = string("0+", nullable="6+")
    topic_id: bytes = uuid("6+")
    error_code: int = int16("0+")
    error_message: str | None = string("5+", nullable="5+", default=None)


class DeleteTopicsResponse(Message, versions="1-6", flexible_from=4):
    """What became of each topic."""

    throttle_time_ms: int = int32("1+")
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, "0+")


class DescribeConfigsResource(Struct):
    """Settings of a topic (type 2) or broker (4); null keys: all of them."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configuration_keys: list[str] | None = string_array("0+", nullable="0+")


class DescribeConfigsRequest(Message, versions="1-4", flexible_from=4):
    """Look at settings."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, "0+")
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


class DescribeConfigsSynonym(Struct):
    """A place the value could come from, the strongest first."""

    name: str = string("1+")
    value: str | None = string("1+", nullable="0+")
    source: int = int8("1+")


class DescribeConfigsResourceResult(Struct):
    """One setting.

    `config_source`: 1 topic, 2 broker, 3 all brokers, 4 broker's start, 5 default.
    `config_type`: 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class,
    9 password.
    """

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")
    read_only: bool = boolean("0+")
    config_source: int = int8("1+", default=-1)
    is_sensitive: bool = boolean("0+")
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+")
    config_type: int = int8("3+")
    documentation: str | None = string("3+", nullable="0+")


class DescribeConfigsResult(Struct):
    """Settings of one resource."""

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
    """Changes to the settings of a topic (type 2) or broker (4; without a name: of all)."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class IncrementalAlterConfigsRequest(Message, versions="0-1", flexible_from=1):
    """Change some settings (KIP-339)."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResourceResponse(Struct):
    """What became of the changes to one resource, all of them or none."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    resource_type: int = int8("0+")
    resource_name: str = string("0+")


class IncrementalAlterConfigsResponse(Message, versions="0-1", flexible_from=1):
    """What became of the changes."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")


class DeleteRecordsPartition(Struct):
    """Delete what is before an offset; -1: before the high watermark."""

    partition_index: int = int32("0+")
    offset: int = int64("0+")


class DeleteRecordsTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, "0+")


class DeleteRecordsRequest(Message, versions="0-2", flexible_from=2):
    """Delete the oldest records of partitions (KIP-107)."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "0+")
    timeout_ms: int = int32("0+")


class DeleteRecordsPartitionResult(Struct):
    """Where a partition begins now. Errors: OFFSET_OUT_OF_RANGE, POLICY_VIOLATION, ..."""

    partition_index: int = int32("0+")
    low_watermark: int = int64("0+")
    error_code: int = int16("0+")


class DeleteRecordsTopicResult(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult, "0+")


class DeleteRecordsResponse(Message, versions="0-2", flexible_from=2):
    """Where the partitions begin now."""

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, "0+")


class ListConfigResourcesRequest(Message, versions="0-1", flexible_from=0):
    """List the resources of these types, or if there are none, of all.

    Version 0 is about subscriptions of client metrics alone.
    """

    resource_types: list[int] = int8_array("1+")


class ListedConfigResource(Struct):
    """A resource; see DescribeConfigs for the numbers of types."""

    resource_name: str = string("0+")
    resource_type: int = int8("1+", default=16)


class ListConfigResourcesResponse(Message, versions="0-1", flexible_from=0):
    """What there is. Errors: UNSUPPORTED_VERSION (a type), CLUSTER_AUTHORIZATION_FAILED."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ListedConfigResource] = array(ListedConfigResource, "0+")


class ReplacedConfig(Struct):
    """A setting and its value."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class ReplaceConfigsResource(Struct):
    """All settings of a topic (type 2) or broker (4) that are not to be at their defaults."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[ReplacedConfig] = array(ReplacedConfig, "0+")


class AlterConfigsRequest(Message, versions="0-2", flexible_from=2):
    """Replace settings."""

    resources: list[ReplaceConfigsResource] = array(ReplaceConfigsResource, "0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResponse(Message, versions="0-2", flexible_from=2):
    """What became of it."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")
