"""GroupMember: the rounds of the protocol, and every response that interrupts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.assignors import (
    Assignor,
    Claim,
    CooperativeStickyAssignor,
    Owned,
    RangeAssignor,
    Share,
    StickyAssignor,
)
from streamlog.client.group.classic_protocol import (
    MISSING_TOPICS_MS,
    CountPartitions,
    GroupMember,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    MemberPhase,
    Sync,
    WaitForGroup,
)
from streamlog.errors import LogError
from streamlog.protocol import codec
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import classic_groups as wire
from streamlog.record import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PATIENCE_MS = 1_000
INTERRUPTIONS = [
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
]


def member(assignor: Assignor | None = None, instance_id: str | None = None) -> GroupMember:
    settings = GroupSettings(
        group_id="g",
        session_timeout_ms=300,
        heartbeat_interval_ms=100,
        max_poll_interval_ms=PATIENCE_MS,
        rebalance_timeout_ms=500,
        instance_id=instance_id,
    )
    return GroupMember(settings, assignor or RangeAssignor(), ["t"])


def joined(*members: str, leader: str = "me", generation: int = 1) -> wire.JoinGroupResponse:
    """Return the coordinator's response after all have joined, for the first member."""
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
        assigned_partitions=[wire.GroupTopicPartition(topic="t", partitions=numbers)]
    )
    return wire.SyncGroupResponse(assignment=codec.encode_versioned(assignment, 0))


def stable(one: GroupMember | None = None, *partitions: TopicPartition) -> GroupMember:
    """Return a stable member, not the leader, that owns t-0."""
    one = one or member()
    one.next(0)
    one.on_join(joined("me", leader="other"), 0)
    one.next(0)
    one.on_sync(synced(*partitions or (T0,)), 0)
    one.on_assigned(0)
    return one


def next_subscription(one: GroupMember) -> wire.ConsumerProtocolSubscription:
    """Return the subscription that the member sends with its next join."""
    join = one.next(0)
    assert isinstance(join, Join)
    return codec.decode_versioned(
        wire.ConsumerProtocolSubscription, join.request.protocols[0].metadata
    )


def test_the_leader_joins_assigns_and_gets_its_assignment() -> None:
    one = member()
    assert isinstance(one.next(0), Join)
    one.on_join(wire.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"), 0)
    again = one.next(0)
    assert isinstance(again, Join)
    assert again.request.member_id == "me"
    one.on_join(joined("me", "you"), 0)
    assert one.next(0) == CountPartitions(frozenset({"t"}))
    one.on_partitions({"t": 2}, 0)
    sync = one.next(0)
    assert isinstance(sync, Sync)
    assert one.is_leader
    assert {each.member_id for each in sync.request.assignments} == {"me", "you"}
    one.on_sync(synced(T0), 0)
    assert one.offered == frozenset({T0})
    assert one.assignment == frozenset()
    assert one.on_assigned(0) == {T0}
    assert one.next(99) == WaitForGroup(100)
    assert isinstance(one.next(100), Heartbeat)


def test_a_follower_sends_no_assignment() -> None:
    one = member()
    one.next(0)
    one.on_join(joined("me", leader="other"), 0)
    sync = one.next(0)
    assert isinstance(sync, Sync)
    assert sync.request.assignments == []
    assert not one.is_leader


def test_owned_partitions_are_sent_to_the_assignor() -> None:
    one = stable()
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    one.on_revoked(one.assignment, 0)
    sent = next_subscription(one)
    assert sent.owned_partitions == [wire.GroupTopicPartition(topic="t", partitions=[0])]
    assert sent.generation_id == 1


def test_heartbeats_continue_while_a_rebalance_waits_for_the_owner() -> None:
    one = stable()
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 100)
    assert one.phase is MemberPhase.REVOKING
    assert one.assignment == {T0}
    assert isinstance(one.next(200), Heartbeat)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 200)
    assert one.phase is MemberPhase.REVOKING
    one.on_revoked(one.assignment, 250)
    assert one.assignment == frozenset()
    join = one.next(250)
    assert isinstance(join, Join)
    assert join.request.member_id == "me"


