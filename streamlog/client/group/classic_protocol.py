"""GroupMember: one member of a consumer group, by the classic protocol.

A state machine without I/O: `next` returns the action that is due, and `group_session` reports the
answers by `on_…`. A rebalance is a round of Kafka's "client-side assignment": all members join, the
leader assigns, each member gets its assignment by sync, and sends heartbeats until the group
changes.

An eager member gives up its whole assignment before it rejoins, and rejoins only after the caller
has finished with it (`on_revoked`); heartbeats continue meanwhile. A member with a cooperative
assignor (KIP-429) keeps its assignment while it rejoins:

1. A has t-0 and t-1. B joins, and the coordinator answers A's heartbeat with REBALANCE_IN_PROGRESS.
2. A rejoins with t-0 and t-1 and keeps reading them.
3. The leader assigns t-0 to A, and t-1 to no member: A still owns it.
4. A revokes t-1 and rejoins once more, without it.
5. The leader assigns t-1 to B. t-0 was read all the time.

Partitions that were lost to a new generation are given up at once. A static member (KIP-345) has an
instance id and does not leave. If one is killed before step 4, it returns without a rebalance, so
the leader asks for one (`_is_overdue`). A member whose caller does not poll for
`max_poll_interval_ms` leaves by itself (KIP-62), and rejoins with the next poll. KIP-848's protocol
is in `consumer_protocol`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from math import inf
from typing import Final, Literal, TypeAlias

import msgspec

from streamlog.assignors import Assignor, Claim, DirectingPort, Memory, Share, StickyPort
from streamlog.errors import CorruptData, LogError
from streamlog.protocol import codec
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages import classic_groups as wire
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 3
"""Version 3 names the partitions that a member owned, and their generation; readers of older
versions skip these fields."""
ASSIGNMENT_VERSION: Final = 1
RETRY_BACKOFF_MS: Final = 100
"""Wait between attempts to join while there is no coordinator, and between look-ups of topics."""
MISSING_TOPICS_MS: Final = 1_000
"""How long the leader waits for topics that it can't find: they may have just been created."""


GroupProtocol: TypeAlias = Literal["classic", "consumer"]
"""Whether the group's leader assigns ("classic"), or the coordinator ("consumer", KIP-848)."""


class MemberPhase(Enum):
    """The phase of a member, and the event that ends it."""

    UNJOINED = auto()
    """The member is about to join, at once or after a pause."""
    JOINING = auto()
    """The coordinator waits for the other members; ends with `on_join` or a lost coordinator."""
    ASSIGNING = auto()
    """The member leads, and needs partition counts to assign; ends with `on_partitions`."""
    SYNCING = auto()
    """The member waits for its assignment; ends with `on_sync`."""
    STABLE = auto()
    """The member has its assignment and sends heartbeats; ends when an answer says so."""
    REVOKING = auto()
    """The caller finishes its work, while heartbeats continue; ends with `on_revoked`."""
    AWAY = auto()
    """The member has left because its caller did not poll; ends with `on_poll`."""
    LEFT = auto()
    """The member has left for good."""


class _Reaction(Enum):
    """The reaction of a member to an error code."""

    JOIN_AGAIN = auto()
    LOSE_AND_JOIN_AGAIN = auto()
    JOIN_AS_NEW = auto()
    FIND_COORDINATOR = auto()
    WAIT = auto()


_REACTIONS: Final[dict[int, _Reaction]] = {
    ErrorCode.REBALANCE_IN_PROGRESS: _Reaction.JOIN_AGAIN,
    ErrorCode.ILLEGAL_GENERATION: _Reaction.LOSE_AND_JOIN_AGAIN,
    ErrorCode.UNKNOWN_MEMBER_ID: _Reaction.JOIN_AS_NEW,
    ErrorCode.NOT_COORDINATOR: _Reaction.FIND_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _Reaction.FIND_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _Reaction.WAIT,
}


_BEATING: Final = {
    MemberPhase.UNJOINED,
    MemberPhase.ASSIGNING,
    MemberPhase.STABLE,
    MemberPhase.REVOKING,
}
_KNOWN_TO_JOINERS: Final = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
"""Errors of a heartbeat that tell a member only that it must join, which it is about to do."""


