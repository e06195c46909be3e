"""ClassicGroup: one group of the classic protocol (KIP-62), and its members.

    EMPTY ──join──▸ PREPARING_REBALANCE ──all joined, or time is up──▸ COMPLETING_REBALANCE
      ▴                    ▴   ▴                                             │       │
      │ last one           │   └── join, leave, expiry ── STABLE ◂── leader's sync   │
      └── leaves           └────────── join, leave, expiry ──────────────────────────┘

A generation is one completed join round. Only its members may sync, heartbeat and commit, and they
name the generation. Requests that wait (joins for other members, syncs for the leader) are held as
tickets. Assignments, and with them STABLE, come from `replay` of the record that the leader's sync
writes; after a restart the group continues from there without a rebalance. Subscriptions and
assignments are opaque bytes here. See KIP-62 (session and rebalance timeouts), KIP-345 (static
members) and KIP-394 (the first join gets a member id).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.coordinator.group.group_records import GroupChange, encode_change
from streamlog.broker.coordinator.shard import (
    Answer,
    Caller,
    CoordinatorRecord,
    Instant,
    ShardOutcome,
)
from streamlog.errors import CorruptData
from streamlog.protocol.codec import decode_versioned
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    ConsumerProtocolSubscription,
    GroupMetadataValue,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    MemberMetadata,
    SyncGroupRequest,
    SyncGroupResponse,
)
from streamlog.replace import replace

IN_PROCESS_HOST = "in-process"
"""The host of members that run in the broker's process."""

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""The protocols that a member supports, best first: name and subscription."""


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """The state of one member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    deadline_ms: int
    """When the member expires, unless it sends a request before."""
    assignment: bytes = b""
    join_ticket: int | None = None
    sync_ticket: int | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the group holds a request of the member, so that its silence means nothing."""
        return self.join_ticket is not None or self.sync_ticket is not None

    def renew_session(self, now_ms: int) -> None:
        """Renew the session of the member."""
        self.deadline_ms = now_ms + self.session_timeout_ms

    def update(self, request: JoinGroupRequest) -> None:
        """Adopt what a join request says."""
        self.protocols = protocols_of(request)
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms(request)

    def subscription(self, protocol_name: str | None) -> bytes:
        """Return its metadata for one protocol."""
        return dict(self.protocols).get(protocol_name or "", b"")

    def release(self, code: ErrorCode) -> ShardOutcome:
        """Answer the requests that the group holds for the member with `code`."""
        answers = []
        if self.join_ticket is not None:
            refused = JoinGroupResponse(error_code=code, protocol_name="", member_id=self.member_id)
            answers.append(Answer(self.join_ticket, refused))
        if self.sync_ticket is not None:
            answers.append(Answer(self.sync_ticket, SyncGroupResponse(error_code=code)))
        self.join_ticket = self.sync_ticket = None
        return ShardOutcome(answers=tuple(answers))

    def to_record(self, protocol_name: str | None, assignment: bytes) -> MemberMetadata:
        """Return what a record keeps about the member."""
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.subscription(protocol_name),
            assignment=assignment,
        )


def restore_member(stored: MemberMetadata, protocol_name: str | None, now_ms: int) -> ClassicMember:
    """Restore a member from a record; its session starts now."""
    # A member in the broker's process died with the previous process: the group need not wait
    # for its session to time out.
    died = stored.client_host == IN_PROCESS_HOST
    return ClassicMember(
        member_id=stored.member_id,
        instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        session_timeout_ms=stored.session_timeout,
        rebalance_timeout_ms=stored.rebalance_timeout,
        protocols=((protocol_name or "", stored.subscription),),
        deadline_ms=now_ms + (0 if died else stored.session_timeout),
    )


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """Return the protocols that a join offers."""
    return tuple((each.name, bytes(each.metadata)) for each in request.protocols)


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Return how long others wait for this member. Version 0 has one timeout for both."""
    given_ms = request.rebalance_timeout_ms
    return given_ms if given_ms >= 0 else request.session_timeout_ms


def common_protocols(spoken: Iterable[Protocols]) -> set[str]:
    """Return the protocols that all members support."""
    return set.intersection(*({name for name, _ in protocols} for protocols in spoken))


