"""Worker agents: feeds the agents of a worker, commits their offsets, and carries their replies.

Each agent has one run per worker, over all partitions of the worker. Records wait in a bounded
queue; while it is full its partitions are paused. An offset is committed only after the agent has
handled the records before it, and after the records that it yielded are acknowledged. So after a
crash the unfinished records are handled again. Records that were handled out of order are noted in
the offset's metadata (`agents.offsets`), and are not handled again.

Rule: an error that an agent's policy does not handle ends the worker, with the coordinates of the
record. Not done here: calls of the agents' functions (`agents.run`), and the commit (`worker`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

from streamlog import repeated
from streamlog.agents.asks import CORRELATION, Answer, Ask, no_answer, number_of
from streamlog.agents.offsets import TASK, AgentPosition, metadata_of, offset_of
from streamlog.agents.offsets import AgentPosition as Reached
from streamlog.agents.rows import AgentRows
from streamlog.agents.run import AgentRun
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.subscription_state import known_id
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.dsl.agent import Agent
from streamlog.errors import RequestTimedOut, StreamlogError, TopicExists, UsageError
from streamlog.log import Log
from streamlog.processing.outbox import Drop, Outbox
from streamlog.processing.table_rows import TableRows, tables_of
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.tables.state.changelog import SourceLog
from streamlog.tables.state.store_transaction import DeferredStore
from streamlog.tables.stores.store import prefix_end
from streamlog.topology import Topology
from streamlog.worker.commit.commit import SinkWriter
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.health.worker_health import DropLog
from streamlog.worker.health.worker_metrics import WorkerMetrics
from streamlog.worker.inputs.assigned_partitions import Pauses, StartOffset
from streamlog.worker.tasks import WorkerTasks

logger = repeated.logger(__name__)

RETENTION_MS = 600_000
"""The retention of a topic for replies; an `ask` has timed out by then."""
POLL_MS = 500
ANSWERS_MAX = 1_000
"""The largest number of answers that are being sent. Further answers are dropped, and their asks
time out."""
CLOSE_WAIT_MS = 2_000
"""How long the end of a worker waits for answers to be sent, and for the topic's removal."""
LAST_ANSWERS_MS = 2_000
"""How long a worker that stops waits for answers to its own asks; other workers may be gone."""