class Join(msgspec.Struct, frozen=True):
    """Send the request; pass the answer to `on_join`."""

    request: wire.JoinGroupRequest


class CountPartitions(msgspec.Struct, frozen=True):
    """Look up the partition counts of these topics; pass those that exist to `on_partitions`."""

    topics: frozenset[str]


class Sync(msgspec.Struct, frozen=True):
    """Send the request; pass the answer to `on_sync`."""

    request: wire.SyncGroupRequest


class Heartbeat(msgspec.Struct, frozen=True):
    """Send the request; pass the answer to `on_heartbeat`."""

    request: wire.HeartbeatRequest


class Leave(msgspec.Struct, frozen=True):
    """Log that the caller does not poll, and send the request if there is one."""

    request: Message | None


class WaitForGroup(msgspec.Struct, frozen=True):
    """Wait until this monotonic time in ms, or until the caller acts; None: no time."""

    until_ms: float | None


Action: TypeAlias = Join | CountPartitions | Sync | Heartbeat | Leave | WaitForGroup


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The group, and the time limits of a member; see `ConsumerSettings`."""

    group_id: str
    session_timeout_ms: int
    """Milliseconds without a heartbeat after which the coordinator removes the member."""
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    """Milliseconds that the caller may take from one poll to the next."""
    rebalance_timeout_ms: int
    """Milliseconds that the other members wait for a member to rejoin."""
    protocol: GroupProtocol = "classic"
    remote_assignor: str | None = None
    """The coordinator's assignor, with the consumer protocol."""
    instance_id: str | None = None
    """The instance id of a static member (KIP-345)."""


class GroupPatience:
    """Watches `max_poll_interval_ms`: the time since the caller's last poll (KIP-62)."""

    def __init__(self, limit_ms: int) -> None:
        self.idle_since_ms: int | None = None
        self._limit_ms = limit_ms

    @property
    def ends_ms(self) -> float:
        """The time at which the interval is exceeded; infinite while the caller polls."""
        return inf if self.idle_since_ms is None else self.idle_since_ms + self._limit_ms

    @property
    def complaint(self) -> str:
        """The error message for a caller that has exceeded the interval."""
        return (
            f"poll() was not called for {self._limit_ms} ms (max_poll_interval_ms): "
            "poll more often, take fewer records at once, or increase it"
        )

    def on_poll(self, now_ms: int, *, waits: bool) -> None:
        """Note a poll: the interval begins, unless the caller `waits` for records in it."""
        self.idle_since_ms = None if waits else now_ms

    def start_over(self) -> None:
        """Suspend the interval until the next poll."""
        self.idle_since_ms = None


