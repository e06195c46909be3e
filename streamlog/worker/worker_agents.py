"""Agents: what a worker does for its agents, besides calling them (`agents.run`).

One run per agent and worker, over all partitions that the worker has. Records wait in a
bounded feed; when it is full the partitions are held back. Only what is handled is committed,
and what it has yielded is acknowledged before: after a crash the records in hand come again.
What was handled out of order is told beside the offset (`agents.offsets`) and does not. Rule of
the file: an error that an agent's policy does not settle (`agents.failures`) ends the worker,
with the record's coordinates.
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
from streamlog.worker.health.worker_health import DropLog, Figures
from streamlog.worker.inputs.assigned_partitions import Pauses, StartOffset
from streamlog.worker.tasks import WorkerTasks

logger = repeated.logger(__name__)

RETENTION_MS = 600_000
"""Who has not read its answer by then does not wait for it any more."""
POLL_MS = 500
ANSWERS_MAX = 1_000
"""On their way at a time; more are dropped, and their askers wait in vain."""
CLOSE_WAIT_MS = 2_000
"""For answers on their way and the removal of the topic, when the worker ends."""
LAST_ANSWERS_MS = 2_000
"""A worker that stops waits no longer for answers: nobody else may be there to give them."""


class Replies:
    """The asks and answers of one worker."""

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
        """`process` is this worker's name; `alive` those of all workers, if they are known."""
        self._log = log
        self._producer = producer
        self._group = group
        self._prefix = f"{app_id}-replies-"
        self._place = TopicPartition(self._prefix + process, 0)
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

        Raises:
            RequestTimedOut: it has not come in time, or the worker stops.
        """
        if self._is_over:
            raise RequestTimedOut(f"{topic} is not asked any more: this worker stops")
        ask = Ask(self._place.topic, uuid4().bytes)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
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
            if not answer.cancelled() or not self._is_over:
                raise
            raise RequestTimedOut(f"no answer to {where}: this worker stops") from None
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimedOut(f"no answer to {where} within {timeout_ms} ms") from None
        finally:
            del self._asked[ask.number]

    def answer(self, ask: Ask, data: bytes | None) -> None:
        """Send an answer, without waiting for it to arrive."""
        if not ask.reply_to.startswith(self._prefix):
            logger.warning("no answer to %r: it is no topic for replies", ask.reply_to)
        elif len(self._answers) >= ANSWERS_MAX:
            logger.warning("%d answers are on their way: one is dropped", ANSWERS_MAX)
        else:
            name = f"answer to {ask.reply_to}"
            task = self._group.create_task(self._send(ask, data), name=name)
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def close(self) -> None:
        """Let answers arrive, stop listening, and remove the topic.

        An ask that is not answered soon fails, and so does every new one.
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
                await self._log.admin().delete_topics([self._place.topic])
        except (StreamlogError, TimeoutError) as error:
            logger.debug("%s is left behind: %s", self._place.topic, error)

    async def _listen(self) -> None:
        """Have a topic for answers, and read it."""
        async with self._making:
            if self._reading is not None:
                return
            await self._remove_abandoned()
            configs = {"retention.ms": str(RETENTION_MS), "segment.ms": str(RETENTION_MS)}
            topic = NewTopic(self._place.topic, 1, configs=configs)
            try:
                await self._log.admin().create_topics([topic])
            except TopicExists:
                logger.debug("%s is there: from a life before", topic.name)
            if self._is_over:
                raise RequestTimedOut(f"{topic.name} is not read any more: this worker stops")
            ready = asyncio.get_running_loop().create_future()
            self._reading = self._group.create_task(self._read(ready), name="replies")
            await ready

    async def _read(self, ready: asyncio.Future[None]) -> None:
        place = self._place
        async with self._log.consumer(auto_offset_reset="latest") as consumer:
            consumer.assign([place])
            # What is there already is for asks of a life before.
            consumer.seek(place, (await consumer.end_offsets([place]))[place])
            if not ready.done():
                ready.set_result(None)
            while True:
                for record in (await consumer.poll(timeout_ms=POLL_MS)).get(place, ()):
                    self._hear(record)

    def _hear(self, record: LogRecord) -> None:
        answer = self._asked.get(number_of(record.headers) or b"")
        if answer is not None and not answer.done():
            answer.set_result(record.value)

    async def _send(self, ask: Ask, data: bytes | None) -> None:
        try:
            headers = ((CORRELATION, ask.number),)
            sent = await self._producer.send(ask.reply_to, data, headers=headers, partition=0)
            await sent
        except StreamlogError as error:
            logger.info("an answer to %s has not arrived: %s", ask.reply_to, error)

    async def _remove_abandoned(self) -> None:
        """Remove the topics of processes that are gone, and with them all that they waited for."""
        admin, alive = self._log.admin(), {self._prefix + name for name in self._alive()}
        if not alive:
            return
        names = [topic.name for topic in await admin.list_topics()]
        places = [
            TopicPartition(name, 0)
            for name in names
            if name.startswith(self._prefix) and name not in alive
        ]
        if not places:
            return
        async with self._log.consumer() as consumer:
            begins = await consumer.begin_offsets(places)
            ends = await consumer.end_offsets(places)
        # One that has never been used may be about to be.
        expired = [place.topic for place in places if 0 < ends[place] == begins[place]]
        if expired:
            logger.info("removing topics of processes that are gone: %s", ", ".join(expired))
            await admin.delete_topics(expired)


