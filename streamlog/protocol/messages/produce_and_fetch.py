"""Produce, Fetch and ListOffsets: records to the log and back.

Declarations only, see `schema`. The fields are Kafka's own, which a test checks, except those with
tags from `OWN_TAG` on: a peer that does not know a tagged field skips it (KIP-482). The versions
are those that are served: Produce from 3 on (earlier ones have batches of another format), Fetch
from 4 on (KIP-98). From Fetch 13 on, topics are identified by their ids (KIP-516).
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.schema import (
    Message,
    Records,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    record_batches,
    string,
    struct,
    uuid,
)

OWN_TAG = 10_000
"""The first tag of our own fields, far from the tags of Kafka."""


class PartitionProduceData(Struct):
    """Batches for one partition; exactly one batch from version 3 on."""

    index: int = int32("0+")
    records: Records | None = record_batches("0+", nullable="0+")


class TopicProduceData(Struct):
    """Batches for the partitions of one topic."""

    name: str = string("0+")
    partition_data: list[PartitionProduceData] = array(PartitionProduceData, "0+")


class ProduceRequest(Message, versions="3-12", flexible_from=9):
    """Append batches.

    `acks`: 0 for no answer, 1 for an answer once the leader has the batches, -1 for an answer once
    all in-sync replicas have them. Version 9 is flexible. From version 12 on, the partition's
    leader adds it to the transaction of the batches (KIP-890, part 2). The other versions differ in
    the response, or in what batches may contain.
    """

    __response__: ClassVar[ProduceResponse | None]
    transactional_id: str | None = string("3+", nullable="3+", default=None)
    acks: int = int16("0+")
    timeout_ms: int = int32("0+")
    topic_data: list[TopicProduceData] = array(TopicProduceData, "0+")


class BatchIndexAndErrorMessage(Struct):
    """The reason why a record was refused, with its index in the batch."""

    batch_index: int = int32("8+")
    batch_index_error_message: str | None = string("8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    """The present leader of a partition.

    It accompanies NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH.
    """

    leader_id: int = int32("10+", default=-1)
    leader_epoch: int = int32("10+", default=-1)


class PartitionProduceResponse(Struct):
    """The offset of the batch.

    `log_append_time_ms` is -1 unless the topic has the broker's timestamps.
    Errors: CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, NOT_LEADER_OR_FOLLOWER, INVALID_RECORD,
    OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, ...
    """

    index: int = int32("0+")
    error_code: int = int16("0+")
    # With an error it is -1, which is not its declared default: see `error_responses`.
    base_offset: int = int64("0+")
    log_append_time_ms: int = int64("2+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    # KIP-467: the records that made the broker refuse the batch.
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+")
    error_message: str | None = string("8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, "10+", tag=0)


class TopicProduceResponse(Struct):
    """The results for the batches of one topic."""

    name: str = string("0+")
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse, "0+")


class NodeEndpoint(Struct):
    """The address of a leader that the response names (KIP-951)."""

    node_id: int = int32("10+")
    host: str = string("10+")
    port: int = int32("10+")
    rack: str | None = string("10+", nullable="10+", default=None)


class ProduceResponse(Message, versions="3-12", flexible_from=9):
    """The result for each batch.

    The throttle time follows the results, unlike in other responses.
    """

    responses: list[TopicProduceResponse] = array(TopicProduceResponse, "0+")
    throttle_time_ms: int = int32("1+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0)


class FetchPartition(Struct):
    """The offset to read from, and the most bytes to read.

    `current_leader_epoch` is the leader epoch that the client knows, -1 for no check (KIP-320).
    `log_start_offset` is sent by replicas only. `last_fetched_epoch` is the epoch of the record
    before the offset, and reveals a truncation (KIP-595). The other fields are ours, and brokers of
    Kafka skip them.

    For readers, `mark_after_ms`: write a time mark when this reader is at the end, and nothing was
    appended for that long. The mark moves readers that share `mark_clock` to `mark_to_ms`
    (`records/control_batches`).

    For members of the quorum, `known_high_watermark` is the high watermark that the member knows,
    and `rejoin_id` is not 0 if the member may have lost entries with its disk
    (`broker/quorum/raft/raft_messages`). For followers, `fetch_number` rises with each fetch; 0 for
    no number.
    """

    partition: int = int32("0+")
    current_leader_epoch: int = int32("9+", default=-1)
    fetch_offset: int = int64("0+")
    last_fetched_epoch: int = int32("12+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    # The first batch of a response is returned even if it is larger (KIP-74).
    partition_max_bytes: int = int32("0+")
    mark_after_ms: int = int64("12+", default=-1, tag=OWN_TAG)
    known_high_watermark: int = int64("12+", default=-1, tag=OWN_TAG + 1)
    rejoin_id: int = int64("12+", tag=OWN_TAG + 2)
    mark_to_ms: int = int64("12+", default=-1, tag=OWN_TAG + 3)
    mark_clock: str = string("12+", tag=OWN_TAG + 4)
    fetch_number: int = int64("12+", tag=OWN_TAG + 5)


class FetchTopic(Struct):
    """The partitions of one topic to read."""

    topic: str = string("0-12")
    topic_id: bytes = uuid("13+")
    partitions: list[FetchPartition] = array(FetchPartition, "0+")


class ForgottenTopic(Struct):
    """Partitions to remove from an incremental fetch session (KIP-227)."""

    topic: str = string("7-12")
    topic_id: bytes = uuid("13+")
    partitions: list[int] = int32_array("7+")


class FetchingReplica(Struct):
    """The replica that sends the request (KIP-903); -1 for a consumer."""

    replica_id: int = int32("15+", default=-1)
    replica_epoch: int = int64("15+", default=-1)


class FetchRequest(Message, versions="4-16", flexible_from=12):
    """Read batches; wait until there are `min_bytes`, or `max_wait_ms` have passed.

    `replica_id` is -1 for consumers. `isolation_level`: 0 for read uncommitted, 1 for read
    committed. `session_id` 0 with `session_epoch` -1 requests no session (version 7, KIP-227).
    """

    __response__: ClassVar[FetchResponse]
    cluster_id: str | None = string("12+", nullable="12+", default=None, tag=0)
    # Version 15 moved it into `replica_state`, with the epoch of its broker (KIP-903).
    replica_id: int = int32("0-14", default=-1)
    replica_state: FetchingReplica | None = struct(FetchingReplica, "15+", tag=1)
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("3+", default=0x7FFFFFFF)
    isolation_level: int = int8("4+")
    session_id: int = int32("7+")
    session_epoch: int = int32("7+", default=-1)
    topics: list[FetchTopic] = array(FetchTopic, "0+")
    # A session repeats the partitions of the request before, so what is not read any more has to
    # be named (KIP-227).
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+")


class DivergingEpoch(Struct):
    """The end of the last epoch that the leader's log shares with the follower's (KIP-595)."""

    epoch: int = int32("12+", default=-1)
    end_offset: int = int64("12+", default=-1)


class SnapshotId(Struct):
    """The snapshot that the follower has to load first (KIP-630)."""

    end_offset: int = int64("0+", default=-1)
    epoch: int = int32("0+", default=-1)


class AbortedTransaction(Struct):
    """An aborted transaction: readers drop the records of its producer from `first_offset` on."""

    producer_id: int = int64("4+")
    first_offset: int = int64("4+")


class PartitionData(Struct):
    """The records read from one partition.

    `high_watermark` is -1 with an error. `aborted_transactions` is null for a reader of uncommitted
    records. `records` are whole batches, of which the first contains the requested offset.
    Errors: OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
    FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID, ...
    `rejoined` is ours: a member of the quorum that has lost its disk may vote again.
    """

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    high_watermark: int = int64("0+")
    last_stable_offset: int = int64("4+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    diverging_epoch: DivergingEpoch | None = struct(DivergingEpoch, "12+", tag=0)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId | None = struct(SnapshotId, "12+", tag=2)
    rejoined: bool = boolean("12+", tag=OWN_TAG)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, "4+", nullable="4+"
    )
    # The replica in the consumer's rack that it should read from instead; -1 for none (KIP-392).
    preferred_read_replica: int = int32("11+", default=-1)
    records: Records | None = record_batches("0+", nullable="0+")


class FetchableTopicResponse(Struct):
    """The records read from one topic."""

    topic: str = string("0-12")
    topic_id: bytes = uuid("13+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class FetchResponse(Message, versions="4-16", flexible_from=12):
    """The records. `session_id` 0 means that there is no session."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("7+")
    session_id: int = int32("7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse, "0+")
    # Saves the client a Metadata request after a change of leader (KIP-951).
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0)


class ListOffsetsPartition(Struct):
    """Look up the first offset whose timestamp is at or after `timestamp`, in ms since 1970.

    A negative timestamp has a meaning of its own: -1 is the latest offset, -2 the earliest, -3 that
    of the largest timestamp (version 7, KIP-734), -4 the earliest on local disk (version 8), -5 the
    latest in remote storage (version 9).
    """

    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1)
    timestamp: int = int64("0+")


class ListOffsetsTopic(Struct):
    """The partitions of one topic."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


class ListOffsetsRequest(Message, versions="1-10", flexible_from=6):
    """Look up offsets by timestamp. `timeout_ms` is for remote storage (version 10)."""

    __response__: ClassVar[ListOffsetsResponse]
    replica_id: int = int32("0+")
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+")


class ListOffsetsPartitionResponse(Struct):
    """The offset; -1 if there is none.

    `leader_epoch` is that of the record at the offset; -1 if there is none.
    """

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    timestamp: int = int64("1+", default=-1)
    offset: int = int64("1+", default=-1)
    leader_epoch: int = int32("4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    """The offsets in one topic."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, "0+")


class ListOffsetsResponse(Message, versions="1-10", flexible_from=6):
    """The offsets."""

    throttle_time_ms: int = int32("2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, "0+")
