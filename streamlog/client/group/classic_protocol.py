"""GroupMember: one member of a consumer group, by the classic protocol.

Pure: `next` says which request is due, the answers come back by `on_…`; the shell in `group.py`
carries them. The rounds are those of Kafka's "client-side assignment": everybody joins, the
leader assigns, everybody learns its part by sync, then heartbeats until somebody comes or goes.
Eagerly, a member gives up everything before it joins again, and joins only after its owner has
said that it is done with it (`on_revoked`); heartbeats go on meanwhile. With a cooperative
assignor (KIP-429) it keeps what it has while it joins; what the answer leaves out is given up
then, and the member joins once more, so that others can get it. What was lost to a new generation
is given up at once. A static member (KIP-345) has an instance id and does not leave. A member whose
owner does not poll (`on_poll`) for too long leaves by itself, and joins when the owner is back.
The protocol of KIP-848 is in `consumer_member`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Final, Literal, TypeAlias

from streamlog.assignors import Assignor, Claim, DirectingPort, Memory, Share, StickyPort
from streamlog.errors import CorruptData, LogError
from streamlog.protocol import codec
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages import classic_groups as wire
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 3
"""It tells what a member owned, since which generation; readers of other versions understand it."""
ASSIGNMENT_VERSION: Final = 1
RETRY_BACKOFF_MS: Final = 100
"""Between attempts to join while the coordinator can't be asked, and to find topics."""
MISSING_TOPICS_MS: Final = 1_000
"""So long the leader looks for topics that are not there: they may have been made just now."""


GroupProtocol: TypeAlias = Literal["classic", "consumer"]
"""Whether a member assigns for all (classic), or the coordinator does (KIP-848)."""


class MemberPhase(Enum):
    """Where a member stands, and what ends it."""

    UNJOINED = auto()
    """It has nothing and asks to join, at once or after a pause."""
    JOINING = auto()
    """The coordinator waits for the others; `on_join` or a lost coordinator ends it."""
    ASSIGNING = auto()
    """It leads, and needs partition counts to assign; `on_partitions` ends it."""
    SYNCING = auto()
    """Its part is on the way; `on_sync` ends it."""
    STABLE = auto()
    """It has its part and sends heartbeats, until one of them says otherwise."""
    REVOKING = auto()
    """The owner finishes what it has begun; heartbeats go on; `on_revoked` ends it."""
    AWAY = auto()
    """It has left because its owner did not poll, and owns nothing; `on_poll` ends it."""
    LEFT = auto()
    """It has left, for good."""


class _Reaction(Enum):
    """What an error code means to a member."""

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
"""Says no more than that it has to join."""


@dataclass(frozen=True, slots=True)
class Join:
    """Send this; the answer goes to `on_join`."""

    request: wire.JoinGroupRequest


@dataclass(frozen=True, slots=True)
class CountPartitions:
    """Look up how many partitions those of these topics have that there are: `on_partitions`."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sync:
    """Send this; the answer goes to `on_sync`."""

    request: wire.SyncGroupRequest


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send this; the answer goes to `on_heartbeat`."""

    request: wire.HeartbeatRequest


@dataclass(frozen=True, slots=True)
class Leave:
    """The owner does not poll: say so, and send this if there is anything to send."""

    request: Message | None


@dataclass(frozen=True, slots=True)
class WaitForGroup:
    """Nothing is due before this time, unless the owner calls; None: unless the owner calls."""

    until_ms: float | None


