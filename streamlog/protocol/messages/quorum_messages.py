"""The quorum of the controllers: elections, its description, snapshots, and its control records.

Declarations only, see `schema`. The fields are Kafka's own (KIP-595, KIP-630, KIP-836), which a
test checks, except those under `OWN_TAG`. Not here: replicas read entries by Fetch
(`produce_and_fetch`).
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.messages.produce_and_fetch import OWN_TAG
from streamlog.protocol.schema import (
    Message,
    Records,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int32_array,
    int64,
    record_batches,
    string,
    struct,
    uint16,
    uuid,
)


class VoteNodeEndpoint(Struct):
    """The address of a leader that the response names."""

    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class LeaderEndpoint(Struct):
    """A listener of the leader that sends the request."""

    name: str = string("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class VotePartition(Struct):
    """A candidate, with the end of its log.

    `pre_vote` is ours, because Kafka has it only in version 2 (KIP-996): the voter says whether it
    would vote for the candidate, without voting.
    """

    partition_index: int = int32("0+")
    candidate_epoch: int = int32("0+")
    candidate_id: int = int32("0+")
    candidate_directory_id: bytes = uuid("1+")
    voter_directory_id: bytes = uuid("1+")
    last_offset_epoch: int = int32("0+")
    last_offset: int = int64("0+")
    pre_vote: bool = boolean("0+", tag=OWN_TAG)


class VoteTopic(Struct):
    """The partitions of one topic. The quorum has only one topic, with one partition."""

    topic_name: str = string("0+")
    partitions: list[VotePartition] = array(VotePartition, "0+")


class VoteRequest(Message, versions="0-1", flexible_from=0):
    """A controller asks for votes, to lead the quorum."""

    __response__: ClassVar[VoteResponse]
    cluster_id: str | None = string("0+", nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1)
    topics: list[VoteTopic] = array(VoteTopic, "0+")


class VotePartitionResult(Struct):
    """Whether the vote is granted, and the leader and epoch that the voter knows."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    vote_granted: bool = boolean("0+")


class VoteTopicResult(Struct):
    """The votes for one topic."""

    topic_name: str = string("0+")
    partitions: list[VotePartitionResult] = array(VotePartitionResult, "0+")


class VoteResponse(Message, versions="0-1", flexible_from=0):
    """The vote. Errors: INCONSISTENT_CLUSTER_ID, CLUSTER_AUTHORIZATION_FAILED."""

    error_code: int = int16("0+")
    topics: list[VoteTopicResult] = array(VoteTopicResult, "0+")
    node_endpoints: list[VoteNodeEndpoint] = array(VoteNodeEndpoint, "1+", tag=0)


class BeginEpochPartition(Struct):
    """The leader of an epoch."""

    partition_index: int = int32("0+")
    voter_directory_id: bytes = uuid("1+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class BeginEpochTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[BeginEpochPartition] = array(BeginEpochPartition, "0+")


class BeginQuorumEpochRequest(Message, versions="0-1", flexible_from=1):
    """A controller announces that it leads a new epoch."""

    __response__: ClassVar[BeginQuorumEpochResponse]
    cluster_id: str | None = string("0+", nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1)
    topics: list[BeginEpochTopic] = array(BeginEpochTopic, "0+")
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, "1+")


class EpochPartitionResult(Struct):
    """The leader and epoch that the voter knows. Errors: FENCED_LEADER_EPOCH."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class EpochTopicResult(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[EpochPartitionResult] = array(EpochPartitionResult, "0+")


class BeginQuorumEpochResponse(Message, versions="0-1", flexible_from=1):
    """The acknowledgement. Errors: INCONSISTENT_CLUSTER_ID, CLUSTER_AUTHORIZATION_FAILED."""

    error_code: int = int16("0+")
    topics: list[EpochTopicResult] = array(EpochTopicResult, "0+")
    node_endpoints: list[VoteNodeEndpoint] = array(VoteNodeEndpoint, "1+", tag=0)


class PreferredCandidate(Struct):
    """A voter that should become the next leader."""

    candidate_id: int = int32("1+")
    candidate_directory_id: bytes = uuid("1+")


class EndEpochPartition(Struct):
    """The leader that resigns, and the voters that should become candidates first."""

    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    # Version 1 adds directory ids: a voter with another disk is another candidate (KIP-853).
    preferred_successors: list[int] = int32_array("0")
    preferred_candidates: list[PreferredCandidate] = array(PreferredCandidate, "1+")


class EndEpochTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[EndEpochPartition] = array(EndEpochPartition, "0+")


class EndQuorumEpochRequest(Message, versions="0-1", flexible_from=1):
    """A leader resigns, so that the voters need not wait until it times out."""

    __response__: ClassVar[EndQuorumEpochResponse]
    cluster_id: str | None = string("0+", nullable="0+", default=None)
    topics: list[EndEpochTopic] = array(EndEpochTopic, "0+")
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, "1+")


class EndQuorumEpochResponse(Message, versions="0-1", flexible_from=1):
    """The acknowledgement. Errors: INCONSISTENT_CLUSTER_ID, CLUSTER_AUTHORIZATION_FAILED."""

    error_code: int = int16("0+")
    topics: list[EpochTopicResult] = array(EpochTopicResult, "0+")
    node_endpoints: list[VoteNodeEndpoint] = array(VoteNodeEndpoint, "1+", tag=0)


class DescribeQuorumPartition(Struct):
    """A partition to describe."""

    partition_index: int = int32("0+")


class DescribeQuorumTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[DescribeQuorumPartition] = array(DescribeQuorumPartition, "0+")


class DescribeQuorumRequest(Message, versions="0-2", flexible_from=0):
    """Ask how far each replica of the metadata log is."""

    __response__: ClassVar[DescribeQuorumResponse]
    topics: list[DescribeQuorumTopic] = array(DescribeQuorumTopic, "0+")


class QuorumReplicaState(Struct):
    """How far one replica is. Times are those of the leader's wall clock, -1 if unknown."""

    replica_id: int = int32("0+")
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64("0+")
    last_fetch_timestamp: int = int64("1+", default=-1)
    last_caught_up_timestamp: int = int64("1+", default=-1)
    is_rejoining: bool = boolean("0+", tag=OWN_TAG)
    """Whether it is a voter that must not vote yet, because its disk was replaced or damaged."""


