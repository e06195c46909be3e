"""Descriptions: what is told of groups and their positions to those who only look.

Pure, and without effect: state in, parts of responses out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from streamlog.broker.coordinator.classic_group import ClassicGroup
from streamlog.broker.coordinator.consumer_group import ConsumerGroup
from streamlog.broker.coordinator.consumer_member import Held, Subscriber
from streamlog.broker.coordinator.consumer_records import by_topic_id
from streamlog.broker.replication.topics import Topics
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages import consumer_group_description as wire
from streamlog.protocol.messages.coordination import (
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
    OffsetCommitValue,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

Group: TypeAlias = ClassicGroup | ConsumerGroup
DEAD = "Dead"
"""The state of a group that is not there."""
CONSUMER_MEMBER = 1
"""A member that speaks the consumers' protocol."""


def positions(
    known: Mapping[tuple[str, int], OffsetCommitValue],
    wanted: Iterable[tuple[str, Iterable[int]]] | None,
) -> list[OffsetFetchResponseTopics]:
    """Committed offsets, -1 where there is none; `wanted` None is all that there are."""
    if wanted is None:
        every: dict[str, list[int]] = {}
        for topic, partition in known:
            every.setdefault(topic, []).append(partition)
        wanted = every.items()
    none = OffsetCommitValue(offset=-1, leader_epoch=-1, metadata="")
    return [
        OffsetFetchResponseTopics(
            name=topic,
            partitions=[
                _position(partition, known.get((topic, partition), none))
                for partition in partitions
            ],
        )
        for topic, partitions in wanted
    ]


def _position(partition: int, value: OffsetCommitValue) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def described(group_id: str, group: Group | None, *, has_positions: bool) -> DescribedGroup:
    """A group of the classic protocol; one that is not there, or of another, is Dead."""
    if not isinstance(group, ClassicGroup):
        empty = group is None and has_positions
        return DescribedGroup(group_id=group_id, group_state="Empty" if empty else DEAD)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name or "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.subscription(group.protocol_name),
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def described_consumers(group_id: str, group: Group | None, topics: Topics) -> wire.DescribedGroup:
    """A group whose coordinator assigns; one of another kind is not found either."""
    if not isinstance(group, ConsumerGroup):
        return wire.DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"there is no consumer group {group_id!r}",
        )
    return wire.DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: Subscriber, topics: Topics) -> wire.Member:
    holding = group.holding(member.member_id)
    target = group.targets.get(member.member_id, frozenset())
    return wire.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=holding.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(holding.assigned, topics),
        target_assignment=_assignment(target, topics),
        member_type=CONSUMER_MEMBER,
    )


def _assignment(held: Held, topics: Topics) -> wire.Assignment:
    """Of topics that there are still."""
    return wire.Assignment(
        topic_partitions=[
            wire.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers)
            for topic_id, numbers in by_topic_id(held).items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )


def listed(groups: Iterable[Group], with_positions: Iterable[str]) -> list[ListedGroup]:
    """A line about each group, those that have nothing but positions included."""
    lines = {
        group_id: ListedGroup(group_id=group_id, group_state="Empty", group_type="classic")
        for group_id in with_positions
    }
    for group in groups:
        is_classic = isinstance(group, ClassicGroup)
        lines[group.group_id] = ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type if isinstance(group, ClassicGroup) else "consumer",
            group_state=group.state.value if isinstance(group, ClassicGroup) else group.state,
            group_type="classic" if is_classic else "consumer",
        )
    return list(lines.values())
