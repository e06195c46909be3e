"""Groups whose coordinator assigns (KIP-848): the heartbeat, and what they keep in records.

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks. The
records are those of `__consumer_offsets` with keys from version 3 on. `metadata_hash` is of a
later Kafka than the other fields: it tells whether topics have changed since the last epoch.
"""

from __future__ import annotations

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    opaque,
    string,
    string_array,
    struct,
    uuid,
)


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid("0+")
    partitions: list[int] = int32_array("0+")


class ConsumerGroupHeartbeatRequest(Message, versions="0-1", flexible_from=0):
    """A member is alive; it joins with epoch 0 and leaves with -1, or -2 if it will be back.

    What has not changed since the last heartbeat is null (a timeout -1). `topic_partitions` is
    what the member owns. From version 1 on members make their ids themselves (KIP-1082), and
    can subscribe by a regular expression.
    """

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = string_array("0+", nullable="0+")
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, "0+", nullable="0+")


class Assignment(Struct):
    """What a member may use now."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class ConsumerGroupHeartbeatResponse(Message, versions="0-1", flexible_from=0):
    """The member's epoch, and its assignment if that has changed.

    Errors: UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID,
    UNSUPPORTED_ASSIGNOR, GROUP_MAX_SIZE_REACHED, INVALID_REGULAR_EXPRESSION, INVALID_REQUEST, ...
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: Assignment | None = struct(Assignment, "0+", nullable="0+")


class ConsumerGroupMetadataKey(Message, versions="3"):
    """Key of a group."""

    group_id: str = string("3")


class ConsumerGroupMetadataValue(Message, versions="0", flexible_from=0):
    """A group's epoch: it grows with every change of members, subscriptions and topics."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", default=0, tag=0)


class ConsumerGroupMemberMetadataKey(Message, versions="5"):
    """Key of a member."""

    group_id: str = string("5")
    member_id: str = string("5")


class ClassicProtocol(Struct):
    """An assignor of a member that speaks the classic protocol."""

    name: str = string("0+")
    metadata: bytes = opaque("0+")


class ClassicMemberMetadata(Struct):
    """What there is more of a member that speaks the classic protocol."""

    session_timeout_ms: int = int32("0+")
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol, "0+")


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible_from=0):
    """What a member has said of itself."""

    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = string_array("0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    server_assignor: str | None = string("0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = struct(
        ClassicMemberMetadata, "0+", nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions="6"):
    """Key of a group's assignment."""

    group_id: str = string("6")


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible_from=0):
    """The group epoch that the assignment was made for."""

    assignment_epoch: int = int32("0+")


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="7"):
    """Key of what a member is to have."""

    group_id: str = string("7")
    member_id: str = string("7")


class TopicPartition(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid("0+")
    partitions: list[int] = int32_array("0+")


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible_from=0):
    """What a member is to have."""

    topic_partitions: list[TopicPartition] = array(TopicPartition, "0+")


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="8"):
    """Key of what a member has."""

    group_id: str = string("8")
    member_id: str = string("8")


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible_from=0):
    """What a member has, and what it still has to give up."""

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions, "0+")
