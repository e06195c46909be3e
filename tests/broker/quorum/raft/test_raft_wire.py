from __future__ import annotations

import pytest

from streamlog.broker.quorum.raft import raft_messages as raft
from streamlog.broker.quorum.raft.log_entries import encode_entry
from streamlog.broker.quorum.raft.raft_messages import RaftError, RaftSnapshotId
from streamlog.broker.quorum.raft.raft_wire import (
    about_quorum,
    request_of_wire,
    request_to_wire,
    response_of_wire,
    response_to_wire,
)
from streamlog.errors import CorruptData
from streamlog.protocol.codec import decode, encode
from streamlog.protocol.messages import produce_and_fetch, quorum_messages
from streamlog.protocol.schema import Message

VOTE = raft.RaftVoteRequest(epoch=4, candidate_id=2, last_epoch=3, last_offset=99, pre_vote=True)
FETCH = raft.RaftFetchRequest(
    epoch=4, replica_id=0, offset=9, last_epoch=3, high_watermark=8, rejoin_id=1 << 60
)
SNAPSHOT = raft.SnapshotRequest(epoch=4, replica_id=2, snapshot=RaftSnapshotId(50, 3), position=7)
REQUESTS = [
    VOTE,
    raft.BeginEpochRequest(epoch=4, leader_id=1),
    raft.EndEpochRequest(epoch=4, leader_id=1, successors=(3, 2)),
    FETCH,
    SNAPSHOT,
]
ENTRIES = (
    encode_entry([b"x", b"y"], base_offset=9, epoch=3, wall_ms=5),
    encode_entry([b"z"], base_offset=11, epoch=4, wall_ms=5),
)
KNOWN = raft.EpochResponse(refusal=RaftError.FENCED_EPOCH, epoch=5, leader_id=None)
FETCHED = raft.RaftFetchResponse(epoch=4, leader_id=1, high_watermark=11)
RESPONSES: list[tuple[raft.Request, raft.Response]] = [
    (VOTE, raft.RaftVoteResponse(epoch=4, leader_id=0, granted=True)),
    (VOTE, raft.RaftVoteResponse(epoch=4, leader_id=None, granted=False)),
    (REQUESTS[1], KNOWN),
    (REQUESTS[2], raft.EpochResponse(refusal=None, epoch=5, leader_id=0)),
    (FETCH, FETCHED),
    (FETCH, raft.RaftFetchResponse(epoch=4, leader_id=1, high_watermark=9, entries=ENTRIES)),
    (FETCH, raft.RaftFetchResponse(epoch=4, leader_id=1, high_watermark=9, diverging=(0, 0))),
    (FETCH, raft.RaftFetchResponse(epoch=4, leader_id=1, snapshot=RaftSnapshotId(50, 3))),
    (FETCH, raft.RaftFetchResponse(epoch=4, leader_id=1, rejoined=True)),
    *((FETCH, raft.RaftFetchResponse(epoch=4, leader_id=None, refusal=why)) for why in RaftError),
    (
        SNAPSHOT,
        raft.SnapshotResponse(
            epoch=4,
            leader_id=1,
            snapshot=RaftSnapshotId(50, 3),
            size_bytes=9,
            position=7,
            data=b"ab",
        ),
    ),
]


def over_wire(message: Message) -> Message:
    version = message.__versions__.last
    return decode(type(message), version, encode(message, version))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda it: type(it).__name__)
def test_a_request_arrives_as_it_was(request_: raft.Request) -> None:
    sent = over_wire(request_to_wire(request_, cluster_id="c", to=2, wait_ms=100))
    assert request_of_wire(sent) == request_  # type: ignore[arg-type]
    assert sent.cluster_id == "c"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "response"), RESPONSES, ids=[str(i) for i in range(len(RESPONSES))]
)
def test_a_response_arrives_as_it_was(asked: raft.Request, response: raft.Response) -> None:
    request = request_to_wire(asked, cluster_id="c", to=2, wait_ms=100)
    assert response_of_wire(over_wire(response_to_wire(request, response))) == response


def test_the_log_is_asked_for_by_name_or_id() -> None:
    fetch = request_to_wire(FETCH, cluster_id="c", to=2, wait_ms=100)
    assert isinstance(fetch, produce_and_fetch.FetchRequest)
    assert about_quorum(fetch)
    assert about_quorum(decode(produce_and_fetch.FetchRequest, 12, encode(fetch, 12)))
    assert not about_quorum(
        produce_and_fetch.FetchRequest(topics=[produce_and_fetch.FetchTopic(topic="other")])
    )


def test_what_is_about_nothing_is_refused() -> None:
    with pytest.raises(CorruptData, match="VoteRequest is not about one partition"):
        request_of_wire(quorum_messages.VoteRequest())
    with pytest.raises(CorruptData, match="with error 42 says nothing"):
        response_of_wire(quorum_messages.VoteResponse(error_code=42))
    with pytest.raises(CorruptData, match="it is of another cluster"):
        response_of_wire(quorum_messages.VoteResponse(error_code=104))
