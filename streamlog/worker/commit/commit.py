"""Writes what tasks give at least once: sinks at once, checkpoints in an order no crash can break.

A commit of all tasks: (a) wait until every sink record is acknowledged; (b) write each
task's checkpoint, all state changes and its progress, as ONE record batch to its changelog;
(c) bring the same records into its store, with the changelog offset; (d) commit the offsets
to the group (`worker`). A crash before (b) reads the inputs again and repeats sink records;
after (b) the changelog restores the rest. (d) is for lag tools and for tasks without state.
Why one batch: `docs/decisions/001-one-changelog-batch-per-commit.md`. Not done here:
transactions (`exactly_once`), for which sinks are held back here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.client.producer.sender import RecordMetadata
from streamlog.clock import Clock
from streamlog.errors import NotAuthorized
from streamlog.log import Log
from streamlog.processing.outbox import SinkBatch, assign_partitions
from streamlog.processing.task import Task
from streamlog.record import TopicPartition
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns
from streamlog.tables.stores.store import Changes
from streamlog.worker.engine import EngineThread
from streamlog.worker.state.restore import Fences, TaskState, epoch_headers, rewrite_late_keys

logger = repeated.logger(__name__)

OnStep = Callable[[str], None]
"""Called at each place where a commit can be cut off by a crash, by name, in this order:

- `checkpointed`: the tasks have said what has changed; nothing has left the process.
- `begun`: the transaction is open, for this process only.
- `handed over`: the records are on their way, in whatever order.
- `changelogs written`, `sinks written`: acknowledged, and invisible to who reads what is committed.
- `offsets sent`: the group's coordinator has taken them into the transaction.
- `committed`: it counts. The stores do not have it yet.
- `stored`: the stores of all tasks have it, as far as RocksDB's memory goes.

At least once, there are `checkpointed`, `sinks written`, `changelogs written`, `stored` for each
task of its own, and `offsets sent` once the group has them.
"""


PACK_RECORDS = 4_000
"""Of a checkpoint, at a time."""
CHECKPOINT_PACK_BYTES = 512 * 1024
"""A batch of a checkpoint ends beyond this, if there may be several: what is still in the caches
when it is sealed and sent costs half, and nobody needs all of it in one piece of memory."""
UNKNOWN_PARTITION = -1
"""Of a topic that nobody lets us look at."""
PACK_BYTES = 256 * 1024
"""Of records that are held back, in one batch: as much as a producer puts into one by itself."""

Packs: TypeAlias = Mapping[TopicPartition, Sequence[PackedRecords]]
"""What goes to each partition, in order."""


def ignore_step(_step: str) -> None:
    """An `OnStep` that does nothing."""


class Fenced(Exception):
    """Another worker has taken the task over: the last checkpoint does not count."""


class SinkRoutes:
    """Which partition each sink record goes to."""

    def __init__(self, producer: Producer, refusals: list[RefusedRecord]) -> None:
        """`refusals` are told of topics that nobody lets us look at."""
        self._producer = producer
        self._refusals = refusals
        self._partitions: dict[str, int] = {}

    async def parted(self, batches: Iterable[SinkBatch]) -> dict[TopicPartition, FieldColumns]:
        """The records by partition, in their order."""
        counts: dict[str, int] = {}
        writable: list[SinkBatch] = []
        for batch in batches:
            try:
                counts[batch.topic] = await self._count(batch.topic)
            except NotAuthorized as error:
                self._refuse(batch, error)
            else:
                writable.append(batch)
        return {
            TopicPartition(*at): many for at, many in assign_partitions(writable, counts).items()
        }

    def _refuse(self, batch: SinkBatch, error: NotAuthorized) -> None:
        records = FieldColumns()
        records.extend(batch.timestamps, batch.keys, batch.values, batch.headers)
        place = TopicPartition(batch.topic, UNKNOWN_PARTITION)
        self._refusals.append(RefusedRecord(place, error, records, (*range(len(records)),)))

    async def _count(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = await self._producer.partitions(topic)
        return self._partitions[topic]


class SinkWriter:
    """Sends sink records as they come; `flush` says that they have all arrived, or were refused."""

    def __init__(self, producer: Producer, refusals: list[RefusedRecord] | None = None) -> None:
        """`refusals` is where records are told that brokers refuse; without it, it is its own."""
        self._producer = producer
        self._sent: list[asyncio.Future[RecordMetadata]] = []
        self._refusals: list[RefusedRecord] = [] if refusals is None else refusals
        self._routes = SinkRoutes(producer, self._refusals)

    async def write(self, batches: Iterable[SinkBatch]) -> None:
        """Hand the records over; waits only while the producer's buffer is full."""
        for (topic, partition), many in (await self._routes.parted(batches)).items():
            sent = self._producer.send_batch(topic, partition, many, refusals=self._refusals)
            self._remember(await sent)

    async def write_packs(self, packs: Packs) -> None:
        """The same for records that are packed."""
        for (topic, partition), some in packs.items():
            for pack in some:
                sent = self._producer.send_batch(topic, partition, pack, refusals=self._refusals)
                self._remember(await sent)

    def take_refusals(self) -> list[RefusedRecord]:
        """What brokers have refused of all that was written; told once."""
        taken = [*self._refusals]
        self._refusals.clear()
        return taken

    async def flush(self) -> None:
        """Wait until everything written is acknowledged.

        Raises:
            StreamlogError: a record could not be written: nothing since the last commit counts.
        """
        await self._producer.flush()
        sent, self._sent = self._sent, []
        await asyncio.gather(*sent)

    def _remember(self, sent: asyncio.Future[RecordMetadata]) -> None:
        # If something else ends the worker first, nobody is left to ask for this one's error.
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._sent.append(sent)


