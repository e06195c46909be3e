"""Commits: requests that set and delete positions, taken apart and answered one by one.

Pure. Whether the group lets it happen was decided before (`may_commit` of a group); here it is
about single positions: each is kept or refused by itself, and has its own code in the response.
"""

from __future__ import annotations

from streamlog.broker.coordinator.records import OffsetChange, encode_change
from streamlog.broker.coordinator.shard import CoordinatorRecord, Instant
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.coordination import (
    OffsetCommitKey,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitValue,
)

METADATA_BYTES_MAX = 4096
"""Of the note that a committer may add to a position; Kafka's `offset.metadata.max.bytes`."""
FOR_AS_LONG_AS_ALL = -1
"""The retention time of a commit that asks for none of its own."""


def commit_refusal(partition: OffsetCommitRequestPartition, *, exists: bool) -> ErrorCode:
    """Why a position can't be kept."""
    if not exists:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len((partition.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def commit_record(
    request: OffsetCommitRequest,
    topic: str,
    topic_id: bytes,
    partition: OffsetCommitRequestPartition,
    at: Instant,
) -> CoordinatorRecord:
    """The record of one position."""
    key = OffsetCommitKey(group=request.group_id, topic=topic, partition=partition.partition_index)
    retention_ms = request.retention_time_ms
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=at.wall_ms,
        expire_timestamp=-1 if retention_ms == FOR_AS_LONG_AS_ALL else at.wall_ms + retention_ms,
        topic_id=topic_id,
    )
    return encode_change(OffsetChange(key, value))


def forgotten(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """The end of one position."""
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return encode_change(OffsetChange(key, None))