Action: TypeAlias = Join | CountPartitions | Sync | Heartbeat | Leave | WaitForGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Which group, and its patience."""

    group_id: str
    session_timeout_ms: int
    """Without a heartbeat for this long the coordinator takes the member for dead."""
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    """How long the owner may take from one poll to the next."""
    rebalance_timeout_ms: int
    """How long the others wait for a member to join again."""
    protocol: GroupProtocol = "classic"
    remote_assignor: str | None = None
    """How the coordinator is to assign, if it does."""
    instance_id: str | None = None
    """Of a static member: who it is, whatever process it is in."""


class GroupPatience:
    """How long the owner of a member may do without a poll."""

    def __init__(self, limit_ms: int) -> None:
        self.idle_since_ms: int | None = None
        self._limit_ms = limit_ms

    @property
    def ends_ms(self) -> float:
        """When it has taken too long."""
        return inf if self.idle_since_ms is None else self.idle_since_ms + self._limit_ms

    @property
    def complaint(self) -> str:
        """What the owner is told."""
        return (
            f"it was not polled for {self._limit_ms} ms (max_poll_interval_ms): "
            "poll more often, take fewer records at once, or allow more time"
        )

    def on_poll(self, now_ms: int, *, waits: bool) -> None:
        """The owner polls; from now on its time runs, unless it `waits` for what comes."""
        self.idle_since_ms = None if waits else now_ms

    def start_over(self) -> None:
        """Time begins with the next poll."""
        self.idle_since_ms = None


class GroupMember:
    """The member's side of the group protocol.

    `assignment` is what the owner may read; it changes only in `on_assigned` and `on_revoked`,
    both called by the owner.
    """

    def __init__(self, settings: GroupSettings, assignor: Assignor, topics: Sequence[str]) -> None:
        self.phase = MemberPhase.UNJOINED
        self.member_id = ""
        self.generation_id = -1
        self.is_leader = False
        self.coordinator_lost = False
        """The shell has to find the coordinator (again) before it sends anything."""
        self.assignment: frozenset[TopicPartition] = frozenset()
        self.is_lost = False
        """What is to be given up is another's already: nothing can be committed for it."""
        self.absence = ""
        """Why it has left by itself, until it is a member again."""
        self.is_held = False
        """The owner is in the middle of something that belongs to this generation."""
        self._asks_for_round = False
        self._settings = settings
        self._assignor = assignor
        self._topics = tuple(sorted(set(topics)))
        self._joined_topics: tuple[str, ...] = ()
        self._counts: Mapping[str, int] | None = None
        self._has_other_counts = False
        self._offered: frozenset[TopicPartition] | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._owned_generation = -1
        self._joins_once_more = False
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
        """What is due now."""
        if (
            self.phase not in {MemberPhase.AWAY, MemberPhase.LEFT}
            and now_ms >= self._patience.ends_ms
        ):
            return self._step_aside()
        if self.phase is MemberPhase.STABLE and self._is_outdated:
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
        """A heartbeat, if it is time.

        Also from a member that is held, or looks for topics: whatever that takes, it is alive.
        """
        if self.phase not in _BEATING or self.generation_id < 0:
            return WaitForGroup(None)  # The group knows nobody who could be alive.
        if now_ms >= self._heartbeat_ms:
            self._asked_ms = now_ms
            self._heartbeat_ms = now_ms + self._settings.heartbeat_interval_ms
            return Heartbeat(self._heartbeat_request())
        due_ms = min(self._heartbeat_ms, self._patience.ends_ms)
        return WaitForGroup(
            min(due_ms, self._not_before_ms) if self.phase is MemberPhase.ASSIGNING else due_ms
        )

    def on_poll(self, now_ms: int, *, waits: bool) -> None:
        """The owner polls; from now on its time runs, unless it `waits` for what comes."""
        self._patience.on_poll(now_ms, waits=waits)
        if self.phase is MemberPhase.AWAY:
            self._unjoined(now_ms)

    @property
    def topics(self) -> tuple[str, ...]:
        """What the owner has subscribed to."""
        return self._topics

    @property
    def read_together(self) -> frozenset[str]:
        """The topics of all members, which the leader is to assign; empty for the others."""
        if not self.is_leader:
            return frozenset()
        return frozenset(topic for each in self._subscriptions.values() for topic in each.topics)

    def missing(self, partitions: Mapping[str, int]) -> frozenset[str]:
        """Which of the topics of all members are not there: nobody gets anything of them."""
        return self.read_together - partitions.keys()

    @property
    def offered(self) -> frozenset[TopicPartition] | None:
        """A new part that the owner has not taken over yet."""
        return self._offered

    @property
    def revoking(self) -> frozenset[TopicPartition]:
        """What the owner has to give up now: everything, or what a new part leaves out."""
        if self.phase is MemberPhase.REVOKING:
            return self.assignment
        return frozenset() if self._offered is None else self.assignment - self._offered

    @property
    def is_known(self) -> bool:
        """Whether the coordinator has given it a name."""
        return bool(self.member_id)

    @property
    def may_commit(self) -> bool:
        """Whether the group takes commits now: not while it is between two generations."""
        return self.phase in {MemberPhase.STABLE, MemberPhase.REVOKING}

    def is_current(self, now_ms: int) -> bool:
        """Whether the coordinator has answered a request of this session.

        If not, it may have given the partitions to another member: a process that was stopped
        and goes on does not know yet that it is too late. Read nothing until it has answered. An
        answer is as old as its request: it may have come long ago, while the process was stopped.
        """
        return now_ms - self._heard_ms < self._settings.session_timeout_ms

    def on_join(self, response: wire.JoinGroupResponse, now_ms: int) -> None:
        """The round is complete, or the coordinator refused.

        Raises:
            LogError: the group can't be joined at all.
        """
        if self.phase is MemberPhase.LEFT:
            return
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
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
        assigns = self.is_leader and not response.skip_assignment
        self.phase = MemberPhase.ASSIGNING if assigns else MemberPhase.SYNCING
        self._heartbeat_ms = now_ms + self._settings.heartbeat_interval_ms
        self._not_before_ms, self._missing_until_ms = now_ms, now_ms + MISSING_TOPICS_MS

    def on_partitions(self, partitions: Mapping[str, int], now_ms: int) -> None:
        """The leader knows the topics: assign, unless some may still come."""
        if self.phase is MemberPhase.LEFT:
            return
        if self.missing(partitions) and now_ms < self._missing_until_ms:
            self._not_before_ms = now_ms + RETRY_BACKOFF_MS
            return
        self._counts = dict(partitions)
        plan = self._directed(partitions)
        nothing = Share(())
        self._plan = {
            member: _assignment_bytes(plan.get(member, nothing)) for member in self._subscriptions
        }
        self.phase = MemberPhase.SYNCING

    def on_sync(self, response: wire.SyncGroupResponse, now_ms: int) -> None:
        """The leader has assigned, or the round failed.

        Raises:
            LogError: the coordinator refuses the member for good.
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
            self._assignor.heard(share.user_data)
        self._heartbeat_ms = now_ms
        if self.is_current(now_ms):
            self._heartbeat_ms += self._settings.heartbeat_interval_ms
        self.phase = MemberPhase.STABLE

    def on_heartbeat(self, response: wire.HeartbeatResponse, now_ms: int) -> None:
        """The coordinator is content, or the group has moved on.

        Raises:
            LogError: the coordinator refuses the member for good.
        """
        if not response.error_code:
            self._heard_ms = self._asked_ms
        if not response.error_code or self.phase is MemberPhase.LEFT:
            return
        if self.phase is MemberPhase.UNJOINED and response.error_code in _KNOWN_TO_JOINERS:
            return  # It will join as soon as it is let go.
        if self.phase is not MemberPhase.REVOKING:
            self._react(response.error_code, now_ms)
        elif response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget()  # It will join as a new one, once the owner is done.
        elif _REACTIONS.get(response.error_code) is _Reaction.FIND_COORDINATOR:
            self.on_coordinator_lost(now_ms)

    def on_coordinator_lost(self, now_ms: int) -> None:
        """A request got no answer, so what it asked for may have happened or not."""
        self.coordinator_lost = True
        if self.phase in {MemberPhase.JOINING, MemberPhase.ASSIGNING, MemberPhase.SYNCING}:
            self._unjoined(now_ms, pause_ms=RETRY_BACKOFF_MS)
        self._heartbeat_ms = now_ms + RETRY_BACKOFF_MS

    def on_coordinator_found(self) -> None:
        """Requests can be sent."""
        self.coordinator_lost = False

    def on_assigned(self, now_ms: int) -> frozenset[TopicPartition]:
        """The owner takes over what is `offered`; returned is what it has not had before."""
        offered = self._offered or frozenset()
        added, self._offered = offered - self.assignment, None
        self.assignment = self._owned = offered
        self._owned_generation = self.generation_id
        if self._joins_once_more:
            self._unjoined(now_ms)
        return added

    def on_revoked(self, partitions: frozenset[TopicPartition], now_ms: int) -> None:
        """The owner is done with what it was to give up (`revoking`)."""
        self.assignment -= partitions
        if self.phase is MemberPhase.REVOKING:
            self.is_lost = False
            self._unjoined(now_ms)
        else:
            self._joins_once_more = self._offered is not None

    def on_counts(self, partitions: Mapping[str, int]) -> None:
        """So many partitions those of the topics of all members have that there are."""
        if not self.is_leader or self.phase is not MemberPhase.STABLE:
            return
        # A static leader that is back has not assigned, so it takes what it sees for that.
        self._has_other_counts = self._counts is not None and self._counts != partitions
        self._counts = dict(partitions)

    def on_request(self) -> None:
        """The owner asks for a round, as soon as none is held any more (KIP-568)."""
        self._asks_for_round = True

    def on_subscription(self, topics: Sequence[str]) -> None:
        """The owner wants other topics: the member joins again as soon as it can."""
        self._topics = tuple(sorted(set(topics)))

    def leave(self, *, for_good: bool = False) -> wire.LeaveGroupRequest | None:
        """The member is done; the request tells the others at once, if they know of it.

        A static member does not tell: within its session it will be back, unless it goes
        `for_good`.
        """
        request = self._leave_request("closed", for_good=for_good)
        self.phase, self._offered = MemberPhase.LEFT, None
        return request

    def __str__(self) -> str:
        return (
            f"member {self.member_id or '(new)'} of group {self._settings.group_id}: "
            f"{self.phase.name.lower()}, generation {self.generation_id}, "
            f"{len(self.assignment)} partitions"
        )

    @property
    def _is_outdated(self) -> bool:
        """Whether the group was assigned for other topics than there are by now."""
        is_other = self._has_other_counts or self._joined_topics != self._topics
        return is_other or self._asks_for_round

    def _step_aside(self) -> Action:
        """Leave what others can read meanwhile; the owner gives it up when it is back."""
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
        """Join again, but only after the owner has finished with what it can't keep meanwhile."""
        self._offered = None
        if self.assignment and (lost or not self._is_cooperative):
            self.phase, self.is_lost = MemberPhase.REVOKING, lost
        else:
            self._unjoined(now_ms)

    def _unjoined(self, now_ms: int, *, pause_ms: int = 0) -> None:
        self.phase = MemberPhase.UNJOINED
        self._joins_once_more = False
        self._not_before_ms = now_ms + pause_ms

    def _forget(self) -> None:
        self.member_id, self.generation_id, self.is_leader = "", -1, False

    def _join_request(self) -> wire.JoinGroupRequest:
        owned = self.assignment if self._is_cooperative else self._owned
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
        """As the leader: what each member gets."""
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
            return self._assignor.told()
        if not isinstance(self._assignor, StickyPort) or self._owned_generation < 0:
            return None
        return self._assignor.user_data(owned, self._owned_generation)

    def _memory(self, said: wire.ConsumerProtocolSubscription) -> Memory:
        """What a member had: by its subscription, or in older versions by its user data."""
        owned, generation = _flat(said.owned_partitions), said.generation_id
        if isinstance(self._assignor, StickyPort) and said.user_data:
            told = self._assignor.memory(said.user_data)
            # Who rebalances eagerly owns nothing by the time it joins, but remembers.
            owned = owned or list(told.owned)
            generation = generation if generation >= 0 else told.generation
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
        detail += ": its members use another assignor or another kind of group"
    if error_code == ErrorCode.INVALID_SESSION_TIMEOUT:
        detail += ": the broker allows other values of session_timeout_ms"
    if error_code == ErrorCode.FENCED_INSTANCE_ID:
        detail += ": another consumer has joined with the same group_instance_id"
    return error_for(error_code, detail)


def _undisputed(claims: Mapping[str, Memory]) -> dict[str, list[TopicPartition]]:
    """What each member had; of several who claim the same, who was given it last."""
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
        return Share(())  # The leader had nothing for us.
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
