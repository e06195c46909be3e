"""Lag: how far groups are behind, and which records they read next.

Declarations only, see `schema`. These APIs are ours, like those of `publishing`. DescribeGroupLag
is for clients, and is sent to the coordinators of groups. FindNextRecords is for brokers: a
coordinator asks the leaders of the partitions that it has no replica of.
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    float64,
    int16,
    int32,
    int64,
    int64_array,
    string,
    string_array,
)


class DescribeGroupLagRequest(Message, versions="0-0", flexible_from=0):
    """Describe the lag of these groups."""

    __response__: ClassVar[DescribeGroupLagResponse]
    groups: list[str] = string_array("0+")


class DescribedPartitionLag(Struct):
    """The lag of a group in one partition; -1 stands for "not known"."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    log_start_offset: int = int64("0+", default=-1)
    high_watermark: int = int64("0+", default=-1)
    # Offsets from the committed one to the high watermark.
    lag: int = int64("0+", default=-1)
    # The age of the first record that still exists at or after the committed offset.
    lag_ms: int = int64("0+", default=-1)
    # The part of the lag that was deleted before the group read it.
    lost: int = int64("0+", default=-1)
    # Offsets per second.
    consume_rate: float = float64("0+")
    produce_rate: float = float64("0+")
    # In seconds; infinite if the group falls further behind.
    catch_up_s: float = float64("0+")


class DescribedTopicLag(Struct):
    """The lag of a group in the partitions of one topic."""

    name: str = string("0+")
    partitions: list[DescribedPartitionLag] = array(DescribedPartitionLag, "0+")


class DescribedGroupLag(Struct):
    """The lag of one group.

    Errors: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND, GROUP_AUTHORIZATION_FAILED.
    """

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    group_id: str = string("0+")
    group_type: str = string("0+")
    group_state: str = string("0+")
    member_count: int = int32("0+")
    topics: list[DescribedTopicLag] = array(DescribedTopicLag, "0+")


class DescribeGroupLagResponse(Message, versions="0-0", flexible_from=0):
    """The lag of groups."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedGroupLag] = array(DescribedGroupLag, "0+")


class PartitionPositions(Struct):
    """Committed offsets of groups in one partition."""

    partition_index: int = int32("0+")
    offsets: list[int] = int64_array("0+")


class TopicPositions(Struct):
    """Committed offsets of groups in the partitions of one topic."""

    name: str = string("0+")
    partitions: list[PartitionPositions] = array(PartitionPositions, "0+")


class FindNextRecordsRequest(Message, versions="0-0", flexible_from=0):
    """Ask a leader where partitions end, and for the next records of groups."""

    __response__: ClassVar[FindNextRecordsResponse]
    timeout_ms: int = int32("0+")
    topics: list[TopicPositions] = array(TopicPositions, "0+")


class FoundNextRecord(Struct):
    """The first record at or after an offset, both -1 if there is none."""

    offset: int = int64("0+")
    record_offset: int = int64("0+", default=-1)
    timestamp: int = int64("0+", default=-1)


class PartitionNextRecords(Struct):
    """The ends of a partition, and next records; those that were not found in time are missing.

    `offset` of a record is the committed offset that was asked about.

    Errors: NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, OFFSET_NOT_AVAILABLE.
    """

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    log_start_offset: int = int64("0+", default=-1)
    high_watermark: int = int64("0+", default=-1)
    records: list[FoundNextRecord] = array(FoundNextRecord, "0+")


class TopicNextRecords(Struct):
    """Next records in the partitions of one topic."""

    name: str = string("0+")
    partitions: list[PartitionNextRecords] = array(PartitionNextRecords, "0+")


class FindNextRecordsResponse(Message, versions="0-0", flexible_from=0):
    """Ends of partitions, and next records."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[TopicNextRecords] = array(TopicNextRecords, "0+")
