"""ConsumerGroup: one group whose coordinator computes the assignment (KIP-848).

    group epoch    grows when members, subscriptions or their topics change
    target epoch   the group epoch that the assignment was computed for
    member epoch   the target epoch that a member has reached, step by step (`group_member`)

A heartbeat reports changes and returns changes; there is no join round. A member keeps the
partitions that its target contains, and gets the others when other members have given them up.

Rule: a heartbeat returns changes, and only `replay` of those changes the group. A `Draft` works
    them out in Kafka's order: which member, what is new, whether that needs a new group epoch,
    whether that needs a new assignment, and the member's next step. A request that fails leaves
    no changes. Deadlines are held in memory and start again with the broker.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from streamlog.assignors import Assignor, RangeAssignor, StickyAssignor
from streamlog.broker.config.coordinators import GroupConfig
from streamlog.broker.coordinator.group.classic_group import IN_PROCESS_HOST
from streamlog.broker.coordinator.group.group_member import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    LEFT_EPOCH,
    NOTHING,
    ConsumerChange,
    EpochChange,
    Held,
    HoldingChange,
    MemberPartitions,
    MemberState,
    MemberSubscription,
    Subscriber,
    SubscriberChange,
    Target,
    TargetChange,
    TargetEpochChange,
    encode_consumer_change,
    held_of,
    reconcile,
    topic_partitions,
)
from streamlog.broker.coordinator.group.topic_pattern import TopicPattern
from streamlog.broker.coordinator.shard import CoordinatorRecord, Instant, ShardOutcome
from streamlog.errors import ConfigError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from streamlog.record import TopicPartition
from streamlog.replace import replace

if TYPE_CHECKING:
    from streamlog.broker.coordinator.shard import Caller
    from streamlog.broker.named_topics import Topics


CONSUMER_EPOCHS_VERSION = 9
"""From this OffsetCommit version on, a commit can name a member epoch."""
DEFAULT_ASSIGNOR = "uniform"


@dataclass(slots=True)
class ConsumerGroup:
    """One group of the consumer protocol. Only `replay` changes it, except for deadlines."""

    group_id: str
    config: GroupConfig = field(default_factory=GroupConfig)
    epoch: int = 0
    fingerprint: int = 0
    """A hash of the topics that members read, as of `epoch`."""
    target_epoch: int = 0
    members: dict[str, Subscriber] = field(default_factory=dict)
    targets: dict[str, Held] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """Instance id to member id."""
    patterns: dict[str, TopicPattern] = field(default_factory=dict)
    """The regular expressions that members subscribe with, parsed."""
    _wanted: MemberSubscription | None = None
    _holdings: dict[str, MemberPartitions] = field(default_factory=dict)
    _holders: dict[tuple[bytes, int], str] = field(default_factory=dict)
    _sessions: dict[str, int] = field(default_factory=dict)
    """When each member's session ends."""
    _revocations: dict[str, int] = field(default_factory=dict)
    """When a member's time to give up partitions ends."""

    # Reads.

    is_of_consumers: ClassVar[bool] = True
    """Subscriptions are known to the coordinator."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    def is_recorded(self) -> bool:
        """Whether the log may have a record of the group."""
        return self.epoch > 0

    @property
    def state(self) -> str:
        """The state of the group, by Kafka's names."""
        if not self.members:
            return "Empty"
        # The epoch rises and the target is computed in one heartbeat; they differ only if a member
        # was removed since, by time-out or by leaving. The next heartbeat computes a target again.
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled = all(
            holding.progress is MemberState.STABLE and holding.epoch == self.target_epoch
            for holding in map(self.holding, self.members)
            if holding.epoch != AWAY_EPOCH
        )
        return "Stable" if settled else "Reconciling"

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer."""
        asked = Counter(each.assignor for each in self.members.values() if each.assignor)
        return asked.most_common(1)[0][0] if asked else DEFAULT_ASSIGNOR

    def holding(self, member_id: str) -> MemberPartitions:
        """Return the partitions of a member; none at first."""
        return self._holdings.get(member_id, MemberPartitions())

    def holder(self, partition: tuple[bytes, int]) -> str | None:
        """Return the member that has a partition, or has not given it up yet."""
        return self._holders.get(partition)

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads a topic."""
        wanted = self.wanted()
        return topic in wanted.topics or any(self.matches(text, topic) for text in wanted.patterns)

    def reads(self, subscriber: Subscriber, topic: str) -> bool:
        """Whether this member reads a topic."""
        if topic in subscriber.topics:
            return True
        return subscriber.pattern is not None and self.matches(subscriber.pattern, topic)

    def wanted(self) -> MemberSubscription:
        """Return the subscriptions of all members together."""
        if self._wanted is None:
            self._wanted = MemberSubscription.of(self.members.values())
        return self._wanted

    def matches(self, text: str, topic: str) -> bool:
        """Whether a subscribed expression matches a topic, including internal ones, as in Kafka.

        An expression is parsed once; it was validated when it was received.
        """
        found = self.patterns.get(text)
        if found is None:
            found = self.patterns[text] = TopicPattern(text)
        return found.matches(topic)

    def unused_since_ms(self, topic: str, committed_ms: int) -> int | None:
        """Return since when (wall time) a committed offset is unused; None while it is used."""
        return None if self.subscribes(topic) else committed_ms

    def may_commit(self, member_id: str, epoch: int, version: int) -> ErrorCode:
        """Check that a member may commit; a negative epoch means a client that is no member."""
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if version < CONSUMER_EPOCHS_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        # A member that commits with an old epoch may have lost the partition: its commit could
        # overwrite that of the new owner (KIP-848).
        same = epoch == self.holding(member_id).epoch
        return ErrorCode.NONE if same else ErrorCode.STALE_MEMBER_EPOCH

    def may_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Check that a member may fetch offsets; a request without an epoch always may."""
        if not member_id and epoch < 0:
            return ErrorCode.NONE
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        same = epoch == self.holding(member_id or "").epoch
        return ErrorCode.NONE if same else ErrorCode.STALE_MEMBER_EPOCH

    # Time.

    def renew_session(self, member_id: str, at: Instant) -> None:
        """Renew a member's session."""
        self._sessions[member_id] = at.now_ms + self.config.consumer_session_timeout_ms

    def on_tick(self, at: Instant) -> ShardOutcome:
        """Remove members that are silent, or do not give up partitions in time."""
        # A member whose first record was not appended has a session, and is not a member.
        known = self.members.keys()
        self._sessions = {each: due for each, due in self._sessions.items() if each in known}
        self._revocations = {each: due for each, due in self._revocations.items() if each in known}
        over = [
            member_id
            for member_id in self.members
            if self._sessions.get(member_id, at.now_ms) <= at.now_ms
            or self._revocations.get(member_id, at.now_ms + 1) <= at.now_ms
        ]
        # If the append fails, the next tick tries again.
        again_ms = at.now_ms + self.config.consumer_heartbeat_interval_ms
        for member_id in over:
            self._sessions[member_id] = again_ms
            self._revocations.pop(member_id, None)
        return ShardOutcome(tuple(map(encode_consumer_change, self.removal(over))))

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do; None for never."""
        return min([*self._sessions.values(), *self._revocations.values()], default=None)

    def removal(self, member_ids: list[str]) -> list[ConsumerChange]:
        """Return the changes that remove members and begin a new group epoch."""
        if not member_ids:
            return []
        changes: list[ConsumerChange] = []
        for member_id in member_ids:
            changes += self.erasure(member_id)
        return [*changes, EpochChange(self.group_id, self.epoch + 1, self.fingerprint)]

    def erasure(self, member_id: str) -> list[ConsumerChange]:
        """Return the changes that remove everything about one member."""
        # In this order: a crash cannot split them (they are one batch), but compaction may drop any
        # of them, and each can be replayed without the others.
        return [
            HoldingChange(self.group_id, member_id, None),
            TargetChange(self.group_id, member_id, None),
            SubscriberChange(self.group_id, member_id, None),
        ]

    def group_tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """Return the tombstones of an empty group."""
        return (
            encode_consumer_change(TargetEpochChange(self.group_id, None)),
            encode_consumer_change(EpochChange(self.group_id, None)),
        )

    # Replay.

    def replay(self, change: ConsumerChange, now_ms: int) -> None:
        """Replay one change; the order does not matter, because compaction may change it."""
        match change:
            case EpochChange(epoch=epoch, fingerprint=fingerprint):
                self.epoch, self.fingerprint = epoch or 0, fingerprint
            case TargetEpochChange(epoch=epoch):
                self.target_epoch = epoch or 0
            case SubscriberChange(member_id=member_id, subscriber=subscriber):
                self._replay_subscriber(member_id, subscriber, now_ms)
            case TargetChange(member_id=member_id, partitions=None):
                self.targets.pop(member_id, None)
            case TargetChange(member_id=member_id, partitions=partitions):
                self.targets[member_id] = partitions or NOTHING
            case HoldingChange(member_id=member_id, holding=holding):
                self._replay_holding(member_id, holding, now_ms)

    def _replay_subscriber(
        self, member_id: str, subscriber: Subscriber | None, now_ms: int
    ) -> None:
        before = self.members.pop(member_id, None)
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and self.static.get(instance_id) == member_id:
            del self.static[instance_id]
        if subscriber is None:
            self._sessions.pop(member_id, None)
        else:
            self.members[member_id] = subscriber
            # A member in the broker's process died with the previous process.
            died = subscriber.client_host == IN_PROCESS_HOST
            session_ms = 0 if died else self.config.consumer_session_timeout_ms
            # `setdefault`: a record that changes a live member must not extend its session.
            self._sessions.setdefault(member_id, now_ms + session_ms)
            if subscriber.instance_id is not None:
                self.static[subscriber.instance_id] = member_id
        self._wanted = None
        # Parsed expressions that no member uses now are dropped.
        used = self.wanted().patterns
        self.patterns = {text: known for text, known in self.patterns.items() if text in used}

    def _replay_holding(
        self, member_id: str, holding: MemberPartitions | None, now_ms: int
    ) -> None:
        before = self._holdings.pop(member_id, None)
        for partition in NOTHING if before is None else before.held:
            if self._holders.get(partition) == member_id:
                del self._holders[partition]
        waited = before is not None and before.progress is MemberState.UNREVOKED
        if holding is None or holding.progress is not MemberState.UNREVOKED:
            self._revocations.pop(member_id, None)
        # The time to give up partitions starts once per epoch; a heartbeat that repeats the state
        # must not extend it.
        elif not waited or before is None or before.epoch != holding.epoch:
            subscriber = self.members.get(member_id)
            patience_ms = 0 if subscriber is None else subscriber.rebalance_timeout_ms
            if patience_ms <= 0:
                patience_ms = self.config.consumer_session_timeout_ms
            self._revocations[member_id] = now_ms + patience_ms
        if holding is not None:
            self._holdings[member_id] = holding
            self._holders.update(dict.fromkeys(holding.held, member_id))


OWN_MEMBER_ID_VERSION = 1
"""From this version on, a member brings an id that it has generated itself (KIP-1082)."""
ASSIGNORS: dict[str, Assignor] = {"uniform": StickyAssignor(), "range": RangeAssignor()}
"""By the names in requests; `uniform` is balanced and sticky."""
UNCHANGED_MS = -1


class HeartbeatError(NamedTuple):
    """Why a heartbeat is refused."""

    code: ErrorCode
    message: str


def heartbeat_error(request: ConsumerGroupHeartbeatRequest, version: int) -> HeartbeatError | None:
    """Return what is wrong with a heartbeat, independently of the group; None if it is valid."""
    joins = request.member_epoch == JOINING_EPOCH
    named = version >= OWN_MEMBER_ID_VERSION or not joins
    named_topics, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    # A member may subscribe to no topic, but it has to say so.
    subscribes = named_topics is not None or pattern is not None
    wrong = (
        (not request.group_id, "group_id is empty"),
        (named and not request.member_id, "member_id is empty"),
        (request.instance_id == "", "instance_id is empty"),
        (request.rack_id == "", "rack_id is empty"),
        (request.member_epoch < AWAY_EPOCH, f"member epoch {request.member_epoch} is invalid"),
        (
            request.member_epoch == AWAY_EPOCH and request.instance_id is None,
            "only a static member can leave with epoch -2",
        ),
        (
            joins and request.rebalance_timeout_ms < 0,
            "a joining member must give a rebalance timeout",
        ),
        (joins and request.topic_partitions != [], "a joining member must own no partitions"),
        (joins and not subscribes, "a joining member must give a subscription"),
    )
    reason = next((text for is_wrong, text in wrong if is_wrong), None)
    if reason is not None:
        return HeartbeatError(ErrorCode.INVALID_REQUEST, reason)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        there = ", ".join(ASSIGNORS)
        message = f"unknown assignor {request.server_assignor!r}; known are: {there}"
        return HeartbeatError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    try:
        TopicPattern(pattern or "")
    except ConfigError as error:
        return HeartbeatError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error))
    return None


class Draft:
    """The changes of one heartbeat; call `beat` or `leave` once."""

    def __init__(
        self,
        group: ConsumerGroup,
        topics: Topics,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
    ) -> None:
        self.changes: list[ConsumerChange] = []
        self.member_id = request.member_id or caller.fresh_member_id
        self._group = group
        self._topics = topics
        self._request = request
        self._caller = caller
        self._members = dict(group.members)
        self._targets = dict(group.targets)
        self._replaced_id: str | None = None
        self._resubscribed = False

    # The two entry points.

    def leave(self) -> HeartbeatError | ConsumerGroupHeartbeatResponse:
        """Let the member leave, for good or, if it is static, for a while."""
        request, group = self._request, self._group
        refusal = self._check_identity()
        if refusal is not None:
            return refusal
        if request.member_epoch == AWAY_EPOCH:
            # Epoch -2: a static member restarts. It keeps its assignment, and others don't get it,
            # until it returns or its session ends.
            holding = group.holding(self.member_id)
            away = replace(holding.at_epoch(AWAY_EPOCH), revoking=NOTHING)
            self._add(HoldingChange(group.group_id, self.member_id, away))
        else:
            self.changes += group.removal([self.member_id])
        return ConsumerGroupHeartbeatResponse(
            member_id=self.member_id, member_epoch=request.member_epoch
        )

    def beat(self) -> HeartbeatError | ConsumerGroupHeartbeatResponse:
        """Let the member join, or renew its session."""
        holding = self._admit()
        if isinstance(holding, HeartbeatError):
            return holding
        self._resubscribed = self._update()
        epoch = self._group_epoch()
        # In this order (KIP-848): 1. The group epoch rises if subscriptions or topics changed. 2.
        # If it is above the target epoch, a new target assignment is computed. 3. The member moves
        # one step towards its target: it first revokes, and gets new partitions when they are free.
        target = self._target(epoch)
        owned = self._request.topic_partitions
        after = reconcile(holding, target, None if owned is None else held_of(owned), self._is_free)
        if after != self._group.holding(self.member_id):
            self._add(HoldingChange(self._group.group_id, self.member_id, after))
        return self._response(holding, after)

    # Identity.

    def _check_identity(self) -> HeartbeatError | None:
        """Return why the request's member is unknown or fenced; None if it is a member."""
        instance_id = self._request.instance_id
        holder = None if instance_id is None else self._group.static.get(instance_id)
        if instance_id is not None and holder is not None and holder != self.member_id:
            return HeartbeatError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"instance {instance_id!r} now belongs to another member: {holder}",
            )
        if self.member_id not in self._group.members or (instance_id is not None and not holder):
            return HeartbeatError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {self._group.group_id!r} has no member {self.member_id!r}",
            )
        return None

    def _admit(self) -> MemberPartitions | HeartbeatError:
        """Return the member's partitions; it may be new, back, or take over a static member."""
        if self._request.member_epoch == JOINING_EPOCH:
            return self._join()
        refusal = self._check_identity()
        if refusal is not None:
            return refusal
        holding = self._group.holding(self.member_id)
        return self._check_epoch(holding) or holding

    def _join(self) -> MemberPartitions | HeartbeatError:
        instance_id, group = self._request.instance_id, self._group
        holder = None if instance_id is None else group.static.get(instance_id)
        if holder is not None and holder != self.member_id:
            before = group.holding(holder)
            if before.epoch != AWAY_EPOCH:
                return HeartbeatError(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"instance {instance_id!r} is still used by member {holder}",
                )
            return self._replace(holder, before)
        if self.member_id in group.members:
            # It has missed the response, or has lost its state: either way it owns nothing now, and
            # gets the partitions that are assigned to it.
            before = group.holding(self.member_id)
            return MemberPartitions(assigned=before.assigned, previous_epoch=before.previous_epoch)
        if len(group.members) >= group.config.consumer_size_max:
            return HeartbeatError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"group {group.group_id!r} has the maximum number of members, {len(group.members)}",
            )
        return MemberPartitions()

    def _replace(self, holder: str, before: MemberPartitions) -> MemberPartitions:
        """Let a static member return under a new id; it gets its predecessor's partitions."""
        self.changes += self._group.erasure(holder)
        self._members[self.member_id] = replace(self._members.pop(holder), member_id=self.member_id)
        target = self._targets.pop(holder, NOTHING)
        self._targets[self.member_id] = target
        self._add(TargetChange(self._group.group_id, self.member_id, target))
        self._replaced_id = holder
        return MemberPartitions(assigned=before.assigned)

    def _check_epoch(self, holding: MemberPartitions) -> HeartbeatError | None:
        """Return an error for a wrong epoch, unless the member has only missed one response.

        1. The member is at epoch 4; a heartbeat moves it to 5, and the response is lost. 2. It
           sends epoch 4 again. That is accepted if it owns nothing that is not assigned to it at
           epoch 5: then it has not acted on any other assignment. 3. Any other epoch is fenced, and
           it must rejoin.
        """
        epoch = self._request.member_epoch
        owned = self._request.topic_partitions
        if epoch == holding.epoch:
            return None
        late = epoch == holding.previous_epoch and owned is not None
        if late and held_of(owned or []) <= holding.assigned:
            return None
        return HeartbeatError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {self.member_id!r} sent epoch {epoch}, but its epoch is {holding.epoch}",
        )

    # Changes.

    def _update(self) -> bool:
        """Adopt the description in the heartbeat; return whether the subscription changed."""
        request, caller = self._request, self._caller
        known = self._members.get(self.member_id)
        old = known or Subscriber(member_id=self.member_id)
        names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
        timeout_ms = request.rebalance_timeout_ms
        new = replace(
            old,
            instance_id=old.instance_id if request.instance_id is None else request.instance_id,
            rack_id=old.rack_id if request.rack_id is None else request.rack_id,
            client_id=caller.client_id,
            client_host=caller.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms
            if timeout_ms == UNCHANGED_MS
            else timeout_ms,
            assignor=old.assignor if request.server_assignor is None else request.server_assignor,
            topics=old.topics if names is None else tuple(sorted(set(names))),
            pattern=old.pattern if pattern is None else pattern or None,
        )
        self._members[self.member_id] = new
        if new != self._group.members.get(self.member_id):
            self._add(SubscriberChange(self._group.group_id, self.member_id, new))
        return known is None or (old.topics, old.pattern) != (new.topics, new.pattern)

    def _group_epoch(self) -> int:
        """Return the group epoch: a new one if subscriptions, or the topics they match, changed."""
        group = self._group
        fingerprint = self._fingerprint()
        if not self._resubscribed and fingerprint == group.fingerprint:
            return group.epoch
        self._add(EpochChange(group.group_id, group.epoch + 1, fingerprint))
        return group.epoch + 1

    def _fingerprint(self) -> int:
        """Hash the topics that are read: names, ids and partition counts."""
        digest = hashlib.blake2b(digest_size=8)
        for name in self._topics_read():
            count, topic_id = self._topics.partitions(name), self._topics.topic_id(name)
            # With the topic id: a topic that was deleted and created again needs a new assignment,
            # although its name and partition count are unchanged.
            digest.update(b"%s\0%s%d\n" % (name.encode(), topic_id or b"", count))
        return int.from_bytes(digest.digest(), signed=True)

    def _topics_read(self) -> list[str]:
        """Return the existing topics that some member reads, sorted."""
        wanted = (
            MemberSubscription.of(self._members.values())
            if self._resubscribed
            else self._group.wanted()
        )
        read = {name for name in wanted.topics if self._topics.partitions(name)}
        for text in wanted.patterns:
            read |= {name for name in self._topics.names() if self._group.matches(text, name)}
        return sorted(read)

    # Assignment.

    def _target(self, epoch: int) -> Target:
        group = self._group
        if epoch > group.target_epoch:
            self._assign()
            self._add(TargetEpochChange(group.group_id, epoch))
            return Target(epoch, self._targets.get(self.member_id, NOTHING))
        return Target(group.target_epoch, self._targets.get(self.member_id, NOTHING))

    def _assign(self) -> None:
        """Compute a new assignment; a member whose target stays the same causes no change."""
        counts = {name: self._topics.partitions(name) for name in self._topics_read()}
        wants = {
            member_id: [name for name in counts if self._group.reads(member, name)]
            for member_id, member in self._members.items()
        }
        before = {
            member_id: list(self._by_name(self._targets.get(member_id, NOTHING)))
            for member_id in wants
        }
        # Pure and deterministic, but not repeated in replay: the targets are in the log, so a
        # change of the assignor's code does not change the assignments of a running group.
        plan = ASSIGNORS[self._group.assignor].assign(wants, counts, before)
        for member_id, share in plan.items():
            held = frozenset(
                (topic_id, partition)
                for name, partition in share
                if (topic_id := self._topics.topic_id(name)) is not None
            )
            if held != self._targets.get(member_id):
                self._targets[member_id] = held
                self._add(TargetChange(self._group.group_id, member_id, held))

    def _by_name(self, held: Held) -> Iterable[TopicPartition]:
        for topic_id, partition in held:
            name = self._topics.name_of(topic_id)
            if name is not None:
                yield TopicPartition(name, partition)

    def _is_free(self, partition: tuple[bytes, int]) -> bool:
        # A static member's partitions go to its replacement, although the old member still holds
        # them in the group's state until the changes are replayed.
        holder = self._group.holder(partition)
        return holder is None or holder == self._replaced_id

    # Response.

    def _response(
        self, before: MemberPartitions, after: MemberPartitions
    ) -> ConsumerGroupHeartbeatResponse:
        """Return the response; it has the assignment if that changed, or on a full heartbeat."""
        request = self._request
        subscribes = (request.subscribed_topic_names, request.subscribed_topic_regex)
        tells_all = (
            request.rebalance_timeout_ms != UNCHANGED_MS
            and request.topic_partitions is not None
            and subscribes != (None, None)
        )
        assignment = None
        if request.member_epoch == JOINING_EPOCH or tells_all or before.assigned != after.assigned:
            assignment = Assignment(topic_partitions=topic_partitions(after.assigned))
        return ConsumerGroupHeartbeatResponse(
            member_id=self.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._group.config.consumer_heartbeat_interval_ms,
            assignment=assignment,
        )

    def _add(self, change: ConsumerChange) -> None:
        self.changes.append(change)


def draft_response(
    draft: Draft, request: ConsumerGroupHeartbeatRequest
) -> HeartbeatError | ConsumerGroupHeartbeatResponse:
    """Process a heartbeat in its draft."""
    leaves = request.member_epoch in (LEFT_EPOCH, AWAY_EPOCH)
    return draft.leave() if leaves else draft.beat()