ROWS_MAX = 10_000
"""Of a table that somebody goes through, read at a time: the task may be closed in between."""


class CommittedRows:
    """A `CommittedRowReader` of tasks that run here."""

    def __init__(self, store_of: Callable[[TaskId], DeferredStore | None]) -> None:
        """`store_of` gives what a task has committed; None if it is not open."""
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
            low = page[-1][0] + b"\x00"

    def _store(self, table: TableRows, partition: int) -> DeferredStore:
        found = self._store_of(TaskId(table.subtopology, partition))
        if found is None:
            raise UsageError(
                f"the rows of table {table.name!r}, partition {partition}, are with no task of "
                "this worker just now: the record in hand comes again where they are"
            )
        return found


def rows_for_agents(
    topology: Topology,
    counts: Mapping[str, int],
    store_of: Callable[[TaskId], DeferredStore | None],
) -> AgentRows:
    """What the agents of this worker have at hand."""
    return AgentRows(tables_of(topology), counts, topology.worked_on, CommittedRows(store_of))


FEED_RECORDS_MAX = 10_000
"""A feed with more than this takes no more until it is half empty. What one poll has brought
is taken whole, on top."""
HANDLE_WAIT_MS = 30_000
"""How long a rebalance or a stop waits for the records in hand."""


class WorkerAgents:
    """The agents of this worker."""

    def __init__(
        self,
        agents: Sequence[Agent[Any, Any]],
        pauses: Pauses,
        producer: Producer,
        clock: Clock,
        figures: Figures,
        *,
        rows: AgentRows,
        answer: Answer = no_answer,
    ) -> None:
        """`rows` are those of tables that they have at hand."""
        self.rows = rows
        self._pauses = pauses
        self._sinks = SinkWriter(producer)
        self._clock = clock
        self._figures = figures
        self._drops = DropLog()
        alarm = LoopAlarm(clock)
        write, drop = self._sinks.write, self._left_out
        self._runs = [
            AgentRun(agent, write, alarm, drop=drop, answer=answer, rows=rows) for agent in agents
        ]
        self._held: set[AgentRun] = set()
        """Those whose feed is full."""
        for run in self._runs:
            run.on_taken = lambda run=run: self._make_room(run)  # type: ignore[misc]

    def start(self, group: asyncio.TaskGroup) -> None:
        """Run every agent in the group, until it ends with an error or `finish` is called."""
        for run in self._runs:
            group.create_task(run.run(), name=f"agent {run.agent.name}")

    def take(self, polled: Mapping[TopicPartition, Iterable[LogRecord]]) -> None:
        """Hand records to the agents that read them."""
        self._drops.tell(self._clock.now_ms())
        for run in self._runs:
            for partition in run.partitions:
                if partition in polled:
                    run.take(partition, list(polled[partition]))
            if run.waiting > FEED_RECORDS_MAX:
                self._held.add(run)
                self._pauses.hold(run, run.partitions)

    async def leave_out(self, outbox: Outbox) -> None:
        """Write and count what becomes of records that were passed."""
        await self._sinks.write(outbox.writes)
        for drop in outbox.drops:
            self._left_out(drop)

    @property
    def places(self) -> dict[TopicPartition, dict[str, AgentPosition]]:
        """What every agent has handled of each partition that it reads, by its name."""
        found: defaultdict[TopicPartition, dict[str, AgentPosition]] = defaultdict(dict)
        for run in self._runs:
            for partition, place in run.places.items():
                found[partition][run.agent.name] = place
        return dict(found)

    def sights(
        self, ends: Callable[[TopicPartition], int | None], read: Mapping[TopicPartition, int]
    ) -> dict[str, Sight]:
        """Where each agent stands, given the ends of its inputs and how far they have been read."""
        found: dict[str, Sight] = {}
        for run in self._runs:
            positions = {part: place.position for part, place in run.places.items()}
            if run.is_idle:
                # What has been read and not handled is no records: gaps, ends of transactions.
                positions = {part: max(at, read.get(part, at)) for part, at in positions.items()}
            lags = {part: max((ends(part) or 0) - at, 0) for part, at in positions.items()}
            found[f"agent {run.agent.name}"] = Sight(positions, lags)
        return found

    def reason(self, who: str) -> str:
        """What an agent that does not get on has in hand."""
        hands = [run.current_positions for run in self._runs if who == f"agent {run.agent.name}"]
        return f"it has {hands[0]}" if hands else ""

    async def flush(self) -> None:
        """Wait until everything that agents have yielded until now is acknowledged.

        Raises:
            StreamlogError: something could not be written: no offset may be committed.
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
        """Read these partitions, each from its offset on, and go on with those that are kept.

        `ahead` has, by name, the agents that have handled something behind it.
        """
        for run in self._runs:
            name = run.agent.name
            own = {part: place for part, place in run.places.items() if part in kept}
            fresh = {
                part: ahead.get(part, {}).get(name, AgentPosition(at))
                for part, at in starts.items()
            }
            run.assign({**own, **fresh})
            if run in self._held:
                self._pauses.hold(run, run.partitions)

    async def revoke(self) -> None:
        """Drop what waits, and let every agent finish the records in hand."""
        await asyncio.gather(*(self._suspend(run) for run in self._runs))

    async def wait_for_tasks(self) -> None:
        """Those that work on tables finish what they have in hand: their tasks are being dropped.

        `go_on` follows, when the tasks are opened again.
        """
        await asyncio.gather(*(self._suspend(run) for run in self._on_tables))

    def go_on(self) -> None:
        """They go on behind what they have handled; what came after it has to be read again."""
        for run in self._on_tables:
            run.assign(run.places)

    @property
    def _on_tables(self) -> list[AgentRun]:
        return [run for run in self._runs if self.rows.worked_on(run.agent.name)]

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """These are committed by others from now on."""
        for run in self._runs:
            run.give_up(partitions)
            numbers = {at.partition for at in partitions if at.topic == run.agent.topic.name}
            self.rows.forget(numbers, self.rows.worked_on(run.agent.name))

    async def finish(self) -> None:
        """End the streams: no record is begun any more, the loops of the users end."""
        for run in self._runs:
            run.end()
        await self.revoke()

    async def _suspend(self, run: AgentRun) -> None:
        self._pauses.let_go(run, run.partitions)
        self._held.discard(run)
        try:
            async with asyncio.timeout(HANDLE_WAIT_MS / 1000):
                await run.suspend()
        except TimeoutError:
            logger.warning(
                "agent %s: still at work on %s after %d s: another worker will repeat it",
                run.agent.name,
                run.current_positions,
                HANDLE_WAIT_MS // 1000,
            )

    def _left_out(self, drop: Drop) -> None:
        self._figures.left_out([drop])
        self._drops.count([drop])

    def _make_room(self, run: AgentRun) -> None:
        if run in self._held and run.waiting <= FEED_RECORDS_MAX // 2:
            self._held.discard(run)
            self._pauses.let_go(run, run.partitions)


class LoopAlarm:
    """The time of the event loop and the worker's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def now_ms(self) -> int:
        """The worker's clock."""
        return self._clock.now_ms()

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._clock.wall_ms()

    def at(self, due_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        """Call it then, unless what is returned has been called before."""
        delay_ms = max(due_ms - self._clock.now_ms(), 0)
        return asyncio.get_running_loop().call_later(delay_ms / 1000, call).cancel


class WorkerGroupOffsets:
    """The offsets of the partitions that this worker has."""

    def __init__(self, consumer: Consumer, agents: WorkerAgents, tasks: WorkerTasks) -> None:
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        """What the group has of this worker."""
        self.moved_on: dict[TopicPartition, OffsetAndMetadata] = {}
        """Where logs begin that have replaced those that were read, to be committed."""
        self._consumer = consumer
        self._agents = agents
        self._tasks = tasks
        self._cuts: dict[TopicPartition, int] = {}
        """How many times logs were found truncated below what was read."""
        self._starts: dict[TopicPartition, Reached] = {}
        """Where tasks began that have not taken anything yet."""

    def begin(self, places: Mapping[TopicPartition, StartOffset]) -> None:
        """These are read from here on."""
        for partition, place in places.items():
            self.committed.pop(partition, None)
            self._cuts[partition] = place.log.cuts
            if self._tasks.of([partition]):
                self._starts[partition] = place.task_at

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """These are committed by others from now on."""
        for partition in partitions:
            self.committed.pop(partition, None)
            self._starts.pop(partition, None)

    def move_on(self, places: Mapping[TopicPartition, StartOffset]) -> None:
        """The next commit has where these logs begin, whatever was read of the ones before."""
        self.moved_on = {
            part: place.start._replace(metadata=metadata_of(place.committed, {}, place.log))
            for part, place in places.items()
        }

    def done(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Per partition the offset before which tasks and agents are all done, and who is ahead."""
        readers = {partition: dict(places) for partition, places in self._agents.places.items()}
        # Where a task with state begins is known once that is there.
        starts = {at: each for at, each in self._starts.items() if self._tasks.has_opened(at)}
        for partition, reached in {**starts, **self._tasks.reached}.items():
            readers.setdefault(partition, {})[TASK] = reached
        found = {part: self._noted(part, places) for part, places in readers.items()}
        return {**found, **self.moved_on}

    def _noted(
        self, partition: TopicPartition, readers: Mapping[str, Reached]
    ) -> OffsetAndMetadata:
        at = offset_of(readers)
        if partition not in self._consumer.assignment():
            return OffsetAndMetadata(at, metadata_of(at, readers))
        place = self._consumer.place(partition, at)
        log = SourceLog(known_id(place.topic_id) or b"", cuts=self._cuts.get(partition, 0))
        return place._replace(metadata=metadata_of(at, readers, log))
