"""Publications: which jobs were published, told by the receipts in `__publications`.

A receipt is a record of the job's own transaction, so it is there if and only if everything else
of the job is. The topic is compacted and never expires: a job that is repeated after years is
still known. Rule of the file: only what is committed is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from streamlog.protocol.messages.publishing import PublishedPartition, PublishedTopic
from streamlog.records.batch import RecordBatch, split_batches
from streamlog.records.control_batches import AbortedBatches

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partition, Partitions

PUBLICATIONS_TOPIC: Final = "__publications"
PUBLICATIONS_CONFIGS: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}
READ_BYTES: Final = 1024 * 1024

_VERSION = 0


def encode_receipt(topics: list[PublishedTopic], *, wall_ms: int) -> bytes:
    """What is remembered of a publication."""
    return json.dumps(
        {
            "version": _VERSION,
            "published_ms": wall_ms,
            "topics": {
                topic.name: [
                    [each.partition_index, each.base_offset, each.last_offset, each.record_count]
                    for each in topic.partitions
                ]
                for topic in topics
            },
        }
    ).encode()


def decode_receipt(data: bytes) -> list[PublishedTopic]:
    """The other way."""
    return [
        PublishedTopic(
            name=name,
            partitions=[
                PublishedPartition(
                    partition_index=index, base_offset=base, last_offset=last, record_count=count
                )
                for index, base, last, count in places
            ],
        )
        for name, places in json.loads(data)["topics"].items()
    ]


class Publications:
    """The receipts of this broker, read on as they come."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._position = 0
        self._receipts: dict[str, bytes] = {}

    def partition(self) -> Partition:
        """Where receipts are written.

        Raises:
            UnknownTopicOrPartition: it is not there (yet).
        """
        return self._partitions.get(PUBLICATIONS_TOPIC, 0)

    def receipt(self, job_id: str) -> list[PublishedTopic] | None:
        """What the job has published; None if it has not been.

        Raises:
            CorruptData: the log of receipts is damaged.
            LogDirectoryError: the disk refused.
        """
        if not self._partitions.exists(PUBLICATIONS_TOPIC, 0):
            return None
        self._read_on(self.partition())
        found = self._receipts.get(job_id)
        return None if found is None else decode_receipt(found)

    def _read_on(self, partition: Partition) -> None:
        log, end_offset = partition.log, partition.last_stable_offset
        position = max(self._position, log.log_start_offset)
        if position >= end_offset:
            return
        aborted = AbortedBatches(each.range for each in log.aborted(position, end_offset))
        while self._position < end_offset:
            found = log.read(position, max_bytes=READ_BYTES, before_offset=end_offset)
            for batch in split_batches(found):
                if not batch.is_control and not aborted.hides(batch):
                    self._note(batch)
                position = batch.next_offset
            self._position = position

    def _note(self, batch: RecordBatch) -> None:
        for record in batch.records():
            self._receipts[(record.key or b"").decode()] = record.value or b""
