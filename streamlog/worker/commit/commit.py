"""Commit at least once: sink records are sent immediately, checkpoints in a crash-safe order.

A commit of all tasks has four steps:

(a) wait until every sink record is acknowledged;
(b) write the checkpoint of each task, its state changes and its progress, as ONE record batch to
    its changelog;
(c) apply the checkpoint to the task's store, with the changelog offset after it;
(d) commit the offsets to the group (`worker`).

After a crash before (b) the inputs are read again and sink records are repeated. After a crash
between (b) and (c) the changelog holds what the store lacks. (d) serves lag tools and tasks
without state; tasks with state continue at the positions in their progress. Why one batch:
`docs/decisions/001-one-changelog-batch-per-commit.md`.

This module also packs sink records that wait for a transaction. Not done here: the transaction
itself (`exactly_once`), and refused records (`refused_sinks`).
"""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import TypeAlias

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.client.producer.sender import RecordMetadata
from streamlog.clock import Clock
from streamlog.errors import NotAuthorized, StreamlogError
from streamlog.log import Log
from streamlog.processing.outbox import SinkBatch, assign_partitions
from streamlog.processing.task import Task
from streamlog.record import TopicPartition
from streamlog.records.arrow_rows import ArrowRows
from streamlog.records.byte_spans import ByteSpans
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns
from streamlog.tables.stores.store import Changes
from streamlog.worker.engine import EngineThread
from streamlog.worker.state.restore import Fences, TaskState, epoch_headers, rewrite_late_keys

logger = repeated.logger(__name__)

OnStep = Callable[[str], None]
"""Called by name at each point where a crash can interrupt a commit. Exactly once, in this order:

- `checkpointed`: the tasks' changes are collected; nothing has left the process.
- `begun`: the transaction is open in this process; the brokers don't know it yet.
- `handed over`: the producer has the sink records; it sends partitions in any order.
- `changelogs written`, `sinks written`: acknowledged, and invisible to `read_committed` readers.
- `offsets sent`: the group's coordinator has added the offsets to the transaction.
- `committed`: the transaction is committed. The stores do not have the changes yet.
- `stored`: the stores of all tasks have the changes, in RocksDB's memory at least.

At least once, `sinks written` comes once, then `checkpointed`, `changelogs written` and `stored`
for each task, and `offsets sent` when the group has the offsets.
"""


PACK_RECORDS = 4_000
"""The number of a checkpoint's records that are packed in one call."""
CHECKPOINT_PACK_BYTES = 512 * 1024
"""In a transaction, a batch of a checkpoint ends beyond this size. Sealing and sending a batch that
is still in the processor's caches costs half, and memory is needed for one batch at a time."""
UNKNOWN_PARTITION = -1
"""The partition of a refused record if this client may not describe the topic."""
PACK_BYTES = 256 * 1024
"""The size of a batch of held records; equal to the producer's own batches."""
SPANS_PACK_BYTES = 512 * 1024
"""The size of a batch of records from a source's chunks, which come by the megabyte: each request
costs the worker as much as a thousand of them."""

Packs: TypeAlias = Mapping[TopicPartition, Sequence[PackedRecords]]
"""Partition to its batches, in order."""


def ignore_step(_step: str) -> None:
    """Do nothing; the default `OnStep`."""


class Fenced(Exception):
    """Another worker has taken over the task: the last checkpoint has no effect."""


