"""Subscriber, MemberPartitions: a consumer group's members, with their records (KIP-848).

    STABLE ──▸ UNREVOKED: it has to give partitions up, and keeps its epoch until it has
       ▴ ▴──── UNRELEASED: another member still holds a partition of its target

`reconcile` takes one step towards the target. A member gets a partition only when no other member
holds it.

The records are Kafka's, byte for byte. The version in front of the key tells them apart: 3 the
group epoch, 5 a member, 6 the epoch of the assignment, 7 a member's target, 8 its current
partitions. Each is replayed on its own, so the order that compaction leaves does not matter.
Kafka's other records (partition counts, resolved expressions) follow from the topics here, and are
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Self, TypeAlias

import msgspec

from streamlog.broker.coordinator.shard import CoordinatorRecord
from streamlog.errors import CorruptData
from streamlog.protocol.codec import decode_versioned, encode_versioned
from streamlog.protocol.messages.consumer_groups import (
    AssignedTopicPartition,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    HeartbeatTopicPartitions,
)
from streamlog.protocol.schema import Message
from streamlog.replace import replace

Held: TypeAlias = frozenset[tuple[bytes, int]]
"""Partitions by topic id and number."""

NOTHING: Held = frozenset()
JOINING_EPOCH = 0
LEFT_EPOCH = -1
AWAY_EPOCH = -2
"""The epoch of a static member that has left and will return; its partitions are kept."""


class MemberState(IntEnum):
    """How far a member is from its target; the values are Kafka's, in records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A member's description of itself, from its heartbeats."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    assignor: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression for names of topics, in addition to `topics`."""


class MemberSubscription(msgspec.Struct, frozen=True):
    """The combined subscriptions of several members."""

    topics: frozenset[str]
    patterns: frozenset[str]

    @classmethod
    def of(cls, members: Iterable[Subscriber]) -> Self:
        """Combine the subscriptions of members."""
        many = list(members)
        return cls(
            frozenset(topic for member in many for topic in member.topics),
            frozenset(member.pattern for member in many if member.pattern is not None),
        )


class MemberPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of a member at its epoch."""

    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    """The epoch before: the response with the new one may have been lost."""
    progress: MemberState = MemberState.STABLE
    assigned: Held = NOTHING
    revoking: Held = NOTHING
    """No longer assigned to it, but not available to others before it has given them up."""

    @property
    def held(self) -> Held:
        """The partitions that no other member may get."""
        return self.assigned | self.revoking

    def at_epoch(self, epoch: int) -> MemberPartitions:
        """Return the same partitions at another epoch."""
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, previous_epoch=self.epoch)


class Target(msgspec.Struct, frozen=True):
    """The target assignment of a member, and its epoch."""

    epoch: int
    partitions: Held


def reconcile(
    holding: MemberPartitions,
    target: Target,
    owned: Held | None,
    free: Callable[[tuple[bytes, int]], bool],
) -> MemberPartitions:
    """Take one step towards the target.

    Args:
        holding: the partitions of the member.
        target: the partitions that it will have.
        owned: the partitions that it says it owns; None if it does not say.
        free: whether no member holds a partition.
    """
    # Partition 0 moves from A to B (KIP-848):
    # 1. The target epoch becomes 5. A's heartbeat: UNREVOKED, still at epoch 4, revoking {0}.
    # 2. B's heartbeat: A holds 0, so B reaches epoch 5 without it, UNRELEASED.
    # 3. A reports that it owns {} now: STABLE at epoch 5. 0 is free.
    # 4. B's next heartbeat: it gets 0, STABLE. At no time do both own partition 0.
    match holding.progress:
        case MemberState.UNREVOKED if _still_owns(owned, holding.revoking):
            return holding
        case MemberState.UNREVOKED:
            # It has given up what it had to. The next epoch acknowledges that, and it continues
            # with the newest target.
            return _next(holding, holding.epoch + 1, target, owned, free)
        case MemberState.STABLE if holding.epoch == target.epoch:
            return holding
    return _next(holding, holding.epoch, target, owned, free)


def _next(
    holding: MemberPartitions,
    epoch: int,
    target: Target,
    owned: Held | None,
    free: Callable[[tuple[bytes, int]], bool],
) -> MemberPartitions:
    kept = holding.assigned & target.partitions
    revoking = holding.assigned - target.partitions
    wanted = target.partitions - kept
    available = frozenset(each for each in wanted if free(each))
    # It gives up before it gets: in this step it keeps its epoch and gets nothing new.
    if revoking and _still_owns(owned, revoking):
        return replace(
            holding.at_epoch(epoch),
            progress=MemberState.UNREVOKED,
            assigned=kept,
            revoking=revoking,
        )
    progress = MemberState.STABLE if available == wanted else MemberState.UNRELEASED
    return replace(
        holding.at_epoch(target.epoch),
        progress=progress,
        assigned=kept | available,
        revoking=NOTHING,
    )


def _still_owns(owned: Held | None, revoking: Iterable[tuple[bytes, int]]) -> bool:
    """Return whether the member may still own one of these partitions.

    It may if it does not report what it owns.
    """
    return owned is None or not owned.isdisjoint(revoking)


VALUE_VERSION = 0


class EpochChange(msgspec.Struct, frozen=True):
    """A group's epoch; None if the group is deleted."""

    group_id: str
    epoch: int | None
    fingerprint: int = 0
    """A hash of the topics that its members read at that epoch."""


