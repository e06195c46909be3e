"""Topics and settings: CreateTopics, DeleteTopics, DescribeConfigs.

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
    error_message: str | None = string("1+", nullable="0+")
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

    `config_source`: 1 topic, 4 broker file, 5 default. `config_type`: 1 boolean, 2 string,
    3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password.
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
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, "0+")


class DescribeConfigsResponse(Message, versions="1-4", flexible_from=4):
    """The settings."""

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, "0+")