class SinkRoutes:
    """Assigns sink records to partitions."""

    def __init__(self, producer: Producer, refusals: list[RefusedRecord]) -> None:
        """Create routes; records for topics that may not be described are added to `refusals`."""
        self._producer = producer
        self._refusals = refusals
        self._partitions: dict[str, int] = {}

    async def split(self, batches: Iterable[SinkBatch]) -> dict[TopicPartition, FieldColumns]:
        """Split batches by partition; the order within a partition is kept."""
        counts: dict[str, int] = {}
        writable: list[SinkBatch] = []
        for batch in batches:
            count = await self._count(batch)
            if count is not None:
                counts[batch.topic] = count
                writable.append(batch)
        return {
            TopicPartition(*at): many for at, many in assign_partitions(writable, counts).items()
        }

    async def arrange(self, batch: SinkBatch) -> tuple[ArrowRows, list[int]] | None:
        """Order the records of a batch `in_spans` by partition.

        Returns:
            The records, with the position of each partition's first one and the end of the last;
            None if they are refused.
        """
        count = await self._count(batch)
        keys, values = batch.keys, batch.values
        if count is None or not isinstance(keys, ByteSpans) or not isinstance(values, ByteSpans):
            return None
        rows = ArrowRows(keys.array, values.array, array("q", batch.timestamps), batch.headers)
        if count == 1:
            return rows, [0, rows.count]
        if batch.partition is not None:
            return rows, [0] * (batch.partition + 1) + [rows.count]
        return rows, rows.arrange(batch.partitions(count), count)

    def recount(self, counts: Mapping[str, int]) -> bool:
        """Take in the partition counts of topics; returns whether any of them differs."""
        others = {name: n for name, n in counts.items() if self._partitions.get(name, n) != n}
        self._partitions.update(others)
        return bool(others)

    def _refuse(self, batch: SinkBatch, error: NotAuthorized) -> None:
        records = FieldColumns()
        records.extend(batch.timestamps, batch.keys, batch.values, batch.headers)
        part = TopicPartition(batch.topic, UNKNOWN_PARTITION)
        self._refusals.append(RefusedRecord(part, error, records, (*range(len(records)),)))

    async def _count(self, batch: SinkBatch) -> int | None:
        """Return the number of partitions; None if the records are refused."""
        topic = batch.topic
        if topic not in self._partitions:
            try:
                self._partitions[topic] = await self._producer.partitions(topic)
            except NotAuthorized as error:
                self._refuse(batch, error)
                return None
        return self._partitions[topic]


class SinkWriter:
    """Sends sink records immediately; `flush` waits until each is acknowledged or refused."""

    def __init__(self, producer: Producer, refusals: list[RefusedRecord] | None = None) -> None:
        """Create a writer; it adds refused records to `refusals`, or to a list of its own."""
        self._producer = producer
        self._sent: list[asyncio.Future[RecordMetadata]] = []
        self._refusals: list[RefusedRecord] = [] if refusals is None else refusals
        self._routes = SinkRoutes(producer, self._refusals)
        self.recount = self._routes.recount
        """Takes in the partition counts of topics; returns whether any of them differs."""

    async def write(self, batches: Iterable[SinkBatch]) -> None:
        """Pass the records to the producer; waits only while the producer's buffer is full.

        This wait is the back-pressure of sinks: the worker's loop reads no further input meanwhile.
        """
        for (topic, partition), many in (await self._routes.split(batches)).items():
            sent = self._producer.send_batch(topic, partition, many, refusals=self._refusals)
            self._remember(await sent)

    async def write_packs(self, packs: Packs) -> None:
        """Pass packed records to the producer; waits only while the producer's buffer is full."""
        for (topic, partition), some in packs.items():
            for pack in some:
                sent = self._producer.send_batch(topic, partition, pack, refusals=self._refusals)
                self._remember(await sent)

    def take_refusals(self) -> list[RefusedRecord]:
        """Return the records that brokers have refused since the last call."""
        taken = [*self._refusals]
        self._refusals.clear()
        return taken

    async def flush(self) -> None:
        """Wait until everything written is acknowledged.

        Raises:
            StreamlogError: a record could not be written; the worker has to return to the last
                commit.
        """
        await self._producer.flush()
        sent, self._sent = self._sent, []
        await asyncio.gather(*sent)

    async def forget(self) -> None:
        """Wait for the end of what was written so far, whatever it is, and forget it.

        The records are written again, or not wanted any more.
        """
        # 1. An output is deleted, and a record for it is on its way. 2. The write of another one
        # raises, so tasks restart. 3. The first record fails. Were its error not taken here, the
        # next flush would raise it, when the topic is there again.
        with suppress(StreamlogError):
            await self._producer.flush()
        self._sent.clear()
        self._refusals.clear()

    def _remember(self, sent: asyncio.Future[RecordMetadata]) -> None:
        # If another error ends the worker first, no caller retrieves this one; asyncio would log
        # it.
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._sent.append(sent)


