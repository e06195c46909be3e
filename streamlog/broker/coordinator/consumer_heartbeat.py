"""Draft: what one heartbeat of a consumer group (KIP-848) leads to, worked out step by step.

Pure. The group is not touched: the draft collects the changes and sees the group as it will be
with them. In Kafka's order: who is it, what does it say that is new, does that (or a topic) call
for a new group epoch, does that call for a new assignment, and what is the member's next step
towards its part. A request that is refused leaves no changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from streamlog.assignors import Assignor, RangeAssignor, StickyAssignor, TopicPartition
from streamlog.broker.coordinator.consumer_member import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    LEFT_EPOCH,
    NOTHING,
    Held,
    Holding,
    Subscriber,
    Target,
    Wanted,
    reconciled,
)
from streamlog.broker.coordinator.consumer_records import (
    ConsumerChange,
    EpochChange,
    HoldingChange,
    SubscriberChange,
    TargetChange,
    TargetEpochChange,
    held_of,
    topic_partitions,
)
from streamlog.broker.coordinator.topic_pattern import TopicPattern
from streamlog.errors import ConfigError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from streamlog.broker.coordinator.consumer_group import ConsumerGroup
    from streamlog.broker.coordinator.shard import Caller
    from streamlog.broker.replication.topics import Topics

OWN_MEMBER_ID_VERSION = 1
"""From this version on a member brings an id of its own making (KIP-1082)."""
ASSIGNORS: dict[str, Assignor] = {"uniform": StickyAssignor(), "range": RangeAssignor()}
"""By the names that members know; `uniform` is balanced and sticky."""
UNCHANGED_MS = -1


class Refusal(NamedTuple):
    """Why a heartbeat is not taken."""

    code: ErrorCode
    message: str


def malformed(request: ConsumerGroupHeartbeatRequest, version: int) -> Refusal | None:
    """What is wrong with a heartbeat whatever the group."""
    joins = request.member_epoch == JOINING_EPOCH
    named = version >= OWN_MEMBER_ID_VERSION or not joins
    named_topics, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    # A member may subscribe to no topic at all, but it has to say so.
    subscribes = named_topics is not None or pattern is not None
    wrong = (
        (not request.group_id, "group_id is empty"),
        (named and not request.member_id, "member_id is empty"),
        (request.instance_id == "", "instance_id is empty"),
        (request.rack_id == "", "rack_id is empty"),
        (request.member_epoch < AWAY_EPOCH, f"there is no epoch {request.member_epoch}"),
        (
            request.member_epoch == AWAY_EPOCH and request.instance_id is None,
            "only a static member can be away",
        ),
        (joins and request.rebalance_timeout_ms < 0, "who joins gives a rebalance timeout"),
        (joins and request.topic_partitions != [], "who joins owns nothing"),
        (joins and not subscribes, "who joins subscribes to something"),
    )
    reason = next((text for is_wrong, text in wrong if is_wrong), None)
    if reason is not None:
        return Refusal(ErrorCode.INVALID_REQUEST, reason)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        there = ", ".join(ASSIGNORS)
        message = f"there is no assignor {request.server_assignor!r}; there are: {there}"
        return Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
    try:
        TopicPattern(pattern or "")
    except ConfigError as error:
        return Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error))
    return None


class Draft:
    """One heartbeat's changes; call `beat` or `leave` once."""

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
        self._replaced: str | None = None
        self._resubscribed = False

    # ---- the two ways in ----

    def leave(self) -> Refusal | ConsumerGroupHeartbeatResponse:
        """The member goes: for good, or for a while if it is static."""
        request, group = self._request, self._group
        refusal = self._unknown()
        if refusal is not None:
            return refusal
        if request.member_epoch == AWAY_EPOCH:
            holding = group.holding(self.member_id)
            away = replace(holding.at_epoch(AWAY_EPOCH), revoking=NOTHING)
            self._add(HoldingChange(group.group_id, self.member_id, away))
        else:
            self.changes += group.removal([self.member_id])
        return ConsumerGroupHeartbeatResponse(
            member_id=self.member_id, member_epoch=request.member_epoch
        )

    def beat(self) -> Refusal | ConsumerGroupHeartbeatResponse:
        """The member joins, or is alive."""
        holding = self._admitted()
        if isinstance(holding, Refusal):
            return holding
        self._resubscribed = self._update()
        epoch = self._group_epoch()
        target = self._target(epoch)
        owned = self._request.topic_partitions
        after = reconciled(
            holding, target, None if owned is None else held_of(owned), self._is_free
        )
        if after != self._group.holding(self.member_id):
            self._add(HoldingChange(self._group.group_id, self.member_id, after))
        return self._response(holding, after)

    # ---- who is it ----

    def _unknown(self) -> Refusal | None:
        """Why this is not the member that it says it is."""
        instance_id = self._request.instance_id
        holder = None if instance_id is None else self._group.static.get(instance_id)
        if instance_id is not None and holder is not None and holder != self.member_id:
            return Refusal(
                ErrorCode.FENCED_INSTANCE_ID,
                f"instance {instance_id!r} is another member's by now: {holder}",
            )
        if self.member_id not in self._group.members or (instance_id is not None and not holder):
            return Refusal(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {self._group.group_id!r} has no member {self.member_id!r}",
            )
        return None

    def _admitted(self) -> Holding | Refusal:
        """What the member has, who may be new, back, or another process in a static place."""
        if self._request.member_epoch == JOINING_EPOCH:
            return self._joining()
        refusal = self._unknown()
        if refusal is not None:
            return refusal
        holding = self._group.holding(self.member_id)
        return self._fenced(holding) or holding

    def _joining(self) -> Holding | Refusal:
        instance_id, group = self._request.instance_id, self._group
        holder = None if instance_id is None else group.static.get(instance_id)
        if holder is not None and holder != self.member_id:
            before = group.holding(holder)
            if before.epoch != AWAY_EPOCH:
                return Refusal(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"instance {instance_id!r} is still used by member {holder}",
                )
            return self._replace(holder, before)
        if self.member_id in group.members:
            # It has missed our answer, or has forgotten everything: either way it owns nothing
            # and is given what it has.
            before = group.holding(self.member_id)
            return Holding(assigned=before.assigned, previous_epoch=before.previous_epoch)
        if len(group.members) >= group.config.consumer_size_max:
            return Refusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"group {group.group_id!r} has {len(group.members)} members, as many as it may",
            )
        return Holding()

    def _replace(self, holder: str, before: Holding) -> Holding:
        """A static member is back under a new name: it has what its predecessor had."""
        self.changes += self._group.erasure(holder)
        self._members[self.member_id] = replace(self._members.pop(holder), member_id=self.member_id)
        target = self._targets.pop(holder, NOTHING)
        self._targets[self.member_id] = target
        self._add(TargetChange(self._group.group_id, self.member_id, target))
        self._replaced = holder
        return Holding(assigned=before.assigned)

    def _fenced(self, holding: Holding) -> Refusal | None:
        """An epoch behind is right only if our last answer was lost and nothing was built on."""
        epoch = self._request.member_epoch
        owned = self._request.topic_partitions
        if epoch == holding.epoch:
            return None
        late = epoch == holding.previous_epoch and owned is not None
        if late and held_of(owned or []) <= holding.assigned:
            return None
        return Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {self.member_id!r} comes with epoch {epoch}, its epoch is {holding.epoch}",
        )

    # ---- what is new ----

    def _update(self) -> bool:
        """Take over what the member says; whether it reads something else than before."""
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
        """The group's epoch, a new one if members read something else, or something new."""
        group = self._group
        fingerprint = self._fingerprint()
        if not self._resubscribed and fingerprint == group.fingerprint:
            return group.epoch
        self._add(EpochChange(group.group_id, group.epoch + 1, fingerprint))
        return group.epoch + 1

    def _fingerprint(self) -> int:
        """Of the topics that are read: names, identities and numbers of partitions."""
        digest = hashlib.blake2b(digest_size=8)
        for name in self._topics_read():
            count, topic_id = self._topics.partitions(name), self._topics.topic_id(name)
            digest.update(b"%s\0%s%d\n" % (name.encode(), topic_id or b"", count))
        return int.from_bytes(digest.digest(), signed=True)

    def _topics_read(self) -> list[str]:
        """Topics that there are and that some member reads, sorted."""
        wanted = Wanted.of(self._members.values()) if self._resubscribed else self._group.wanted()
        read = {name for name in wanted.topics if self._topics.partitions(name)}
        for text in wanted.patterns:
            read |= {name for name in self._topics.names() if self._group.matches(text, name)}
        return sorted(read)

    # ---- what each is to have ----

    def _target(self, epoch: int) -> Target:
        group = self._group
        if epoch > group.target_epoch:
            self._assign()
            self._add(TargetEpochChange(group.group_id, epoch))
            return Target(epoch, self._targets.get(self.member_id, NOTHING))
        return Target(group.target_epoch, self._targets.get(self.member_id, NOTHING))

    def _assign(self) -> None:
        """Assign everything anew; who gets what it had leaves no change."""
        counts = {name: self._topics.partitions(name) for name in self._topics_read()}
        wants = {
            member_id: [name for name in counts if self._group.reads(member, name)]
            for member_id, member in self._members.items()
        }
        before = {
            member_id: list(self._named(self._targets.get(member_id, NOTHING)))
            for member_id in wants
        }
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

    def _named(self, held: Held) -> Iterable[TopicPartition]:
        for topic_id, partition in held:
            name = self._topics.name_of(topic_id)
            if name is not None:
                yield TopicPartition(name, partition)

    def _is_free(self, partition: tuple[bytes, int]) -> bool:
        holder = self._group.holder(partition)
        return holder is None or holder == self._replaced

    # ---- the answer ----

    def _response(self, before: Holding, after: Holding) -> ConsumerGroupHeartbeatResponse:
        """The assignment is told if it has changed, or if the member has told everything."""
        request = self._request
        subscribes = (request.subscribed_topic_names, request.subscribed_topic_regex)
        tells_all = (
            request.rebalance_timeout_ms != UNCHANGED_MS
            and request.topic_partitions is not None
            and subscribes != (None, None)
        )
        told = None
        if request.member_epoch == JOINING_EPOCH or tells_all or before.assigned != after.assigned:
            told = Assignment(topic_partitions=topic_partitions(after.assigned))
        return ConsumerGroupHeartbeatResponse(
            member_id=self.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._group.config.consumer_heartbeat_interval_ms,
            assignment=told,
        )

    def _add(self, change: ConsumerChange) -> None:
        self.changes.append(change)


def draft_response(
    draft: Draft, request: ConsumerGroupHeartbeatRequest
) -> Refusal | ConsumerGroupHeartbeatResponse:
    """Carry out a heartbeat in its draft."""
    leaves = request.member_epoch in (LEFT_EPOCH, AWAY_EPOCH)
    return draft.leave() if leaves else draft.beat()
