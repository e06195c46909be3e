"""Transactions: requests of producers, coordinators and admins, and the records that store them.

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
    int64_array,
    string,
    string_array,
)


class DescribeProducersTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partition_indexes: list[int] = int32_array("0+")


class DescribeProducersRequest(Message, versions="0-0", flexible_from=0):
    """List the producers that write to partitions (KIP-664)."""

    __response__: ClassVar[DescribeProducersResponse]
    topics: list[DescribeProducersTopic] = array(DescribeProducersTopic, "0+")


class DescribedProducer(Struct):
    """A producer as a partition knows it.

    -1 stands for an unknown value, or for no transaction.
    """

    producer_id: int = int64("0+")
    # An int32 in this response only; elsewhere an epoch is an int16.
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
    active_producers: list[DescribedProducer] = array(DescribedProducer, "0+")


class TopicResponse(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[PartitionResponse] = array(PartitionResponse, "0+")


class DescribeProducersResponse(Message, versions="0-0", flexible_from=0):
    """The producers of each partition."""

    throttle_time_ms: int = int32("0+")
    topics: list[TopicResponse] = array(TopicResponse, "0+")


class DescribeTransactionsRequest(Message, versions="0-0", flexible_from=0):
    """Describe the transactions of these transactional ids (KIP-664)."""

    __response__: ClassVar[DescribeTransactionsResponse]
    transactional_ids: list[str] = string_array("0+")


class TopicData(Struct):
    """Partitions of a topic that a transaction has begun to write to."""

    topic: str = string("0+")
    partitions: list[int] = int32_array("0+")


class DescribedTransaction(Struct):
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
    """The transaction of each transactional id."""

    throttle_time_ms: int = int32("0+")
    transaction_states: list[DescribedTransaction] = array(DescribedTransaction, "0+")


class AddPartitionsToTxnTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[int] = int32_array("0+")


class AddPartitionsToTxnTransaction(Struct):
    """Partitions of one transaction; `verify_only`: only check that it contains them."""

    transactional_id: str = string("4+")
    producer_id: int = int64("4+")
    producer_epoch: int = int16("4+")
    verify_only: bool = boolean("4+")
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


class AddPartitionsToTxnRequest(Message, versions="0-5", flexible_from=3):
    """Add partitions to a producer's transaction before it writes to them; the first ones begin it.

    From version 4 on, brokers send it, for the transactions of several producers: they ask whether
    a transaction has a partition, or add it for a producer that has just written to it.
    """

    __response__: ClassVar[AddPartitionsToTxnResponse]
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    # Kafka's names: up to version 3, a request has one transaction, of the client itself.
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    """The result for one partition.

    Errors: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, ...
    """

    partition_index: int = int32("0+")
    partition_error_code: int = int16("0+")


class AddPartitionsToTxnTopicResult(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult, "0+"
    )


class AddPartitionsToTxnResult(Struct):
    """The results for the partitions of one transaction."""

    transactional_id: str = string("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "4+")


class AddPartitionsToTxnResponse(Message, versions="0-5", flexible_from=3):
    """The result for each partition.

    All partitions of a transaction were added, or none; then the codes of some say why.
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3"
    )


class AddOffsetsToTxnRequest(Message, versions="0-4", flexible_from=3):
    """Add a group's offsets to a transaction, before the producer commits them."""

    __response__: ClassVar[AddOffsetsToTxnResponse]
    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


class AddOffsetsToTxnResponse(Message, versions="0-4", flexible_from=3):
    """The result. Errors as in AddPartitionsToTxn."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")


class EndTxnRequest(Message, versions="0-5", flexible_from=3):
    """Commit or abort a transaction.

    From version 5 on, this raises the producer's epoch (KIP-890, part 2).
    """

    __response__: ClassVar[EndTxnResponse]
    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")


class EndTxnResponse(Message, versions="0-5", flexible_from=3):
    """The result, and the producer's identity in its next transaction.

    Errors: INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, ...
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1)
    producer_epoch: int = int16("5+", default=-1)


class WritableTxnMarkerTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partition_indexes: list[int] = int32_array("0+")


class WritableTxnMarker(Struct):
    """The end of a producer's transaction in some partitions.

    `transaction_result`: True for commit, False for abort.
    """

    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    transaction_result: bool = boolean("0+")
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, "0+")
    # A partition refuses markers of an older epoch, so a former coordinator can't end a newer
    # transaction (TRANSACTION_COORDINATOR_FENCED).
    coordinator_epoch: int = int32("0+")
    # From 2 on, `producer_epoch` is the one after the transaction's (KIP-1228).
    transaction_version: int = int8("2+")