class Replies:
    """Sends the asks and answers of one worker (`Agent.ask`)."""

    def __init__(
        self,
        log: Log,
        producer: Producer,
        group: asyncio.TaskGroup,
        *,
        app_id: str,
        process: str,
        alive: Callable[[], Collection[str]],
    ) -> None:
        """Create the sender.

        Args:
            log: the log.
            producer: writes asks and answers.
            group: runs the background tasks.
            app_id: the id of the app; part of the topics' names.
            process: identifies this worker; names its topic for replies.
            alive: returns the names of all workers, or none before the first rebalance.
        """
        self._log = log
        self._producer = producer
        self._group = group
        self._prefix = f"{app_id}-replies-"
        self._partition = TopicPartition(self._prefix + process, 0)
        self._alive = alive
        self._asked: dict[bytes, asyncio.Future[bytes | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._making = asyncio.Lock()
        self._answers: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def ask(
        self, topic: str, value: bytes | None, *, key: bytes | None, timeout_ms: int
    ) -> bytes | None:
        """Write a record and wait for the answer.

        Args:
            topic: the topic of the agent.
            value: the record's value.
            key: the record's key.
            timeout_ms: how long to wait, in milliseconds.

        Raises:
            RequestTimedOut: no answer came in time, or the worker stops.
        """
        if self._is_over:
            raise RequestTimedOut(f"{topic} can't be asked: this worker is stopping")
        ask = Ask(self._partition.topic, uuid4().bytes)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        # Before the record is sent: the answer may be read before the acknowledgement.
        self._asked[ask.number] = answer
        where = topic
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit:
                await self._listen()
                sent = await self._producer.send(topic, value, key=key, headers=ask.headers)
                record = await sent
                where = f"{topic}-{record.partition} offset {record.offset}"
                return await answer
        except asyncio.CancelledError:
            # If `close` has cancelled the answer, the caller was not cancelled: it gets a time-out.
            if not answer.cancelled() or not self._is_over:
                raise
            raise RequestTimedOut(f"no answer to {where}: this worker is stopping") from None
        except TimeoutError:
            # The time-out of a request within keeps its own message.
            if not limit.expired():
                raise
            raise RequestTimedOut(f"no answer to {where} within {timeout_ms} ms") from None
        finally:
            del self._asked[ask.number]

    def answer(self, ask: Ask, data: bytes | None) -> None:
        """Send an answer in the background."""
        if not ask.reply_to.startswith(self._prefix):
            # The name comes from a record's header, which any producer can set.
            logger.warning("answer dropped: %r is not a topic for replies", ask.reply_to)
        elif len(self._answers) >= ANSWERS_MAX:
            logger.warning("answer dropped: %d answers are being sent already", ANSWERS_MAX)
        else:
            name = f"answer to {ask.reply_to}"
            task = self._group.create_task(self._send(ask, data), name=name)
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def close(self) -> None:
        """Wait for answers on the way, stop reading, and delete the topic.

        Asks without an answer after `LAST_ANSWERS_MS` fail, and so does every new one.
        """
        if self._answers:
            await asyncio.wait(self._answers, timeout=CLOSE_WAIT_MS / 1000)
            for task in self._answers:
                task.cancel()
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=LAST_ANSWERS_MS / 1000)
        self._is_over = True
        for answer in self._asked.values():
            answer.cancel()
        if self._reading is None:
            return
        self._reading.cancel()
        try:
            async with asyncio.timeout(CLOSE_WAIT_MS / 1000):
                await self._log.admin().delete_topics([self._partition.topic])
        except (StreamlogError, TimeoutError) as error:
            logger.debug("topic %s can't be deleted: %s", self._partition.topic, error)

    async def _listen(self) -> None:
        """Create the topic for replies and start reading it, at the first ask."""
        async with self._making:
            if self._reading is not None:
                return
            await self._remove_abandoned()
            configs = {"retention.ms": str(RETENTION_MS), "segment.ms": str(RETENTION_MS)}
            topic = NewTopic(self._partition.topic, 1, configs=configs)
            try:
                await self._log.admin().create_topics([topic])
            except TopicExists:
                logger.debug("%s exists: an earlier process of this name created it", topic.name)
            if self._is_over:
                # `close` may have run while the topic was created, and then does not delete it.
                raise RequestTimedOut(f"{topic.name} is no longer read: this worker is stopping")
            ready = asyncio.get_running_loop().create_future()
            self._reading = self._group.create_task(self._read(ready), name="replies")
            # Until the reader has its start position, it could miss an answer.
            await ready

    async def _read(self, ready: asyncio.Future[None]) -> None:
        part = self._partition
        async with self._log.consumer(auto_offset_reset="latest") as consumer:
            consumer.assign([part])
            # Existing records answer asks of an earlier process of this name.
            consumer.seek(part, (await consumer.end_offsets([part]))[part])
            if not ready.done():
                ready.set_result(None)
            while True:
                for record in (await consumer.poll(timeout_ms=POLL_MS)).get(part, ()):
                    self._receive(record)

    def _receive(self, record: LogRecord) -> None:
        answer = self._asked.get(number_of(record.headers) or b"")
        if answer is not None and not answer.done():
            answer.set_result(record.value)

    async def _send(self, ask: Ask, data: bytes | None) -> None:
        try:
            headers = ((CORRELATION, ask.number),)
            sent = await self._producer.send(ask.reply_to, data, headers=headers, partition=0)
            await sent
        except StreamlogError as error:
            logger.info("an answer to %s was not sent: %s", ask.reply_to, error)

    async def _remove_abandoned(self) -> None:
        """Delete the topics for replies of workers that have ended."""
        admin, alive = self._log.admin(), {self._prefix + name for name in self._alive()}
        # Before the first rebalance every topic would look abandoned.
        if not alive:
            return
        names = [topic.name for topic in await admin.list_topics()]
        parts = [
            TopicPartition(name, 0)
            for name in names
            if name.startswith(self._prefix) and name not in alive
        ]
        if not parts:
            return
        async with self._log.consumer() as consumer:
            begins = await consumer.begin_offsets(parts)
            ends = await consumer.end_offsets(parts)
        # Only topics whose records have all expired. A topic without any record so far may belong
        # to a worker that is starting, which is not in `alive` yet.
        expired = [part.topic for part in parts if 0 < ends[part] == begins[part]]
        if expired:
            logger.info("deleting reply topics of workers that have ended: %s", ", ".join(expired))
            await admin.delete_topics(expired)


ROWS_MAX = 10_000
"""The number of rows that an iteration reads at a time: the task may be closed in between."""


class CommittedRows:
    """The committed rows of this worker's tasks; a `CommittedRowReader`."""

    def __init__(self, store_of: Callable[[TaskId], DeferredStore | None]) -> None:
        """Create the reader; `store_of` returns the store of a task, or None if it is not open."""
        self._store_of = store_of

    def row(self, table: TableRows, partition: int, key: bytes) -> bytes | None:
        """See `CommittedRowReader`."""
        return self._store(table, partition).get(table.owner.specs[0].prefix + key)

    def rows(self, table: TableRows, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """See `CommittedRowReader`."""
        prefix = table.owner.specs[0].prefix
        low, high = prefix, prefix_end(prefix)
        while True:
            page = list(islice(self._store(table, partition).concurrent_range(low, high), ROWS_MAX))
            yield from ((key[len(prefix) :], data) for key, data in page)
            if len(page) < ROWS_MAX:
                return
            # The smallest key after the last one.
            low = page[-1][0] + b"\x00"

    def _store(self, table: TableRows, partition: int) -> DeferredStore:
        found = self._store_of(TaskId(table.subtopology, partition))
        if found is None:
            raise UsageError(
                f"no task of this worker has partition {partition} of table {table.name!r} at "
                "present: the agent's record is handled again by the worker that has it"
            )
        return found


def rows_for_agents(
    topology: Topology,
    counts: Mapping[str, int],
    store_of: Callable[[TaskId], DeferredStore | None],
) -> AgentRows:
    """Return the rows of tables that the agents of this worker read and write."""
    return AgentRows(tables_of(topology), counts, topology.worked_on, CommittedRows(store_of))


FEED_RECORDS_MAX = 10_000
"""The queue length of an agent at which its partitions are paused, until it is half empty. The
records of one poll are always added as a whole."""
HANDLE_WAIT_MS = 30_000
"""How long a rebalance or a stop waits for the records that agents are working on."""


class WorkerAgents:
    """The agents of this worker."""

    def __init__(
        self,
        agents: Sequence[Agent[Any, Any]],
        pauses: Pauses,
        producer: Producer,
        clock: Clock,
        metrics: WorkerMetrics,
        *,
        rows: AgentRows,
        answer: Answer = no_answer,
    ) -> None:
        """Create the runs of all agents; `rows` are the tables that agents read and write."""
        self.rows = rows
        self._pauses = pauses
        self._sinks = SinkWriter(producer)
        self._clock = clock
        self._metrics = metrics
        self._drops = DropLog()
        alarm = LoopAlarm(clock)
        write, drop = self._sinks.write, self._count_drop
        self._runs = [
            AgentRun(agent, write, alarm, drop=drop, answer=answer, rows=rows) for agent in agents
        ]
        self._calls: dict[AgentRun, asyncio.Task[None]] = {}
        self._held: set[AgentRun] = set()
        """The runs whose queue is full."""
        for run in self._runs:
            run.on_taken = lambda run=run: self._make_room(run)  # type: ignore[misc]

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run every agent in the group, until it ends with an error or `finish` is called."""
        for run in self._runs:
            self._calls[run] = group.create_task(run.run(), name=f"agent {run.agent.name}")

    def take(self, polled: Mapping[TopicPartition, Iterable[LogRecord]]) -> None:
        """Give records to the agents that read them."""
        self._drops.log(self._clock.now_ms())
        for run in self._runs:
            for partition in run.partitions:
                if partition in polled:
                    run.take(partition, list(polled[partition]))
            if run.waiting > FEED_RECORDS_MAX:
                self._held.add(run)
                self._pauses.hold(run, run.partitions)

    async def pass_on(self, outbox: Outbox) -> None:
        """Write dead letters of skipped records, and count the drops."""
        await self._sinks.write(outbox.writes)
        for drop in outbox.drops:
            self._count_drop(drop)

    @property
    def positions(self) -> dict[TopicPartition, dict[str, AgentPosition]]:
        """Partition to the progress of each agent that reads it, by the agent's name."""
        found: defaultdict[TopicPartition, dict[str, AgentPosition]] = defaultdict(dict)
        for run in self._runs:
            for partition, position in run.positions.items():
                found[partition][run.agent.name] = position
        return dict(found)

    def sights(
        self, ends: Callable[[TopicPartition], int | None], read: Mapping[TopicPartition, int]
    ) -> dict[str, Sight]:
        """Return the progress of each agent, for the watchdog.

        Args:
            ends: returns the end of an input, or None.
            read: the read positions of inputs.
        """
        found: dict[str, Sight] = {}
        for run in self._runs:
            positions = {part: position.position for part, position in run.positions.items()}
            if run.is_idle:
                # An idle agent has handled all records: the rest is gaps and control batches.
                positions = {part: max(at, read.get(part, at)) for part, at in positions.items()}
            lags = {part: max((ends(part) or 0) - at, 0) for part, at in positions.items()}
            found[f"agent {run.agent.name}"] = Sight(positions, lags)
        return found

    def reason(self, who: str) -> str:
        """Return the records that a stalled agent works on; empty for other names."""
        hands = [run.current_positions for run in self._runs if who == f"agent {run.agent.name}"]
        return f"it works on {hands[0]}" if hands else ""

    def recount(self, outputs: Mapping[str, int]) -> None:
        """Take in the partition counts of outputs that were created again."""
        self._sinks.recount(outputs)

    async def flush(self) -> None:
        """Wait until all records that agents have yielded so far are acknowledged.

        Raises:
            StreamlogError: a record could not be written, so no offset may be committed.
        """
        for run in self._runs:
            await run.results.drain()
        await self._sinks.flush()
        for refusal in self._sinks.take_refusals():
            raise refusal.error

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        ahead: Mapping[TopicPartition, Mapping[str, AgentPosition]],
        kept: Collection[TopicPartition] = (),
    ) -> None:
        """Read added partitions, and continue with kept ones.

        Args:
            starts: added partitions with the offset to begin at.
            ahead: the committed progress of agents that had handled records after that offset, by
                the agent's name.
            kept: partitions that stay.
        """
        for run in self._runs:
            name = run.agent.name
            own = {part: position for part, position in run.positions.items() if part in kept}
            fresh = {
                part: ahead.get(part, {}).get(name, AgentPosition(at))
                for part, at in starts.items()
            }
            # If `revoke` has emptied the queue, kept partitions restart after the last handled
            # record.
            run.assign({**own, **fresh})
            if run in self._held:
                self._pauses.hold(run, run.partitions)

    async def revoke(self) -> None:
        """Empty the queues, and wait until every agent has finished its present records."""
        await asyncio.gather(*(self._suspend(run) for run in self._runs))

    async def wait_for_tasks(self) -> None:
        """Suspend the agents that use tables, as the tables' tasks are being dropped.

        `resume` follows when the tasks are opened again.
        """
        await asyncio.gather(*(self._suspend(run) for run in self._on_tables))

    def resume(self) -> None:
        """Resume the agents that use tables after their last handled record.

        The records after it have to be read again.
        """
        for run in self._on_tables:
            run.assign(run.positions)

    @property
    def _on_tables(self) -> list[AgentRun]:
        return [run for run in self._runs if self.rows.worked_on(run.agent.name)]

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these partitions; other workers commit them from now on."""
        for run in self._runs:
            run.give_up(partitions)
            read = {topic.name for topic in run.agent.topics}
            numbers = {at.partition for at in partitions if at.topic in read}
            self.rows.forget(numbers, self.rows.worked_on(run.agent.name))

    async def finish(self) -> None:
        """End the agents' streams: no further record is started, and the users' loops end."""
        for run in self._runs:
            run.end()
        await self.revoke()

    async def close(self) -> None:
        """Wait until the agents' functions have returned; cancel those that do not.

        Call it after the last commit: what a cancelled function still held was not committed.
        """
        calls = {call: run for run, call in self._calls.items() if not call.done()}
        if not calls:
            return
        _, late = await asyncio.wait(calls, timeout=HANDLE_WAIT_MS / 1000)
        for call in late:
            logger.warning(
                "agent %s: its function has not returned for %d s; it is cancelled",
                calls[call].agent.name,
                HANDLE_WAIT_MS // 1000,
            )
            call.cancel()

    async def _suspend(self, run: AgentRun) -> None:
        # First, as the queue is about to be emptied: a pause would have no end.
        self._pauses.let_go(run, run.partitions)
        self._held.discard(run)
        try:
            async with asyncio.timeout(HANDLE_WAIT_MS / 1000):
                await run.suspend()
        except TimeoutError:
            logger.warning(
                "agent %s: still at work on %s after %d s: another worker handles it again",
                run.agent.name,
                run.current_positions,
                HANDLE_WAIT_MS // 1000,
            )
            # While the worker runs, the function may still return, and then gets other records.
            if run.is_ending:
                self._calls[run].cancel()

    def _count_drop(self, drop: Drop) -> None:
        self._metrics.count_drops([drop])
        self._drops.count([drop])

    def _make_room(self, run: AgentRun) -> None:
        if run in self._held and run.waiting <= FEED_RECORDS_MAX // 2:
            self._held.discard(run)
            self._pauses.let_go(run, run.partitions)


class LoopAlarm:
    """Timers of the event loop, by the worker's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def now_ms(self) -> int:
        """The worker's monotonic time, in milliseconds."""
        return self._clock.now_ms()

    @property
    def wall_ms(self) -> int:
        """The wall-clock time, in milliseconds since 1970."""
        return self._clock.wall_ms()

    def at(self, due_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` at a time of `now_ms`; returns a function that cancels it."""
        delay_ms = max(due_ms - self._clock.now_ms(), 0)
        return asyncio.get_running_loop().call_later(delay_ms / 1000, call).cancel


class WorkerGroupOffsets:
    """The offsets to commit of this worker's partitions, over all tasks and agents."""

    def __init__(self, consumer: Consumer, agents: WorkerAgents, tasks: WorkerTasks) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """The offsets that the group has from this worker."""
        self.moved_on: dict[TopicPartition, OffsetAndMetadata] = {}
        """The first offsets in logs that have replaced the logs that were read, to be committed."""
        self._consumer = consumer
        self._agents = agents
        self._tasks = tasks
        self._cuts: dict[TopicPartition, int] = {}
        """How many times each log was found truncated below what was read."""
        self._starts: dict[TopicPartition, Reached] = {}
        """The start positions of tasks that have not processed a record yet."""

    def begin(self, starts: Mapping[TopicPartition, StartOffset]) -> None:
        """Note the start of partitions that are read from now on."""
        for partition, start in starts.items():
            self.committed.pop(partition, None)
            self._cuts[partition] = start.log.cuts
            if self._tasks.of([partition]):
                self._starts[partition] = start.task_at

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop partitions that other workers commit from now on."""
        for partition in partitions:
            self.committed.pop(partition, None)
            self._starts.pop(partition, None)

    def move_on(self, starts: Mapping[TopicPartition, StartOffset]) -> None:
        """Set the offsets of the next commit to the start of logs that have replaced others."""
        self.moved_on = {
            part: start.start._replace(metadata=metadata_of(start.committed, {}, start.log))
            for part, start in starts.items()
        }

    def done(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return, for each partition, the offset before which all its readers are done.

        The metadata names the readers that are further.
        """
        readers = {
            partition: dict(positions) for partition, positions in self._agents.positions.items()
        }
        # The start of a task with state is known once its state is open: until then its partition
        # has no offset, so a commit can't skip records that the state lacks.
        starts = {at: each for at, each in self._starts.items() if self._tasks.has_opened(at)}
        for partition, reached in {**starts, **self._tasks.reached}.items():
            readers.setdefault(partition, {})[TASK] = reached
        found = {part: self._noted(part, positions) for part, positions in readers.items()}
        return {**found, **self.moved_on}

    def _noted(
        self, partition: TopicPartition, readers: Mapping[str, Reached]
    ) -> OffsetAndMetadata:
        at = offset_of(readers)
        if partition not in self._consumer.assignment():
            return OffsetAndMetadata(at, metadata_of(at, readers))
        committed = self._consumer.offset_and_metadata(partition, at)
        log = SourceLog(known_id(committed.topic_id) or b"", cuts=self._cuts.get(partition, 0))
        return committed._replace(metadata=metadata_of(at, readers, log))
