"""Deliveries: which of `Raft`'s methods a message goes to."""

from __future__ import annotations

from streamlog.broker.quorum.raft import Raft
from streamlog.broker.quorum.raft_messages import (
    BeginEpochRequest,
    Effect,
    EndEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    Send,
    SnapshotRequest,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)


def deliver_request(raft: Raft, request: Request, ticket: int, now_ms: int) -> list[Effect]:
    """Another member asks; the reply will have the same ticket."""
    match request:
        case VoteRequest():
            return raft.on_vote_request(request, ticket, now_ms)
        case BeginEpochRequest():
            return raft.on_begin_epoch(request, ticket, now_ms)
        case EndEpochRequest():
            return raft.on_end_epoch(request, ticket, now_ms)
        case FetchRequest():
            return raft.on_fetch(request, ticket, now_ms)
        case SnapshotRequest():
            return raft.on_snapshot_request(request, ticket, now_ms)


def deliver_response(raft: Raft, sent: Send, response: Response, now_ms: int) -> list[Effect]:
    """What was sent has been answered."""
    to, request_id = sent.to, sent.request_id
    match response:
        case VoteResponse():
            return raft.on_vote_response(to, request_id, response, now_ms)
        case EpochResponse():
            return raft.on_epoch_response(to, request_id, response, now_ms)
        case FetchResponse():
            return raft.on_fetched(to, request_id, response, now_ms)
        case SnapshotResponse():
            return raft.on_snapshot_response(to, request_id, response, now_ms)