class WriteTxnMarkersRequest(Message, versions="1-2", flexible_from=1):
    """Write the markers that end transactions.

    A coordinator sends it; or an admin, for a transaction that has no coordinator any more.
    `coordinator_id` is ours: the broker of the coordinator, or -1.
    """

    __response__: ClassVar[WriteTxnMarkersResponse]
    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "0+")
    # 1. A coordinator sends markers, and gets no answer in time. 2. It sends them again by a new
    # connection. 3. The first request arrives late. The broker knows the newer connection of this
    # coordinator, and refuses the first request.
    coordinator_id: int = int32("1+", default=-1, tag=OWN_TAG)


class WritableTxnMarkerPartitionResult(Struct):
    """The result for one partition.

    Errors: TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH, ...
    """

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class WritableTxnMarkerTopicResult(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[WritableTxnMarkerPartitionResult] = array(
        WritableTxnMarkerPartitionResult, "0+"
    )


class WritableTxnMarkerResult(Struct):
    """The result for one marker."""

    producer_id: int = int64("0+")
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, "0+")


class WriteTxnMarkersResponse(Message, versions="1-2", flexible_from=1):
    """The result for each marker."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, "0+")


class TxnOffsetCommitRequestPartition(Struct):
    """The offset to commit."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("2+", default=-1)
    committed_metadata: str | None = string("0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, "0+")


class TxnOffsetCommitRequest(Message, versions="0-5", flexible_from=3):
    """Commit offsets in a transaction; they take effect when it commits.

    From version 3 on, the request names the group's member and generation, so that the coordinator
    can refuse a member that was replaced (KIP-447). From version 5 on, the group's coordinator adds
    the group to the transaction (KIP-890, part 2).
    """

    __response__: ClassVar[TxnOffsetCommitResponse]
    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, "0+")


class TxnOffsetCommitResponsePartition(Struct):
    """The result for one partition.

    Errors as in OffsetCommit, and INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH.
    """

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class TxnOffsetCommitResponseTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[TxnOffsetCommitResponsePartition] = array(
        TxnOffsetCommitResponsePartition, "0+"
    )


class TxnOffsetCommitResponse(Message, versions="0-5", flexible_from=3):
    """The result for each partition; there is no code for the whole request."""

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, "0+")


class ListTransactionsRequest(Message, versions="0-1", flexible_from=0):
    """List transactional ids, filtered by state, producer, and age of the transaction.

    An empty filter admits all. `duration_filter` is the least age in milliseconds; negative for
    none (KIP-994).
    """

    __response__: ClassVar[ListTransactionsResponse]
    state_filters: list[str] = string_array("0+")
    producer_id_filters: list[int] = int64_array("0+")
    duration_filter: int = int64("1+", default=-1)


class TransactionStateRecord(Struct):
    """A transactional id with the state of its transaction."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    transaction_state: str = string("0+")


class ListTransactionsResponse(Message, versions="0-1", flexible_from=0):
    """The transactional ids, and the filters that name no known state."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = string_array("0+")
    transaction_states: list[TransactionStateRecord] = array(TransactionStateRecord, "0+")


# ---- the records of `__transaction_state` ----


class TransactionLogKey(Message, versions="0-0"):
    """The key of a record: the transactional id."""

    transactional_id: str = string("0")


class PartitionsSchema(Struct):
    """Partitions of a topic."""

    topic: str = string("0+")
    partition_ids: list[int] = int32_array("0+")


class TransactionLogValue(Message, versions="0-1", flexible_from=1):
    """The state of a transactional id from this record on."""

    producer_id: int = int64("0+")
    previous_producer_id: int = int64("1+", default=-1, tag=0)
    next_producer_id: int = int64("1+", default=-1, tag=1)
    producer_epoch: int = int16("0+")
    transaction_timeout_ms: int = int32("0+")
    # The number of a `TransactionState` of the coordinator, which are Kafka's.
    transaction_status: int = int8("0+")
    transaction_partitions: list[PartitionsSchema] | None = array(
        PartitionsSchema, "0+", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = int64("0+")
    transaction_start_timestamp_ms: int = int64("0+")
    client_transaction_version: int = int16("1+", tag=2)
