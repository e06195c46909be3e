"""Publishes the rows of a job in one transaction, which works on any cluster.

Kafka's brokers need this, and so do several streamlog brokers that each lead some of the
partitions. The producer's transactional id is the job's id. The receipt of the publication is a
committed offset per partition, the end of the job's rows, in a group of that name: it is committed
in the same transaction, so the receipt exists if and only if the rows do. Limits, which are
Kafka's: one producer writes all rows, within `transaction.max.timeout.ms`; a coordinator forgets a
group without members after `offsets.retention.minutes` (seven days), and the receipt with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from streamlog.client.offset_metadata import GroupMetadata, OffsetAndMetadata
from streamlog.errors import CorruptData, UsageError
from streamlog.record import TopicPartition
from streamlog.records.batch import split_batches
from streamlog.records.record_columns import FieldColumns

if TYPE_CHECKING:
    from streamlog.client.admin import Admin
    from streamlog.client.producer import Producer
    from streamlog.client.producer.sender import RecordMetadata
    from streamlog.records.staged_segment import StagedSegment

RECEIPT: Final = "published by streamlog"
"""The metadata of a committed offset that is a receipt; consumers never commit this text."""


class Published(msgspec.Struct, frozen=True):
    """The publication of a job."""

    is_repeated: bool
    """Whether an earlier call published the job; then this call has written nothing."""
    ends: Mapping[TopicPartition, int]
    """Partition to the offset after the job's last row in it."""


async def publish_in_transaction(
    admin: Admin,
    producer: Producer,
    job_id: str,
    segments: Sequence[StagedSegment],
    read: Callable[[str], bytes | memoryview],
) -> Published:
    """Write the segments in one transaction, unless an earlier call has published the job.

    Args:
        admin: an admin client of the same log.
        producer: an open producer whose transactional id is the job's id. Opening it has aborted
            any transaction that an earlier producer of this job left open.
        job_id: the job's id.
        segments: the job's staged segments.
        read: returns the content of a segment by its name.

    Raises:
        CorruptData: the content of a segment differs from what was staged.
        UsageError: a group of consumers has the name of the job.
        LogError: the log refused the transaction; none of the rows are visible.
    """
    if not segments:
        return Published(is_repeated=False, ends={})
    partitions = {TopicPartition(each.topic, each.partition) for each in segments}
    known = await _receipt(admin, job_id, partitions)
    if known:
        return Published(is_repeated=True, ends=known)
    async with producer.transaction() as transaction:
        last: dict[TopicPartition, asyncio.Future[RecordMetadata]] = {}
        for segment in segments:
            content = read(segment.name)
            if len(content) != segment.size_bytes or crc32c(content) != segment.crc32c:
                raise CorruptData(
                    f"{segment.name} of job {job_id} differs in size or checksum from what was"
                    " staged: stage it again"
                )
            for batch in split_batches(content):
                batch.check_crc()
                found, columns = batch.columns(), FieldColumns()
                columns.extend(found.timestamps, found.keys, found.values, found.headers)
                sent = await producer.send_batch(segment.topic, segment.partition, columns)
                sent.add_done_callback(_heard)
                last[TopicPartition(segment.topic, segment.partition)] = sent
        ends = {partition: (await sent).offset + 1 for partition, sent in last.items()}
        receipt = {partition: OffsetAndMetadata(end, RECEIPT) for partition, end in ends.items()}
        await transaction.send_offsets(receipt, GroupMetadata(group_id=job_id))
    return Published(is_repeated=False, ends=ends)


async def _receipt(
    admin: Admin, job_id: str, partitions: set[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the ends of a published job's rows; empty if the job was not published.

    Raises:
        UsageError: the group's committed offsets are not receipts.
    """
    # Two requests, because only one that names its partitions waits for open transactions
    # (`require_stable`, KIP-447):
    # 1. An earlier run has sent its receipts and is about to commit: the first request waits for
    #    it and finds them.
    # 2. A job that runs again may have rows in other partitions than before: the second request
    #    finds the receipts of all partitions.
    found = await admin.group_offsets_and_metadata(job_id, partitions, require_stable=True)
    found = found or await admin.group_offsets_and_metadata(job_id)
    if any(committed.metadata != RECEIPT for committed in found.values()):
        raise UsageError(
            f"job {job_id!r} has the name of a consumer group, whose committed offsets are not"
            " receipts of a publication: choose another job id"
        )
    return {at: committed.offset for at, committed in found.items()}


def _heard(sent: asyncio.Future[RecordMetadata]) -> None:
    # The transaction raises the error; this marks the future's own as retrieved.
    if not sent.cancelled():
        sent.exception()
