"""Writes what tasks give: sinks at once, and checkpoints in an order no crash can break.

A commit of all tasks: (a) wait until every sink record is acknowledged; (b) write each
task's checkpoint, all state changes and its progress, as ONE record batch to its changelog;
(c) bring the same records into its store, with the changelog offset; (d) commit the offsets
to the group (`worker`). A crash before (b) reads the inputs again and repeats sink records;
after (b) the changelog restores the rest. (d) is for lag tools and for tasks without state.
Why one batch: `docs/decisions/001-one-changelog-batch-per-commit.md`. Not done here:
transactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

from streamlog.assignors import TopicPartition
from streamlog.client.partitioner import partitions_of_keys
from streamlog.client.producer import Producer
from streamlog.client.sender import RecordMetadata
from streamlog.clock import Clock
from streamlog.errors import RequestTimedOut
from streamlog.log import Log
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.task import Task
from streamlog.records.batch import Record
from streamlog.records.columns import FieldColumns
from streamlog.worker.engine import EngineThread
from streamlog.worker.following import STALL_MS
from streamlog.worker.restore import Fences, TaskState, epoch_headers, write_again

logger = logging.getLogger(__name__)

POLL_MS = 500


class Fenced(Exception):
    """Another worker has taken the task over: the last checkpoint does not count."""


class SinkWriter:
    """Sends sink records as they come; `flush` says that they have all arrived."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sent: list[asyncio.Future[RecordMetadata]] = []
        self._partitions: dict[str, int] = {}

    async def write(self, batches: Iterable[SinkBatch]) -> None:
        """Hand the records over; waits only while the producer's buffer is full."""
        together: defaultdict[TopicPartition, FieldColumns] = defaultdict(FieldColumns)
        for batch in batches:
            count = await self._count(batch.topic)
            columns = FieldColumns()
            if count == 1 or batch.partition is not None:
                columns = together[TopicPartition(batch.topic, batch.partition or 0)]
            columns.extend(batch.timestamps, batch.keys, batch.values, batch.headers)
            if count == 1 or batch.partition is not None:
                continue
            parts = columns.parted(partitions_of_keys(batch.routes(), count), count)
            for partition, part in enumerate(parts):
                if part is not None:
                    many = together[TopicPartition(batch.topic, partition)]
                    many.extend(part.timestamps, part.keys, part.values, part.headers)
        for (topic, partition), many in together.items():
            self._remember(await self._producer.send_columns(topic, partition, many))

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

    async def _count(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = await self._producer.partitions(topic)
        return self._partitions[topic]


class Checkpoints:
    """Writes the checkpoints of tasks to their changelogs, then to their stores."""

    def __init__(self, log: Log, producer: Producer, clock: Clock, engine: EngineThread) -> None:
        self._log = log
        self._producer = producer
        self._clock = clock
        self._engine = engine

    async def write(self, task: Task, state: TaskState) -> int:
        """Make what the task has done durable; returns the number of records written.

        Raises:
            Fenced: the task belongs to another worker by now; drop it without a commit.
        """
        changes = await self._engine.call(task.id, task.checkpoint)
        if not changes:
            return 0
        now_ms = self._clock.wall_ms()
        headers = epoch_headers(state.epoch)
        batch = FieldColumns()
        batch.extend(
            [now_ms] * len(changes),
            [key for key, _ in changes],
            [value for _, value in changes],
            [headers] * len(changes),
        )
        sent = await self._producer.send_atomic(*state.changelog, batch)
        first_offset = sent.offset - len(batch) + 1
        if first_offset != state.next_offset:
            late = await self._late_keys(state, first_offset)
            late -= {key for key, _ in changes}
            # Before the store remembers to have passed them: see `restore`.
            await write_again(
                self._producer,
                state.changelog,
                state.front,
                late,
                epoch=state.epoch,
                wall_ms=now_ms,
            )
        state.next_offset = sent.offset + 1
        await self._engine.call(
            task.id, partial(task.committed, changes, next_offset=state.next_offset)
        )
        now_ms = self._clock.now_ms()
        if state.directory.is_snapshot_due(state.store, now_ms):
            await asyncio.to_thread(state.directory.snapshot, state.store, now_ms)
        return len(batch)

    async def _late_keys(self, state: TaskState, until_offset: int) -> set[bytes]:
        """Somebody wrote before our checkpoint: a new owner, or a former one that is late."""
        fences = Fences(owner=state.epoch)
        fences.admit(await self._between(state, until_offset))
        if fences.owner != state.epoch:
            topic, partition = state.changelog
            logger.warning("%s[%d] belongs to another worker now", topic, partition)
            raise Fenced
        return fences.late

    async def _between(self, state: TaskState, until_offset: int) -> list[Record]:
        found: list[Record] = []
        deadline_ms = self._clock.now_ms() + STALL_MS
        async with self._log.consumer(auto_offset_reset="none") as consumer:
            consumer.assign([state.changelog])
            consumer.seek(state.changelog, state.next_offset)
            while not found or found[-1].offset < until_offset:
                if self._clock.now_ms() >= deadline_ms:
                    raise RequestTimedOut(f"changelog {state.changelog} can't be read back")
                polled = await consumer.poll(timeout_ms=POLL_MS)
                found += polled.get(state.changelog, ())
        return [record for record in found if record.offset < until_offset]
