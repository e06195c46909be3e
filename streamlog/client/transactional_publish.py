"""A job published on a log that knows no publications: everything in one transaction of a producer.

The producer's transactional id is the job's. What says that the job was published is an offset of
a group of that name, committed in the same transaction: it is there if and only if the rows are.
Limits, as Kafka has them: all rows go through this one producer and have to be written within
`transaction.max.timeout.ms`; a group without members is forgotten after `offsets.retention.minutes`
(seven days), and with it that the job was published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from crc32c import crc32c

from streamlog.assignors import TopicPartition
from streamlog.client.group_metadata import GroupMetadata
from streamlog.errors import CorruptData
from streamlog.records.batch import split_batches
from streamlog.records.columns import FieldColumns

if TYPE_CHECKING:
    from streamlog.client.admin import Admin
    from streamlog.client.producer import Producer
    from streamlog.records.staged import StagedSegment

RECEIPT_OFFSET = 1
"""Of the receipt: any would do."""


async def publish_in_transaction(
    admin: Admin,
    producer: Producer,
    job_id: str,
    segments: Sequence[StagedSegment],
    read: Callable[[str], bytes | memoryview],
) -> bool:
    """Write the segments in one transaction, unless an earlier call has done it.

    Args:
        admin: of the same log.
        producer: with the job's id as transactional id; open, so that whatever an earlier one has
            begun is over.
        job_id: the name of the job.
        segments: what it has staged.
        read: gives the content of a segment by its name.

    Returns:
        Whether it had been published before.

    Raises:
        CorruptData: a segment is not what was staged.
        LogError: the log refused; nothing counts.
    """
    if not segments:
        return False
    receipt = TopicPartition(segments[0].topic, segments[0].partition)
    # Wherever it is: a job that is run again may have its segments in another order.
    if await admin.group_offsets(job_id):
        return True
    async with producer.transaction() as transaction:
        for segment in segments:
            content = read(segment.name)
            if len(content) != segment.size_bytes or crc32c(content) != segment.crc32c:
                raise CorruptData(f"{segment.name} of job {job_id} is not what was staged")
            for batch in split_batches(content):
                batch.check_crc()
                found, columns = batch.columns(), FieldColumns()
                columns.extend(found.timestamps, found.keys, found.values, found.headers)
                await producer.send_columns(segment.topic, segment.partition, columns)
        await transaction.send_offsets({receipt: RECEIPT_OFFSET}, GroupMetadata(group_id=job_id))
    return False
