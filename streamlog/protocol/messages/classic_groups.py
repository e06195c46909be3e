"""Classic groups, committed offsets and producer ids, and the records in which a group is stored.

Declarations only, see `schema`. The fields are Kafka's own, which a test checks. The last part is
not an API: the consumers' embedded protocol (the opaque bytes in JoinGroup and SyncGroup, KIP-429,
KIP-792) and the records of `__consumer_offsets`. Both carry their version in front: see
`codec.encode_versioned`.
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
    uuid,
)


class FindCoordinatorRequest(Message, versions="0-5", flexible_from=3):
    """Find the broker that coordinates a group (`key_type` 0) or a transactional id (1).

    From version 4 on, `coordinator_keys` replaces `key`, and one request may have several
    (KIP-699).
    """

    __response__: ClassVar[FindCoordinatorResponse]
    key: str = string("0-3")
    # Version 0 looks up groups only: 0 is the default.
    key_type: int = int8("1+")
    coordinator_keys: list[str] = string_array("4+")


class FoundCoordinator(Struct):
    """The coordinator of one key. Error: COORDINATOR_NOT_AVAILABLE."""

    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = string("4+", nullable="4+", default=None)


class FindCoordinatorResponse(Message, versions="0-5", flexible_from=3):
    """The coordinator; from version 4 on, one for each key."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", default=None)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[FoundCoordinator] = array(FoundCoordinator, "4+")


class JoinGroupRequestProtocol(Struct):
    """An assignor that the member offers, with the assignor's own data."""

    name: str = string("0+")
    metadata: bytes = opaque("0+")


class JoinGroupRequest(Message, versions="0-9", flexible_from=6):
    """Join a group, or rejoin it for a new generation.

    From version 4 on, a first join without a member id is refused with MEMBER_ID_REQUIRED, and the
    response carries the id to join with (KIP-394). `group_instance_id` makes a static member
    (version 5, KIP-345).
    """

    __response__: ClassVar[JoinGroupResponse]
    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    # Version 0 has none: the session timeout also limits a rebalance.
    rebalance_timeout_ms: int = int32("1+", default=-1)
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol, "0+")
    reason: str | None = string("8+", nullable="8+", default=None)


class JoinGroupResponseMember(Struct):
    """A member and its assignor's data, as the group's leader receives them."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    metadata: bytes = opaque("0+")


class JoinGroupResponse(Message, versions="0-9", flexible_from=6):
    """The new generation. Only the group's leader receives `members`.

    `skip_assignment` (version 9): a static leader has rejoined, and the assignment stays as it is.
    Errors: MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID, INCONSISTENT_GROUP_PROTOCOL,
    FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED, NOT_COORDINATOR, ...
    """

    throttle_time_ms: int = int32("2+")
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None)
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+")
    member_id: str = string("0+")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, "0+")


class SyncGroupRequestAssignment(Struct):
    """The leader's assignment for one member."""

    member_id: str = string("0+")
    assignment: bytes = opaque("0+")


class SyncGroupRequest(Message, versions="0-5", flexible_from=4):
    """Wait for the assignment. The leader sends the assignments of all members."""

    __response__: ClassVar[SyncGroupResponse]
    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, "0+")


class SyncGroupResponse(Message, versions="0-5", flexible_from=4):
    """The member's assignment. Errors: REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, ..."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignment: bytes = opaque("0+")


class HeartbeatRequest(Message, versions="0-4", flexible_from=4):
    """The member is alive."""

    __response__: ClassVar[HeartbeatResponse]
    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Message, versions="0-4", flexible_from=4):
    """Whether the generation is current; REBALANCE_IN_PROGRESS makes the member rejoin."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")


class MemberIdentity(Struct):
    """A leaving member, by its id, or by its instance id if it is static."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    reason: str | None = string("5+", nullable="5+", default=None)


class LeaveGroupRequest(Message, versions="0-5", flexible_from=4):
    """Remove members for good: one up to version 2, several from version 3 on."""

    __response__: ClassVar[LeaveGroupResponse]
    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")


class MemberResponse(Struct):
    """The result for one member. Error: UNKNOWN_MEMBER_ID."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")
    error_code: int = int16("3+")


