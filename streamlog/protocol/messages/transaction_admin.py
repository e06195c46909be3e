"""Transactions as an admin looks at them: the producers of partitions, single transactional ids.

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks.
"""

from __future__ import annotations

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int32_array,
    int64,
    string,
    string_array,
)


class TopicRequest(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partition_indexes: list[int] = int32_array("0+")


class DescribeProducersRequest(Message, versions="0-0", flexible_from=0):
    """Who writes to partitions?"""

    topics: list[TopicRequest] = array(TopicRequest, "0+")


class ProducerState(Struct):
    """A producer as a partition knows it; -1 for what it does not know, or no transaction."""

    producer_id: int = int64("0+")
    producer_epoch: int = int32("0+")
    last_sequence: int = int32("0+", default=-1)
    last_timestamp: int = int64("0+", default=-1)
    coordinator_epoch: int = int32("0+")
    current_txn_start_offset: int = int64("0+", default=-1)


class PartitionResponse(Struct):
    """The producers of a partition. Error: UNKNOWN_TOPIC_OR_PARTITION."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState, "0+")


class TopicResponse(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[PartitionResponse] = array(PartitionResponse, "0+")


class DescribeProducersResponse(Message, versions="0-0", flexible_from=0):
    """The producers of each partition."""

    throttle_time_ms: int = int32("0+")
    topics: list[TopicResponse] = array(TopicResponse, "0+")


class DescribeTransactionsRequest(Message, versions="0-0", flexible_from=0):
    """How is it with these transactional ids?"""

    transactional_ids: list[str] = string_array("0+")


class TopicData(Struct):
    """Partitions of a topic that a transaction has begun to write to."""

    topic: str = string("0+")
    partitions: list[int] = int32_array("0+")


class TransactionState(Struct):
    """A transactional id with its transaction. Error: TRANSACTIONAL_ID_NOT_FOUND."""

    error_code: int = int16("0+")
    transactional_id: str = string("0+")
    transaction_state: str = string("0+")
    transaction_timeout_ms: int = int32("0+")
    transaction_start_time_ms: int = int64("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    topics: list[TopicData] = array(TopicData, "0+")


class DescribeTransactionsResponse(Message, versions="0-0", flexible_from=0):
    """Each transactional id."""

    throttle_time_ms: int = int32("0+")
    transaction_states: list[TransactionState] = array(TransactionState, "0+")
