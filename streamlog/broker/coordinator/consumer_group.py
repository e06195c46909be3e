"""ConsumerGroup: one group whose coordinator assigns (KIP-848), by epochs.

    group epoch    grows when members, subscriptions or the topics behind them change
    target epoch   the group epoch that the assignment was made for; made anew when it is behind
    member epoch   the target epoch that a member has reached, step by step (`consumer_member`)

A heartbeat says what is new and gets what is new. There is no round to wait for: a member goes on
with what it keeps, and gets the rest when others have given it up.
Rule of the file: that of `shard`: a heartbeat yields the changes, and only `replay` of those
changes the group; times are held in memory, and begin anew after a restart. What the changes are
is worked out in a `Draft`, which sees the group as it will be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from streamlog.broker.coordinator.classic_member import IN_PROCESS_HOST
from streamlog.broker.coordinator.consumer_member import (
    AWAY_EPOCH,
    NOTHING,
    Held,
    Holding,
    Progress,
    Subscriber,
    Wanted,
)
from streamlog.broker.coordinator.consumer_records import (
    ConsumerChange,
    EpochChange,
    HoldingChange,
    SubscriberChange,
    TargetChange,
    TargetEpochChange,
    encode_consumer_change,
)
from streamlog.broker.coordinator.shard import CoordinatorRecord, Instant, Outcome
from streamlog.broker.coordinator.topic_pattern import TopicPattern
from streamlog.broker.group_config import GroupConfig
from streamlog.protocol.error_codes import ErrorCode

CONSUMER_EPOCHS_VERSION = 9
"""From this OffsetCommit version on a commit can name a member's epoch."""
DEFAULT_ASSIGNOR = "uniform"


