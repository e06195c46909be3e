"""QuorumRequests: requests between members of the controller quorum, and DescribeQuorum.

    Vote 52 (KIP-595, 996)  BeginQuorumEpoch 53  EndQuorumEpoch 54  DescribeQuorum 55 (KIP-836)
    FetchSnapshot 59 (KIP-630); records go by Fetch, see `about_quorum`

A request of another cluster, or an invalid one, gets an error response; a member whose disk has
failed does not respond.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeAlias

from streamlog.broker.handlers import Handlers, shared_entry
from streamlog.broker.quorum.raft.raft_wire import METADATA_TOPIC, Asked
from streamlog.errors import CorruptData, LogDirectoryError, LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_response
from streamlog.protocol.messages.quorum_messages import (
    BeginQuorumEpochRequest,
    DescribedQuorum,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    QuorumReplicaState,
    VoteRequest,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.quorum.raft.raft_machine import QuorumView, ReplicaView

Answer: TypeAlias = Message | asyncio.Future[Message]


class QuorumMemberPort(Protocol):
    """Port: the member of the quorum in this process."""

    def handle(self, request: Asked) -> asyncio.Future[Message]:
        """Handle a request of another member; return the future of the response."""
        ...

    def replicas(self) -> QuorumView:
        """Return how far each replica of the metadata log is."""
        ...


class QuorumRequests:
    """Handles requests for the member of the quorum in this process."""

    def __init__(self, member: QuorumMemberPort) -> None:
        self._member = member

    def handlers(self) -> Handlers:
        """Return the handlers of quorum requests; `describe` serves every client."""
        return dict(
            [
                shared_entry(VoteRequest, lambda request, _: self.ask(request)),
                shared_entry(BeginQuorumEpochRequest, lambda request, _: self.ask(request)),
                shared_entry(EndQuorumEpochRequest, lambda request, _: self.ask(request)),
                shared_entry(FetchSnapshotRequest, lambda request, _: self.ask(request)),
            ]
        )

    def ask(self, request: Asked) -> Answer:
        """Handle a request of another member, which may be a Fetch of the metadata log.

        Raises:
            StreamlogError: this member has failed.
        """
        try:
            return self._member.handle(request)
        except CorruptData:
            return error_response(request, ErrorCode.INVALID_REQUEST)
        except LogError as error:
            return error_response(request, error.code)
        except LogDirectoryError:
            return error_response(request, ErrorCode.KAFKA_STORAGE_ERROR)

    def describe(self, request: DescribeQuorumRequest, _: int = 0) -> DescribeQuorumResponse:
        """Return how far voters and observers are in the metadata log; only its leader knows."""
        return DescribeQuorumResponse(
            topics=[
                DescribedQuorumTopic(
                    topic_name=topic.topic_name,
                    partitions=[
                        self._described(topic.topic_name, each.partition_index)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _described(self, topic: str, partition: int) -> DescribedQuorum:
        if topic != METADATA_TOPIC or partition != 0:
            return DescribedQuorum(
                partition_index=partition,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=f"the only quorum is that of {METADATA_TOPIC}-0",
            )
        view = self._member.replicas()
        leader = -1 if view.leader_id is None else view.leader_id
        described = DescribedQuorum(leader_id=leader, leader_epoch=view.epoch)
        if not view.is_leader:
            described.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            described.error_message = (
                "the quorum has no leader at present"
                if leader < 0
                else f"only the leader of the quorum knows its state: ask node {leader}"
            )
            described.high_watermark = -1
            return described
        described.error_message = None
        described.high_watermark = view.high_watermark
        described.current_voters = [_state(each) for each in view.voters]
        described.observers = [_state(each) for each in view.observers]
        return described


def _state(view: ReplicaView) -> QuorumReplicaState:
    unknown = -1
    return QuorumReplicaState(
        replica_id=view.node_id,
        log_end_offset=view.end_offset,
        last_fetch_timestamp=unknown if view.fetched_wall_ms is None else view.fetched_wall_ms,
        last_caught_up_timestamp=unknown
        if view.caught_up_wall_ms is None
        else view.caught_up_wall_ms,
        is_rejoining=view.is_rejoining,
    )