class HeldSinks:
    """Keeps sink records until they are written in a transaction, with all else of a commit.

    They are kept as the bytes that they will be on the wire.
    """

    def __init__(self, producer: Producer) -> None:
        """Of the `producer` it is asked how many partitions topics have."""
        self.held_bytes = 0
        """What they take in memory."""
        self._refusals: list[RefusedRecord] = []
        self._routes = SinkRoutes(producer, self._refusals)
        self._packs: defaultdict[TopicPartition, list[PackedRecords]] = defaultdict(list)

    async def write(self, batches: Iterable[SinkBatch]) -> None:
        """Keep them.

        Raises:
            StreamlogError, TypeError: a record can't be written.
        """
        for partition, columns in (await self._routes.parted(batches)).items():
            if len(columns):
                self.held_bytes += pack_records(self._packs[partition], columns)

    def take(self) -> Packs:
        """All that there are, in the order in which they came; keeps none of them."""
        taken, self._packs, self.held_bytes = self._packs, defaultdict(list), 0
        return taken

    def take_refusals(self) -> list[RefusedRecord]:
        """What can't be written, as far as that is known before it is tried; told once."""
        taken = [*self._refusals]
        self._refusals.clear()
        return taken


def pack_records(packs: list[PackedRecords], columns: FieldColumns) -> int:
    """Add records to the last of the packs and to new ones; returns how many bytes that took."""
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
        stop = max(stop, start + 1)  # A record larger than a pack goes alone.
        pack.extend_with(columns, start, stop)
        start = stop
    return done_bytes + sum(pack.size_bytes() for pack in packs[-1:]) - before


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """What a task has done since the last one: for its store, and for its changelog."""

    changes: Changes
    packs: Sequence[PackedRecords]
    """The same, each pack a batch."""


def checkpoint(task: Task, wall_ms: int, *, epoch: int | None) -> TaskCheckpoint | None:
    """The checkpoint of a task; None if nothing has changed.

    With the `epoch` of its owner it is one batch; without, it is written in a transaction.

    For the thread that runs the task: rows that another one packs have left the caches meanwhile,
    which doubled what a large commit costs. In slices, as the interpreter's lock is held for each.
    """
    changes = task.checkpoint()
    if not changes:
        return None
    packs, headers = [PackedRecords()], () if epoch is None else epoch_headers(epoch)
    for keys, values, first, end in changes.runs():
        columns = FieldColumns.alike(wall_ms, keys, values, headers)
        for start in range(first, end, PACK_RECORDS):
            if packs[-1].size_bytes() >= CHECKPOINT_PACK_BYTES and epoch is None:
                packs.append(PackedRecords())
            packs[-1].extend_with(columns, start, min(start + PACK_RECORDS, end))
    return TaskCheckpoint(changes, packs)


def apply_checkpoint(task: Task, changes: Changes, next_offset: int) -> None:
    """The changelog has taken what a checkpoint has: it goes to the store; for the same thread."""
    task.committed(changes, next_offset=next_offset)
    changes.let_go()


class TaskCheckpoints:
    """Writes the checkpoints of tasks to their changelogs, then to their stores."""

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
        """Make what the task has done durable; returns the number of records written.

        Raises:
            Fenced: the task belongs to another worker by now; drop it without a commit.
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
        if first_offset != state.next_offset:
            late = await self._late_keys(state, first_offset)
            late -= {*changes.row_keys}
            # Before the store remembers to have passed them: see `restore`.
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
        """Somebody wrote before our checkpoint: a new owner, or a former one that is late."""
        fences = Fences(owner=state.epoch)
        # Ours is at `until_offset`: it is acknowledged, so the log holds all that is before it.
        fences.admit(
            await self._log.read_range(
                state.changelog, state.next_offset, until_offset, isolation="read_uncommitted"
            )
        )
        if fences.owner != state.epoch:
            topic, partition = state.changelog
            logger.warning("%s[%d] belongs to another worker now", topic, partition)
            raise Fenced
        return fences.late
