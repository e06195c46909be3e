"""How groups whose coordinator assigns (KIP-848) are described.

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks.
"""

from __future__ import annotations

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int32_array,
    string,
    string_array,
    struct,
    uuid,
)


class ConsumerGroupDescribeRequest(Message, versions="0-1", flexible_from=0):
    """Look at groups."""

    group_ids: list[str] = string_array("0+")
    include_authorized_operations: bool = boolean("0+")


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid("0+")
    topic_name: str = string("0+")
    partitions: list[int] = int32_array("0+")


class Assignment(Struct):
    """Partitions of one member."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class Member(Struct):
    """A member; `assignment` is what it has, `target_assignment` what it is to have.

    `member_type` (version 1): 0 speaks the classic protocol, 1 the consumers' own.
    """

    member_id: str = string("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = string_array("0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+", default=None)
    assignment: Assignment = struct(Assignment, "0+")
    target_assignment: Assignment = struct(Assignment, "0+")
    member_type: int = int8("1+", default=-1)


class DescribedGroup(Struct):
    """A group. Error: GROUP_ID_NOT_FOUND, also for a group of another type."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[Member] = array(Member, "0+")
    authorized_operations: int = int32("0+", default=-2147483648)


class ConsumerGroupDescribeResponse(Message, versions="0-1", flexible_from=0):
    """The groups."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")