class HeldSinks:
    """Holds sink records, packed as on the wire, until the transaction of their commit."""

    def __init__(self, producer: Producer) -> None:
        """Create an empty holder; `producer` supplies the partition counts of topics."""
        self.held_bytes = 0
        """The size of the held records in memory."""
        self._refusals: list[RefusedRecord] = []
        self._routes = SinkRoutes(producer, self._refusals)
        self._packs: defaultdict[TopicPartition, list[PackedRecords]] = defaultdict(list)
        self.recount = self._routes.recount
        """Takes in the partition counts of topics; returns whether any of them differs."""

    async def write(self, batches: Iterable[SinkBatch]) -> None:
        """Hold the records.

        Raises:
            StreamlogError, TypeError: a record can't be encoded, or a topic not be looked up.
        """
        # In runs: whatever their form, batches of a partition keep their order.
        for in_spans, run in groupby(batches, key=is_in_spans):
            if in_spans:
                for batch in run:
                    await self._pack_spans(batch)
            else:
                await self._pack_contents(run)

    async def _pack_contents(self, batches: Iterable[SinkBatch]) -> None:
        for partition, columns in (await self._routes.split(batches)).items():
            if len(columns):
                self.held_bytes += pack_records(self._packs[partition], columns)

    async def _pack_spans(self, batch: SinkBatch) -> None:
        arranged = await self._routes.arrange(batch)
        if arranged is None:
            return
        rows, starts = arranged
        for number, (first, end) in enumerate(pairwise(starts)):
            if first < end:
                packs = self._packs[TopicPartition(batch.topic, number)]
                self.held_bytes += pack_rows(packs, rows, first, end)

    def take(self) -> Packs:
        """Return all held records in the order of `write`, and hold none of them any longer."""
        taken, self._packs, self.held_bytes = self._packs, defaultdict(list), 0
        return taken

    def take_refusals(self) -> list[RefusedRecord]:
        """Return the records since the last call that no attempt could write."""
        taken = [*self._refusals]
        self._refusals.clear()
        return taken


def pack_records(packs: list[PackedRecords], columns: FieldColumns) -> int:
    """Add records to the last pack, and to new ones when it is full; returns the bytes added."""
    before = sum(pack.size_bytes() for pack in packs[-1:])
    start = done_bytes = 0
    while start < len(columns):
        if not packs:
            packs.append(PackedRecords())
        pack = packs[-1]
        stop, _ = columns.fitting(start, PACK_BYTES - pack.size_bytes())
        if stop == start and len(pack):
            done_bytes += pack.size_bytes()
            packs.append(PackedRecords())
            continue
        stop = max(stop, start + 1)  # A record larger than a pack gets a pack of its own.
        pack.extend_with(columns, start, stop)
        start = stop
    return done_bytes + sum(pack.size_bytes() for pack in packs[-1:]) - before


def is_in_spans(batch: SinkBatch) -> bool:
    """Whether keys and values lie in buffers, from which they are packed without an object each."""
    return isinstance(batch.keys, ByteSpans) and isinstance(batch.values, ByteSpans)


def pack_rows(packs: list[PackedRecords], rows: ArrowRows, first: int, end: int) -> int:
    """Add rows to the last pack, and to new ones when it is full; returns the bytes added."""
    done_bytes = -sum(pack.size_bytes() for pack in packs[-1:])
    if not packs:
        packs.append(PackedRecords())
    while first < end:
        first = packs[-1].take(rows, first, end, SPANS_PACK_BYTES)
        if first < end:
            done_bytes += packs[-1].size_bytes()
            packs.append(PackedRecords())
    return done_bytes + packs[-1].size_bytes()


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """The changes of a task since its last checkpoint, for its store and for its changelog."""

    changes: Changes
    packs: Sequence[PackedRecords]
    """The changes as changelog batches, in order."""


