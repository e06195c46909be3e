"""Publications: staged segments, offsets and records that begin to count all at once.

APIs of our own, with keys far from those of Kafka; brokers of Kafka do not advertise them. What a
job has staged lies under the broker until Publish takes all of it into its partitions in one
transaction of the broker's, or DropStaged takes it away. A job is published once: whoever repeats
it is told what came of the first time.
Declarations only, see `schema`.
"""

from __future__ import annotations

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
    """A file of whole record batches that was staged, and what it has to be like.

    `crc32c` is of the whole file, without sign.
    """

    name: str = string("0+")
    size_bytes: int = int64("0+")
    record_count: int = int64("0+")
    crc32c: int = int64("0+")


class PublishPartition(Struct):
    """What goes into one partition: the segments in their order, then the records."""

    partition_index: int = int32("0+")
    segments: list[PublishSegment] = array(PublishSegment, "0+")
    records: Records | None = record_batches("0+", nullable="0+")


class PublishTopic(Struct):
    """What goes into the partitions of one topic."""

    name: str = string("0+")
    partitions: list[PublishPartition] = array(PublishPartition, "0+")


class PublishOffset(Struct):
    """Where a group goes on in one partition."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_metadata: str | None = string("0+", nullable="0+", default=None)


class PublishOffsetTopic(Struct):
    """Where a group goes on in one topic."""

    name: str = string("0+")
    partitions: list[PublishOffset] = array(PublishOffset, "0+")


class PublishGroup(Struct):
    """Offsets of a group; nobody may be a member of it when they begin to count."""

    group_id: str = string("0+")
    topics: list[PublishOffsetTopic] = array(PublishOffsetTopic, "0+")


class PublishRequest(Message, versions="0-0", flexible_from=0):
    """Have all of a job count, or nothing. The job's id is its transactional id, too.

    `staged_by` is the name under which its segments were staged, if that is not the job's id.
    """

    job_id: str = string("0+")
    staged_by: str = string("0+")
    topics: list[PublishTopic] = array(PublishTopic, "0+")
    groups: list[PublishGroup] = array(PublishGroup, "0+")


class PublishedPartition(Struct):
    """Where the records of the job stand: from `base_offset` up to `last_offset`."""

    partition_index: int = int32("0+")
    base_offset: int = int64("0+")
    last_offset: int = int64("0+")
    record_count: int = int64("0+")


class PublishedTopic(Struct):
    """Partitions of a topic."""

    name: str = string("0+")
    partitions: list[PublishedPartition] = array(PublishedPartition, "0+")


class PublishResponse(Message, versions="0-0", flexible_from=0):
    """What was published, and whether an earlier request has done it.

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
    """A piece of a file of a job, which begins with position 0 and grows at its end."""

    job_id: str = string("0+")
    name: str = string("0+")
    position: int = int64("0+")
    is_last: bool = boolean("0+")
    records: Records | None = record_batches("0+", nullable="0+")


class StageResponse(Message, versions="0-0", flexible_from=0):
    """How long the file is now; once the last piece was taken it is on disk."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    size_bytes: int = int64("0+")


class DropStagedRequest(Message, versions="0-0", flexible_from=0):
    """Forget what a job has staged."""

    job_id: str = string("0+")


class DropStagedResponse(Message, versions="0-0", flexible_from=0):
    """There is nothing left of it."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
