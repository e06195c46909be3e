"""The records of groups whose coordinator assigns (KIP-848), byte for byte as Kafka writes them.

Told apart by the version in front of the key: 3 a group's epoch, 5 a member, 6 the epoch of the
assignment, 7 what a member is to have, 8 what it has. Each is replayed by itself, so that it
does not matter what compaction has left between them. Kafka has more kinds (partition counts,
resolved expressions): here those follow from the topics, and are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from streamlog.broker.coordinator.consumer_member import Held, Holding, Progress, Subscriber
from streamlog.broker.coordinator.shard import CoordinatorRecord
from streamlog.errors import CorruptData
from streamlog.protocol.codec import decode_versioned, encode_versioned
from streamlog.protocol.messages.consumer_groups import (
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
    TopicPartition,
    TopicPartitions,
)
from streamlog.protocol.schema import Message

VALUE_VERSION = 0


@dataclass(frozen=True, slots=True)
class EpochChange:
    """A group's epoch; None: the group is no more."""

    group_id: str
    epoch: int | None
    fingerprint: int = 0
    """Of the topics that its members read, as they were then."""


@dataclass(frozen=True, slots=True)
class SubscriberChange:
    """What a member says of itself; None: it is gone."""

    group_id: str
    member_id: str
    subscriber: Subscriber | None


@dataclass(frozen=True, slots=True)
class TargetEpochChange:
    """The group epoch that the assignment was made for."""

    group_id: str
    epoch: int | None


@dataclass(frozen=True, slots=True)
class TargetChange:
    """What a member is to have."""

    group_id: str
    member_id: str
    partitions: Held | None


@dataclass(frozen=True, slots=True)
class HoldingChange:
    """What a member has."""

    group_id: str
    member_id: str
    holding: Holding | None


ConsumerChange: TypeAlias = (
    EpochChange | SubscriberChange | TargetEpochChange | TargetChange | HoldingChange
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of change is written and read; its key has a version of its own."""

    key: type[Message]
    value: type[Message]
    to_value: Callable[[Any], Message | None]
    from_value: Callable[[Any, Any], ConsumerChange]

    @property
    def key_version(self) -> int:
        return self.key.__versions__.first


def encode_consumer_change(change: ConsumerChange) -> CoordinatorRecord:
    """The record for one change."""
    kind = _KINDS[type(change)]
    names = {field.name: getattr(change, field.name) for field in kind.key.__fields__}
    construct: Callable[..., Message] = kind.key
    value = kind.to_value(change)
    return CoordinatorRecord(
        encode_versioned(construct(**names), kind.key_version),
        None if value is None else encode_versioned(value, VALUE_VERSION),
    )


def decode_consumer_change(record: CoordinatorRecord) -> ConsumerChange | None:
    """What a record says; None for a kind that is not one of these.

    Raises:
        CorruptData: it is cut short, or holds what is no state of a member.
    """
    kind = _BY_KEY_VERSION.get(int.from_bytes(record.key[:2], signed=True))
    if kind is None:
        return None
    key = decode_versioned(kind.key, record.key)
    value = None if record.value is None else decode_versioned(kind.value, record.value)
    return kind.from_value(key, value)


def is_removal(change: ConsumerChange) -> bool:
    """Whether it is the end of something."""
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
        # Kafka keeps "" for a member that has never had an expression.
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
            TopicPartition(topic_id=topic_id, partitions=numbers)
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
    if value.state not in Progress.__members__.values():
        raise CorruptData(f"member {key.member_id} of group {key.group_id}: state {value.state}")
    holding = Holding(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        progress=Progress(value.state),
        assigned=held_of(value.assigned_partitions),
        revoking=held_of(value.partitions_pending_revocation),
    )
    return HoldingChange(key.group_id, key.member_id, holding)


def topic_partitions(held: Held) -> list[TopicPartitions]:
    """Partitions as messages have them."""
    return [
        TopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in by_topic_id(held).items()
    ]


def held_of(topics: Iterable[TopicPartitions] | Iterable[TopicPartition]) -> Held:
    """Partitions out of a message."""
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)


def by_topic_id(held: Held) -> dict[bytes, list[int]]:
    """Sorted numbers by topic."""
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