def test_a_silent_member_is_not_current_until_the_coordinator_answers() -> None:
    one = stable()
    assert one.is_current(299)
    assert not one.is_current(300)
    assert isinstance(one.next(400), Heartbeat)
    one.on_heartbeat(wire.HeartbeatResponse(), 450)
    assert one.is_current(699)
    assert not one.is_current(700)
    # The answer is old: the process was suspended.
    one.on_heartbeat(wire.HeartbeatResponse(), 5_000)
    assert not one.is_current(5_000)
    assert isinstance(one.next(5_000), Heartbeat)
    one.on_heartbeat(wire.HeartbeatResponse(), 5_010)
    assert one.is_current(5_299)
    assert isinstance(one.next(5_200), Heartbeat)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR), 5_210)
    assert not one.is_current(5_300)


def test_an_assignment_that_was_not_taken_over_is_dropped() -> None:
    one = member()
    one.next(0)
    one.on_join(joined("me", leader="other"), 0)
    one.next(0)
    one.on_sync(synced(T0, T1), 0)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    assert one.offered is None
    assert one.phase is MemberPhase.UNJOINED


def test_a_forgotten_member_joins_as_a_new_one() -> None:
    one = stable()
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 0)
    assert one.phase is MemberPhase.REVOKING
    assert one.member_id == ""
    one.on_revoked(one.assignment, 0)
    join = one.next(0)
    assert isinstance(join, Join)
    assert join.request.member_id == ""


def test_a_stable_member_keeps_its_partitions_without_a_coordinator() -> None:
    one = stable()
    one.on_coordinator_lost(50)
    assert one.phase is MemberPhase.STABLE
    assert one.coordinator_lost
    one.on_coordinator_found()
    assert isinstance(one.next(150), Heartbeat)


def test_a_lost_coordinator_ends_a_join() -> None:
    one = member()
    one.next(0)
    one.on_coordinator_lost(0)
    assert one.next(0) == WaitForGroup(100)
    assert isinstance(one.next(100), Join)


def test_leaving_names_the_member_and_ends_the_protocol() -> None:
    one = stable()
    request = one.leave()
    assert request is not None
    assert (request.member_id, request.members[0].member_id) == ("me", "me")
    assert one.next(1_000) == WaitForGroup(None)
    assert member().leave() is None


def test_a_refused_join_says_what_may_be_wrong() -> None:
    one = member()
    one.next(0)
    refusal = wire.JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    with pytest.raises(LogError, match="another assignor"):
        one.on_join(refusal, 0)


def test_a_member_prints_its_state() -> None:
    assert str(stable()) == "member me of group g (stable, generation 1, partitions: 1)"


# ---- the cooperative protocol ----


def cooperative(*partitions: TopicPartition) -> GroupMember:
    return stable(member(CooperativeStickyAssignor()), *partitions)


def again(one: GroupMember, *partitions: TopicPartition, generation: int = 2) -> None:
    """Run another round that assigns these partitions."""
    one.next(0)
    one.on_join(joined("me", leader="other", generation=generation), 0)
    one.next(0)
    one.on_sync(synced(*partitions), 0)


def test_a_cooperative_member_rejoins_with_its_partitions() -> None:
    one = cooperative(T0, T1)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    assert one.phase is MemberPhase.UNJOINED
    assert one.assignment == {T0, T1}
    sent = next_subscription(one)
    assert sent.owned_partitions == [wire.GroupTopicPartition(topic="t", partitions=[0, 1])]
    assert (sent.generation_id, sent.user_data) == (1, bytes.fromhex("00000001"))


def test_a_cooperative_member_revokes_and_then_rejoins() -> None:
    one = cooperative(T0, T1)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    again(one, T1)
    assert (one.phase, one.revoking) == (MemberPhase.STABLE, {T0})
    one.on_revoked(one.revoking, 0)
    assert one.on_assigned(0) == frozenset()
    assert one.assignment == {T1}
    sent = next_subscription(one)
    assert sent.owned_partitions == [wire.GroupTopicPartition(topic="t", partitions=[1])]
    assert sent.generation_id == 2


