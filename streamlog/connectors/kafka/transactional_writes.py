"""Transactional writes: a sink task that writes records and their offsets in one transaction.

A transaction of Kafka belongs to a producer, and a transactional id fences it. The owner of a
partition changes, so each partition has its own id: `ID-topic-partition`. Opening its producer
(InitProducerId) completes or aborts what an earlier one left, and shuts that one out. The task
reads the offset in the cluster only after that, so the offset is final.

The offsets are in a compacted topic of the cluster, not in a group there: a group's offsets belong
to the cluster's own topics, and expire when nothing is committed for a week.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import msgspec

from streamlog.client.producer import Producer
from streamlog.client.producer.transaction_session import Transaction
from streamlog.connect import Batch, ConnectError, Fenced, Retriable, SinkTask, TopicPartition
from streamlog.connectors.kafka.cluster_login import errors_of_cluster
from streamlog.connectors.kafka.mirror_positions import newest_values, partition_key
from streamlog.connectors.kafka.target_topics import TargetSettings, TargetTopics
from streamlog.errors import ConfigError, StreamlogError
from streamlog.log import Log

AT_ONCE: Final = 16
"""How many partitions are worked on at once."""


@dataclass(slots=True)
class PartitionWriter:
    """The producer of one partition of ours."""

    producer: Producer
    transaction: Transaction | None = None
    """The transaction that is open."""


class TransactionalTask(SinkTask[object, object]):
    """Writes each partition by a producer of its own."""

    def __init__(
        self,
        log: Log,
        target: TargetSettings,
        *,
        transactional_id: str,
        offsets_topic: str,
        timeout_ms: int,
        compression: str,
    ) -> None:
        """Create the task of a cluster's log, which is not open yet."""
        self._log, self._where = log, target.where
        self._topics = TargetTopics(log, target)
        self._id, self._compression, self._timeout_ms = transactional_id, compression, timeout_ms
        self._offsets_at = TopicPartition(offsets_topic, 0)
        self._writers: dict[TopicPartition, PartitionWriter] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect, and create the topic of the offsets if it is missing.

        Raises:
            Retriable: the cluster can't be reached.
            ConfigError: the topic of the offsets has several partitions.
        """
        async with errors_of_cluster(self._where):
            await self._stack.enter_async_context(self._log)
            count = await self._topics.create(self._offsets_at.topic, compacted=True)
        if count != 1:
            await self._stack.aclose()
            raise ConfigError(
                f"offsets_topic={self._offsets_at.topic} of {self._where} has {count} partitions, "
                "and offsets need one: name another topic, which is created"
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the producers; a transaction that is open is aborted."""
        await self._close([*self._writers])
        await self._stack.aclose()

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Fence earlier owners, and return the offsets that the cluster has."""
        async with errors_of_cluster(self._where):
            await self._close(partitions)
            await _each(partitions, self._open)
            return await self._committed({self._key(at): at for at in partitions})

    async def _open(self, at: TopicPartition) -> None:
        producer = self._log.producer(
            transactional_id=f"{self._id}-{at.topic}-{at.partition}",
            transaction_timeout_ms=self._timeout_ms,
            compression=self._compression,
        )
        await producer.__aenter__()
        self._writers[at] = PartitionWriter(producer)

    async def _close(self, partitions: Iterable[TopicPartition]) -> None:
        for at in [*partitions]:
            writer = self._writers.pop(at, None)
            if writer is not None:
                # With an error: a flush would wait for a cluster that may be away.
                closed = ConnectError("the sink lets go of the partition")
                await writer.producer.__aexit__(ConnectError, closed, None)

    def _key(self, at: TopicPartition) -> bytes:
        return partition_key(self._id, at)

    async def _committed(self, wanted: Mapping[bytes, TopicPartition]) -> dict[TopicPartition, int]:
        """Return the newest offset of each key."""
        found = await newest_values(self._log, self._offsets_at, wanted)
        return {wanted[key]: self._read_position(wanted[key], data) for key, data in found.items()}

    def _read_position(self, at: TopicPartition, data: bytes) -> int:
        """Return the next offset of a position that was stored in the cluster."""
        del at
        return _next_offset(data)

    def _position(self, at: TopicPartition, offset: int) -> bytes:
        """Return what is stored in the cluster for a next offset."""
        del at
        return msgspec.json.encode({"next_offset": offset})

    async def write(self, batch: Batch[object, object]) -> None:
        """Hand the records to the producer of their partition, in its transaction."""
        async with errors_of_cluster(self._where):
            writer = await self._begun(batch.partition)
            await self._topics.send(writer.producer, batch)

    async def _begun(self, at: TopicPartition) -> PartitionWriter:
        writer = self._writers.get(at)
        if writer is None:
            raise Fenced(f"{at.topic}-{at.partition} belongs to another task")
        if writer.transaction is None:
            transaction = writer.producer.transaction()
            await transaction.__aenter__()
            writer.transaction = transaction
        return writer

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the transaction of each partition, with its offset.

        If one of them fails, others may have been committed: the runtime then recovers all.
        """
        async with errors_of_cluster(self._where):
            await _each(offsets, lambda at: self._commit_one(at, offsets[at]))

    async def _commit_one(self, at: TopicPartition, offset: int) -> None:
        writer = await self._begun(at)
        await self._send_offset(writer, at, offset)
        await self._end(writer)

    async def _send_offset(
        self, writer: PartitionWriter, at: TopicPartition, offset: int | None
    ) -> None:
        value = None if offset is None else self._position(at, offset)
        topic, number = self._offsets_at
        sent = await writer.producer.send(topic, value, key=self._key(at), partition=number)
        # The commit raises its error.
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _end(self, writer: PartitionWriter) -> None:
        transaction, writer.transaction = writer.transaction, None
        if transaction is not None:
            await transaction.__aexit__(None, None, None)

    async def abort(self) -> None:
        """Abort the transactions that are open."""

        async def abort_one(at: TopicPartition) -> None:
            writer = self._writers[at]
            transaction, writer.transaction = writer.transaction, None
            if transaction is not None:
                aborted = ConnectError("the flush is aborted")
                await transaction.__aexit__(ConnectError, aborted, None)

        async with errors_of_cluster(self._where):
            await _each([*self._writers], abort_one)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Close the producers of partitions that another task gets."""
        await self._close(partitions)

    async def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Set the offsets in the cluster, or forget them where None."""

        async def reset_one(at: TopicPartition) -> None:
            await self._open(at)
            writer = await self._begun(at)
            await self._send_offset(writer, at, offsets[at])
            await self._end(writer)

        async with errors_of_cluster(self._where):
            await self._close(offsets)
            await _each(offsets, reset_one)


def _next_offset(data: bytes) -> int:
    try:
        return int(msgspec.json.decode(data, type=dict[str, int])["next_offset"])
    except (msgspec.MsgspecError, KeyError) as error:
        raise ConnectError(
            "the topic of offsets has a value that no sink has written: name another topic"
        ) from error


async def _each(
    partitions: Iterable[TopicPartition],
    work: Callable[[TopicPartition], Coroutine[object, object, None]],
) -> None:
    """Do something for each partition, some at once; raises the gravest error, after all ended."""
    gate = asyncio.Semaphore(AT_ONCE)
    errors: list[StreamlogError] = []

    async def one(at: TopicPartition) -> None:
        async with gate:
            try:
                await work(at)
            except StreamlogError as error:
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for at in partitions:
            group.create_task(one(at))
    if errors:
        # A failure that does not pass is what the operator has to know first.
        raise min(errors, key=lambda error: isinstance(error, Retriable) or error.retriable)