class GroupMember:
    """The member's side of the classic group protocol.

    `assignment` is what the caller may read. It changes only in `on_assigned` and `on_revoked`,
    which are called within the caller's poll.
    """

    def __init__(self, settings: GroupSettings, assignor: Assignor, topics: Sequence[str]) -> None:
        self.phase = MemberPhase.UNJOINED
        self.member_id = ""
        self.generation_id = -1
        self.is_leader = False
        self.coordinator_lost = False
        """Whether the coordinator must be looked up before the next request."""
        self.assignment: frozenset[TopicPartition] = frozenset()
        self.is_lost = False
        """Whether other members may own the partitions to revoke already, so that no commit for
        them is possible."""
        self.absence = ""
        """Why the member has left by itself; empty while it is a member."""
        self.is_held = False
        """Whether the caller is within `Consumer.staying`, so that the member does not rejoin."""
        self._asks_for_round = False
        self._awaits_rejoin = False
        """Whether the leader's assignment left out partitions that a member has to revoke first."""
        self._stable_ms = 0
        self._settings = settings
        self._assignor = assignor
        self._topics = tuple(sorted(set(topics)))
        self._joined_topics: tuple[str, ...] = ()
        self._counts: Mapping[str, int] | None = None
        self._has_other_counts = False
        self._offered: frozenset[TopicPartition] | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._owned_generation = -1
        self._claimed: frozenset[TopicPartition] = frozenset()
        """The partitions that its last join has named as its own; none for an eager member."""
        self._is_cooperative = (
            isinstance(assignor, StickyPort | DirectingPort) and assignor.is_cooperative
        )
        self._subscriptions: dict[str, wire.ConsumerProtocolSubscription] = {}
        self._plan: dict[str, bytes] = {}
        self._not_before_ms = 0
        self._missing_until_ms = 0
        self._heartbeat_ms = 0
        self._asked_ms = self._heard_ms = 0
        self._patience = GroupPatience(settings.max_poll_interval_ms)

    def next(self, now_ms: int) -> Action:
        """Return the action that is due now."""
        if (
            self.phase not in {MemberPhase.AWAY, MemberPhase.LEFT}
            and now_ms >= self._patience.ends_ms
        ):
            return self._leave_unpolled()
        if self.phase is MemberPhase.STABLE and (self._is_outdated or self._is_overdue(now_ms)):
            self._give_up(now_ms, lost=False)
        match self.phase:
            case MemberPhase.UNJOINED if now_ms >= self._not_before_ms and not self.is_held:
                self.phase = MemberPhase.JOINING
                return Join(self._join_request())
            case MemberPhase.ASSIGNING if now_ms >= self._not_before_ms:
                return CountPartitions(self.read_together)
            case MemberPhase.SYNCING:
                self._asked_ms = now_ms
                return Sync(self._sync_request())
            case MemberPhase.UNJOINED if not self.is_held:
                return WaitForGroup(self._not_before_ms)
        return self._beat(now_ms)

    def _beat(self, now_ms: int) -> Heartbeat | WaitForGroup:
        """Return a heartbeat if it is due, else the time to wait.

        A member that is held or looks for topics sends heartbeats, too: it is alive, however long
        that takes.
        """
        if self.phase not in _BEATING or self.generation_id < 0:
            return WaitForGroup(None)  # The group does not know the member: no session can expire.
        if now_ms >= self._heartbeat_ms:
            self._asked_ms = now_ms
            self._heartbeat_ms = now_ms + self._settings.heartbeat_interval_ms
            return Heartbeat(self._heartbeat_request())
        due_ms = min(self._heartbeat_ms, self._patience.ends_ms)
        return WaitForGroup(
            min(due_ms, self._not_before_ms) if self.phase is MemberPhase.ASSIGNING else due_ms
        )

    def on_poll(self, now_ms: int, *, waits: bool) -> None:
        """Note a poll; a member that is away rejoins."""
        self._patience.on_poll(now_ms, waits=waits)
        if self.phase is MemberPhase.AWAY:
            self._unjoined(now_ms)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to which the caller has subscribed."""
        return self._topics

    @property
    def read_together(self) -> frozenset[str]:
        """The topics of all members, which the leader assigns; empty for other members."""
        if not self.is_leader:
            return frozenset()
        return frozenset(topic for each in self._subscriptions.values() for topic in each.topics)

    def missing(self, partitions: Mapping[str, int]) -> frozenset[str]:
        """Return the topics of all members that do not exist, so that none can be assigned."""
        return self.read_together - partitions.keys()

    @property
    def offered(self) -> frozenset[TopicPartition] | None:
        """A new assignment that the caller has not taken over yet; None if there is none."""
        return self._offered

    @property
    def revoking(self) -> frozenset[TopicPartition]:
        """The partitions that the caller must give up now.

        The whole assignment, or with a cooperative assignor what the new assignment leaves out.
        """
        if self.phase is MemberPhase.REVOKING:
            return self.assignment
        return frozenset() if self._offered is None else self.assignment - self._offered

    @property
    def is_known(self) -> bool:
        """Whether the coordinator has given the member an id."""
        return bool(self.member_id)

    @property
    def may_commit(self) -> bool:
        """Whether the group accepts commits now, which it does not between two generations."""
        return self.phase in {MemberPhase.STABLE, MemberPhase.REVOKING}

    def is_current(self, now_ms: int) -> bool:
        """Whether the coordinator has answered a request of the last `session_timeout_ms`.

        If not, it may have removed the member and assigned its partitions to others, so the caller
        must read nothing until it answers.
        """
        # `_heard_ms` is the time of the request, not of the answer:
        # 1. A heartbeat is sent at 0 s; its answer arrives in the socket at once.
        # 2. The process is stopped from 0 s to 60 s; the coordinator removes the member at 45 s.
        # 3. The answer is read at 60 s. Counted from then, the session would seem valid.
        return now_ms - self._heard_ms < self._settings.session_timeout_ms

    def on_join(self, response: wire.JoinGroupResponse, now_ms: int) -> None:
        """Handle the answer to a join: the new generation, or an error.

        Raises:
            LogError: the member can't join the group.
        """
        if self.phase is MemberPhase.LEFT:
            return
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            # The coordinator only names the member at first (KIP-394): a join that is sent again
            # after a lost answer then leaves no dead member behind.
            self.member_id = response.member_id
            self._unjoined(now_ms)
            return
        if response.error_code:
            self._react(response.error_code, now_ms)
            return
        self.absence = ""
        self.member_id = response.member_id
        self.generation_id = response.generation_id
        self.is_leader = response.leader == response.member_id
        self._plan, self._counts = {}, None
        self._subscriptions = {
            member.member_id: _subscription(member.metadata) for member in response.members
        }
        # A static leader that returns does not assign: the group keeps its assignment (KIP-814).
        assigns = self.is_leader and not response.skip_assignment
        self.phase = MemberPhase.ASSIGNING if assigns else MemberPhase.SYNCING
        # It does not know whether that assignment is complete.
        self._awaits_rejoin = self.is_leader and self._is_cooperative
        self._heartbeat_ms = now_ms + self._settings.heartbeat_interval_ms
        self._not_before_ms, self._missing_until_ms = now_ms, now_ms + MISSING_TOPICS_MS

    def on_partitions(self, partitions: Mapping[str, int], now_ms: int) -> None:
        """Assign as the leader, unless topics are missing that may have just been created."""
        if self.phase is MemberPhase.LEFT:
            return
        if self.missing(partitions) and now_ms < self._missing_until_ms:
            self._not_before_ms = now_ms + RETRY_BACKOFF_MS
            return
        self._counts = dict(partitions)
        plan = self._directed(partitions)
        self._awaits_rejoin = self._is_cooperative and self._is_partial(plan, partitions)
        nothing = Share(())
        self._plan = {
            member: _assignment_bytes(plan.get(member, nothing)) for member in self._subscriptions
        }
        self.phase = MemberPhase.SYNCING

    def on_sync(self, response: wire.SyncGroupResponse, now_ms: int) -> None:
        """Handle the answer to a sync: the member's assignment, or an error.

        Raises:
            LogError: the error is not one that a retry or a rejoin cures.
        """
        if self.phase is MemberPhase.LEFT:
            return
        if response.error_code:
            self._react(response.error_code, now_ms)
            return
        self._heard_ms = self._asked_ms
        share = _assigned(response.assignment)
        self._offered = frozenset(share.partitions)
        if isinstance(self._assignor, DirectingPort):
            self._assignor.on_assignment(share.user_data)
        # If the sync was sent so long ago that the session may have expired, a heartbeat is due at
        # once: its answer says whether the member still is one.
        self._heartbeat_ms = now_ms
        if self.is_current(now_ms):
            self._heartbeat_ms += self._settings.heartbeat_interval_ms
        self.phase, self._stable_ms = MemberPhase.STABLE, now_ms

    def on_heartbeat(self, response: wire.HeartbeatResponse, now_ms: int) -> None:
        """Handle the answer to a heartbeat.

        Raises:
            LogError: the error is not one that a retry or a rejoin cures.
        """
        if not response.error_code:
            self._heard_ms = self._asked_ms
        if not response.error_code or self.phase is MemberPhase.LEFT:
            return
        if self.phase is MemberPhase.UNJOINED and response.error_code in _KNOWN_TO_JOINERS:
            return  # It rejoins as soon as it is no longer held.
        if self.phase is not MemberPhase.REVOKING:
            self._react(response.error_code, now_ms)
        elif response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget()  # It joins as a new member, once the caller has revoked.
        elif _REACTIONS.get(response.error_code) is _Reaction.FIND_COORDINATOR:
            self.on_coordinator_lost(now_ms)

    def on_coordinator_lost(self, now_ms: int) -> None:
        """Handle a request without an answer, or a coordinator that has moved."""
        self.coordinator_lost = True
        # A round can't continue at another coordinator; a stable member keeps its generation.
        if self.phase in {MemberPhase.JOINING, MemberPhase.ASSIGNING, MemberPhase.SYNCING}:
            self._unjoined(now_ms, pause_ms=RETRY_BACKOFF_MS)
        self._heartbeat_ms = now_ms + RETRY_BACKOFF_MS

    def on_coordinator_found(self) -> None:
        """Note that requests can be sent again."""
        self.coordinator_lost = False

    def on_assigned(self, now_ms: int) -> frozenset[TopicPartition]:
        """Take over the `offered` assignment; return the partitions that are new in it."""
        offered = self._offered or frozenset()
        added, self._offered = offered - self.assignment, None
        self.assignment = self._owned = offered
        self._owned_generation = self.generation_id
        # Step 4 of the head: what it claimed and did not get is free only once it rejoins without
        # it. The claim counts, not what it has to revoke now:
        # 1. A revokes t-1, which takes a while, and C joins. 2. A rejoins and still claims t-1, so
        # the leader assigns t-1 to no member. 3. A ends the revocation. 4. A's new assignment lacks
        # t-1, of which nothing is left to revoke. Without a rejoin, t-1 would stay unassigned.
        if self._claimed - offered:
            self._unjoined(now_ms)
        return added

    def on_revoked(self, partitions: frozenset[TopicPartition], now_ms: int) -> None:
        """Give up the partitions in `revoking`: the caller has finished with them."""
        self.assignment -= partitions
        if self.phase is MemberPhase.REVOKING:
            self.is_lost = False
            self._unjoined(now_ms)

    def on_counts(self, partitions: Mapping[str, int]) -> None:
        """As the leader, note the present partition counts; a change makes the group rebalance."""
        if not self.is_leader or self.phase is not MemberPhase.STABLE:
            return
        # A static leader that has returned did not compute this assignment, so it has no counts to
        # compare with: it takes the present ones for those of the assignment.
        self._has_other_counts = self._counts is not None and self._counts != partitions
        self._counts = dict(partitions)

    def on_request(self) -> None:
        """Request a rebalance, as soon as the member is not held (KIP-568)."""
        self._asks_for_round = True

    def on_subscription(self, topics: Sequence[str]) -> None:
        """Change the topics; the member rejoins as soon as it can."""
        self._topics = tuple(sorted(set(topics)))

    def leave(self, *, for_good: bool = False) -> wire.LeaveGroupRequest | None:
        """End the membership; return the request that removes the member at once, if any.

        A static member sends none, so that it keeps its assignment until its session expires,
        unless it leaves `for_good`.
        """
        request = self._leave_request("closed", for_good=for_good)
        self.phase, self._offered = MemberPhase.LEFT, None
        return request

    def __str__(self) -> str:
        return (
            f"member {self.member_id or '(new)'} of group {self._settings.group_id} "
            f"({self.phase.name.lower()}, generation {self.generation_id}, "
            f"partitions: {len(self.assignment)})"
        )

    @property
    def _is_outdated(self) -> bool:
        """Whether the assignment is outdated: other topics, other counts, or a request."""
        is_other = self._has_other_counts or self._joined_topics != self._topics
        return is_other or self._asks_for_round

    def _is_overdue(self, now_ms: int) -> bool:
        """Whether a member that had to revoke and rejoin did not, so that the leader must.

        1. A static member has to revoke t-1, which is assigned to no member until it rejoins.
        2. It is killed, and started again within its session. 3. The coordinator gives it the
        assignment of step 1 without a rebalance, so it has nothing to revoke and does not rejoin.
        """
        # Members have this long for a revocation; earlier, the rebalance would wait for them.
        due_ms = self._stable_ms + self._settings.rebalance_timeout_ms
        return self._awaits_rejoin and now_ms >= due_ms

    def _is_partial(self, plan: Mapping[str, Share], partitions: Mapping[str, int]) -> bool:
        """Whether the assignment leaves out what a member claims."""
        if isinstance(self._assignor, DirectingPort) and self._assignor.withholds:
            return True
        given = {at for share in plan.values() for at in share.partitions}
        topics = self.read_together
        return any(
            at not in given and at.topic in topics and at.partition < partitions.get(at.topic, 0)
            for said in self._subscriptions.values()
            for at in _flat(said.owned_partitions)
        )

    def _leave_unpolled(self) -> Action:
        """Leave the group, as the caller does not poll; it revokes with its next poll."""
        self.absence = self._patience.complaint
        request = self._leave_request("not polled for max_poll_interval_ms")
        self._forget()
        self._patience.start_over()
        self._offered = None
        self.is_lost = bool(self.assignment)
        self.phase = MemberPhase.REVOKING if self.assignment else MemberPhase.AWAY
        return Leave(request)

    def _leave_request(
        self, reason: str, *, for_good: bool = False
    ) -> wire.LeaveGroupRequest | None:
        instance_id = self._settings.instance_id
        if not self.member_id or (instance_id is not None and not for_good):
            return None
        identity = wire.MemberIdentity(
            member_id=self.member_id, group_instance_id=instance_id, reason=reason
        )
        return wire.LeaveGroupRequest(
            group_id=self._settings.group_id,
            member_id=self.member_id,
            members=[identity],
        )

    def _react(self, error_code: int, now_ms: int) -> None:
        match _REACTIONS.get(error_code):
            case _Reaction.JOIN_AGAIN:
                self._give_up(now_ms, lost=False)
            case _Reaction.LOSE_AND_JOIN_AGAIN:
                self._give_up(now_ms, lost=True)
            case _Reaction.JOIN_AS_NEW:
                self._forget()
                self._give_up(now_ms, lost=True)
            case _Reaction.FIND_COORDINATOR:
                self.on_coordinator_lost(now_ms)
            case _Reaction.WAIT:
                self._pause(now_ms)
            case None:
                raise _refused(error_code, self._settings.group_id)

    def _pause(self, now_ms: int) -> None:
        self._heartbeat_ms = now_ms + RETRY_BACKOFF_MS
        if self.phase is not MemberPhase.STABLE:
            self._unjoined(now_ms, pause_ms=RETRY_BACKOFF_MS)

    def _give_up(self, now_ms: int, *, lost: bool) -> None:
        """Rejoin, after the caller has revoked what the member can't keep meanwhile."""
        self._offered = None
        if self.assignment and (lost or not self._is_cooperative):
            self.phase, self.is_lost = MemberPhase.REVOKING, lost
        else:
            self._unjoined(now_ms)

    def _unjoined(self, now_ms: int, *, pause_ms: int = 0) -> None:
        self.phase = MemberPhase.UNJOINED
        self._not_before_ms = now_ms + pause_ms

    def _forget(self) -> None:
        self.member_id, self.generation_id, self.is_leader = "", -1, False

    def _join_request(self) -> wire.JoinGroupRequest:
        # An eager member has revoked everything by now. It names what it owned before, so that a
        # sticky assignor can give that back.
        owned = self.assignment if self._is_cooperative else self._owned
        self._claimed = owned if self._is_cooperative else frozenset()
        self._joined_topics, self._has_other_counts = self._topics, False
        self._asks_for_round = False
        subscription = wire.ConsumerProtocolSubscription(
            topics=list(self._topics),
            user_data=self._user_data(owned),
            owned_partitions=_grouped(owned),
            generation_id=self._owned_generation,
        )
        protocol = wire.JoinGroupRequestProtocol(
            name=self._assignor.name,
            metadata=codec.encode_versioned(subscription, SUBSCRIPTION_VERSION),
        )
        return wire.JoinGroupRequest(
            group_id=self._settings.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
        )

    def _directed(self, partitions: Mapping[str, int]) -> Mapping[str, Share]:
        """As the leader, return member id to assignment."""
        said = self._subscriptions
        owned = _undisputed({member: self._memory(each) for member, each in said.items()})
        if isinstance(self._assignor, DirectingPort):
            claims = {
                member: Claim(each.topics, owned[member], bytes(each.user_data or b""))
                for member, each in said.items()
            }
            return self._assignor.direct(claims, partitions)
        topics = {member: each.topics for member, each in said.items()}
        plan = self._assignor.assign(topics, partitions, owned)
        return {member: Share(share) for member, share in plan.items()}

    def _user_data(self, owned: frozenset[TopicPartition]) -> bytes | None:
        if isinstance(self._assignor, DirectingPort):
            return self._assignor.subscription_data()
        if not isinstance(self._assignor, StickyPort) or self._owned_generation < 0:
            return None
        return self._assignor.user_data(owned, self._owned_generation)

    def _memory(self, said: wire.ConsumerProtocolSubscription) -> Memory:
        """Return what a member owned: by its subscription, or for old members by its user data."""
        owned, generation = _flat(said.owned_partitions), said.generation_id
        if isinstance(self._assignor, StickyPort) and said.user_data:
            memory = self._assignor.memory(said.user_data)
            # An eager member owns nothing by the time it joins, but its user data remembers.
            owned = owned or list(memory.owned)
            generation = generation if generation >= 0 else memory.generation
        return Memory(owned, generation)

    def _sync_request(self) -> wire.SyncGroupRequest:
        return wire.SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._assignor.name,
            assignments=[
                wire.SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in self._plan.items()
            ],
        )

    def _heartbeat_request(self) -> wire.HeartbeatRequest:
        return wire.HeartbeatRequest(
            group_id=self._settings.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
        )


