"""GroupMember: the rounds of the protocol, and every answer that interrupts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.assignors import RangeAssignor, TopicPartition
from streamlog.client.membership import (
    CountPartitions,
    GroupMember,
    GroupSettings,
    Heartbeat,
    Join,
    Phase,
    Sync,
    Wait,
)
from streamlog.errors import LogError
from streamlog.protocol import codec
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import coordination as wire

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
INTERRUPTIONS = [
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
]


def member() -> GroupMember:
    settings = GroupSettings(
        group_id="g", session_timeout_ms=300, heartbeat_interval_ms=100, rebalance_timeout_ms=500
    )
    return GroupMember(settings, RangeAssignor(), ["t"])


def joined(*members: str, leader: str = "me", generation: int = 1) -> wire.JoinGroupResponse:
    """What the coordinator says when all have joined; the first of them is told."""
    subscription = codec.encode_versioned(wire.ConsumerProtocolSubscription(topics=["t"]), 1)
    return wire.JoinGroupResponse(
        generation_id=generation,
        protocol_name="range",
        leader=leader,
        member_id=members[0],
        members=[
            wire.JoinGroupResponseMember(member_id=each, metadata=subscription)
            for each in (members if leader == members[0] else ())
        ],
    )


def synced(*partitions: TopicPartition) -> wire.SyncGroupResponse:
    numbers = [partition.partition for partition in partitions]
    assignment = wire.ConsumerProtocolAssignment(
        assigned_partitions=[wire.TopicPartition(topic="t", partitions=numbers)]
    )
    return wire.SyncGroupResponse(assignment=codec.encode_versioned(assignment, 0))


def stable(now_ms: int = 0) -> GroupMember:
    """A member, not the leader, that has t-0."""
    one = member()
    one.next(now_ms)
    one.on_join(joined("me", leader="other"), now_ms)
    one.next(now_ms)
    one.on_sync(synced(T0), now_ms)
    one.on_assigned()
    return one


def test_the_leader_joins_assigns_and_gets_its_part() -> None:
    one = member()
    assert isinstance(one.next(0), Join)
    one.on_join(wire.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"), 0)
    again = one.next(0)
    assert isinstance(again, Join)
    assert again.request.member_id == "me"
    one.on_join(joined("me", "you"), 0)
    assert one.next(0) == CountPartitions(frozenset({"t"}))
    one.on_partitions({"t": 2})
    sync = one.next(0)
    assert isinstance(sync, Sync)
    assert one.is_leader
    assert {each.member_id for each in sync.request.assignments} == {"me", "you"}
    one.on_sync(synced(T0), 0)
    assert one.offered == frozenset({T0})
    assert one.assignment == frozenset()
    assert one.on_assigned() == {T0}
    assert one.next(99) == Wait(100)
    assert isinstance(one.next(100), Heartbeat)


def test_who_does_not_lead_sends_no_assignment() -> None:
    one = member()
    one.next(0)
    one.on_join(joined("me", leader="other"), 0)
    sync = one.next(0)
    assert isinstance(sync, Sync)
    assert sync.request.assignments == []
    assert not one.is_leader


def test_what_is_owned_is_a_hint_for_the_assignor() -> None:
    one = stable()
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    one.on_revoked(0)
    join = one.next(0)
    assert isinstance(join, Join)
    told = codec.decode_versioned(
        wire.ConsumerProtocolSubscription, join.request.protocols[0].metadata
    )
    assert told.owned_partitions == [wire.TopicPartition(topic="t", partitions=[0])]


def test_a_rebalance_waits_for_the_owner_while_heartbeats_go_on() -> None:
    one = stable()
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 100)
    assert one.phase is Phase.REVOKING
    assert one.assignment == {T0}
    assert isinstance(one.next(200), Heartbeat)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 200)
    assert one.phase is Phase.REVOKING
    one.on_revoked(250)
    assert one.assignment == frozenset()
    join = one.next(250)
    assert isinstance(join, Join)
    assert join.request.member_id == "me"


def test_after_a_silence_it_is_not_sure_until_the_coordinator_speaks() -> None:
    one = stable()
    assert one.is_current(299)
    assert not one.is_current(300)
    one.on_heartbeat(wire.HeartbeatResponse(), 400)
    assert one.is_current(699)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR), 600)
    assert not one.is_current(700)


def test_a_part_that_was_never_taken_over_is_dropped_without_asking() -> None:
    one = member()
    one.next(0)
    one.on_join(joined("me", leader="other"), 0)
    one.next(0)
    one.on_sync(synced(T0, T1), 0)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    assert one.offered is None
    assert one.phase is Phase.UNJOINED


def test_a_forgotten_member_joins_as_a_new_one() -> None:
    one = stable()
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 0)
    assert one.phase is Phase.REVOKING
    assert one.member_id == ""
    one.on_revoked(0)
    join = one.next(0)
    assert isinstance(join, Join)
    assert join.request.member_id == ""


def test_a_lost_coordinator_costs_a_stable_member_nothing() -> None:
    one = stable()
    one.on_coordinator_lost(50)
    assert one.phase is Phase.STABLE
    assert one.coordinator_lost
    one.on_coordinator_found()
    assert isinstance(one.next(150), Heartbeat)


def test_a_lost_coordinator_ends_a_join() -> None:
    one = member()
    one.next(0)
    one.on_coordinator_lost(0)
    assert one.next(0) == Wait(100)
    assert isinstance(one.next(100), Join)


def test_leaving_names_the_member_and_is_the_end() -> None:
    one = stable()
    request = one.leave()
    assert request is not None
    assert (request.member_id, request.members[0].member_id) == ("me", "me")
    assert one.next(1_000) == Wait(None)
    assert member().leave() is None


def test_a_refusal_says_what_may_be_wrong() -> None:
    one = member()
    one.next(0)
    refusal = wire.JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    with pytest.raises(LogError, match="another assignor"):
        one.on_join(refusal, 0)


def test_it_prints_itself() -> None:
    assert str(stable()) == "member me of group g: stable, generation 1, 1 partitions"


@given(st.lists(st.tuples(st.sampled_from([0, *INTERRUPTIONS]), st.booleans()), max_size=40))
def test_whatever_the_coordinator_answers_the_member_comes_back(
    answers: list[tuple[int, bool]],
) -> None:
    """It never reads what it was not given, and is stable again once answers are good."""
    one, now_ms = member(), 0
    for error_code, owner_polls in [*answers, *[(0, True)] * 12]:
        now_ms += 100
        one.on_coordinator_found()
        match one.next(now_ms):
            case Join():
                response = joined("me", generation=now_ms)
                response.error_code = error_code
                one.on_join(response, now_ms)
            case CountPartitions():
                one.on_partitions({"t": 2})
            case Sync():
                reply = synced(T0, T1)
                reply.error_code = error_code
                one.on_sync(reply, now_ms)
            case Heartbeat():
                one.on_heartbeat(wire.HeartbeatResponse(error_code=error_code), now_ms)
            case Wait():
                pass
        if one.phase not in {Phase.STABLE, Phase.REVOKING}:
            assert one.assignment == frozenset()
        if owner_polls and one.phase is Phase.REVOKING:
            one.on_revoked(now_ms)
        if owner_polls and one.offered is not None:
            one.on_assigned()
    assert one.phase is Phase.STABLE
    assert one.assignment == {T0, T1}
