"""Worker: one process of an app. Consumer to tasks and agents to commit, until it is stopped.

One loop owns everything: poll, process (by the engine thread, which it waits for), produce, and
commit at every interval; nothing else touches tasks, so a rebalance (its callbacks run inside
`poll`) never meets a record in the middle, and waits for a function that blocks. Agents,
schedules and the opening of tasks run beside it in one TaskGroup; whatever fails ends the
worker, since going on would skip what failed. On the first request to stop, agents finish the
record in hand, everything is committed, and the group is left, so that the others take over at
once. Not done here: signals and exit codes (`cli`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, closing
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from streamlog import repeated
from streamlog.agents.asks import Answer
from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.client.producer import Producer
from streamlog.clock import Clock, SystemClock
from streamlog.errors import ConnectionLost, DamagedBatch, LogError, ProcessingError, StreamlogError
from streamlog.log import Log
from streamlog.processing.error_handling import DamagedInputs
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.tables.local_disk.task_directory import WorkerIdentity, state_host
from streamlog.transport.security import Security
from streamlog.worker.access.routed_tables import LocalRows, RoutedTables
from streamlog.worker.assignment.streams_assignor import StreamsAssignor
from streamlog.worker.commit.exactly_once import CommitAborted, Transactor
from streamlog.worker.engine import EngineThread
from streamlog.worker.global_reader import make_reader
from streamlog.worker.health.loop_watch import WorkerWatch
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.health.worker_health import WorkerState
from streamlog.worker.http_wiring import make_server, make_table_access
from streamlog.worker.inputs.assigned_partitions import (
    Pauses,
    StartOffset,
    describe_start,
    look_up,
    refuse_growth,
    watch_directory,
)
from streamlog.worker.inputs.source_watch import LOST, Lost
from streamlog.worker.program import Program, WorkerStart
from streamlog.worker.savepoint.savepoint_log import SavepointWatch, obey
from streamlog.worker.savepoint.task_savepoints import TaskSavepoints
from streamlog.worker.schedules.cron import CronScheduler, RunLog
from streamlog.worker.standbys import TaskLags
from streamlog.worker.state.restore import remove_abandoned
from streamlog.worker.task_deps import TaskDeps, prepare_log, task_deps_of
from streamlog.worker.tasks import AgentWrites, WorkerTasks
from streamlog.worker.topics.savepoint_messages import SavepointCut
from streamlog.worker.worker_agents import (
    Replies,
    WorkerAgents,
    WorkerGroupOffsets,
    rows_for_agents,
)

if TYPE_CHECKING:
    from streamlog.records.record_columns import RecordColumns


async def skip_damaged_batch(
    damaged: DamagedBatch,
    program: Program,
    tasks: WorkerTasks,
    agents: WorkerAgents,
    consumer: Consumer,
) -> dict[TopicPartition, RecordColumns]:
    """Go on behind a batch that can't be read; no records come of it.

    Raises:
        ProcessingError: the policy is `FAIL`.
    """
    agent_policies = [(agent.topic.name, agent.on_error) for agent in program.agents]
    outbox = DamagedInputs(program.topology, agent_policies).outbox(damaged)
    place = TopicPartition(damaged.topic, damaged.partition)
    consumer.seek(place, damaged.next_offset)
    for running in tasks.reading(place)[:1]:
        await tasks.took(running, outbox)
        return {}
    await agents.leave_out(outbox)
    return {}


GONE_MS = 5_000
"""A log whose brokers don't answer for so long is gone."""
TELL_MS = 500
"""So long without an answer, and the user is told what the worker waits for."""
LOOK_MS = 500

logger = repeated.logger(__name__)


async def work_while_log_answers(log: Log, stop: asyncio.Event, work: Awaitable[None]) -> None:
    """Work until `work` ends, or `stop` is set and the log is gone.

    Raises:
        ConnectionLost: it is; `work` was cancelled.
        StreamlogError: as `work`.
    """
    failure: Exception | None = None
    watching: asyncio.Task[None] | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(log, stop), name="end of the log")
            try:
                await work
            except Exception as error:  # noqa: BLE001 - raised below as it is, and not in a group
                failure = error
            finally:
                watching.cancel()
    except* ConnectionLost as gone:
        failure = gone.exceptions[0]
    if failure is not None:
        raise failure