def _refused(error_code: int, group_id: str) -> LogError:
    detail = f"group {group_id}"
    if error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        detail += ": its members use another assignor, or it is another kind of group"
    if error_code == ErrorCode.INVALID_SESSION_TIMEOUT:
        detail += ": session_timeout_ms is outside of the range that the broker allows"
    if error_code == ErrorCode.FENCED_INSTANCE_ID:
        detail += ": another consumer has joined with the same group_instance_id"
    return error_for(error_code, detail)


def _undisputed(claims: Mapping[str, Memory]) -> dict[str, list[TopicPartition]]:
    """Return member to the partitions it owned; of several claims, the latest generation wins.

    A member that was stopped while the group rebalanced still claims partitions that another one
    has been assigned since.
    """
    owners: dict[TopicPartition, str] = {}
    for member in sorted(claims):
        for each in claims[member].owned:
            before = owners.get(each)
            if before is None or claims[before].generation < claims[member].generation:
                owners[each] = member
    owned: dict[str, list[TopicPartition]] = {member: [] for member in claims}
    for each, member in owners.items():
        owned[member].append(each)
    return owned


def _subscription(metadata: bytes) -> wire.ConsumerProtocolSubscription:
    try:
        return codec.decode_versioned(wire.ConsumerProtocolSubscription, metadata)
    except CorruptData as corrupt:
        raise CorruptData(f"another member's subscription can't be read: {corrupt}") from corrupt


def _assigned(assignment: bytes) -> Share:
    if not assignment:
        return Share(())  # The leader has assigned nothing to this member.
    given = codec.decode_versioned(wire.ConsumerProtocolAssignment, assignment)
    return Share(_flat(given.assigned_partitions), bytes(given.user_data or b""))


def _assignment_bytes(share: Share) -> bytes:
    assignment = wire.ConsumerProtocolAssignment(
        assigned_partitions=_grouped(share.partitions), user_data=share.user_data or None
    )
    return codec.encode_versioned(assignment, ASSIGNMENT_VERSION)


def _grouped(
    partitions: Collection[TopicPartition],
) -> list[wire.GroupTopicPartition]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return [
        wire.GroupTopicPartition(topic=topic, partitions=many) for topic, many in by_topic.items()
    ]


def _flat(groups: Sequence[wire.GroupTopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, number) for each in groups for number in each.partitions]