class LeaveGroupResponse(Message, versions="0-5", flexible_from=4):
    """The members that left."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    members: list[MemberResponse] = array(MemberResponse, "3+")


class OffsetCommitRequestPartition(Struct):
    """The offset to commit, with the consumer's own text."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("6+", default=-1)
    committed_metadata: str | None = string("0+", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    """Offsets of one topic, by its id from version 10 on (KIP-848)."""

    name: str = string("0-9")
    topic_id: bytes = uuid("10+")
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition, "0+")


class OffsetCommitRequest(Message, versions="2-10", flexible_from=8):
    """Commit offsets.

    Generation -1 with an empty member id commits for a consumer that is not a member. Without a
    retention time (it is in versions 2 to 4), the coordinator keeps the offsets as long as any
    others (KIP-211).
    """

    __response__: ClassVar[OffsetCommitResponse]
    group_id: str = string("0+")
    # A generation in the classic protocol, a member epoch in the consumer protocol (KIP-848).
    generation_id_or_member_epoch: int = int32("1+", default=-1)
    member_id: str = string("1+")
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, "0+")


class OffsetCommitResponsePartition(Struct):
    """Whether the offset was committed.

    Errors: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, OFFSET_METADATA_TOO_LARGE, ...
    """

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetCommitResponseTopic(Struct):
    """The results in one topic. Error: UNKNOWN_TOPIC_ID."""

    name: str = string("0-9")
    topic_id: bytes = uuid("10+")
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition, "0+")


class OffsetCommitResponse(Message, versions="2-10", flexible_from=8):
    """Whether each offset was committed."""

    throttle_time_ms: int = int32("3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, "0+")


class OffsetFetchRequestTopic(Struct):
    """Partitions of one topic, up to version 7."""

    name: str = string("0-7")
    partition_indexes: list[int] = int32_array("0-7")


class OffsetFetchRequestTopics(Struct):
    """Partitions of one topic, from version 8 on; from version 10 on, by topic id."""

    name: str = string("8-9")
    topic_id: bytes = uuid("10+")
    partition_indexes: list[int] = int32_array("8+")


class OffsetFetchRequestGroup(Struct):
    """The committed offsets to look up for one group; null topics: all of them."""

    group_id: str = string("8+")
    member_id: str | None = string("9+", nullable="9+", default=None)
    member_epoch: int = int32("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(
        OffsetFetchRequestTopics, "8+", nullable="8+"
    )


class OffsetFetchRequest(Message, versions="1-10", flexible_from=6):
    """Look up committed offsets: of one group up to version 7, of several from version 8 on.

    `require_stable`: answer UNSTABLE_OFFSET_COMMIT while a transaction is open (KIP-447).
    """

    __response__: ClassVar[OffsetFetchResponse]
    group_id: str = string("0-7")
    # Null, for all topics, is in versions 2 and later.
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, "0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


class OffsetFetchResponsePartition(Struct):
    """A committed offset, up to version 7; -1 for none. The metadata is never null."""

    partition_index: int = int32("0-7")
    committed_offset: int = int64("0-7")
    committed_leader_epoch: int = int32("5-7", default=-1)
    metadata: str | None = string("0-7", nullable="0-7")
    error_code: int = int16("0-7")


class OffsetFetchResponseTopic(Struct):
    """Committed offsets in one topic, up to version 7."""

    name: str = string("0-7")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


class OffsetFetchResponsePartitions(Struct):
    """A committed offset, from version 8 on; -1 for none."""

    partition_index: int = int32("8+")
    committed_offset: int = int64("8+")
    committed_leader_epoch: int = int32("8+", default=-1)
    metadata: str | None = string("8+", nullable="8+")
    error_code: int = int16("8+")


class OffsetFetchResponseTopics(Struct):
    """Committed offsets in one topic, from version 8 on. Error: UNKNOWN_TOPIC_ID."""

    name: str = string("8-9")
    topic_id: bytes = uuid("10+")
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "8+")


class OffsetFetchResponseGroup(Struct):
    """Committed offsets of one group."""

    group_id: str = string("8+")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = int16("8+")


class OffsetFetchResponse(Message, versions="1-10", flexible_from=6):
    """The committed offsets."""

    throttle_time_ms: int = int32("3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = int16("2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")


class InitProducerIdRequest(Message, versions="0-5", flexible_from=2):
    """A producer asks for its id and epoch.

    With a null `transactional_id`, the producer is idempotent but not transactional. A producer
    that sends its present id and epoch asks for the next epoch (version 3, KIP-360).
    """

    __response__: ClassVar[InitProducerIdResponse]
    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)