async def _watch(log: Log, stop: asyncio.Event) -> None:
    await stop.wait()
    while True:
        if not await _answers(log, within_ms=TELL_MS):
            logger.warning(
                "stopping: no broker answers, so nothing can be committed; waiting %d s for one",
                GONE_MS // 1000,
            )
            if not await _answers(log, within_ms=GONE_MS - TELL_MS):
                break
        await asyncio.sleep(LOOK_MS / 1000)
    raise ConnectionLost(
        f"stopped without the last commit, as no broker has answered for {GONE_MS // 1000} s: what"
        " was not committed is processed again next time"
    )


async def _answers(log: Log, *, within_ms: int) -> bool:
    """Whether a broker gives any answer in time."""
    try:
        async with asyncio.timeout(within_ms / 1000):
            await log.admin().find_topics([])  # Retries what can be retried.
    except TimeoutError:
        return False
    except StreamlogError as error:
        logger.debug("a broker refuses: %s", error)
    return True


UNDONE_MAX = 5
"""So many commits in a row that do not count, and the worker ends with the reason."""
POLL_MS = 100
"""Longest wait for records, and so the longest a stop or a full feed goes unnoticed."""
POLL_HELD_MS = 10
"""Shorter while something is held back or awaited: it may have become free."""
POLL_RECORDS_MAX = 5_000
"""One round of the loop: heartbeats and agents get their turn in between."""
SESSION_TIMEOUT_MS = 15_000
"""A worker that is gone without leaving is replaced after this. An agent that blocks the loop
for longer loses its partitions; a function of a stream may, as it has the engine thread."""
HEARTBEAT_INTERVAL_MS = 3_000
REBALANCE_TIMEOUT_MS = 90_000
"""How long a rebalance waits for a worker to finish what it has in hand and commit. More than
the minute that a user's function may block for."""
MAX_POLL_INTERVAL_MS = 2**31 - 1
"""The worker itself never leaves for a function that blocks: the process is alive, and what hangs
would hang another one as well. To report it is the watchdog's."""
STOP_WAIT_MS = 30_000
"""A function that is still at work so long after the request to stop is not waited for."""
LAST_COMMIT_MS = 10_000
JOIN_NOTICE_MS = 3_000
"""How long a directory that has vanished goes unnoticed."""
MOVED_ON = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # Deleted just now: the next poll tells (`sources`).
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""The group has given our partitions to others, who read again what is not committed; or one of
them is gone."""


class Worker:
    """One process of an app."""

    def __init__(
        self,
        program: Program,
        *,
        log_url: str,
        announce: Callable[[WorkerStart], None],
        clock: Clock | None = None,
        security: Security | None = None,
        instance_id: str | None = None,
    ) -> None:
        """`instance_id` makes it a static member: who comes after it under the same id is it."""
        self._program = program
        self._log_url = log_url
        self._security = security
        self._announce = announce
        self._instance_id = instance_id
        self._clock = clock or SystemClock()
        self.exchange = StreamsAssignor(
            program.placement, process=instance_id or uuid4().hex, policy=program.policy
        )
        """What this worker tells the others, and what it knows of them."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then finish, commit and leave the group.

        Raises:
            ConnectionLost: no broker answers, so it has ended without a last commit.
            StreamlogError: something can't go on; nothing that failed was committed.
        """
        log = Log.open(self._log_url, security=self._security)
        async with (
            log as opened,
            SavepointWatch(opened, self._program.app_id, self._clock) as watch,
        ):
            await work_while_log_answers(
                opened, stop, obey(watch, stop, partial(self._run, opened, watch))
            )

    async def _run(
        self, log: Log, halts: SavepointWatch, stop: asyncio.Event, cut: SavepointCut | None
    ) -> None:
        """The worker from its beginning to its end, or to a cut."""
        program = self._program
        async with AsyncExitStack() as stack:
            door = stack.enter_context(make_server(program.web, program.pages))
            web = None if door is None else door.listener.endpoint
            if web is not None:
                self.exchange.endpoint = web
            start = await prepare_log(program, log, log_url=self._log_url, web=web)
            self._announce(start)
            # Tasks hand over whole batches, and agents wait for each record that they send.
            producer = await stack.enter_async_context(log.producer(linger_ms=0))
            producer.partition_by(program.partitioners)
            transactor = await self._transactor(log, stack)
            consumer = await stack.enter_async_context(self._consumer(log))
            stack.push_async_exit(partial(_leave, consumer))
            reader = await asyncio.to_thread(make_reader, program, log, start.counts, self._clock)
            await stack.enter_async_context(reader)
            program.bind_global_tables(reader.tables)
            background = await stack.enter_async_context(asyncio.TaskGroup())
            surroundings = task_deps_of(
                start,
                cut,
                clock=self._clock,
                consumer=consumer,
                producer=producer,
                transactor=transactor,
                reader=reader,
                background=background,
                engine=stack.enter_context(closing(EngineThread(self._clock))),
            )
            self.exchange.host = state_host(program.state_path)
            replies = self._bound(stack, surroundings)
            shift = _WorkerLoop(program, start.counts, surroundings, self.exchange, replies.answer)
            if cut is not None:
                shift.standstill = TaskSavepoints(cut, halts, start, surroundings)
            tables = self._tables(start, shift.rows, producer)
            if door is not None:
                await stack.enter_async_context(
                    door.open(
                        figures=surroundings.figures,
                        standing=shift.standing,
                        rows=shift.rows,
                        tables=tables,
                    )
                )
            await shift.work(stop)

    def _tables(self, start: WorkerStart, local: LocalRows, producer: Producer) -> RoutedTables:
        """What the app asks for rows through from now on."""
        tables = make_table_access(
            self._program.topology,
            start.counts,
            peers=self.exchange.peers,
            local=local,
            producer=producer,
            clock=self._clock,
        )
        self._program.bind_tables(tables)
        return tables

    async def _transactor(self, log: Log, stack: AsyncExitStack) -> Transactor | None:
        """Who writes commits as transactions, under this worker's name."""
        program = self._program
        if not program.is_transactional:
            return None
        identity = stack.enter_context(WorkerIdentity(program.app_id, program.state_path))
        transactor = Transactor(log, identity.transactional_id, on_step=program.on_step)
        return await stack.enter_async_context(transactor)

    def _consumer(self, log: Log) -> Consumer:
        return log.consumer(
            group_id=self._program.app_id,
            auto_offset_reset="none",  # Positions are given, and lost ones are told (`sources`).
            isolation_level="read_committed",
            time_marks=True,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            assignor=self.exchange,
            group_instance_id=self._instance_id,
        )

    def _bound(self, stack: AsyncExitStack, surroundings: TaskDeps) -> Replies:
        """What the app sends and asks through from now on."""
        peers = self.exchange.peers
        replies = Replies(
            surroundings.log,
            surroundings.producer,
            surroundings.background,
            app_id=self._program.app_id,
            process=peers.process,
            alive=lambda: [peer.process for peer in peers.all],
        )
        stack.push_async_callback(replies.close)
        self._program.bind(surroundings.producer)
        self._program.bind_asker(replies)
        return replies


