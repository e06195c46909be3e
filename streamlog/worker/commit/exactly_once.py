"""Transactor: one commit of a worker is one transaction: sinks, changelogs and offsets, or nothing.

Written at once, after the work of an interval is done: a function that blocks for a minute keeps
no transaction open, and so none of its readers waiting. The order within: every record is
acknowledged before the offsets are sent, and the group's coordinator takes these only from a
member of its present generation (KIP-447). So whoever has the tasks next, in a later generation,
finds all of the transaction before its own fence, up to which it reads what is committed, waiting
for the transaction to be settled; or the transaction never counts. A store takes the changes only
after the commit; what it lacks after a crash is in the changelog. Why: `docs/decisions/005`.
Not done here: what to do if nothing counts (`worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from types import TracebackType
from typing import Self

from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import Offsets
from streamlog.client.producer import Producer
from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.client.producer.sender import RecordMetadata
from streamlog.errors import (
    ProducerFenced,
    RebalanceInProgress,
    StreamlogError,
    TransactionAborted,
    UnknownMember,
    UnknownTopicOrPartition,
)
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.packed_records import PackedRecords
from streamlog.worker.commit.commit import OnStep, Packs, SinkWriter

TRANSACTION_TIMEOUT_MS = 10_000
"""Of a worker that is gone and does not come back under its name: so long its readers wait."""


class RefusedCommit(Exception):
    """The commit does not count, as records of its sinks are refused; without them it may."""

    def __init__(self, refusals: Sequence[RefusedRecord]) -> None:
        super().__init__(f"{len(refusals)} batches are refused")
        self.refusals = refusals


class CommitAborted(Exception):
    """The commit does not count, or nobody knows: go on from what the log has."""


class Transactor:
    """Writes commits as transactions. Use it in an `async with` block."""

    def __init__(self, log: Log, transactional_id: str, *, on_step: OnStep) -> None:
        self._log = log
        self._transactional_id = transactional_id
        self._on_step = on_step
        self._producer: Producer | None = None

    async def __aenter__(self) -> Self:
        """Take over the name: what a killed worker has left open under it is aborted."""
        await self._opened()
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
        """Write all of it, in one transaction.

        Args:
            sinks: what goes to topics.
            checkpoints: changelog and records, of which each pack is a batch.
            offsets: where the group goes on; at least one, as by them the group checks us.
            consumer: the member that has read what this came of.

        Returns:
            For each checkpoint the changelog's offset behind it.

        Raises:
            Refused: nothing counts, because of some records; others may be tried at once.
            Undone: nothing counts, or it is not known.
            StreamlogError: it can't be written, and another attempt would not help.
        """
        refusals: list[RefusedRecord] = []
        if not offsets:
            # All topics that were read were deleted: what becomes of that, the next poll tells.
            raise CommitAborted("there are no offsets by which the group could check this worker")
        try:
            return await self._written(sinks, checkpoints, offsets, consumer, refusals)
        except ProducerFenced as error:
            await self._close()
            raise CommitAborted(str(error)) from error
        except StreamlogError as error:
            if refusals:
                raise RefusedCommit(refusals) from error
            if isinstance(error, TransactionAborted | UnknownMember | RebalanceInProgress):
                raise CommitAborted(str(error)) from error
            raise

    async def _written(
        self,
        sinks: Packs,
        checkpoints: Sequence[tuple[TopicPartition, Sequence[PackedRecords]]],
        offsets: Offsets,
        consumer: Consumer,
        refusals: list[RefusedRecord],
    ) -> list[int]:
        producer = self._producer or await self._opened()
        async with producer.transaction() as transaction:
            self._on_step("begun")
            writer = SinkWriter(producer, refusals)
            await writer.write_packs(sinks)
            self._on_step("handed over")
            handed_over = await asyncio.gather(
                *(_send_packs(producer, changelog, packs) for changelog, packs in checkpoints)
            )
            await asyncio.gather(*chain.from_iterable(handed_over))
            self._on_step("changelogs written")
            await writer.flush()
            self._on_step("sinks written")
            try:
                await transaction.send_offsets(offsets, consumer.group_metadata())
            except UnknownTopicOrPartition as error:
                # A source was deleted just now; what becomes of that, the next poll tells.
                raise CommitAborted(str(error)) from error
            self._on_step("offsets sent")
        self._on_step("committed")
        return [acknowledged[-1].result().offset + 1 for acknowledged in handed_over]

    async def _opened(self) -> Producer:
        producer = self._log.producer(
            linger_ms=0,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        self._producer = await producer.__aenter__()
        return producer

    async def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.__aexit__(None, None, None)


async def _send_packs(
    producer: Producer, changelog: TopicPartition, packs: Sequence[PackedRecords]
) -> list[asyncio.Future[RecordMetadata]]:
    """Hand over the packs of one changelog in order; returns one future for each."""
    return [await producer.send_batch(*changelog, pack) for pack in packs]
