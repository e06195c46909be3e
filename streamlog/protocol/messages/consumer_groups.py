"""Consumer groups: heartbeats and descriptions (KIP-848), stored records, and deletions.

Declarations only, see `schema`. The keys and values of `__consumer_offsets` carry their version in
front, as those of `classic_groups`.
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
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


class ConsumerGroupDescribeRequest(Message, versions="0-1", flexible_from=0):
    """Describe consumer groups."""

    __response__: ClassVar[ConsumerGroupDescribeResponse]
    group_ids: list[str] = string_array("0+")
    include_authorized_operations: bool = boolean("0+")


class DescribedTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid("0+")
    topic_name: str = string("0+")
    partitions: list[int] = int32_array("0+")


class DescribedAssignment(Struct):
    """The partitions of one member."""

    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions, "0+")


class DescribedMember(Struct):
    """A member; `assignment` is what it has, `target_assignment` what it is to have.

    `member_type` (version 1): 0 for the classic protocol, 1 for the consumer protocol.
    """

    member_id: str = string("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = string_array("0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+", default=None)
    assignment: DescribedAssignment = struct(DescribedAssignment, "0+")
    target_assignment: DescribedAssignment = struct(DescribedAssignment, "0+")
    member_type: int = int8("1+", default=-1)


class DescribedConsumerGroup(Struct):
    """A group. Error: GROUP_ID_NOT_FOUND, also for a group of another type."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[DescribedMember] = array(DescribedMember, "0+")
    # The smallest int32: the request did not ask for it (KIP-430).
    authorized_operations: int = int32("0+", default=-2147483648)


class ConsumerGroupDescribeResponse(Message, versions="0-1", flexible_from=0):
    """The groups."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup, "0+")


class HeartbeatTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid("0+")
    partitions: list[int] = int32_array("0+")


class ConsumerGroupHeartbeatRequest(Message, versions="0-1", flexible_from=0):
    """A member is alive. It joins with epoch 0, and leaves with -1, or with -2 if it will rejoin.

    A field that has not changed since the last heartbeat is null; an unchanged timeout is -1.
    `topic_partitions` are the partitions that the member owns. From version 1 on, members choose
    their ids themselves (KIP-1082), and can subscribe by a regular expression.
    """

    __response__: ClassVar[ConsumerGroupHeartbeatResponse]
    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = string_array("0+", nullable="0+")
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[HeartbeatTopicPartitions] | None = array(
        HeartbeatTopicPartitions, "0+", nullable="0+"
    )


class Assignment(Struct):
    """The partitions that a member may use now."""

    topic_partitions: list[HeartbeatTopicPartitions] = array(HeartbeatTopicPartitions, "0+")


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


# ---- the records of `__consumer_offsets` ----
# The only version of each key is the kind of record.


class ConsumerGroupMetadataKey(Message, versions="3"):
    """Key of a group."""

    group_id: str = string("3")


class ConsumerGroupMetadataValue(Message, versions="0", flexible_from=0):
    """A group's epoch, which grows with every change of members, subscriptions and topics."""

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
    """Additional fields of a member that speaks the classic protocol."""

    session_timeout_ms: int = int32("0+")
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol, "0+")


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible_from=0):
    """The fields that a member has sent in its heartbeats."""

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
    """Key of the epoch of a group's target assignment."""

    group_id: str = string("6")


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible_from=0):
    """The group epoch for which the target assignment was computed."""

    assignment_epoch: int = int32("0+")


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="7"):
    """Key of the target assignment of a member."""

    group_id: str = string("7")
    member_id: str = string("7")


class AssignedTopicPartition(Struct):
    """Partitions of one topic."""

    topic_id: bytes = uuid("0+")
    partitions: list[int] = int32_array("0+")


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible_from=0):
    """The target assignment of a member."""

    topic_partitions: list[AssignedTopicPartition] = array(AssignedTopicPartition, "0+")


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="8"):
    """Key of the current assignment of a member."""

    group_id: str = string("8")
    member_id: str = string("8")


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible_from=0):
    """The partitions that a member has, and those that it still has to release."""

    member_epoch: int = int32("0+")
    # Accepted in a full heartbeat: a member that has missed a response still sends this epoch.
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[HeartbeatTopicPartitions] = array(HeartbeatTopicPartitions, "0+")
    partitions_pending_revocation: list[HeartbeatTopicPartitions] = array(
        HeartbeatTopicPartitions, "0+"
    )


class DeleteGroupsRequest(Message, versions="0-2", flexible_from=2):
    """Delete groups with all their committed offsets."""

    __response__: ClassVar[DeleteGroupsResponse]
    groups_names: list[str] = string_array("0+")


class DeletableGroupResult(Struct):
    """Whether a group was deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, ..."""

    group_id: str = string("0+")
    error_code: int = int16("0+")


class DeleteGroupsResponse(Message, versions="0-2", flexible_from=2):
    """The result for each group."""

    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")


class OffsetDeleteRequestPartition(Struct):
    """A partition whose committed offset is to be deleted."""

    partition_index: int = int32("0+")


class OffsetDeleteRequestTopic(Struct):
    """Committed offsets in one topic."""

    name: str = string("0+")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, "0+")


class OffsetDeleteRequest(Message, versions="0"):
    """Delete committed offsets of one group (KIP-496)."""

    __response__: ClassVar[OffsetDeleteResponse]
    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, "0+")


class OffsetDeleteResponsePartition(Struct):
    """Whether the committed offset was deleted. Error: GROUP_SUBSCRIBED_TO_TOPIC."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetDeleteResponseTopic(Struct):
    """The results in one topic."""

    name: str = string("0+")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition, "0+")


class OffsetDeleteResponse(Message, versions="0"):
    """The results. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, ..."""

    # Here Kafka has the error before the throttle time, unlike in other responses.
    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+")
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, "0+")
