"""What the controllers' quorum says to itself: Vote, Begin- and EndQuorumEpoch, snapshots.

Declarations only, see `schema`; field by field they are Kafka's own (KIP-595, 630, 836), which a
test checks, but for those under `OWN_TAG`. Entries go by Fetch, see `data`. With them stand the
control records of the log and of snapshots.
"""

from __future__ import annotations

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
    """Where a leader named in the same response is reached."""

    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class LeaderEndpoint(Struct):
    """Where the leader that asks is reached."""

    name: str = string("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class VotePartition(Struct):
    """A candidate, and how far its log reaches.

    `pre_vote` is ours here, as versions up to 1 have no such field: would you (KIP-996)?
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
    """Partitions of one topic; there is but one of both."""

    topic_name: str = string("0+")
    partitions: list[VotePartition] = array(VotePartition, "0+")


class VoteRequest(Message, versions="0-1", flexible_from=0):
    """A controller wants to lead the quorum."""

    cluster_id: str | None = string("0+", nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1)
    topics: list[VoteTopic] = array(VoteTopic, "0+")


class VotePartitionResult(Struct):
    """Yes or no, and what the voter knows."""

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
    """A vote. Errors: INCONSISTENT_CLUSTER_ID, CLUSTER_AUTHORIZATION_FAILED."""

    error_code: int = int16("0+")
    topics: list[VoteTopicResult] = array(VoteTopicResult, "0+")
    node_endpoints: list[VoteNodeEndpoint] = array(VoteNodeEndpoint, "1+", tag=0)


class BeginEpochPartition(Struct):
    """Who leads which epoch."""

    partition_index: int = int32("0+")
    voter_directory_id: bytes = uuid("1+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class BeginEpochTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[BeginEpochPartition] = array(BeginEpochPartition, "0+")


class BeginQuorumEpochRequest(Message, versions="0-1", flexible_from=1):
    """A controller says that it leads."""

    cluster_id: str | None = string("0+", nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1)
    topics: list[BeginEpochTopic] = array(BeginEpochTopic, "0+")
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, "1+")


class EpochPartitionResult(Struct):
    """What the voter knows. Errors: FENCED_LEADER_EPOCH."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class EpochTopicResult(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[EpochPartitionResult] = array(EpochPartitionResult, "0+")


class BeginQuorumEpochResponse(Message, versions="0-1", flexible_from=1):
    """Heard. Errors: INCONSISTENT_CLUSTER_ID, CLUSTER_AUTHORIZATION_FAILED."""

    error_code: int = int16("0+")
    topics: list[EpochTopicResult] = array(EpochTopicResult, "0+")
    node_endpoints: list[VoteNodeEndpoint] = array(VoteNodeEndpoint, "1+", tag=0)


class PreferredCandidate(Struct):
    """A voter that should lead next."""

    candidate_id: int = int32("1+")
    candidate_directory_id: bytes = uuid("1+")


class EndEpochPartition(Struct):
    """Who leads no longer, and who should try first."""

    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    preferred_successors: list[int] = int32_array("0")
    preferred_candidates: list[PreferredCandidate] = array(PreferredCandidate, "1+")


class EndEpochTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[EndEpochPartition] = array(EndEpochPartition, "0+")


class EndQuorumEpochRequest(Message, versions="0-1", flexible_from=1):
    """A controller resigns: nobody needs to wait for its silence."""

    cluster_id: str | None = string("0+", nullable="0+", default=None)
    topics: list[EndEpochTopic] = array(EndEpochTopic, "0+")
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, "1+")


class EndQuorumEpochResponse(Message, versions="0-1", flexible_from=1):
    """Heard. Errors: INCONSISTENT_CLUSTER_ID, CLUSTER_AUTHORIZATION_FAILED."""

    error_code: int = int16("0+")
    topics: list[EpochTopicResult] = array(EpochTopicResult, "0+")
    node_endpoints: list[VoteNodeEndpoint] = array(VoteNodeEndpoint, "1+", tag=0)


class DescribeQuorumPartition(Struct):
    """A partition to look at."""

    partition_index: int = int32("0+")


class DescribeQuorumTopic(Struct):
    """Partitions of one topic."""

    topic_name: str = string("0+")
    partitions: list[DescribeQuorumPartition] = array(DescribeQuorumPartition, "0+")


class DescribeQuorumRequest(Message, versions="0-2", flexible_from=0):
    """How far is everybody in the metadata log?"""

    topics: list[DescribeQuorumTopic] = array(DescribeQuorumTopic, "0+")


class QuorumReplicaState(Struct):
    """How far one replica is; times are by the leader's wall clock, -1 if it does not know."""

    replica_id: int = int32("0+")
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64("0+")
    last_fetch_timestamp: int = int64("1+", default=-1)
    last_caught_up_timestamp: int = int64("1+", default=-1)
    is_rejoining: bool = boolean("0+", tag=OWN_TAG)
    """Whether it is a voter that does not vote: its disk was replaced or damaged."""


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
    """Where a controller is reached."""

    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class QuorumNode(Struct):
    """A controller."""

    node_id: int = int32("2+")
    listeners: list[QuorumListener] = array(QuorumListener, "2+")


class DescribeQuorumResponse(Message, versions="0-2", flexible_from=0):
    """How far everybody is."""

    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", default=None)
    topics: list[DescribedQuorumTopic] = array(DescribedQuorumTopic, "0+")
    nodes: list[QuorumNode] = array(QuorumNode, "2+")


class FetchedSnapshotId(Struct):
    """Which snapshot: what all records before `end_offset` amount to."""

    end_offset: int = int64("0+")
    epoch: int = int32("0+")


class PartitionSnapshot(Struct):
    """From where to read which snapshot."""

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

    cluster_id: str | None = string("0+", nullable="0+", default=None, tag=0)
    replica_id: int = int32("0+", default=-1)
    max_bytes: int = int32("0+", default=0x7FFFFFFF)
    topics: list[TopicSnapshot] = array(TopicSnapshot, "0+")


class SnapshotLeader(Struct):
    """Who leads the quorum now."""

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


class QuorumVoter(Struct):
    """A voter of the quorum."""

    voter_id: int = int32("0+")
    voter_directory_id: bytes = uuid("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible_from=0):
    """A leader's first entry of its epoch, in a control record."""

    version: int = int16("0+")
    leader_id: int = int32("0+")
    voters: list[QuorumVoter] = array(QuorumVoter, "0+")
    granting_voters: list[QuorumVoter] = array(QuorumVoter, "0+")


class SnapshotHeaderRecord(Message, versions="0-0", flexible_from=0):
    """How a snapshot begins, in a control record."""

    version: int = int16("0+")
    last_contained_log_timestamp: int = int64("0+")


class SnapshotFooterRecord(Message, versions="0-0", flexible_from=0):
    """How a whole snapshot ends, in a control record."""

    version: int = int16("0+")