class DescribedQuorum(Struct):
    """The quorum as its leader sees it. Errors: NOT_LEADER_OR_FOLLOWER."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", default=None)
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    high_watermark: int = int64("0+")
    current_voters: list[QuorumReplicaState] = array(QuorumReplicaState, "0+")
    observers: list[QuorumReplicaState] = array(QuorumReplicaState, "0+")


class DescribedQuorumTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[DescribedQuorum] = array(DescribedQuorum, "0+")


class QuorumListener(Struct):
    """A listener of a controller."""

    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class QuorumNode(Struct):
    """A controller."""

    node_id: int = int32("2+")
    listeners: list[QuorumListener] = array(QuorumListener, "2+")


class DescribeQuorumResponse(Message, versions="0-2", flexible_from=0):
    """How far each replica of the metadata log is."""

    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", default=None)
    topics: list[DescribedQuorumTopic] = array(DescribedQuorumTopic, "0+")
    nodes: list[QuorumNode] = array(QuorumNode, "2+")


class FetchedSnapshotId(Struct):
    """A snapshot: the state after all records before `end_offset`."""

    end_offset: int = int64("0+")
    epoch: int = int32("0+")


class PartitionSnapshot(Struct):
    """A snapshot, and the position in bytes to read it from."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("0+")
    snapshot_id: FetchedSnapshotId = struct(FetchedSnapshotId, "0+")
    position: int = int64("0+")
    replica_directory_id: bytes = uuid("1+")


class TopicSnapshot(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[PartitionSnapshot] = array(PartitionSnapshot, "0+")


class FetchSnapshotRequest(Message, versions="0-0", flexible_from=0):
    """Read bytes of a snapshot."""

    __response__: ClassVar[FetchSnapshotResponse]
    cluster_id: str | None = string("0+", nullable="0+", default=None, tag=0)
    replica_id: int = int32("0+", default=-1)
    max_bytes: int = int32("0+", default=0x7FFFFFFF)
    topics: list[TopicSnapshot] = array(TopicSnapshot, "0+")


class SnapshotLeader(Struct):
    """The present leader of the quorum."""

    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class PartitionSnapshotResult(Struct):
    """Bytes of a snapshot.

    Errors: SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER,
    FENCED_LEADER_EPOCH.
    """

    index: int = int32("0+")
    error_code: int = int16("0+")
    snapshot_id: FetchedSnapshotId = struct(FetchedSnapshotId, "0+")
    current_leader: SnapshotLeader | None = struct(SnapshotLeader, "0+", tag=0)
    size: int = int64("0+")
    position: int = int64("0+")
    # Unaligned: a piece may begin and end within a batch, as `max_bytes` cuts the file anywhere.
    unaligned_records: Records | None = record_batches("0+", nullable="none")


class TopicSnapshotResult(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[PartitionSnapshotResult] = array(PartitionSnapshotResult, "0+")


class FetchSnapshotResponse(Message, versions="0-0", flexible_from=0):
    """Bytes of a snapshot. Errors: INCONSISTENT_CLUSTER_ID."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[TopicSnapshotResult] = array(TopicSnapshotResult, "0+")


# ---- control records of the metadata log and of snapshots ----


class QuorumVoter(Struct):
    """A voter of the quorum."""

    voter_id: int = int32("0+")
    voter_directory_id: bytes = uuid("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible_from=0):
    """Control record: the first entry of a leader in its epoch."""

    # Kafka repeats the version of a control record in its value.
    version: int = int16("0+")
    leader_id: int = int32("0+")
    voters: list[QuorumVoter] = array(QuorumVoter, "0+")
    # The voters that voted for this leader.
    granting_voters: list[QuorumVoter] = array(QuorumVoter, "0+")


class SnapshotHeaderRecord(Message, versions="0-0", flexible_from=0):
    """Control record: the first of a snapshot."""

    version: int = int16("0+")
    last_contained_log_timestamp: int = int64("0+")


class SnapshotFooterRecord(Message, versions="0-0", flexible_from=0):
    """Control record: the last of a snapshot. Without it, the snapshot is incomplete."""

    version: int = int16("0+")
