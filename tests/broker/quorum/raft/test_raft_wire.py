from __future__ import annotations

import pytest

from streamlog.broker.quorum.raft import raft_messages as raft
from streamlog.broker.quorum.raft.log_entries import encode_entry
from streamlog.broker.quorum.raft.raft_messages import RaftSnapshotId
from streamlog.broker.quorum.raft.raft_wire import (
    FORMS,
    UNUSED,
    WireForm,
    about_quorum,
    request_of_wire,
    request_to_wire,
    response_of_wire,
    response_to_wire,
)
from streamlog.broker.replication.replica_state import Diverging
from streamlog.errors import CorruptData
from streamlog.protocol.codec import decode, encode
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import produce_and_fetch, quorum_messages
from streamlog.protocol.schema import Message

REFUSALS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.SNAPSHOT_NOT_FOUND,
    ErrorCode.POSITION_OUT_OF_RANGE,
)
VOTE = raft.RaftVoteRequest(
    candidate_epoch=4, candidate_id=2, last_offset_epoch=3, last_offset=99, pre_vote=True
)
FETCH = raft.RaftFetchRequest(
    current_leader_epoch=4,
    replica_id=0,
    fetch_offset=9,
    last_fetched_epoch=3,
    known_high_watermark=8,
    rejoin_id=1 << 60,
)
SNAPSHOT = raft.SnapshotRequest(
    current_leader_epoch=4, replica_id=2, snapshot_id=RaftSnapshotId(50, 3), position=7
)
REQUESTS = [
    VOTE,
    raft.BeginEpochRequest(leader_epoch=4, leader_id=1),
    raft.EndEpochRequest(leader_epoch=4, leader_id=1, preferred_successors=(3, 2)),
    FETCH,
    SNAPSHOT,
]
ENTRIES = (
    encode_entry([b"x", b"y"], base_offset=9, epoch=3, wall_ms=5),
    encode_entry([b"z"], base_offset=11, epoch=4, wall_ms=5),
)
KNOWN = raft.EpochResponse(error_code=ErrorCode.FENCED_LEADER_EPOCH, leader_epoch=5, leader_id=None)
FETCHED = raft.RaftFetchResponse(leader_epoch=4, leader_id=1, high_watermark=11)
RESPONSES: list[tuple[raft.Request, raft.Response]] = [
    (VOTE, raft.RaftVoteResponse(leader_epoch=4, leader_id=0, vote_granted=True)),
    (VOTE, raft.RaftVoteResponse(leader_epoch=4, leader_id=None, vote_granted=False)),
    (REQUESTS[1], KNOWN),
    (REQUESTS[2], raft.EpochResponse(leader_epoch=5, leader_id=0)),
    (FETCH, FETCHED),
    (FETCH, raft.RaftFetchResponse(leader_epoch=4, leader_id=1, high_watermark=9, entries=ENTRIES)),
    (
        FETCH,
        raft.RaftFetchResponse(
            leader_epoch=4, leader_id=1, high_watermark=9, diverging_epoch=Diverging(0, 0)
        ),
    ),
    (FETCH, raft.RaftFetchResponse(leader_epoch=4, leader_id=1, snapshot_id=RaftSnapshotId(50, 3))),
    (FETCH, raft.RaftFetchResponse(leader_epoch=4, leader_id=1, rejoined=True)),
    *(
        (FETCH, raft.RaftFetchResponse(leader_epoch=4, leader_id=None, error_code=why))
        for why in REFUSALS
    ),
    (
        SNAPSHOT,
        raft.SnapshotResponse(
            leader_epoch=4,
            leader_id=1,
            snapshot_id=RaftSnapshotId(50, 3),
            size=9,
            position=7,
            unaligned_records=b"ab",
        ),
    ),
]


def over_wire(message: Message) -> Message:
    version = message.__versions__.last
    return decode(type(message), version, encode(message, version))


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda it: type(it).__name__)
def test_requests_round_trip_over_the_wire(request_: raft.Request) -> None:
    sent = over_wire(request_to_wire(request_, cluster_id="c", to=2, wait_ms=100))
    assert request_of_wire(sent) == request_  # type: ignore[arg-type]
    assert sent.cluster_id == "c"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "response"), RESPONSES, ids=[str(i) for i in range(len(RESPONSES))]
)
def test_responses_round_trip_over_the_wire(asked: raft.Request, response: raft.Response) -> None:
    request = request_to_wire(asked, cluster_id="c", to=2, wait_ms=100)
    assert response_of_wire(over_wire(response_to_wire(request, response))) == response


def test_fetches_of_the_metadata_log_are_recognized_by_name_and_id() -> None:
    fetch = request_to_wire(FETCH, cluster_id="c", to=2, wait_ms=100)
    assert isinstance(fetch, produce_and_fetch.FetchRequest)
    assert about_quorum(fetch)
    assert about_quorum(decode(produce_and_fetch.FetchRequest, 12, encode(fetch, 12)))
    assert not about_quorum(
        produce_and_fetch.FetchRequest(topics=[produce_and_fetch.FetchTopic(topic="other")])
    )


def test_requests_and_responses_without_content_are_refused() -> None:
    with pytest.raises(CorruptData, match="VoteRequest does not name exactly one"):
        request_of_wire(quorum_messages.VoteRequest())
    with pytest.raises(CorruptData, match="with error 42 does not name"):
        response_of_wire(quorum_messages.VoteResponse(error_code=42))
    with pytest.raises(CorruptData, match="it belongs to another cluster"):
        response_of_wire(quorum_messages.VoteResponse(error_code=104))


def test_every_field_of_the_protocol_is_translated_or_listed_as_unused() -> None:
    assert {form.content for form in FORMS} == set(UNUSED)
    for form in FORMS:
        assert form.unused == UNUSED[form.content], form.message.__name__


def test_a_field_that_the_protocol_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match=r"RaftVoteRequest\.candidate_epoch has no field in Fetch"):
        WireForm(produce_and_fetch.FetchRequest, raft.RaftVoteRequest)


def test_a_response_without_a_leader_decodes_as_no_leader() -> None:
    partition = produce_and_fetch.PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    topic = produce_and_fetch.FetchableTopicResponse(partitions=[partition])
    fetched = response_of_wire(produce_and_fetch.FetchResponse(responses=[topic]))
    assert fetched == raft.RaftFetchResponse(
        leader_epoch=-1,
        leader_id=None,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        high_watermark=0,
    )
    part = quorum_messages.PartitionSnapshotResult(error_code=ErrorCode.SNAPSHOT_NOT_FOUND)
    part.snapshot_id = quorum_messages.FetchedSnapshotId(end_offset=3, epoch=1)
    answer = quorum_messages.FetchSnapshotResponse(
        topics=[quorum_messages.TopicSnapshotResult(partitions=[part])]
    )
    assert response_of_wire(answer) == raft.SnapshotResponse(
        leader_epoch=0,
        leader_id=None,
        error_code=ErrorCode.SNAPSHOT_NOT_FOUND,
        snapshot_id=RaftSnapshotId(3, 1),
    )
