"""A job published by a producer: everything in one transaction, as any cluster takes it.

For brokers of Kafka, and for several of streamlog, of which each leads a part. The producer's
transactional id is the job's. What says that the job was published are offsets of a group of that
name, committed in the same transaction: the ends of its rows, by partition. They are there if and
only if the rows are. Limits, as Kafka has them: all rows go through this one producer and have to
be written within `transaction.max.timeout.ms`; a group without members is forgotten after
`offsets.retention.minutes` (seven days), and with it that the job was published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
"""What is committed beside an offset that is a receipt; consumers commit no such thing."""


@dataclass(frozen=True, slots=True)
class Published:
    """A job that counts."""

    is_repeated: bool
    """Whether an earlier call has done it; then nothing was done now."""
    ends: Mapping[TopicPartition, int]
    """The offset behind its last row, in each partition that it has rows in."""


async def publish_in_transaction(
    admin: Admin,
    producer: Producer,
    job_id: str,
    segments: Sequence[StagedSegment],
    read: Callable[[str], bytes | memoryview],
) -> Published:
    """Write the segments in one transaction, unless an earlier call has done it.

    Args:
        admin: of the same log.
        producer: with the job's id as transactional id; open, so that whatever an earlier one has
            begun is over.
        job_id: the name of the job.
        segments: what it has staged.
        read: gives the content of a segment by its name.

    Raises:
        CorruptData: a segment is not what was staged.
        UsageError: the job's name is that of a group of consumers.
        LogError: the log refused; nothing counts.
    """
    if not segments:
        return Published(is_repeated=False, ends={})
    places = {TopicPartition(each.topic, each.partition) for each in segments}
    known = await _receipt(admin, job_id, places)
    if known:
        return Published(is_repeated=True, ends=known)
    async with producer.transaction() as transaction:
        last: dict[TopicPartition, asyncio.Future[RecordMetadata]] = {}
        for segment in segments:
            content = read(segment.name)
            if len(content) != segment.size_bytes or crc32c(content) != segment.crc32c:
                raise CorruptData(f"{segment.name} of job {job_id} is not what was staged")
            for batch in split_batches(content):
                batch.check_crc()
                found, columns = batch.columns(), FieldColumns()
                columns.extend(found.timestamps, found.keys, found.values, found.headers)
                sent = await producer.send_batch(segment.topic, segment.partition, columns)
                sent.add_done_callback(_heard)
                last[TopicPartition(segment.topic, segment.partition)] = sent
        ends = {place: (await sent).offset + 1 for place, sent in last.items()}
        receipt = {place: OffsetAndMetadata(end, RECEIPT) for place, end in ends.items()}
        await transaction.send_offsets(receipt, GroupMetadata(group_id=job_id))
    return Published(is_repeated=False, ends=ends)


async def _receipt(
    admin: Admin, job_id: str, places: set[TopicPartition]
) -> dict[TopicPartition, int]:
    """The ends of the rows of a job that was published; nothing of one that was not.

    Raises:
        UsageError: what is committed is no receipt.
    """
    # What is about to count is waited for where it is asked for by name. A job that is run again
    # may have rows in other partitions.
    found = await admin.group_places(job_id, places, require_stable=True)
    found = found or await admin.group_places(job_id)
    if any(place.metadata != RECEIPT for place in found.values()):
        raise UsageError(
            f"job {job_id!r} has the name of a group of consumers, and as such a group it would be"
            " known when it is repeated: give it another one"
        )
    return {at: place.offset for at, place in found.items()}


def _heard(sent: asyncio.Future[RecordMetadata]) -> None:
    """Its error is that of the transaction."""
    if not sent.cancelled():
        sent.exception()