class SubscriberChange(msgspec.Struct, frozen=True):
    """A member's subscription; None if the member is removed."""

    group_id: str
    member_id: str
    subscriber: Subscriber | None


class TargetEpochChange(msgspec.Struct, frozen=True):
    """The group epoch that the target assignment was computed for."""

    group_id: str
    epoch: int | None


class TargetChange(msgspec.Struct, frozen=True):
    """A member's target assignment."""

    group_id: str
    member_id: str
    partitions: Held | None


class HoldingChange(msgspec.Struct, frozen=True):
    """A member's current partitions."""

    group_id: str
    member_id: str
    holding: MemberPartitions | None


ConsumerChange: TypeAlias = (
    EpochChange | SubscriberChange | TargetEpochChange | TargetChange | HoldingChange
)


class _Kind(msgspec.Struct, frozen=True):
    """How one kind of change is encoded; the version of its key identifies it."""

    key: type[Message]
    value: type[Message]
    to_value: Callable[[Any], Message | None]
    from_value: Callable[[Any, Any], ConsumerChange]

    @property
    def key_version(self) -> int:
        return self.key.__versions__.first


def encode_consumer_change(change: ConsumerChange) -> CoordinatorRecord:
    """Encode one change."""
    kind = _KINDS[type(change)]
    names = {field.name: getattr(change, field.name) for field in kind.key.__fields__}
    construct: Callable[..., Message] = kind.key
    value = kind.to_value(change)
    return CoordinatorRecord(
        encode_versioned(construct(**names), kind.key_version),
        None if value is None else encode_versioned(value, VALUE_VERSION),
    )


def decode_consumer_change(record: CoordinatorRecord) -> ConsumerChange | None:
    """Decode a record; None for a record of another kind.

    Raises:
        CorruptData: it is cut off, or contains an unknown member state.
    """
    kind = _BY_KEY_VERSION.get(int.from_bytes(record.key[:2], signed=True))
    if kind is None:
        return None
    key = decode_versioned(kind.key, record.key)
    value = None if record.value is None else decode_versioned(kind.value, record.value)
    return kind.from_value(key, value)


def is_removal(change: ConsumerChange) -> bool:
    """Return whether the record of the change is a tombstone."""
    return _KINDS[type(change)].to_value(change) is None


def _epoch_value(change: EpochChange) -> Message | None:
    if change.epoch is None:
        return None
    return ConsumerGroupMetadataValue(epoch=change.epoch, metadata_hash=change.fingerprint)


def _epoch_change(
    key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None
) -> EpochChange:
    if value is None:
        return EpochChange(key.group_id, None)
    return EpochChange(key.group_id, value.epoch, value.metadata_hash)


