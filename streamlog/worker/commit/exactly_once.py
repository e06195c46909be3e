"""Commit exactly once: sinks, changelogs and offsets of a worker commit in one transaction, or not.

The transaction begins when the work of a commit interval is done. A function that blocks for a
minute therefore keeps no transaction open, and no `read_committed` reader waiting.

The order within a transaction matters (KIP-447): all records are acknowledged before the offsets
are sent, and the group's coordinator takes offsets only from a member of the current generation.

1. A worker's transaction has all records in the log, and it sends the offsets.
2. A rebalance gives its tasks to worker B. B writes a fence to each changelog, and restores up to
   the fence with `read_committed`, which waits until the transaction has ended.
3. If the coordinator took the offsets before the rebalance, B finds the whole transaction before
   its fence. If not, the transaction is aborted, and B reads the same inputs again.

A store takes the changes only after the commit. After a crash in between, the changelog has what
the store lacks. Why: `docs/decisions/005`. Not done here: what follows an aborted commit
(`worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from types import TracebackType
from typing import Self

from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import Offsets
from streamlog.client.producer import Producer, ProducerOptions
from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.client.producer.sender import RecordMetadata
from streamlog.errors import (
    ProducerFenced,
    RebalanceInProgress,
    StreamlogError,
    TransactionAborted,
    UnknownMember,
    UnknownTopicOrPartition,
    quantity,
)
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.packed_records import PackedRecords
from streamlog.worker.commit.commit import OnStep, Packs, SinkWriter

TRANSACTION_TIMEOUT_MS = 10_000
"""The transaction time-out. If a worker dies and does not restart under its transactional id,
`read_committed` readers of its open transaction wait for this long."""


class RefusedCommit(Exception):
    """The commit is aborted, as brokers refuse some sink records; without them it may succeed."""

    def __init__(self, refusals: Sequence[RefusedRecord]) -> None:
        super().__init__(f"brokers refuse {quantity(len(refusals), 'batch', 'batches')}")
        self.refusals = refusals


class CommitAborted(Exception):
    """The commit is aborted, or its outcome is unknown: restart the tasks from the log."""


class Transactor:
    """Writes commits as transactions; an async context manager."""

    def __init__(
        self,
        log: Log,
        transactional_id: str,
        *,
        on_step: OnStep,
        options: ProducerOptions | None = None,
    ) -> None:
        """`options` are those that an app sets for its producers."""
        self._options: ProducerOptions = options or {}
        self._log = log
        self._transactional_id = transactional_id
        self._on_step = on_step
        self._producer: Producer | None = None

    async def __aenter__(self) -> Self:
        """Take over the transactional id; a killed worker's open transaction is aborted."""
        await self._open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def write(
        self,
        sinks: Packs,
        checkpoints: Sequence[tuple[TopicPartition, Sequence[PackedRecords]]],
        offsets: Offsets,
        *,
        consumer: Consumer,
    ) -> list[int]:
        """Write and commit one transaction.

        Args:
            sinks: the records for output topics.
            checkpoints: changelog partitions with their batches.
            offsets: the positions at which the group continues; at least one, as the coordinator
                fences a worker of an old generation by them.
            consumer: the group member that read the inputs.

        Returns:
            For each checkpoint the changelog offset after it.

        Raises:
            RefusedCommit: aborted, as brokers refuse some of the sink records.
            CommitAborted: aborted, or the outcome is unknown.
            StreamlogError: the transaction can't be written, and another attempt would not help.
        """
        refusals: list[RefusedRecord] = []
        if not offsets:
            # All source topics were deleted; the next poll reports that.
            raise CommitAborted(
                "there are no offsets to commit, so the group can't check this worker"
            )
        try:
            return await self._commit(sinks, checkpoints, offsets, consumer, refusals)
        except ProducerFenced as error:
            await self._close()
            # The next commit opens a new producer, which fences off the other instance of this id.
            raise CommitAborted(str(error)) from error
        except StreamlogError as error:
            if refusals:
                raise RefusedCommit(refusals) from error
            if isinstance(error, TransactionAborted | UnknownMember | RebalanceInProgress):
                raise CommitAborted(str(error)) from error
            raise

    @property
    def producer(self) -> Producer | None:
        """The present producer; None until the first commit, and after one that was fenced off."""
        return self._producer

    async def _commit(
        self,
        sinks: Packs,
        checkpoints: Sequence[tuple[TopicPartition, Sequence[PackedRecords]]],
        offsets: Offsets,
        consumer: Consumer,
        refusals: list[RefusedRecord],
    ) -> list[int]:
        producer = self._producer or await self._open()
        async with producer.transaction() as transaction:
            self._on_step("begun")
            writer = SinkWriter(producer, refusals)
            await writer.write_packs(sinks)
            self._on_step("handed over")
            handed_over = await asyncio.gather(
                *(_send_packs(producer, changelog, packs) for changelog, packs in checkpoints)
            )
            # Acknowledged before the offsets are sent: a new owner's fence must come after every
            # record of a transaction that can still commit.
            await asyncio.gather(*chain.from_iterable(handed_over))
            self._on_step("changelogs written")
            await writer.flush()
            self._on_step("sinks written")
            try:
                await transaction.send_offsets(offsets, consumer.group_metadata())
            except UnknownTopicOrPartition as error:
                # A source topic was deleted meanwhile; the next poll reports that.
                raise CommitAborted(str(error)) from error
            self._on_step("offsets sent")
        self._on_step("committed")
        # `offset` is that of a batch's last record.
        return [acknowledged[-1].result().offset + 1 for acknowledged in handed_over]

    async def _open(self) -> Producer:
        # The app's settings replace what stands before them; what makes a commit a transaction
        # stands behind them.
        options: ProducerOptions = {
            "linger_ms": 0,
            **self._options,
            "transactional_id": self._transactional_id,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
        }
        producer = self._log.producer(**options)
        self._producer = await producer.__aenter__()
        return producer

    async def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.__aexit__(None, None, None)


async def _send_packs(
    producer: Producer, changelog: TopicPartition, packs: Sequence[PackedRecords]
) -> list[asyncio.Future[RecordMetadata]]:
    """Pass the batches of one changelog to the producer in order; returns a future for each."""
    return [await producer.send_batch(*changelog, pack) for pack in packs]