class InitProducerIdResponse(Message, versions="0-5", flexible_from=2):
    """The producer id and epoch. Errors: PRODUCER_FENCED, NOT_COORDINATOR, ..."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")


class DescribeGroupsRequest(Message, versions="0-6", flexible_from=5):
    """Describe groups."""

    __response__: ClassVar[DescribeGroupsResponse]
    groups: list[str] = string_array("0+")
    include_authorized_operations: bool = boolean("3+")


class DescribedGroupMember(Struct):
    """A member with its subscription and assignment, opaque to the broker."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("4+", nullable="4+", default=None)
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes = opaque("0+")
    member_assignment: bytes = opaque("0+")


class DescribedGroup(Struct):
    """A group; a group that does not exist has the state Dead.

    `protocol_data` is the name of the assignor in use. Error, from version 6 on (KIP-1043):
    GROUP_ID_NOT_FOUND.
    """

    error_code: int = int16("0+")
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    # The smallest int32: the request did not ask for it (KIP-430).
    authorized_operations: int = int32("3+", default=-2147483648)


class DescribeGroupsResponse(Message, versions="0-6", flexible_from=5):
    """The groups."""

    throttle_time_ms: int = int32("1+")
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")


class ListGroupsRequest(Message, versions="0-5", flexible_from=3):
    """List groups: all, or those in some states (version 4) or of some types (version 5)."""

    __response__: ClassVar[ListGroupsResponse]
    states_filter: list[str] = string_array("4+")
    types_filter: list[str] = string_array("5+")


class ListedGroup(Struct):
    """The summary of a group."""

    group_id: str = string("0+")
    protocol_type: str = string("0+")
    group_state: str = string("4+")
    group_type: str = string("5+")


class ListGroupsResponse(Message, versions="0-5", flexible_from=3):
    """The groups that this broker coordinates."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array(ListedGroup, "0+")


# ---- the consumers' embedded protocol ----


class GroupTopicPartition(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = int32_array("0+")


class ConsumerProtocolSubscription(Message, versions="0-3", append_only=True):
    """The data that a consumer sends to the assignor.

    `owned_partitions` (version 1, KIP-429) are those of the generation `generation_id` (version 2,
    KIP-792).
    """

    topics: list[str] = string_array("0+")
    user_data: bytes | None = opaque("0+", nullable="0+", default=None)
    owned_partitions: list[GroupTopicPartition] = array(GroupTopicPartition, "1+")
    generation_id: int = int32("2+", default=-1)
    rack_id: str | None = string("3+", nullable="3+", default=None)


class ConsumerProtocolAssignment(Message, versions="0-3", append_only=True):
    """The partitions that the assignor gives to a consumer."""

    assigned_partitions: list[GroupTopicPartition] = array(GroupTopicPartition, "0+")
    user_data: bytes | None = opaque("0+", nullable="0+", default=None)


# ---- the records of `__consumer_offsets` ----


class OffsetCommitKey(Message, versions="0-1"):
    """Key of a committed offset in `__consumer_offsets`."""

    group: str = string("0-1")
    topic: str = string("0-1")
    partition: int = int32("0-1")


class OffsetCommitValue(Message, versions="0-4", flexible_from=4):
    """A committed offset in `__consumer_offsets`.

    `topic_id` distinguishes topics that had this name at different times.
    """

    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    # Only version 1 has it: offsets in other versions are kept by the coordinator (KIP-211).
    expire_timestamp: int = int64("1", default=-1)
    topic_id: bytes = uuid("4+", tag=0)


# The version in front of a key is the kind of record: 0 and 1 are offsets, 2 is a group. Kinds from
# 3 on are those of `consumer_groups`.
class GroupMetadataKey(Message, versions="2"):
    """Key of a group in `__consumer_offsets`."""

    group: str = string("2")


class MemberMetadata(Struct):
    """A member of a stored group; times in milliseconds."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout: int = int32("1+", default=-1)
    session_timeout: int = int32("0+")
    subscription: bytes = opaque("0+")
    assignment: bytes = opaque("0+")


class GroupMetadataValue(Message, versions="0-4", flexible_from=4):
    """A group as of its last rebalance, in `__consumer_offsets`."""

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1)
    members: list[MemberMetadata] = array(MemberMetadata, "0+")