def test_only_added_partitions_are_new_to_a_cooperative_member() -> None:
    one = cooperative(T0)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    again(one, T0, T1)
    assert one.revoking == frozenset()
    assert one.on_assigned(0) == {T1}
    assert one.phase is MemberPhase.STABLE


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_partitions_are_lost_when_the_group_has_reassigned_them(code: ErrorCode) -> None:
    one = cooperative(T0)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=code), 0)
    assert (one.phase, one.revoking, one.is_lost) == (MemberPhase.REVOKING, {T0}, True)
    one.on_revoked(one.revoking, 0)
    assert not one.is_lost
    assert next_subscription(one).owned_partitions == []


def test_a_rebalance_may_begin_during_a_revocation() -> None:
    one = cooperative(T0, T1)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    again(one, T1)
    revoked = one.revoking
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    assert next_subscription(one).owned_partitions == [
        wire.GroupTopicPartition(topic="t", partitions=[0, 1])
    ]
    one.on_revoked(revoked, 0)
    one.on_join(joined("me", leader="other", generation=3), 0)
    one.next(0)
    one.on_sync(synced(T0, T1), 0)
    # The member has stopped reading T0, so T0 counts as newly assigned.
    assert one.on_assigned(0) == {T0}
    assert one.phase is MemberPhase.STABLE


def test_a_partition_claimed_during_its_revocation_is_released_by_another_join() -> None:
    one = cooperative(T0, T1)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    again(one, T1)
    revoked = one.revoking
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    next_subscription(one)  # It claims T0, so the leader assigns T0 to no member.
    one.on_revoked(revoked, 0)
    one.on_join(joined("me", leader="other", generation=3), 0)
    one.next(0)
    one.on_sync(synced(T1), 0)
    assert one.revoking == frozenset()
    one.on_assigned(0)
    assert next_subscription(one).owned_partitions == [
        wire.GroupTopicPartition(topic="t", partitions=[1])
    ]


def leading(one: GroupMember, others: dict[str, wire.ConsumerProtocolSubscription]) -> None:
    response = joined("me")
    response.members += [
        wire.JoinGroupResponseMember(
            member_id=name, metadata=codec.encode_versioned(subscription, 3)
        )
        for name, subscription in others.items()
    ]
    one.on_join(response, 0)
    one.on_partitions({"t": 2}, 0)


def plan(one: GroupMember) -> dict[str, list[int]]:
    sync = one.next(0)
    assert isinstance(sync, Sync)
    found: dict[str, list[int]] = {}
    for each in sync.request.assignments:
        assigned = codec.decode_versioned(wire.ConsumerProtocolAssignment, each.assignment)
        found[each.member_id] = [n for t in assigned.assigned_partitions for n in t.partitions]
    return found


def owning(
    generation: int, *numbers: int, user_data: bytes | None = None
) -> wire.ConsumerProtocolSubscription:
    return wire.ConsumerProtocolSubscription(
        topics=["t"],
        user_data=user_data,
        owned_partitions=[wire.GroupTopicPartition(topic="t", partitions=list(numbers))],
        generation_id=generation,
    )


def test_a_cooperative_leader_assigns_only_free_partitions() -> None:
    one = member(CooperativeStickyAssignor())
    one.next(0)
    leading(one, {"other": owning(4, 0, 1)})
    assert plan(one) == {"me": [], "other": [0]}


def test_of_two_claims_on_a_partition_the_later_generation_wins() -> None:
    one = member(CooperativeStickyAssignor())
    one.next(0)
    leading(one, {"zombie": owning(2, 0), "owner": owning(5, 0, 1)})
    assert plan(one) == {"me": [], "owner": [0], "zombie": []}


def test_a_sticky_leader_reads_user_data_of_members_without_partitions() -> None:
    sticky = StickyAssignor()
    one = member(sticky)
    one.next(0)
    leading(one, {"other": owning(-1, user_data=sticky.user_data([T0], 3))})
    assert plan(one) == {"me": [1], "other": [0]}


