"""The quorum's messages in the protocol's structs, and back.

Kafka's requests name topics and partitions, as if there were several; there is one, partition 0
of `__cluster_metadata`. What is not about that is none of the quorum's: `about_quorum` asks.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from streamlog.broker.quorum.raft import raft_messages as raft
from streamlog.broker.quorum.raft.log_entries import entries_of
from streamlog.broker.quorum.raft.raft_messages import RaftError
from streamlog.errors import CorruptData
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import produce_and_fetch, quorum_messages
from streamlog.protocol.schema import Message, Piece, Records

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
"""Kafka's, for ever."""
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of entries in one response; the first one goes whole."""
SNAPSHOT_BYTES_MAX: Final = 1024 * 1024
"""Of a snapshot in one response."""

_CODES: Final = {
    RaftError.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    RaftError.FENCED_EPOCH: ErrorCode.FENCED_LEADER_EPOCH,
    RaftError.UNKNOWN_EPOCH: ErrorCode.UNKNOWN_LEADER_EPOCH,
    RaftError.UNKNOWN_SNAPSHOT: ErrorCode.SNAPSHOT_NOT_FOUND,
    RaftError.POSITION_OUT_OF_RANGE: ErrorCode.POSITION_OUT_OF_RANGE,
}
_REFUSALS: Final[dict[int, RaftError]] = {code: refusal for refusal, code in _CODES.items()}

_HINTS: Final[dict[int, str]] = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "it is of another cluster than this one: is that its address"
    " in controller.quorum.voters, and is this the data directory that is meant?",
    ErrorCode.INVALID_VOTER_KEY: "it is another node: its address stands for this number in"
    " controller.quorum.voters",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "it does not take this one for a node: who nodes are to"
    " each other needs CLUSTER_ACTION, as super.users have",
}
"""What to look at when a node does not answer."""

Asked: TypeAlias = (
    quorum_messages.VoteRequest
    | quorum_messages.BeginQuorumEpochRequest
    | quorum_messages.EndQuorumEpochRequest
    | quorum_messages.FetchSnapshotRequest
    | produce_and_fetch.FetchRequest
)
"""Requests of one member to another."""


def about_quorum(request: produce_and_fetch.FetchRequest) -> bool:
    """Whether somebody follows the metadata log."""
    return len(request.topics) == 1 and (
        request.topics[0].topic == METADATA_TOPIC or request.topics[0].topic_id == METADATA_TOPIC_ID
    )


# ---- requests ----


def request_to_wire(request: raft.Request, *, cluster_id: str, to: int, wait_ms: int) -> Asked:
    """What goes to node `to`."""
    match request:
        case raft.RaftVoteRequest():
            return _vote(request, cluster_id, to)
        case raft.BeginEpochRequest():
            begin = quorum_messages.BeginEpochPartition(
                leader_id=request.leader_id, leader_epoch=request.epoch
            )
            begin_topic = quorum_messages.BeginEpochTopic(
                topic_name=METADATA_TOPIC, partitions=[begin]
            )
            return quorum_messages.BeginQuorumEpochRequest(
                cluster_id=cluster_id, voter_id=to, topics=[begin_topic]
            )
        case raft.EndEpochRequest():
            successors = [
                quorum_messages.PreferredCandidate(candidate_id=e) for e in request.successors
            ]
            end = quorum_messages.EndEpochPartition(
                leader_id=request.leader_id,
                leader_epoch=request.epoch,
                preferred_successors=list(request.successors),
                preferred_candidates=successors,
            )
            end_topic = quorum_messages.EndEpochTopic(topic_name=METADATA_TOPIC, partitions=[end])
            return quorum_messages.EndQuorumEpochRequest(cluster_id=cluster_id, topics=[end_topic])
        case raft.RaftFetchRequest():
            return _fetch(request, cluster_id, wait_ms)
        case raft.SnapshotRequest():
            return _fetch_snapshot(request, cluster_id)


def _vote(request: raft.RaftVoteRequest, cluster_id: str, to: int) -> quorum_messages.VoteRequest:
    vote = quorum_messages.VotePartition(
        candidate_epoch=request.epoch,
        candidate_id=request.candidate_id,
        last_offset_epoch=request.last_epoch,
        last_offset=request.last_offset,
        pre_vote=request.pre_vote,
    )
    topic = quorum_messages.VoteTopic(topic_name=METADATA_TOPIC, partitions=[vote])
    return quorum_messages.VoteRequest(cluster_id=cluster_id, voter_id=to, topics=[topic])


def _fetch(
    request: raft.RaftFetchRequest, cluster_id: str, wait_ms: int
) -> produce_and_fetch.FetchRequest:
    partition = produce_and_fetch.FetchPartition(
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        partition_max_bytes=FETCH_BYTES_MAX,
        known_high_watermark=request.high_watermark,
        rejoin_id=request.rejoin_id,
    )
    topic = produce_and_fetch.FetchTopic(
        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    return produce_and_fetch.FetchRequest(
        cluster_id=cluster_id,
        replica_id=request.replica_id,
        replica_state=produce_and_fetch.FetchingReplica(replica_id=request.replica_id),
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[topic],
    )


def _fetch_snapshot(
    request: raft.SnapshotRequest, cluster_id: str
) -> quorum_messages.FetchSnapshotRequest:
    partition = quorum_messages.PartitionSnapshot(
        current_leader_epoch=request.epoch,
        snapshot_id=quorum_messages.FetchedSnapshotId(
            end_offset=request.snapshot.end_offset, epoch=request.snapshot.epoch
        ),
        position=request.position,
    )
    topic = quorum_messages.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])
    return quorum_messages.FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=request.replica_id,
        max_bytes=SNAPSHOT_BYTES_MAX,
        topics=[topic],
    )


def request_of_wire(request: Asked) -> raft.Request:
    """What was asked.

    Raises:
        CorruptData: it is about nothing, or about several partitions.
    """
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        raise CorruptData(f"{type(request).__name__} is not about one partition")
    match request:
        case quorum_messages.VoteRequest():
            vote = request.topics[0].partitions[0]
            return raft.RaftVoteRequest(
                epoch=vote.candidate_epoch,
                candidate_id=vote.candidate_id,
                last_epoch=vote.last_offset_epoch,
                last_offset=vote.last_offset,
                pre_vote=vote.pre_vote,
            )
        case quorum_messages.BeginQuorumEpochRequest():
            begin = request.topics[0].partitions[0]
            return raft.BeginEpochRequest(epoch=begin.leader_epoch, leader_id=begin.leader_id)
        case quorum_messages.EndQuorumEpochRequest():
            end = request.topics[0].partitions[0]
            candidates = [each.candidate_id for each in end.preferred_candidates]
            return raft.EndEpochRequest(
                epoch=end.leader_epoch,
                leader_id=end.leader_id,
                successors=tuple(candidates or end.preferred_successors),
            )
        case produce_and_fetch.FetchRequest():
            return _fetch_of_wire(request)
        case quorum_messages.FetchSnapshotRequest():
            wanted = request.topics[0].partitions[0]
            return raft.SnapshotRequest(
                epoch=wanted.current_leader_epoch,
                replica_id=request.replica_id,
                snapshot=raft.RaftSnapshotId(
                    wanted.snapshot_id.end_offset, wanted.snapshot_id.epoch
                ),
                position=wanted.position,
            )


def _fetch_of_wire(request: produce_and_fetch.FetchRequest) -> raft.RaftFetchRequest:
    partition = request.topics[0].partitions[0]
    state = request.replica_state
    return raft.RaftFetchRequest(
        epoch=partition.current_leader_epoch,
        replica_id=request.replica_id if state is None else state.replica_id,
        offset=partition.fetch_offset,
        last_epoch=partition.last_fetched_epoch,
        high_watermark=partition.known_high_watermark,
        rejoin_id=partition.rejoin_id,
    )


# ---- responses ----


def response_to_wire(request: Asked, response: raft.Response) -> Message:
    """The answer to `request`."""
    match response:
        case raft.RaftVoteResponse():
            vote = quorum_messages.VotePartitionResult(
                leader_id=_number(response.leader_id),
                leader_epoch=response.epoch,
                vote_granted=response.granted,
            )
            topic = quorum_messages.VoteTopicResult(topic_name=METADATA_TOPIC, partitions=[vote])
            return quorum_messages.VoteResponse(topics=[topic])
        case raft.EpochResponse():
            epoch = quorum_messages.EpochPartitionResult(
                error_code=_code(response.refusal),
                leader_id=_number(response.leader_id),
                leader_epoch=response.epoch,
            )
            known = quorum_messages.EpochTopicResult(topic_name=METADATA_TOPIC, partitions=[epoch])
            if isinstance(request, quorum_messages.BeginQuorumEpochRequest):
                return quorum_messages.BeginQuorumEpochResponse(topics=[known])
            return quorum_messages.EndQuorumEpochResponse(topics=[known])
        case raft.RaftFetchResponse():
            return _fetched(response)
        case raft.SnapshotResponse():
            return _snapshot_fetched(response)


def _fetched(response: raft.RaftFetchResponse) -> produce_and_fetch.FetchResponse:
    diverging, snapshot = response.diverging, response.snapshot
    partition = produce_and_fetch.PartitionData(
        error_code=_code(response.refusal),
        high_watermark=response.high_watermark,
        current_leader=produce_and_fetch.LeaderIdAndEpoch(
            leader_id=_number(response.leader_id), leader_epoch=response.epoch
        ),
        diverging_epoch=None
        if diverging is None
        else produce_and_fetch.DivergingEpoch(epoch=diverging[0], end_offset=diverging[1]),
        snapshot_id=None
        if snapshot is None
        else produce_and_fetch.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        rejoined=response.rejoined,
        records=[entry.payload for entry in response.entries],
    )
    topic = produce_and_fetch.FetchableTopicResponse(
        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    return produce_and_fetch.FetchResponse(responses=[topic])


def _snapshot_fetched(response: raft.SnapshotResponse) -> quorum_messages.FetchSnapshotResponse:
    partition = quorum_messages.PartitionSnapshotResult(
        error_code=_code(response.refusal),
        snapshot_id=quorum_messages.FetchedSnapshotId(
            end_offset=response.snapshot.end_offset, epoch=response.snapshot.epoch
        ),
        current_leader=quorum_messages.SnapshotLeader(
            leader_id=_number(response.leader_id), leader_epoch=response.epoch
        ),
        size=response.size_bytes,
        position=response.position,
        unaligned_records=response.data,
    )
    topic = quorum_messages.TopicSnapshotResult(name=METADATA_TOPIC, partitions=[partition])
    return quorum_messages.FetchSnapshotResponse(topics=[topic])


def response_of_wire(response: Message) -> raft.Response:
    """What was answered.

    Raises:
        CorruptData: it is no answer to any of the quorum's requests, or its bytes have changed.
    """
    try:
        match response:
            case quorum_messages.VoteResponse():
                vote = response.topics[0].partitions[0]
                return raft.RaftVoteResponse(
                    epoch=vote.leader_epoch,
                    leader_id=_node(vote.leader_id),
                    granted=vote.vote_granted,
                )
            case (
                quorum_messages.BeginQuorumEpochResponse()
                | quorum_messages.EndQuorumEpochResponse()
            ):
                epoch = response.topics[0].partitions[0]
                return raft.EpochResponse(
                    refusal=_refusal(epoch.error_code),
                    epoch=epoch.leader_epoch,
                    leader_id=_node(epoch.leader_id),
                )
            case produce_and_fetch.FetchResponse():
                return _fetched_of_wire(response.responses[0].partitions[0])
            case quorum_messages.FetchSnapshotResponse():
                return _snapshot_of_wire(response.topics[0].partitions[0])
    except IndexError:
        code = getattr(response, "error_code", 0)
        if code in _HINTS:
            raise CorruptData(_HINTS[code]) from None
        raise CorruptData(
            f"{type(response).__name__} with error {code} says nothing about the metadata log"
        ) from None
    raise CorruptData(f"{type(response).__name__} is no answer of a quorum's member")


def _fetched_of_wire(partition: produce_and_fetch.PartitionData) -> raft.RaftFetchResponse:
    leader = partition.current_leader or produce_and_fetch.LeaderIdAndEpoch()
    diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
    return raft.RaftFetchResponse(
        epoch=leader.leader_epoch,
        leader_id=_node(leader.leader_id),
        refusal=_refusal(partition.error_code),
        high_watermark=partition.high_watermark,
        entries=tuple(entries_of(_whole(partition.records))),
        diverging=None if diverging is None else (diverging.epoch, diverging.end_offset),
        snapshot=None
        if snapshot is None
        else raft.RaftSnapshotId(snapshot.end_offset, snapshot.epoch),
        rejoined=partition.rejoined,
    )


def _snapshot_of_wire(partition: quorum_messages.PartitionSnapshotResult) -> raft.SnapshotResponse:
    leader = partition.current_leader or quorum_messages.SnapshotLeader(leader_id=-1)
    return raft.SnapshotResponse(
        epoch=leader.leader_epoch,
        leader_id=_node(leader.leader_id),
        refusal=_refusal(partition.error_code),
        snapshot=raft.RaftSnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
        size_bytes=partition.size,
        position=partition.position,
        data=_whole(partition.unaligned_records),
    )


def _whole(records: Records | None) -> bytes:
    if isinstance(records, list):
        return b"".join(records)
    return b"" if records is None else _bytes_of(records)


def _bytes_of(piece: Piece) -> bytes:
    return bytes(piece) if isinstance(piece, bytes | bytearray | memoryview) else piece.read()


def _number(node_id: int | None) -> int:
    return -1 if node_id is None else node_id


def _node(number: int) -> int | None:
    return None if number < 0 else number


def _code(refusal: RaftError | None) -> int:
    return ErrorCode.NONE if refusal is None else _CODES[refusal]


def _refusal(code: int) -> RaftError | None:
    """Codes that a member does not use mean that it would not help."""
    return None if code == ErrorCode.NONE else _REFUSALS.get(code, RaftError.NOT_LEADER)
