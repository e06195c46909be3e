"""Publications: staged segments, offsets and records that become visible all at once.

Declarations only, see `schema`. These APIs are ours; their keys are far from those of Kafka, whose
brokers don't advertise them. A job's staged files stay outside the log until Publish appends all of
them to their partitions in one transaction of the broker, or until DropStaged deletes them. A job
is published once: a repeated request gets the result of the first.
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.schema import (
    Message,
    Records,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    record_batches,
    string,
)


class PublishSegment(Struct):
    """A staged file of whole record batches, with its expected size and content.

    `crc32c` is that of the whole file, as an unsigned number.
    """

    name: str = string("0+")
    size_bytes: int = int64("0+")
    record_count: int = int64("0+")
    # int64, because an unsigned 32-bit number does not fit into an int32.
    crc32c: int = int64("0+")


class PublishPartition(Struct):
    """The content for one partition: the segments in their order, then the records."""

    partition_index: int = int32("0+")
    segments: list[PublishSegment] = array(PublishSegment, "0+")
    records: Records | None = record_batches("0+", nullable="0+")


class PublishTopic(Struct):
    """The content for the partitions of one topic."""

    name: str = string("0+")
    partitions: list[PublishPartition] = array(PublishPartition, "0+")


class PublishOffset(Struct):
    """The offset from which a group continues in one partition."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_metadata: str | None = string("0+", nullable="0+", default=None)


class PublishOffsetTopic(Struct):
    """The offsets from which a group continues in one topic."""

    name: str = string("0+")
    partitions: list[PublishOffset] = array(PublishOffset, "0+")


class PublishGroup(Struct):
    """The committed offsets of a group, which must not have members when they take effect."""

    group_id: str = string("0+")
    topics: list[PublishOffsetTopic] = array(PublishOffsetTopic, "0+")


class PublishRequest(Message, versions="0-0", flexible_from=0):
    """Publish all of a job, or nothing. The job's id is also its transactional id.

    `staged_by` is the name under which the segments were staged, if it differs from the job's id.
    """

    __response__: ClassVar[PublishResponse]
    # A second request with this id publishes nothing: see `PublishResponse.is_repeated`.
    job_id: str = string("0+")
    staged_by: str = string("0+")
    topics: list[PublishTopic] = array(PublishTopic, "0+")
    groups: list[PublishGroup] = array(PublishGroup, "0+")


class PublishedPartition(Struct):
    """The offsets of the job's records, from `base_offset` to `last_offset` inclusive."""

    partition_index: int = int32("0+")
    base_offset: int = int64("0+")
    last_offset: int = int64("0+")
    record_count: int = int64("0+")


class PublishedTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[PublishedPartition] = array(PublishedPartition, "0+")


class PublishResponse(Message, versions="0-0", flexible_from=0):
    """The published offsets. `is_repeated`: an earlier request has published the job.

    Errors: INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, NON_EMPTY_GROUP, CORRUPT_MESSAGE,
    MESSAGE_TOO_LARGE, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED, KAFKA_STORAGE_ERROR, ...
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    is_repeated: bool = boolean("0+")
    topics: list[PublishedTopic] = array(PublishedTopic, "0+")


class StageRequest(Message, versions="0-0", flexible_from=0):
    """Append a piece to a job's file. The first piece has position 0."""

    __response__: ClassVar[StageResponse]
    job_id: str = string("0+")
    name: str = string("0+")
    position: int = int64("0+")
    is_last: bool = boolean("0+")
    records: Records | None = record_batches("0+", nullable="0+")


class StageResponse(Message, versions="0-0", flexible_from=0):
    """The size of the file. After the last piece, the file is synced to disk."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    size_bytes: int = int64("0+")


class DropStagedRequest(Message, versions="0-0", flexible_from=0):
    """Delete the staged files of a job."""

    __response__: ClassVar[DropStagedResponse]
    job_id: str = string("0+")


class DropStagedResponse(Message, versions="0-0", flexible_from=0):
    """Without an error, the job has no staged files."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