class Directing:
    """An assignor that gives the first member all partitions, and each member everyone's data."""

    name = "directing"
    is_cooperative = True
    withholds = False

    def __init__(self) -> None:
        self.news: list[bytes] = []

    def assign(
        self,
        members: Mapping[str, Sequence[str]],
        partitions: Mapping[str, int],
        owned: Owned | None = None,
    ) -> dict[str, list[TopicPartition]]:
        raise AssertionError((members, partitions, owned))

    def subscription_data(self) -> bytes:
        return b"hello"

    def direct(
        self, members: Mapping[str, Claim], partitions: Mapping[str, int]
    ) -> Mapping[str, Share]:
        everything = [TopicPartition(t, n) for t, count in partitions.items() for n in range(count)]
        sent = b",".join(members[name].user_data for name in sorted(members))
        first = min(members)
        return {name: Share(everything if name == first else (), sent) for name in members}

    def on_assignment(self, user_data: bytes) -> None:
        self.news.append(user_data)


def test_a_directing_assignor_exchanges_data_with_its_members() -> None:
    assignor = Directing()
    one = member(assignor)
    assert next_subscription(one).user_data == b"hello"
    leading(one, {"other": owning(4, user_data=b"hi"), "silent": owning(4)})
    sync = one.next(0)
    assert isinstance(sync, Sync)
    given = {each.member_id: each.assignment for each in sync.request.assignments}
    assert set(given) == {"me", "other", "silent"}
    one.on_sync(wire.SyncGroupResponse(assignment=given["me"]), 0)
    assert one.offered == frozenset({T0, T1})
    assert len(assignor.news) == 1
    one.on_assigned(0)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 0)
    # The protocol is cooperative, so the member continues to read.
    assert one.assignment == frozenset({T0, T1})
    sent = next_subscription(one)
    assert (sent.user_data, sent.generation_id) == (b"hello", 1)


def test_an_empty_assignment_brings_no_data() -> None:
    assignor = Directing()
    one = member(assignor)
    one.next(0)
    one.on_join(joined("me", leader="other"), 0)
    one.next(0)
    one.on_sync(wire.SyncGroupResponse(assignment=b""), 0)
    assert (one.offered, assignor.news) == (frozenset(), [b""])


def test_a_requested_rebalance_makes_the_member_rejoin() -> None:
    one = cooperative(T0)
    one.on_request()
    assert isinstance(one.next(0), Join)
    one.on_join(joined("me", leader="other", generation=2), 0)
    one.next(0)
    one.on_sync(synced(T0), 0)
    one.on_assigned(0)
    assert isinstance(one.next(1), WaitForGroup)


def test_a_held_member_sends_heartbeats_and_does_not_rejoin() -> None:
    one = cooperative(T0)
    one.is_held = True
    assert isinstance(one.next(100), Heartbeat)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 100)
    assert one.next(100) == WaitForGroup(200)
    for now_ms, code in (
        (200, ErrorCode.REBALANCE_IN_PROGRESS),
        (300, ErrorCode.ILLEGAL_GENERATION),
    ):
        beat = one.next(now_ms)
        assert isinstance(beat, Heartbeat)
        assert beat.request.generation_id == 1
        one.on_heartbeat(wire.HeartbeatResponse(error_code=code), now_ms)
    assert one.assignment == {T0}
    one.is_held = False
    assert isinstance(one.next(300), Join)


def test_a_member_expelled_while_held_loses_its_partitions() -> None:
    one = cooperative(T0)
    one.is_held = True
    one.next(100)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 100)
    assert isinstance(one.next(200), Heartbeat)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 200)
    assert one.is_lost
    assert one.revoking == {T0}