def elect_protocol(spoken: list[Protocols]) -> str:
    """Return the protocol with the most votes; each member votes for its first common one."""
    common = common_protocols(spoken)
    votes = Counter(next(name for name, _ in each if name in common) for each in spoken)
    return votes.most_common(1)[0][0]


def subscribes(subscription: bytes, topic: str) -> bool:
    """Whether a consumer's subscription includes a topic; an unreadable one may include any."""
    try:
        return topic in decode_versioned(ConsumerProtocolSubscription, subscription).topics
    except CorruptData:
        return True


MEMBER_ID_REQUIRED_VERSION = 4
"""From this JoinGroup version on, a new member gets its id first, and then joins with it."""
SKIP_ASSIGNMENT_VERSION = 9
"""From this JoinGroup version on, a response can keep a returning static leader from assigning."""
CONSUMERS = "consumer"
"""The protocol type whose subscriptions can be decoded."""


class GroupState(Enum):
    """The state of a group; the values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class Round:
    """One join round: when it may end, and when it must end."""

    may_end_ms: int
    must_end_ms: int


@dataclass(slots=True)
class ClassicGroup:
    """One group of the classic protocol. It takes requests and time, and returns outcomes.

    Invariants: every ticket is answered exactly once; the generation never decreases; a member
    that may commit is a member of the current generation.
    """

    group_id: str
    config: GroupConfig = field(default_factory=GroupConfig)
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol_name: str | None = None
    leader_id: str | None = None
    since_ms: int = -1
    """The wall time of the last completed rebalance; -1 if unknown."""
    members: dict[str, ClassicMember] = field(default_factory=dict)
    reserved_ids: dict[str, int] = field(default_factory=dict)
    """Member ids given to new members that have not joined yet, and when they expire."""
    _static: dict[str, str] = field(default_factory=dict)
    _round: Round | None = None
    _unsynced: set[str] = field(default_factory=set)
    _sync_deadline_ms: int = 0

    # Requests.

    def join(self, request: JoinGroupRequest, caller: Caller, at: Instant) -> ShardOutcome:
        """Handle the join of a member that wants to be in the next generation."""
        code = self._join_refusal(request)
        if code is not ErrorCode.NONE:
            return _refuse_join(request, caller, code)
        if not request.member_id:
            return self._join_nameless(request, caller, at)
        if self.reserved_ids.pop(request.member_id, None) is not None:
            return self._admit(request.member_id, request, caller, at)
        member = self._identify(request.member_id, request.group_instance_id)
        if isinstance(member, ErrorCode):
            return _refuse_join(request, caller, member)
        return self._rejoin(member, request, caller, at)

    def sync(self, request: SyncGroupRequest, caller: Caller, at: Instant) -> ShardOutcome:
        """Handle a member's request for its assignment; the leader brings everyone's."""
        member = self._identify(request.member_id, request.group_instance_id)
        code = member if isinstance(member, ErrorCode) else self._sync_refusal(request)
        if isinstance(member, ErrorCode) or code is not ErrorCode.NONE:
            return ShardOutcome(
                answers=(Answer(caller.ticket, SyncGroupResponse(error_code=code)),)
            )
        member.renew_session(at.now_ms)
        self._unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            return ShardOutcome(answers=(self._sync_answer(caller.ticket, member.assignment),))
        # A member that sends a second sync has given up the first: answer that one now.
        displaced = member.release(ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_ticket = caller.ticket
        if member.member_id != self.leader_id:
            return displaced
        given = {each.member_id: bytes(each.assignment) for each in request.assignments}
        return displaced + self._complete_sync(given, at)

    def heartbeat(self, request: HeartbeatRequest, at: Instant) -> ErrorCode:
        """Renew a member's session; the error code tells it when to join again."""
        member = self._identify(request.member_id, request.group_instance_id)
        if isinstance(member, ErrorCode):
            return member
        if request.generation_id != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member.renew_session(at.now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def may_commit(
        self, member_id: str, instance_id: str | None, generation: int, at: Instant
    ) -> ErrorCode:
        """Check that a member may commit.

        A negative generation means a client that is no member.
        """
        # A consumer that assigns its partitions itself commits with generation -1. It may do so
        # only while the group has no members, which would be surprised by its commits.
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        member = self._identify(member_id, instance_id)
        if isinstance(member, ErrorCode):
            return member
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        member.renew_session(at.now_ms)
        # 1. In PREPARING_REBALANCE a member may still commit: it revokes its partitions and commits
        #    before it joins. 2. In COMPLETING_REBALANCE the next generation exists, and the member
        #    may no longer own the partition: its commit could overwrite the new owner's.
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, member_id: str, instance_id: str | None, at: Instant
    ) -> tuple[ErrorCode, ShardOutcome]:
        """Remove a member, by id or, for a static member, by instance id alone."""
        # An admin removes a static member by its instance id alone (KIP-345).
        if not member_id and instance_id is not None:
            member_id = self._static.get(instance_id, "")
        if self.reserved_ids.pop(member_id, None) is not None:
            return ErrorCode.NONE, self._end_round(at)
        member = self._identify(member_id, instance_id)
        if isinstance(member, ErrorCode):
            return member, ShardOutcome()
        return ErrorCode.NONE, self._remove([member], at)

    # Committed offsets.

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members, and no id given to a new one."""
        return self.state is GroupState.EMPTY and not self.reserved_ids

    @property
    def is_recorded(self) -> bool:
        """Whether the log may have a record of the group."""
        return self.generation > 0

    def group_tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """Return the tombstones of an empty group."""
        return (encode_change(GroupChange(self.group_id, None)),)

    @property
    def is_of_consumers(self) -> bool:
        """Whether its members' subscriptions can be decoded."""
        return self.protocol_type == CONSUMERS

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads a topic, or might."""
        if not self.is_of_consumers:
            return bool(self.members)
        return any(
            subscribes(each.subscription(self.protocol_name), topic)
            for each in self.members.values()
        )

    def unused_since_ms(self, topic: str, committed_ms: int) -> int | None:
        """Return since when (wall time) a committed offset is unused; None while it is used.

        The retention time of an offset (KIP-211) begins when the group becomes empty. In a topic
        that a group with members no longer reads, it begins with the commit.
        """
        if self.state is GroupState.EMPTY:
            return max(self.since_ms, committed_ms)
        if self.state is GroupState.STABLE and not self.subscribes(topic):
            return committed_ms
        return None

    # Time and replay.

    def on_tick(self, at: Instant) -> ShardOutcome:
        """Expire sessions, unused member ids and late rounds."""
        now_ms = at.now_ms
        self.reserved_ids = {name: due for name, due in self.reserved_ids.items() if due > now_ms}
        silent = {
            member.member_id
            for member in self.members.values()
            if not member.is_pending and member.deadline_ms <= now_ms
        }
        # Members that joined and then never sent a sync (KIP-62 has no timeout for this; Kafka's
        # `DelayedSync` has): without them the others would wait for ever.
        if self._sync_deadline_ms <= now_ms:
            silent |= self._unsynced
        gone = [member for member in self.members.values() if member.member_id in silent]
        return self._remove(gone, at) if gone else self._end_round(at)

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do at the earliest; None for never."""
        deadlines = [m.deadline_ms for m in self.members.values() if not m.is_pending]
        deadlines += self.reserved_ids.values()
        if self._unsynced:
            deadlines.append(self._sync_deadline_ms)
        if self._round is not None:
            complete = self._have_all_joined()
            deadlines.append(self._round.may_end_ms if complete else self._round.must_end_ms)
        return min(deadlines, default=None)

    def replay(self, value: GroupMetadataValue, now_ms: int) -> None:
        """Replay a completed rebalance, of this process or from before a restart."""
        members = {}
        for stored in value.members:
            # Members in memory keep their deadlines and tickets; members from the log start a
            # session.
            member = self.members.get(stored.member_id) or restore_member(
                stored, value.protocol, now_ms
            )
            member.assignment = stored.assignment
            members[stored.member_id] = member
        self.members = members
        self._static = {m.instance_id: m.member_id for m in members.values() if m.instance_id}
        self.generation = value.generation
        self.protocol_type = value.protocol_type
        self.protocol_name = value.protocol
        self.leader_id = value.leader
        # 1. The leader's sync appends the assignment. 2. The record is replayed: only now the group
        #    is stable. 3. The responses to the other syncs leave when the record is committed. So
        #    no member gets an assignment that another coordinator would not know after a failure.
        self.state = GroupState.STABLE if members else GroupState.EMPTY
        self.since_ms = value.current_state_timestamp

    # Joins.

    def _join_refusal(self, request: JoinGroupRequest) -> ErrorCode:
        config = self.config
        timeout_ms = request.session_timeout_ms
        if not config.session_timeout_ms_min <= timeout_ms <= config.session_timeout_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        others = [m.protocols for m in self.members.values() if m.member_id != request.member_id]
        if not request.protocol_type or (others and request.protocol_type != self.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not common_protocols([protocols_of(request), *others]):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE if self._has_room(request) else ErrorCode.GROUP_MAX_SIZE_REACHED

    def _has_room(self, request: JoinGroupRequest) -> bool:
        """Whether the group may take the member; a rebalance sheds members over the limit."""
        member = self.members.get(request.member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            joined = sum(each.join_ticket is not None for each in self.members.values())
            if member is not None:
                return member.join_ticket is not None or joined < self.config.size_max
            count = max(joined, len(self.members)) + len(self.reserved_ids)
        else:
            count = len(self.members) + len(self.reserved_ids)
        instance_id = request.group_instance_id
        known = member is not None or request.member_id in self.reserved_ids
        replaces = instance_id is not None and instance_id in self._static
        return known or replaces or count < self.config.size_max

    def _join_nameless(
        self, request: JoinGroupRequest, caller: Caller, at: Instant
    ) -> ShardOutcome:
        instance_id = request.group_instance_id
        if instance_id is not None and instance_id in self._static:
            return self._replace_static(instance_id, request, caller, at)
        member_id = caller.fresh_member_id
        if instance_id is None and caller.version >= MEMBER_ID_REQUIRED_VERSION:
            # KIP-394: without this step, a client that times out and retries its first join leaves
            # a member behind with each try, and the group waits for all of them.
            self.reserved_ids[member_id] = at.now_ms + request.session_timeout_ms
            return _refuse_join(request, caller, ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        return self._admit(member_id, request, caller, at)

    def _admit(
        self, member_id: str, request: JoinGroupRequest, caller: Caller, at: Instant
    ) -> ShardOutcome:
        """Add a new member; a group's first round then waits a little for more members."""
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=caller.client_id,
            client_host=caller.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms(request),
            protocols=protocols_of(request),
            deadline_ms=at.now_ms + request.session_timeout_ms,
        )
        self.members[member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member_id
        current = self._round
        if current is not None and current.may_end_ms > at.now_ms:
            # group.initial.rebalance.delay.ms: each new member extends the first round, so that a
            # group that starts with ten members rebalances once.
            later_ms = at.now_ms + self.config.initial_rebalance_delay_ms
            current.may_end_ms = min(later_ms, current.must_end_ms)
        return self._take_part(member, request, caller, at)

    def _rejoin(
        self, member: ClassicMember, request: JoinGroupRequest, caller: Caller, at: Instant
    ) -> ShardOutcome:
        leads = member.member_id == self.leader_id
        settled = self.state is GroupState.COMPLETING_REBALANCE or (
            self.state is GroupState.STABLE and not leads
        )
        if settled and member.protocols == protocols_of(request):
            # The member has missed the response of this round: repeat it, without a rebalance.
            member.renew_session(at.now_ms)
            return ShardOutcome(answers=(Answer(caller.ticket, self._join_response(member)),))
        return self._take_part(member, request, caller, at)

    def _take_part(
        self, member: ClassicMember, request: JoinGroupRequest, caller: Caller, at: Instant
    ) -> ShardOutcome:
        """Hold the join until its round ends, and start a round if none is running."""
        outcome = member.release(ErrorCode.REBALANCE_IN_PROGRESS)
        member.update(request)
        member.join_ticket = caller.ticket
        self.protocol_type = request.protocol_type
        return outcome + self._prepare_rebalance(at) + self._end_round(at)

    def _replace_static(
        self, instance_id: str, request: JoinGroupRequest, caller: Caller, at: Instant
    ) -> ShardOutcome:
        """Let a static member return under a new member id (KIP-345).

        1. Instance `a` runs as member m1 and restarts. 2. It joins again without a member id, and
           becomes m2. 3. If m1 is still alive (two processes with one instance id), its requests
           get FENCED_INSTANCE_ID. In a stable group that keeps its protocol, m2 gets the assignment
           of m1 and no rebalance happens. If m1 led the group, m2 must not assign again:
           the response says to skip the assignment or, in versions without that field, names m1 as
           the leader.
        """
        old = self.members[self._static[instance_id]]
        outcome = old.release(ErrorCode.FENCED_INSTANCE_ID)
        member = replace(old, member_id=caller.fresh_member_id, join_ticket=None, sync_ticket=None)
        member.renew_session(at.now_ms)
        self.members = {
            each.member_id: each
            for each in (member if m is old else m for m in self.members.values())
        }
        self._static[instance_id] = member.member_id
        if old.member_id in self._unsynced:
            self._unsynced = self._unsynced - {old.member_id} | {member.member_id}
        leads = self.leader_id == old.member_id
        if leads:
            self.leader_id = member.member_id
        member.update(request)
        spoken = [each.protocols for each in self.members.values()]
        # A rebalance follows only if it would choose another protocol, or one is running anyway.
        if self.state is not GroupState.STABLE or elect_protocol(spoken) != self.protocol_name:
            return outcome + self._take_part(member, request, caller, at)
        response = self._join_response(member)
        if leads and caller.version < SKIP_ASSIGNMENT_VERSION:
            response.leader, response.members = old.member_id, []
        response.skip_assignment = leads
        # The record has the new member id: after a restart, m2 must be known.
        kept = {each.member_id: each.assignment for each in self.members.values()}
        answer = Answer(caller.ticket, response)
        return outcome + ShardOutcome((self._record(kept, at),), (answer,))

    # Rounds.

    def _prepare_rebalance(self, at: Instant) -> ShardOutcome:
        """Start a join round, unless one is running. Members that wait for a sync join again."""
        if self.state is GroupState.PREPARING_REBALANCE:
            return ShardOutcome()
        is_first = self.state is GroupState.EMPTY
        # The delay is for the start of a group. In a running one, members wait for each other
        # anyway.
        may_end_ms = at.now_ms + (self.config.initial_rebalance_delay_ms if is_first else 0)
        patience_ms = max((m.rebalance_timeout_ms for m in self.members.values()), default=0)
        self._round = Round(may_end_ms, max(may_end_ms, at.now_ms + patience_ms))
        self.state = GroupState.PREPARING_REBALANCE
        self._unsynced.clear()
        outcome = ShardOutcome()
        for member in self.members.values():
            if member.sync_ticket is not None:
                outcome += member.release(ErrorCode.REBALANCE_IN_PROGRESS)
                member.renew_session(at.now_ms)
        return outcome

    def _have_all_joined(self) -> bool:
        waiting = all(member.join_ticket is not None for member in self.members.values())
        return waiting and not self.reserved_ids

    def _end_round(self, at: Instant) -> ShardOutcome:
        """Begin the next generation if all members have joined, or if the round's time is up."""
        if self._round is None:
            return ShardOutcome()
        end_ms = self._round.may_end_ms if self._have_all_joined() else self._round.must_end_ms
        # 1. All have joined: wait only for the initial delay of a new group. 2. A member is
        #    missing: wait for the longest rebalance timeout, then continue without it.
        if at.now_ms < end_ms:
            return ShardOutcome()
        # Members that did not join in time are removed. Static members are not: they may be
        # restarting, and their session decides (KIP-345).
        outcome = self._forget(
            [m for m in self.members.values() if m.join_ticket is None and m.instance_id is None]
        )
        if self.members and all(m.join_ticket is None for m in self.members.values()):
            # Only static members are left, and they are away: wait until their sessions end.
            patience_ms = max(m.rebalance_timeout_ms for m in self.members.values())
            self._round.must_end_ms = at.now_ms + max(patience_ms, 1)
            return outcome
        self._round = None
        self.generation += 1
        if not self.members:
            self.state, self.protocol_name, self.leader_id = GroupState.EMPTY, None, None
            return outcome + ShardOutcome((self._record({}, at),))
        return outcome + ShardOutcome(answers=self._begin_generation(at))

    def _begin_generation(self, at: Instant) -> tuple[Answer, ...]:
        """Begin a generation. Static members that are away keep their partitions for a session."""
        members = self.members.values()
        joined = [member for member in members if member.join_ticket is not None]
        self.protocol_name = elect_protocol([member.protocols for member in members])
        # The leader keeps its role over generations, as in Kafka; another member leads only if it
        # is gone.
        if self.leader_id not in {member.member_id for member in joined}:
            self.leader_id = joined[0].member_id
        self.state = GroupState.COMPLETING_REBALANCE
        self._unsynced = set(self.members)
        self._sync_deadline_ms = at.now_ms + max(m.rebalance_timeout_ms for m in members)
        answers = []
        for member in joined:
            if member.join_ticket is not None:
                answers.append(Answer(member.join_ticket, self._join_response(member)))
            member.join_ticket = None
            member.renew_session(at.now_ms)
        return tuple(answers)

    def _complete_sync(self, given: dict[str, bytes], at: Instant) -> ShardOutcome:
        answers = []
        for member in self.members.values():
            if member.sync_ticket is not None:
                assignment = given.get(member.member_id, b"")
                answers.append(self._sync_answer(member.sync_ticket, assignment))
                member.sync_ticket = None
                member.renew_session(at.now_ms)
        return ShardOutcome((self._record(given, at),), tuple(answers))

    # Members.

    def _identify(self, member_id: str, instance_id: str | None) -> ClassicMember | ErrorCode:
        if instance_id is not None and instance_id not in self._static:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if instance_id is not None and self._static[instance_id] != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        return self.members.get(member_id, ErrorCode.UNKNOWN_MEMBER_ID)

    def _sync_refusal(self, request: SyncGroupRequest) -> ErrorCode:
        # The instance id is checked first, so that the old process of a static member learns that
        # it is fenced and not that it is unknown: it must stop and not join again.
        if request.generation_id != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, self.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name not in (None, self.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _remove(self, gone: list[ClassicMember], at: Instant) -> ShardOutcome:
        """Remove members, and rebalance the others."""
        return self._forget(gone) + self._prepare_rebalance(at) + self._end_round(at)

    def _forget(self, gone: Iterable[ClassicMember]) -> ShardOutcome:
        outcome = ShardOutcome()
        for member in gone:
            del self.members[member.member_id]
            if member.instance_id is not None:
                self._static.pop(member.instance_id, None)
            self._unsynced.discard(member.member_id)
            outcome += member.release(ErrorCode.UNKNOWN_MEMBER_ID)
        return outcome

    # Responses and records.

    def _join_response(self, member: ClassicMember) -> JoinGroupResponse:
        """Return the response to a join; only the leader gets the list of members."""
        members = self.members.values() if member.member_id == self.leader_id else ()
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            member_id=member.member_id,
            members=[
                JoinGroupResponseMember(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    metadata=each.subscription(self.protocol_name),
                )
                for each in members
            ],
        )

    def _sync_answer(self, ticket: int, assignment: bytes) -> Answer:
        response = SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=assignment,
        )
        return Answer(ticket, response)

    def _record(self, assignments: dict[str, bytes], at: Instant) -> CoordinatorRecord:
        value = GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=at.wall_ms,
            members=[
                member.to_record(self.protocol_name, assignments.get(member.member_id, b""))
                for member in self.members.values()
            ],
        )
        return encode_change(GroupChange(self.group_id, value))


def _refuse_join(
    request: JoinGroupRequest, caller: Caller, code: ErrorCode, *, member_id: str | None = None
) -> ShardOutcome:
    response = JoinGroupResponse(
        error_code=code, protocol_name="", member_id=member_id or request.member_id
    )
    return ShardOutcome(answers=(Answer(caller.ticket, response),))
