"""Target topics: which topic and partition of the other cluster a record goes to.

Topics are looked up once, and created if the settings say with how many partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.connect import Batch
from streamlog.durations import when_ms
from streamlog.errors import ConfigError, TopicExists
from streamlog.log import Log
from streamlog.records.record_columns import FieldColumns

PARTITIONS_MAX = 10_000
Codec: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
TIMEOUT_MS_MAX: Final = 15 * 60 * 1_000
"""What brokers allow by default (`transaction.max.timeout.ms`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """Where records go; see the settings of `KafkaClusterSink`."""

    where: str
    template: str
    keeps_partition: bool
    create_partitions: int | None

    def check(self) -> None:
        """Raise ConfigError if the topic is no template, or the number is out of range."""
        if "{" in self.template.replace("{topic}", "") or not self.template:
            raise ConfigError(f"topic={self.template!r}: it may name {{topic}} only")
        count = self.create_partitions
        if count is not None and not 1 <= count <= PARTITIONS_MAX:
            raise ConfigError(f"create_partitions={count}: it has to be 1 to {PARTITIONS_MAX}")

    def topic_of(self, source: str) -> str:
        """Return the topic of the other cluster for one of ours."""
        return self.template.replace("{topic}", source)


class TargetTopics:
    """The topics of the other cluster, as far as they were needed."""

    def __init__(self, log: Log, settings: TargetSettings) -> None:
        self._log, self._settings = log, settings
        self._partitions: dict[str, int] = {}
        self._looking = asyncio.Lock()

    async def send(self, producer: Producer, batch: Batch[object, object]) -> None:
        """Hand the records of a batch to a producer, in order.

        Raises:
            ConfigError: the topic does not exist, or lacks the partition.
            StreamlogError: the cluster refuses the records.
        """
        topic = self._settings.topic_of(batch.partition.topic)
        columns = columns_of(batch)
        if self._settings.keeps_partition:
            await self._check_partition(topic, batch.partition.partition)
            sent = await producer.send_batch(topic, batch.partition.partition, columns)
            sent.add_done_callback(heard)
        else:
            await self.create(topic)
            await _send_each(producer, topic, columns)

    async def create(self, topic: str, *, compacted: bool = False) -> int:
        """Return the number of a topic's partitions; creates the topic if it is missing.

        Raises:
            ConfigError: it is missing, and the settings do not say with how many partitions it is
                created.
        """
        async with self._looking:
            if topic not in self._partitions:
                self._partitions[topic] = await self._look_up(topic, compacted=compacted)
        return self._partitions[topic]

    async def _look_up(self, topic: str, *, compacted: bool) -> int:
        admin = self._log.admin()
        found = await admin.find_topics([topic])
        if not found:
            count = 1 if compacted else self._settings.create_partitions
            if count is None:
                raise ConfigError(
                    f"{self._settings.where} has no topic {topic!r}: create it, or set "
                    "create_partitions"
                )
            configs = COMPACTED if compacted else {}
            try:
                await admin.create_topics(
                    [NewTopic(topic, count, replication_factor=-1, configs=configs)]
                )
            except TopicExists:
                # Another task was faster, and may have other settings.
                found = await admin.find_topics([topic])
            else:
                return count
        return found[0].partitions if found else 0

    async def _check_partition(self, topic: str, partition: int) -> None:
        if partition < await self.create(topic):
            return
        # It may have grown since.
        self._partitions.pop(topic, None)
        count = await self.create(topic)
        if partition >= count:
            raise ConfigError(
                f"{topic} of {self._settings.where} has {count} partitions, and a record of "
                f"partition {partition} keeps its own: add partitions, or set partition='key'"
            )


COMPACTED = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
"""Small segments, so that compaction keeps the topic of offsets small."""


async def _send_each(
    producer: Producer,
    topic: str,
    rows: Iterable[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
) -> None:
    for time_ms, key, value, headers in rows:
        sent = await producer.send(topic, value, key=key, timestamp_ms=time_ms, headers=headers)
        sent.add_done_callback(heard)


def columns_of(batch: Batch[object, object]) -> FieldColumns:
    """Return the records of a batch as they lie in the log, for a producer."""
    columns = FieldColumns()
    # Times of records that a transform has made are datetimes.
    columns.timestamps = [each if isinstance(each, int) else when_ms(each) for each in batch.times]
    pairs = batch.raw()
    columns.keys, columns.values = [key for key, _ in pairs], [value for _, value in pairs]
    headers: list[Sequence[tuple[str, bytes | None]]] = [*batch.headers]
    columns.headers = headers if any(headers) else None
    return columns


def heard(sent: asyncio.Future[RecordMetadata]) -> None:
    """Let the outcome of a record count as looked at."""
    # The end of the transaction, or the flush, raises the error; here it counts as seen.
    if not sent.cancelled():
        sent.exception()
