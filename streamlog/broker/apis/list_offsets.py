"""OffsetRequests: ListOffsets and OffsetForLeaderEpoch; and the error codes of partitions.

ListOffsets, versions 1 to 10, looks up offsets by timestamp or by name. It waits for the flush of
earlier appends, so that a client that has sent with acks=0 finds its records before the end.
OffsetForLeaderEpoch, versions 2 to 4, returns where leader epochs ended (KIP-320). Both answer from
the logs as they are now.

Not done here: committed offsets of groups, which their coordinator keeps.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.errors import CorruptData, LogError, NotLeader, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.fetch_patterns import READ_COMMITTED
from streamlog.protocol.messages.cluster_metadata import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from streamlog.protocol.messages.produce_and_fetch import (
    LeaderIdAndEpoch,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from streamlog.records.batch import split_batches
from streamlog.records.compression import Compression

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.protocol.schema import Buffer

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
"""The earliest offset: all of a log is local, because nothing is tiered."""
LATEST_REMOTE = -5
"""An offset that no log has, because nothing is tiered."""

_log = repeated.logger(__name__)


class OffsetRequests:
    """Answers ListOffsets and OffsetForLeaderEpoch for the partitions of this broker."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        when_flushed: Callable[
            [Callable[[], ListOffsetsResponse]], asyncio.Future[ListOffsetsResponse]
        ],
    ) -> None:
        """`when_flushed` calls a function once everything appended by now is on disk."""
        self._partitions = partitions
        self._when_flushed = when_flushed

    # ---- list offsets ----

    def begin(
        self, request: ListOffsetsRequest
    ) -> ListOffsetsResponse | asyncio.Future[ListOffsetsResponse]:
        """Answer once earlier appends are durable: a client with acks=0 sees its own end."""
        if self._is_settled(request):
            return self.list_offsets(request)
        return self._when_flushed(partial(self.list_offsets, request))

    def _is_settled(self, request: ListOffsetsRequest) -> bool:
        """Return whether everything appended to the partitions may be shown now."""
        return not any(
            self._partitions.is_behind(topic.name, each.partition_index)
            for topic in request.topics
            for each in topic.partitions
        )

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Look up offsets by timestamp or by name."""
        stable = request.isolation_level == READ_COMMITTED
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        self._offset(topic.name, each, stable=stable) for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _offset(
        self, topic: str, wanted: ListOffsetsPartition, *, stable: bool
    ) -> ListOffsetsPartitionResponse:
        try:
            partition = self._partitions.get(topic, wanted.partition_index)
            partition.check_epoch(wanted.current_leader_epoch)
            # 1. The leader commits up to 100, and fails. 2. A follower that knows of the high
            # watermark 90 takes over. 3. Until its followers have fetched, it would answer 90, and
            # a client that has read up to 100 would see the log shrink (KIP-207).
            partition.check_end_known()
            end_offset = partition.last_stable_offset if stable else partition.high_watermark
            found = _look_up(partition, wanted.timestamp, end_offset)
        except StreamlogError as error:
            code = error_code(error)
            return ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index, error_code=code
            )
        if found is None:
            return ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
        offset, timestamp_ms = found
        return ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index,
            timestamp=timestamp_ms,
            offset=offset,
            leader_epoch=partition.log.epochs.at(offset),
        )

    # ---- leader epochs ----

    def epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        """Return where epochs ended: what a client read beyond that was lost (KIP-320)."""
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[self._epoch_end(topic.topic, each) for each in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _epoch_end(self, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            partition = self._partitions.get(topic, wanted.partition)
            partition.check_epoch(wanted.current_leader_epoch)
            epochs = partition.log.epochs
            epoch, end_offset = epochs.end_of(wanted.leader_epoch, partition.epoch_end)
            if end_offset == partition.epoch_end:
                # A client that has read more would take the damage for a loss, and reset.
                partition.log.check_end()
        except StreamlogError as error:
            return EpochEndOffset(partition=wanted.partition, error_code=error_code(error))
        return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)


def _look_up(partition: Partition, timestamp_ms: int, end_offset: int) -> tuple[int, int] | None:
    """Return an offset and its timestamp (-1 if unknown); None if there is no such offset.

    Offsets from `end_offset` on are not visible.
    """
    log = partition.log
    if timestamp_ms == LATEST:
        log.check_end()
        return end_offset, -1
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    # The record with the largest timestamp (KIP-734). Until it is committed there is no answer,
    # even though records before it have timestamps too.
    if timestamp_ms == MAX_TIMESTAMP:
        return _before(end_offset, log.max_timestamp())
    if timestamp_ms == LATEST_REMOTE:
        return None
    if timestamp_ms < 0:
        raise error_for(
            ErrorCode.INVALID_REQUEST,
            f"{partition.topic}-{partition.index}: invalid timestamp {timestamp_ms}",
        )
    return _before(end_offset, log.offset_for_timestamp(timestamp_ms))


def _before(end_offset: int, found: tuple[int, int] | None) -> tuple[int, int] | None:
    return found if found is not None and found[0] < end_offset else None


# ---- errors of partitions, in these responses and in those of Produce and Fetch ----


def error_code(error: StreamlogError) -> int:
    """Return the error code for a client; disk errors are also logged."""
    if isinstance(error, LogError):
        return error.code
    if isinstance(error, CorruptData):
        return ErrorCode.CORRUPT_MESSAGE  # The partition's log has reported the damage already.
    _log.error("could not use a partition: %s", error)
    return ErrorCode.KAFKA_STORAGE_ERROR


def current_leader(error: StreamlogError | None) -> LeaderIdAndEpoch | None:
    """Return the current leader, for a client that asked another broker (KIP-951)."""
    if not isinstance(error, NotLeader) or error.current is None:
        return None
    leader_id, epoch = error.current
    return LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch)


def refuse_zstd(data: Buffer, where: str) -> None:
    """Raise LogError if a batch is compressed with zstd, which old clients do not know."""
    for batch in split_batches(data):
        if batch.codec is Compression.ZSTD:
            raise error_for(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{where} does not support zstd"
            )