def _subscriber_value(change: SubscriberChange) -> Message | None:
    said = change.subscriber
    if said is None:
        return None
    return ConsumerGroupMemberMetadataValue(
        instance_id=said.instance_id,
        rack_id=said.rack_id,
        client_id=said.client_id,
        client_host=said.client_host,
        subscribed_topic_names=list(said.topics),
        subscribed_topic_regex=said.pattern,
        rebalance_timeout_ms=said.rebalance_timeout_ms,
        server_assignor=said.assignor,
    )


def _subscriber_change(
    key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
) -> SubscriberChange:
    if value is None:
        return SubscriberChange(key.group_id, key.member_id, None)
    subscriber = Subscriber(
        member_id=key.member_id,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        topics=tuple(value.subscribed_topic_names),
        # Kafka stores "" for a member without an expression.
        pattern=value.subscribed_topic_regex or None,
    )
    return SubscriberChange(key.group_id, key.member_id, subscriber)


def _target_epoch_value(change: TargetEpochChange) -> Message | None:
    if change.epoch is None:
        return None
    return ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=change.epoch)


def _target_epoch_change(
    key: ConsumerGroupTargetAssignmentMetadataKey,
    value: ConsumerGroupTargetAssignmentMetadataValue | None,
) -> TargetEpochChange:
    return TargetEpochChange(key.group_id, None if value is None else value.assignment_epoch)


def _target_value(change: TargetChange) -> Message | None:
    if change.partitions is None:
        return None
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            AssignedTopicPartition(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in by_topic_id(change.partitions).items()
        ]
    )


def _target_change(
    key: ConsumerGroupTargetAssignmentMemberKey,
    value: ConsumerGroupTargetAssignmentMemberValue | None,
) -> TargetChange:
    partitions = None if value is None else held_of(value.topic_partitions)
    return TargetChange(key.group_id, key.member_id, partitions)


def _holding_value(change: HoldingChange) -> Message | None:
    holding = change.holding
    if holding is None:
        return None
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=holding.epoch,
        previous_member_epoch=holding.previous_epoch,
        state=holding.progress,
        assigned_partitions=topic_partitions(holding.assigned),
        partitions_pending_revocation=topic_partitions(holding.revoking),
    )


def _holding_change(
    key: ConsumerGroupCurrentMemberAssignmentKey,
    value: ConsumerGroupCurrentMemberAssignmentValue | None,
) -> HoldingChange:
    if value is None:
        return HoldingChange(key.group_id, key.member_id, None)
    if value.state not in MemberState.__members__.values():
        raise CorruptData(
            f"the record of member {key.member_id} of group {key.group_id} has state {value.state},"
            " which this release does not know: start the newer release that wrote it"
        )
    holding = MemberPartitions(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        progress=MemberState(value.state),
        assigned=held_of(value.assigned_partitions),
        revoking=held_of(value.partitions_pending_revocation),
    )
    return HoldingChange(key.group_id, key.member_id, holding)


def topic_partitions(held: Held) -> list[HeartbeatTopicPartitions]:
    """Return partitions as messages contain them."""
    return [
        HeartbeatTopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in by_topic_id(held).items()
    ]


def held_of(topics: Iterable[HeartbeatTopicPartitions] | Iterable[AssignedTopicPartition]) -> Held:
    """Return the partitions in a message."""
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)


def by_topic_id(held: Held) -> dict[bytes, list[int]]:
    """Return sorted partition numbers by topic id."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(held):
        topics.setdefault(topic_id, []).append(number)
    return topics


_KINDS: dict[type[ConsumerChange], _Kind] = {
    EpochChange: _Kind(
        ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, _epoch_value, _epoch_change
    ),
    SubscriberChange: _Kind(
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupMemberMetadataValue,
        _subscriber_value,
        _subscriber_change,
    ),
    TargetEpochChange: _Kind(
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMetadataValue,
        _target_epoch_value,
        _target_epoch_change,
    ),
    TargetChange: _Kind(
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupTargetAssignmentMemberValue,
        _target_value,
        _target_change,
    ),
    HoldingChange: _Kind(
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupCurrentMemberAssignmentValue,
        _holding_value,
        _holding_change,
    ),
}
_BY_KEY_VERSION = {kind.key_version: kind for kind in _KINDS.values()}
