"""What an administrator does to groups: delete them, and what they have committed.

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks.
"""

from __future__ import annotations

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    string,
    string_array,
)


class DeleteGroupsRequest(Message, versions="0-2", flexible_from=2):
    """Delete groups with all their positions."""

    groups_names: list[str] = string_array("0+")


class DeletableGroupResult(Struct):
    """Whether a group was deleted. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, ..."""

    group_id: str = string("0+")
    error_code: int = int16("0+")


class DeleteGroupsResponse(Message, versions="0-2", flexible_from=2):
    """What became of each group."""

    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")


class OffsetDeleteRequestPartition(Struct):
    """A partition whose position is to be forgotten."""

    partition_index: int = int32("0+")


class OffsetDeleteRequestTopic(Struct):
    """Positions in one topic."""

    name: str = string("0+")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, "0+")


class OffsetDeleteRequest(Message, versions="0"):
    """Forget positions of one group (KIP-496)."""

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, "0+")


class OffsetDeleteResponsePartition(Struct):
    """Whether a position was forgotten. Error: GROUP_SUBSCRIBED_TO_TOPIC."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetDeleteResponseTopic(Struct):
    """What became of the positions in one topic."""

    name: str = string("0+")
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition, "0+")


class OffsetDeleteResponse(Message, versions="0"):
    """What became of the positions. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, ..."""

    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+")
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, "0+")
