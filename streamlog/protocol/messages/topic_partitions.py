"""Topics page by page: DescribeTopicPartitions (KIP-966).

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks.
"""

from __future__ import annotations

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int32_array,
    string,
    struct,
    uuid,
)


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