def test_a_leader_sends_heartbeats_while_it_waits_for_topics() -> None:
    one = member()
    one.next(0)
    one.on_join(joined("me"), 0)
    assert isinstance(one.next(0), CountPartitions)
    one.on_partitions({}, 50)
    assert one.next(60) == WaitForGroup(100)
    assert isinstance(one.next(100), Heartbeat)
    one.on_heartbeat(wire.HeartbeatResponse(), 120)
    assert one.next(120) == WaitForGroup(150)
    assert isinstance(one.next(150), CountPartitions)
    one.on_partitions({}, MISSING_TOPICS_MS)
    assert one.phase is MemberPhase.SYNCING, "it continues without them"


def test_a_leader_that_assigns_for_an_ended_round_rejoins() -> None:
    one = member()
    one.next(0)
    one.on_join(joined("me"), 0)
    one.next(0)
    one.on_partitions({}, 10)
    assert isinstance(one.next(100), Heartbeat)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 100)
    assert isinstance(one.next(100), Join)


# ---- static membership ----


def test_a_static_member_sends_its_instance_id_and_does_not_leave() -> None:
    one = member(instance_id="one")
    join = one.next(0)
    assert isinstance(join, Join)
    assert join.request.group_instance_id == "one"
    one.on_join(joined("me", leader="other"), 0)
    sync = one.next(0)
    assert isinstance(sync, Sync)
    assert sync.request.group_instance_id == "one"
    one.on_sync(synced(T0), 0)
    beat = one.next(100)
    assert isinstance(beat, Heartbeat)
    assert beat.request.group_instance_id == "one"
    leaving = one.leave(for_good=True)
    assert leaving is not None
    assert leaving.members == [
        wire.MemberIdentity(member_id="me", group_instance_id="one", reason="closed")
    ]
    assert stable(member(instance_id="one")).leave() is None


def test_a_returning_static_leader_may_skip_the_assignment() -> None:
    one = member(instance_id="one")
    one.next(0)
    response = joined("me")
    response.skip_assignment = True
    one.on_join(response, 0)
    sync = one.next(0)
    assert isinstance(sync, Sync)
    assert sync.request.assignments == []


def test_a_fenced_member_learns_the_reason() -> None:
    one = stable(member(instance_id="one"))
    with pytest.raises(LogError, match="same group_instance_id"):
        one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID), 0)


def test_a_member_that_is_not_polled_leaves_until_the_next_poll() -> None:
    one = stable(None, T0)
    one.on_poll(0, waits=True)
    one.on_heartbeat(wire.HeartbeatResponse(), 2 * PATIENCE_MS)
    assert isinstance(one.next(2 * PATIENCE_MS), Heartbeat)  # Waiting in a poll counts as polling.
    one.on_poll(3 * PATIENCE_MS, waits=False)
    assert isinstance(one.next(4 * PATIENCE_MS - 50), Heartbeat)
    assert one.next(4 * PATIENCE_MS - 49) == WaitForGroup(4 * PATIENCE_MS)
    left = one.next(4 * PATIENCE_MS)
    assert isinstance(left, Leave)
    assert left.request is not None
    assert left.request.member_id == "me"
    assert (one.phase, one.is_lost, one.revoking) == (MemberPhase.REVOKING, True, {T0})
    assert "max_poll_interval_ms" in one.absence
    assert one.next(9 * PATIENCE_MS) == WaitForGroup(None)
    one.on_poll(9 * PATIENCE_MS, waits=False)
    one.on_revoked(one.revoking, 9 * PATIENCE_MS)
    action = one.next(9 * PATIENCE_MS)
    assert isinstance(action, Join)
    assert action.request.member_id == ""
    one.on_join(joined("me"), 9 * PATIENCE_MS)
    assert one.absence == ""


def test_an_unpolled_member_without_partitions_rejoins_when_polled() -> None:
    one = member()
    one.on_poll(0, waits=False)
    one.next(0)
    one.on_join(joined("me", leader="other"), PATIENCE_MS)
    assert isinstance(one.next(PATIENCE_MS), Leave)
    assert (one.phase, one.next(2 * PATIENCE_MS)) == (MemberPhase.AWAY, WaitForGroup(None))
    one.on_poll(2 * PATIENCE_MS, waits=False)
    assert isinstance(one.next(2 * PATIENCE_MS), Join)


