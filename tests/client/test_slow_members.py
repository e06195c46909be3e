"""Group members that need longer than a session for a commit, and the group that waits for them.

Both sides' state machines run on a simulated clock, so a slow member is equally slow everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from streamlog.assignors import CooperativeStickyAssignor
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.coordinator.group.classic_group import ClassicGroup, GroupState
from streamlog.broker.coordinator.group.group_records import GroupChange, decode_change
from streamlog.broker.coordinator.shard import Caller, Instant, ShardOutcome
from streamlog.client.group.classic_protocol import (
    CountPartitions,
    GroupMember,
    GroupSettings,
    Heartbeat,
    Join,
    MemberPhase,
    Sync,
)
from streamlog.protocol.messages import classic_groups as wire
from streamlog.protocol.schema import Message

SESSION_MS, BEAT_MS, STEP_MS = 300, 50, 10
JOINS_AT_MS = (0, 400, 800)
SETTLED_BY_MS = 15_000
"""Time for some rounds, each as long as the slowest member."""


@dataclass
class Slow:
    """A member with an owner that commits continually and needs `commit_ms` for it."""

    member: GroupMember
    commit_ms: int
    joins_at_ms: int
    ticket: int = 0
    names: set[str] = field(default_factory=set)
    began_ms: int = -SETTLED_BY_MS

    def own(self, now_ms: int) -> None:
        """Perform the owner's action: polls between commits, during which the generation stays."""
        member = self.member
        if now_ms - self.began_ms < self.commit_ms:
            return
        member.is_held = False
        member.on_poll(now_ms, waits=False)
        if member.revoking:
            member.on_revoked(member.revoking, now_ms)
        if member.offered is not None:
            member.on_assigned(now_ms)
        if member.phase is MemberPhase.STABLE:
            member.is_held, self.began_ms = True, now_ms


@dataclass
class Side:
    """The group coordinator, and the members that wait for its responses."""

    group: ClassicGroup = field(
        default_factory=lambda: ClassicGroup(
            "g", GroupConfig(initial_rebalance_delay_ms=0, session_timeout_ms_min=1)
        )
    )
    now_ms: int = 0
    tickets: int = 0
    answers: dict[int, Message] = field(default_factory=dict)

    @property
    def at(self) -> Instant:
        return Instant(self.now_ms, self.now_ms)

    def take(self, outcome: ShardOutcome) -> None:
        for record in outcome.records:
            change = decode_change(record)
            assert isinstance(change, GroupChange)
            assert change.value is not None
            self.group.replay(change.value, self.now_ms)
        self.answers.update((answer.ticket, answer.response) for answer in outcome.answers)

    def caller(self) -> Caller:
        self.tickets += 1
        return Caller(self.tickets, 9, "app", "/127.0.0.1", f"m{self.tickets}")

    def step(self, slow: Slow, counts: dict[str, int]) -> None:
        """Send one request of a member, or deliver the response to its last one."""
        member, now_ms = slow.member, self.now_ms
        if slow.ticket:
            answer = self.answers.pop(slow.ticket, None)
            slow.ticket = 0 if answer is not None else slow.ticket
            if isinstance(answer, wire.JoinGroupResponse):
                member.on_join(answer, now_ms)
                slow.names.add(member.member_id)
            elif isinstance(answer, wire.SyncGroupResponse):
                member.on_sync(answer, now_ms)
            return
        match member.next(now_ms):
            case Join(request):
                caller = self.caller()
                slow.ticket = caller.ticket
                self.take(self.group.join(request, caller, self.at))
            case Sync(request):
                caller = self.caller()
                slow.ticket = caller.ticket
                self.take(self.group.sync(request, caller, self.at))
            case Heartbeat(request):
                code = self.group.heartbeat(request, self.at)
                member.on_heartbeat(wire.HeartbeatResponse(error_code=code), now_ms)
            case CountPartitions():
                member.on_partitions(counts, now_ms)


@given(st.lists(st.integers(0, 4 * SESSION_MS), min_size=3, max_size=3), st.booleans())
def test_a_group_settles_despite_slow_commits(
    commits_ms: list[int], there_is_a_topic: bool
) -> None:
    """Commits outlast a session at each member, also while missing topics are waited for."""
    settings = GroupSettings(
        group_id="g",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=BEAT_MS,
        max_poll_interval_ms=60_000,
        rebalance_timeout_ms=20_000,
    )
    side = Side()
    slows = [
        Slow(GroupMember(settings, CooperativeStickyAssignor(), ["t", "u"]), commit_ms, at_ms)
        for commit_ms, at_ms in zip(commits_ms, JOINS_AT_MS, strict=True)
    ]
    counts = {"t": 6, "u": 1} if there_is_a_topic else {"t": 6}
    while side.now_ms < SETTLED_BY_MS:
        side.now_ms += STEP_MS
        side.take(side.group.on_tick(side.at))
        for slow in slows:
            if side.now_ms >= slow.joins_at_ms:
                slow.own(side.now_ms)
                side.step(slow, counts)
    assert all(len(slow.names) == 1 for slow in slows), "a live member was expelled"
    assert side.group.state is GroupState.STABLE
    assert {slow.member.generation_id for slow in slows} == {side.group.generation}
    parts = [slow.member.assignment for slow in slows]
    assert sum(map(len, parts)) == len(frozenset().union(*parts)) == sum(counts.values())