@dataclass(slots=True)
class ConsumerGroup:
    """One group. `replay` is the only way it changes, besides deadlines."""

    group_id: str
    config: GroupConfig = field(default_factory=GroupConfig)
    epoch: int = 0
    fingerprint: int = 0
    """Of the topics that members read, at that epoch."""
    target_epoch: int = 0
    members: dict[str, Subscriber] = field(default_factory=dict)
    targets: dict[str, Held] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """Instance to member."""
    patterns: dict[str, TopicPattern] = field(default_factory=dict)
    """The expressions that members subscribe by, parsed."""
    _wanted: Wanted | None = None
    _holdings: dict[str, Holding] = field(default_factory=dict)
    _holders: dict[tuple[bytes, int], str] = field(default_factory=dict)
    _sessions: dict[str, int] = field(default_factory=dict)
    """Until when each member has to be heard of."""
    _revocations: dict[str, int] = field(default_factory=dict)
    """Until when a member has to give up what it is asked for."""

    # ---- reading ----

    is_of_consumers: ClassVar[bool] = True
    """It can be told what its members read."""

    @property
    def is_empty(self) -> bool:
        """Whether nobody is there."""
        return not self.members

    @property
    def is_recorded(self) -> bool:
        """Whether the log may know of it."""
        return self.epoch > 0

    @property
    def state(self) -> str:
        """Where the group is, in Kafka's words."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled = all(
            holding.progress is Progress.STABLE and holding.epoch == self.target_epoch
            for holding in map(self.holding, self.members)
            if holding.epoch != AWAY_EPOCH
        )
        return "Stable" if settled else "Reconciling"

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for."""
        asked = Counter(each.assignor for each in self.members.values() if each.assignor)
        return asked.most_common(1)[0][0] if asked else DEFAULT_ASSIGNOR

    def holding(self, member_id: str) -> Holding:
        """What a member has; nothing at first."""
        return self._holdings.get(member_id, Holding())

    def holder(self, partition: tuple[bytes, int]) -> str | None:
        """Who has a partition, or has not given it up yet."""
        return self._holders.get(partition)

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads a topic."""
        wanted = self.wanted()
        return topic in wanted.topics or any(self.matches(text, topic) for text in wanted.patterns)

    def reads(self, subscriber: Subscriber, topic: str) -> bool:
        """Whether this member does."""
        if topic in subscriber.topics:
            return True
        return subscriber.pattern is not None and self.matches(subscriber.pattern, topic)

    def wanted(self) -> Wanted:
        """What its members read together."""
        if self._wanted is None:
            self._wanted = Wanted.of(self.members.values())
        return self._wanted

    def matches(self, text: str, topic: str) -> bool:
        """Whether a subscribed expression matches a topic, the internal ones included, as on Kafka.

        It is parsed once, and was judged when it came.
        """
        found = self.patterns.get(text)
        if found is None:
            found = self.patterns[text] = TopicPattern(text)
        return found.matches(topic)

    def unused_since_ms(self, topic: str, committed_ms: int) -> int | None:
        """Since when (wall time) a position in a topic has served nobody; None while it does."""
        return None if self.subscribes(topic) else committed_ms

    def may_commit(self, member_id: str, epoch: int, version: int) -> ErrorCode:
        """Whether offsets from this member count; a negative epoch is no member at all."""
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if version < CONSUMER_EPOCHS_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        same = epoch == self.holding(member_id).epoch
        return ErrorCode.NONE if same else ErrorCode.STALE_MEMBER_EPOCH

    def may_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether this member may be told offsets; one that names no epoch always."""
        if not member_id and epoch < 0:
            return ErrorCode.NONE
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        same = epoch == self.holding(member_id or "").epoch
        return ErrorCode.NONE if same else ErrorCode.STALE_MEMBER_EPOCH

    # ---- time ----

    def heard_of(self, member_id: str, at: Instant) -> None:
        """A member is alive."""
        self._sessions[member_id] = at.now_ms + self.config.consumer_session_timeout_ms

    def on_tick(self, at: Instant) -> Outcome:
        """The end of members that are silent, or do not give up what they are asked for."""
        # A member whose first record the log has refused has a session, and is none.
        known = self.members.keys()
        self._sessions = {each: due for each, due in self._sessions.items() if each in known}
        self._revocations = {each: due for each, due in self._revocations.items() if each in known}
        over = [
            member_id
            for member_id in self.members
            if self._sessions.get(member_id, at.now_ms) <= at.now_ms
            or self._revocations.get(member_id, at.now_ms + 1) <= at.now_ms
        ]
        # Should the log refuse this, it is tried again.
        again_ms = at.now_ms + self.config.consumer_heartbeat_interval_ms
        for member_id in over:
            self._sessions[member_id] = again_ms
            self._revocations.pop(member_id, None)
        return Outcome(tuple(map(encode_consumer_change, self.removal(over))))

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do at the earliest; None for never."""
        return min([*self._sessions.values(), *self._revocations.values()], default=None)

    def removal(self, member_ids: list[str]) -> list[ConsumerChange]:
        """The end of members: everything about them, and a new group epoch."""
        if not member_ids:
            return []
        changes: list[ConsumerChange] = []
        for member_id in member_ids:
            changes += self.erasure(member_id)
        return [*changes, EpochChange(self.group_id, self.epoch + 1, self.fingerprint)]

    def erasure(self, member_id: str) -> list[ConsumerChange]:
        """The end of everything about one member."""
        return [
            HoldingChange(self.group_id, member_id, None),
            TargetChange(self.group_id, member_id, None),
            SubscriberChange(self.group_id, member_id, None),
        ]

    def burial(self) -> tuple[CoordinatorRecord, ...]:
        """The end of the group, which is empty."""
        return (
            encode_consumer_change(TargetEpochChange(self.group_id, None)),
            encode_consumer_change(EpochChange(self.group_id, None)),
        )

    # ---- replay ----

    def replay(self, change: ConsumerChange, now_ms: int) -> None:
        """Take one change into account; in any order, as compaction may have left them."""
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
            # Who lived in the process of the broker before a restart died with it.
            died = subscriber.client_host == IN_PROCESS_HOST
            session_ms = 0 if died else self.config.consumer_session_timeout_ms
            self._sessions.setdefault(member_id, now_ms + session_ms)
            if subscriber.instance_id is not None:
                self.static[subscriber.instance_id] = member_id
        self._wanted = None
        used = self.wanted().patterns
        self.patterns = {text: known for text, known in self.patterns.items() if text in used}

    def _replay_holding(self, member_id: str, holding: Holding | None, now_ms: int) -> None:
        before = self._holdings.pop(member_id, None)
        for partition in NOTHING if before is None else before.held:
            if self._holders.get(partition) == member_id:
                del self._holders[partition]
        waited = before is not None and before.progress is Progress.UNREVOKED
        if holding is None or holding.progress is not Progress.UNREVOKED:
            self._revocations.pop(member_id, None)
        elif not waited or before is None or before.epoch != holding.epoch:
            subscriber = self.members.get(member_id)
            patience_ms = 0 if subscriber is None else subscriber.rebalance_timeout_ms
            if patience_ms <= 0:
                patience_ms = self.config.consumer_session_timeout_ms
            self._revocations[member_id] = now_ms + patience_ms
        if holding is not None:
            self._holdings[member_id] = holding
            self._holders.update(dict.fromkeys(holding.held, member_id))