def test_responses_after_leaving_are_ignored() -> None:
    one = stable(None, T0)
    one.leave()
    one.on_join(joined("me"), 0)
    one.on_sync(synced(T0), 0)
    one.on_heartbeat(wire.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 0)
    one.on_partitions({"t": 2}, 0)
    assert (one.phase, one.offered, one.next(0)) == (MemberPhase.LEFT, None, WaitForGroup(None))


def test_a_changed_subscription_is_sent_after_the_round() -> None:
    one = member()
    one.next(0)
    one.on_subscription(["u", "t"])
    one.on_join(joined("me", leader="other"), 0)
    one.next(0)
    one.on_sync(synced(T0), 0)
    assert next_subscription(one).topics == ["t", "u"]
    assert one.topics == ("t", "u")


def test_the_leader_rejoins_when_partition_counts_change() -> None:
    one = member()
    one.next(0)
    one.on_join(joined("me", "other"), 0)
    one.next(0)
    assert one.read_together == {"t"}
    one.on_partitions({"t": 2}, 0)
    one.next(0)
    one.on_sync(synced(T0), 0)
    one.on_assigned(0)
    one.on_counts({"t": 2})  # The counts of the assignment.
    assert isinstance(one.next(1), WaitForGroup)
    one.on_counts({"t": 3})
    one.next(1)
    assert (one.phase, one.revoking, one.is_lost) == (MemberPhase.REVOKING, {T0}, False)
    one.on_revoked(one.revoking, 1)
    assert isinstance(one.next(1), Join)
    assert one.next(1) == WaitForGroup(None)  # The member rejoins once.


def test_a_follower_ignores_changed_partition_counts() -> None:
    one = member()
    one.next(0)
    one.on_join(joined("me", leader="other"), 0)
    one.next(0)
    one.on_sync(synced(), 0)
    one.on_assigned(0)
    one.on_counts({"t": 9})
    assert (one.read_together, isinstance(one.next(1), WaitForGroup)) == (frozenset(), True)


def test_a_static_member_that_is_not_polled_leaves_silently() -> None:
    one = stable(member(instance_id="i"), T0)
    one.on_poll(0, waits=False)
    assert one.next(PATIENCE_MS) == Leave(None)


def poll(one: GroupMember, now_ms: int) -> None:
    """Do what the owner does in a poll."""
    one.on_poll(now_ms, waits=False)
    if one.revoking:
        one.on_revoked(one.revoking, now_ms)
    if one.offered is not None:
        one.on_assigned(now_ms)


@pytest.mark.parametrize("assignor", [RangeAssignor(), CooperativeStickyAssignor()])
@given(st.lists(st.tuples(st.sampled_from([0, *INTERRUPTIONS]), st.booleans()), max_size=40))
def test_the_member_becomes_stable_after_any_errors(
    assignor: Assignor,
    answers: list[tuple[int, bool]],
) -> None:
    """It never reads unassigned partitions, and is stable again once the responses are good."""
    one, now_ms = member(assignor), 0
    for error_code, owner_polls in [*answers, *[(0, True)] * 12]:
        now_ms += 100
        one.on_coordinator_found()
        match one.next(now_ms):
            case Join():
                response = joined("me", generation=now_ms)
                response.error_code = error_code
                one.on_join(response, now_ms)
            case CountPartitions():
                one.on_partitions({"t": 2}, now_ms)
            case Sync():
                reply = synced(T0, T1)
                reply.error_code = error_code
                one.on_sync(reply, now_ms)
            case Heartbeat():
                one.on_heartbeat(wire.HeartbeatResponse(error_code=error_code), now_ms)
            case Leave() | WaitForGroup():
                pass
        if one.phase not in {MemberPhase.STABLE, MemberPhase.REVOKING} and isinstance(
            assignor, RangeAssignor
        ):
            assert one.assignment == frozenset()
        if owner_polls:
            poll(one, now_ms)
    assert one.phase is MemberPhase.STABLE
    assert one.assignment == {T0, T1}