class _WorkerLoop:
    """The worker at work."""

    standstill: TaskSavepoints | None = None
    """Takes the tasks to where all are to stand still, if they are."""

    def __init__(
        self,
        program: Program,
        counts: Mapping[str, int],
        surroundings: TaskDeps,
        exchange: StreamsAssignor,
        answer: Answer,
    ) -> None:
        self._program = program
        self._counts = counts
        self._reader = surroundings.reader
        self._log = surroundings.log
        self._consumer = surroundings.consumer
        self._sources, self._own_topics = surroundings.sources, surroundings.own_topics
        self._clock = surroundings.clock
        self._background = surroundings.background
        self._figures = surroundings.figures
        self._engine = surroundings.engine
        self._pauses = Pauses(surroundings.consumer)
        self._tasks = WorkerTasks(program.topology, counts, surroundings, self._pauses)
        self._agents = WorkerAgents(
            program.agents,
            self._pauses,
            surroundings.producer,
            surroundings.clock,
            surroundings.figures,
            rows=rows_for_agents(program.topology, counts, self._tasks.committed),
            answer=answer,
        )
        self._copies = TaskLags(program.topology, surroundings, self._tasks, exchange)
        copy_of = self._copies.standbys.get
        self.rows = LocalRows(
            program.topology, self._tasks, self._clock, figures=self._figures, copy_of=copy_of
        )
        """Of the tables whose tasks run or are followed here."""
        self._cron = CronScheduler(
            program.timers,
            program.crontabs,
            clock=surroundings.clock,
            is_leader=lambda: surroundings.consumer.is_leader,
            run_log=partial(RunLog, self._log, program.app_id, clock=surroundings.clock),
        )
        self._transactor, self._on_step = surroundings.transactor, surroundings.on_step
        self._undone = 0
        """Commits in a row that do not count."""
        self._is_over = False
        """Everything is committed and closed; only the group is still to be left."""
        self._is_between = False
        """The last commit had to wait for the group."""
        self._starts_over = False
        """All tasks were dropped, to be opened again from what the log has."""
        self._offsets = WorkerGroupOffsets(surroundings.consumer, self._agents, self._tasks)
        self._watching = WorkerWatch(program.limits, self, self._engine, self._clock)
        self._is_committing = self._has_begun = self._assigned = self._told = False
        self._committed_ms = self._joining_ms = self._clock.now_ms()

    async def work(self, stop: asyncio.Event) -> None:
        """Join, work until `stop`, commit. The consumer leaves the group when it is closed."""
        path, delay_ms = self._program.state_path, self._program.state_cleanup_delay_ms
        cleanup = remove_abandoned(path, delay_ms=delay_ms, clock=self._clock)
        begin = self._background.create_task
        watches = [
            begin(watch_directory(self._log), name="log directory"),
            begin(self._watching.run(), name="watchdog"),
            begin(self._end_late(stop), name="late end"),
            begin(cleanup, name="state cleanup"),
            begin(self._tasks.ends.run(), name="ends of inputs"),
            begin(self._tasks.marks.run(), name="marks of inputs"),
        ]
        self._copies.look_at_disk()
        try:
            await self._reader.load(stop)
            watches.append(begin(self._reader.follow(), name="global tables"))
            await self._consumer.subscribe(
                self._program.sources,
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                on_lost=self._on_revoked if self._transactor is None else self._on_lost,
            )
            self._agents.start(self._background)
            begin(self._cron.run(), name="schedules")
            watches += [begin(s.serve(), name=f"task {s.name}") for s in self._program.tasks]
            while not (stop.is_set() or await self._stands()):
                await self._round()
            self._cron.stop()
            self._tasks.suspend()
            await self._agents.finish()
            await self._commit_last()
        finally:
            for watch in watches:
                watch.cancel()
            self._is_over = True
            await self._copies.standbys.close()
            await self._tasks.close()

    async def _stands(self) -> bool:
        """Whether it has come to where all are to stand still."""
        return self.standstill is not None and await self.standstill.look(self._tasks, self._commit)

    def standing(self) -> WorkerState:
        """Where this worker stands."""
        ends = {part: self._consumer.high_watermark(part) for part in self._consumer.assignment()}
        return WorkerState(
            is_assigned=self._assigned,
            has_begun=self._has_begun,
            global_left_records=self._reader.left,
            tasks=self._tasks.standing(),
            stalled_ms=self._watching.stalled,
            lag_records={
                (topic, partition): max(end - place.offset, 0)
                for (topic, partition), place in self._offsets.done().items()
                if (end := ends.get(TopicPartition(topic, partition))) is not None
            },
        )

    def sights(self) -> dict[str, Sight]:
        """Where everybody stands, for the watchdog."""
        if not self._assigned:
            return {}
        ends, read = self._consumer.high_watermark, self._consumer.positions()
        return {**self._agents.sights(ends, read), **self._tasks.sights()}

    def reason(self, who: str) -> str:
        """What somebody waits for, for the watchdog."""
        if self._is_committing:
            return "a commit is under way: the log does not take what was written"
        return self._agents.reason(who) or self._tasks.reason(who)

    async def _end_late(self, stop: asyncio.Event) -> None:
        """Give up on a function that goes on for long after the request to stop."""
        await stop.wait()
        asked_ms = self._clock.now_ms()
        while True:
            await asyncio.sleep(min(LOOK_MS, STOP_WAIT_MS) / 1000)
            busy, now_ms = self._engine.busy, self._clock.now_ms()
            if busy is not None and now_ms - max(busy.since_ms, asked_ms) >= STOP_WAIT_MS:
                raise ProcessingError(
                    f"task {busy.task_id} has been at work for {(now_ms - busy.since_ms) // 1000} "
                    "s and is not waited for: stopped without a commit, so what it had in hand "
                    "comes again"
                )

    async def _round(self) -> None:
        self._tell_if_waiting()
        self._copies.look_around()
        try:
            polled = await self._consumer.poll_columns(
                timeout_ms=POLL_HELD_MS if self._pauses or self._tasks.awaits_calls else POLL_MS,
                # What can't be committed yet is not added to.
                max_records=0 if self._is_between and self._tasks.is_large else POLL_RECORDS_MAX,
            )
        except DamagedBatch as damaged:
            polled = await skip_damaged_batch(
                damaged, self._program, self._tasks, self._agents, self._consumer
            )
            self._figures.passed_batches[damaged.topic, damaged.partition] += 1
        except LOST as error:
            await self._reopen(error)
            return
        self._agents.take(polled)
        self._tasks.take(polled, self._consumer.time_marks())
        await self._tasks.process()
        self._tasks.admit()
        due_ms = self._committed_ms + self._program.commit_interval_ms
        if self._assigned and (self._tasks.is_large or self._clock.now_ms() >= due_ms):
            await self._commit()
        if self._starts_over and self._assigned and self._consumer.is_member:
            await self._start_over()

    def _tell_if_waiting(self) -> None:
        """Say once, after each rebalance that takes its time, what is being waited for."""
        waited_ms = self._clock.now_ms() - self._joining_ms
        if not self._assigned and not self._told and waited_ms > JOIN_NOTICE_MS:
            self._told = True
            logger.info(
                "waiting for the group's other workers; one that was killed is given up after %d s",
                SESSION_TIMEOUT_MS // 1000,
            )

    async def _commit_last(self) -> None:
        """Commit what is left; a round that is held just now is waited for, but not for long."""
        deadline_ms = self._clock.now_ms() + LAST_COMMIT_MS
        while not await self._commit() and self._clock.now_ms() < deadline_ms:
            await self._consumer.poll_columns(timeout_ms=POLL_MS, max_records=0)

    async def _commit(self) -> bool:
        """Commit what is done; False if it can't be now, between two generations of the group."""
        self._is_committing = True
        try:
            return await self._commit_all()
        finally:
            self._is_committing = False

    async def _commit_all(self) -> bool:
        # What agents handle from here on belongs to the next commit: what they have sent until
        # now is flushed before their offsets are stored.
        if self._starts_over or self._is_over:
            return True
        started_ms = self._clock.now_ms()
        offsets = self._offsets.done()
        # What they have set goes with their offsets, or both wait for a task to be opened.
        written: AgentWrites = self._agents.rows.uncommitted()
        await self._agents.flush()
        held = {*self._tasks.held_by(written), *await self._consumer.outdated(offsets)}
        offsets = {p: at for p, at in offsets.items() if p not in held}
        moved = {p: at for p, at in offsets.items() if self._offsets.committed.get(p) != at}
        written = self._tasks.taken(written)
        self._is_between = False
        if self._transactor is not None:
            # The group takes no offsets while it goes from one generation to the next.
            with self._consumer.staying() as is_staying:
                self._is_between = not is_staying
                if is_staying:
                    await self._commit_whole(self._transactor, moved, offsets, written)
        else:
            fenced = await self._tasks.commit(written)
            moved = {p: moved[p] for p in moved.keys() - fenced} if written else moved
            if moved:
                await self._commit_offsets(moved)
            self._agents.rows.committed_until(self._tasks.taken(written))
        self._committed_ms = self._clock.now_ms()
        self._figures.commits.add(self._committed_ms - started_ms)
        return not self._is_between

    async def _commit_whole(
        self,
        transactor: Transactor,
        moved: dict[TopicPartition, OffsetAndMetadata],
        standing: dict[TopicPartition, OffsetAndMetadata],
        written: AgentWrites,
    ) -> None:
        try:
            await self._tasks.commit_whole(transactor, moved, standing, written)
        except CommitAborted as undone:
            self._undone += 1
            if self._undone >= UNDONE_MAX:
                raise undone.__cause__ or undone from None
            logger.warning("a commit does not count, its tasks go back to the last one: %s", undone)
            await self._drop_all()
        else:
            self._undone = 0
            self._offsets.committed.update(moved)
            self._agents.rows.committed_until(written)

    async def _reopen(self, error: Lost) -> None:
        """Go on in logs that are not those that were read, as the app says.

        What was processed of the old ones is committed, together with where the new ones begin.

        Raises:
            SourceLost: the app wants the worker to end then; nothing more is committed.
        """
        affected = await self._sources.affected(error)
        if not affected:
            return
        self._offsets.move_on(await self._look_up(affected))
        self._tasks.suspend()
        try:
            await self._agents.revoke()
            if not await self._commit():
                await self._drop_all()
        finally:
            self._offsets.moved_on = {}
        await self._give_up(affected)
        self._tasks.resume()
        await self._on_assigned(affected)
        self._sources.settled(affected)

    async def _start_over(self) -> None:
        """Open all tasks again, where the log says that they are."""
        places = await self._look_up(frozenset(self._consumer.assignment()))
        self._starts_over = False
        # Agents leave out what they have been given already.
        self._go_to(places)
        self._agents.go_on()
        await self._tasks.assign(places)

    def _go_to(self, places: Mapping[TopicPartition, StartOffset]) -> None:
        self._offsets.begin(places)
        for partition, place in places.items():
            self._consumer.seek(partition, place.start)

    async def _commit_offsets(self, moved: dict[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            await self._consumer.commit(moved)
        except LogError as error:
            if error.code not in MOVED_ON:
                raise
            logger.info("offsets not committed: %s", error)
        else:
            self._offsets.committed.update(moved)
            self._on_step("offsets sent")
            logger.debug("committed %d offsets", len(moved))

    async def _on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Finish and commit; then close what is given up. The rest goes on."""
        logger.debug("rebalance: giving up %d partitions", len(partitions))
        self._tasks.suspend()
        await self._agents.revoke()
        if not await self._commit():
            # What they have written waits with that of all others: none of it may come later.
            await self._drop_all()
        await self._give_up(partitions)
        self._tasks.resume()

    async def _on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """What others have by now can't be committed any more."""
        logger.info("the group has given %d partitions to others", len(partitions))
        self._tasks.suspend()
        await self._agents.revoke()
        await self._drop_all()
        await self._give_up(partitions)
        self._tasks.resume()

    async def _drop_all(self) -> None:
        self._starts_over = True
        await self._agents.wait_for_tasks()
        await self._tasks.drop()

    async def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        closed = self._tasks.of(partitions)
        self._agents.give_up(partitions)
        await self._tasks.give_up(partitions)
        self._pauses.forget(partitions)
        self._offsets.forget(partitions)
        if partitions >= self._consumer.assignment():
            self._assigned = self._told = self._starts_over = False
            self._joining_ms = self._clock.now_ms()
        self._copies.look_at_disk(closed)

    async def _on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Begin with what is new; the rest goes on, but agents that were interrupted go back."""
        refuse_growth(partitions, self._counts, self._tasks.of)
        self._assigned = self._has_begun = True
        kept = self._consumer.assignment() - partitions
        done, positions = self._offsets.done(), self._consumer.positions()
        for partition in kept & self._agents.places.keys() & positions.keys():
            if done[partition].offset < positions[partition]:
                self._consumer.seek(partition, done[partition])
        places = await self._look_up(partitions)
        self._go_to(places)
        self._agents.assign(
            {part: place.committed for part, place in places.items()},
            {part: place.ahead for part, place in places.items()},
            kept,
        )
        # What was a standby is closed before it is opened as a task.
        await self._copies.follow()
        await self._tasks.assign(places)
        self._copies.look_at_disk()
        mine = frozenset(self._consumer.assignment())
        logger.info("rebalance: %s", describe_start(mine, self._tasks.of(mine)))

    async def _look_up(
        self, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, StartOffset]:
        agents_read = {agent.topic.name for agent in self._program.agents}
        return await look_up(
            self._consumer,
            await self._sources.present(partitions),
            agents_read=agents_read,
            judge=self._sources.judge,
            losses=self._sources.losses,
            own_topics=self._own_topics,
        )


async def _leave(consumer: Consumer, exc_type: type[BaseException] | None, *_: object) -> None:
    """Whoever stops in good order is not waited for, be it a static member or not."""
    if exc_type is None:
        await consumer.close(leave_group=True)