def checkpoint(task: Task, wall_ms: int, *, epoch: int | None) -> TaskCheckpoint | None:
    """Return the checkpoint of a task, or None if nothing has changed.

    Runs on the thread of the task: packing on another thread doubled the cost of a large commit,
    as the rows had left the processor's caches.

    Args:
        task: the task.
        wall_ms: the timestamp of the changelog records, in milliseconds since 1970.
        epoch: the owner's epoch, which the records carry; the checkpoint is then one batch. None:
            the checkpoint goes into a transaction, in as many batches as needed.
    """
    changes = task.checkpoint()
    if not changes:
        return None
    packs, headers = [PackedRecords()], () if epoch is None else epoch_headers(epoch)
    for keys, values, first, end in changes.runs():
        columns = FieldColumns.alike(wall_ms, keys, values, headers)
        # In slices: the interpreter's lock is held for each, and the event loop needs it in
        # between.
        for start in range(first, end, PACK_RECORDS):
            if packs[-1].size_bytes() >= CHECKPOINT_PACK_BYTES and epoch is None:
                packs.append(PackedRecords())
            packs[-1].extend_with(columns, start, min(start + PACK_RECORDS, end))
    return TaskCheckpoint(changes, packs)


def apply_checkpoint(task: Task, changes: Changes, next_offset: int) -> None:
    """Apply a checkpoint that the changelog has to the task's store; runs on the task's thread."""
    task.committed(changes, next_offset=next_offset)
    changes.let_go()


class TaskCheckpoints:
    """Writes the checkpoints of tasks to their changelogs, then applies them to their stores."""

    def __init__(
        self,
        log: Log,
        producer: Producer,
        clock: Clock,
        engine: EngineThread,
        *,
        on_step: OnStep = ignore_step,
    ) -> None:
        self._log = log
        self._producer = producer
        self._clock = clock
        self._engine = engine
        self._on_step = on_step

    async def write(self, task: Task, state: TaskState) -> int:
        """Write the changes of a task since the last call; returns the number of records.

        Raises:
            Fenced: another worker has taken over the task; close it without a commit.
            StateLost: the changelog was truncated or created again.
        """
        now_ms = self._clock.wall_ms()
        made = await self._engine.call(
            task.id, partial(checkpoint, task, now_ms, epoch=state.epoch)
        )
        if made is None:
            return 0
        self._on_step("checkpointed")
        changes = made.changes
        (records,) = made.packs
        sent = await (await self._producer.send_batch(*state.changelog, records, atomic=True))
        first_offset = sent.offset - len(changes) + 1
        if first_offset < state.next_offset:
            raise state.lost(sent.offset + 1)
        # 1. This worker's last checkpoint ended before offset 10, so the next one should start
        #    there.
        # 2. A slower worker B, the task's former owner, wrote offset 10 meanwhile: this one's
        #    starts at 11. B's record is late: its keys are written again below, with this owner's
        #    values.
        # 3. Or B is a new owner and offset 10 is its fence: then this checkpoint has no effect, and
        #    `_late_keys` raises.
        if first_offset != state.next_offset:
            late = await self._late_keys(state, first_offset)
            late -= {*changes.row_keys}
            # Before the store records an offset after the late keys: see `restore`.
            await rewrite_late_keys(
                self._producer,
                state.changelog,
                state.front,
                late,
                epoch=state.epoch,
                wall_ms=now_ms,
            )
        self._on_step("changelogs written")
        state.next_offset = sent.offset + 1
        await self._engine.call(
            task.id, partial(apply_checkpoint, task, changes, state.next_offset)
        )
        self._on_step("stored")
        now_ms = self._clock.now_ms()
        if state.directory.is_snapshot_due(state.store, now_ms):
            await asyncio.to_thread(state.directory.snapshot, state.store, now_ms)
        return len(changes)

    async def _late_keys(self, state: TaskState, until_offset: int) -> set[bytes]:
        """Return the keys that a former owner wrote before this checkpoint.

        Raises:
            Fenced: the records before this checkpoint hold the fence of a new owner.
        """
        fences = Fences(owner=state.epoch)
        # Ours is at `until_offset`: it is acknowledged, so the log holds all that is before it.
        fences.admit(
            await self._log.read_range(
                state.changelog, state.next_offset, until_offset, isolation="read_uncommitted"
            )
        )
        if fences.owner != state.epoch:
            topic, partition = state.changelog
            logger.warning("changelog %s-%d belongs to another worker now", topic, partition)
            raise Fenced
        return fences.late
