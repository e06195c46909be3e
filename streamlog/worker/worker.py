"""Worker: one process of an app, from the consumer through tasks and agents to the commit.

One loop owns the tasks: it polls, lets the engine thread process, produces, and commits at every
interval. No other code touches tasks. The callbacks of a rebalance run inside `poll`, so a
rebalance never interrupts a record; it waits while a function blocks. Agents, schedules and the
opening of tasks run concurrently in one TaskGroup. Any error ends the worker, because continuing
would skip the work that failed.

The order of the end, after the first request to stop:

1. Schedules stop, and tasks process no further records.
2. Agents finish the records that they are working on.
3. The last commit. If the group rebalances, it waits for a new generation, for a limited time.
4. Standbys and tasks are closed; the state stays on disk.
5. The consumer leaves the group, so that other workers take over immediately.

Not done here: signals and exit codes (`cli`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from streamlog import repeated
from streamlog.agents.asks import Answer
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerOptions
from streamlog.client.metrics.exposed_metrics import Measured
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.client.producer import Producer, ProducerOptions
from streamlog.clock import Clock, SystemClock
from streamlog.errors import (
    ConnectionLost,
    DamagedBatch,
    LogError,
    ProcessingError,
    StreamlogError,
    UnknownTopicOrPartition,
    quantity,
)
from streamlog.log import Log
from streamlog.metrics.export import MeasuredService, exporting
from streamlog.processing.error_handling import DamagedInputs
from streamlog.processing.step import Tap
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.tables.local_disk.task_directory import WorkerIdentity, state_host
from streamlog.transport.security import Security
from streamlog.worker.access.routed_tables import LocalRows, RoutedTables
from streamlog.worker.assignment.streams_assignor import StreamsAssignor
from streamlog.worker.commit.exactly_once import CommitAborted, Transactor
from streamlog.worker.commit.sinks import OutputWatch, lacks_topic
from streamlog.worker.connect.connect_metrics import ConnectMetrics
from streamlog.worker.connect.connect_room import ConnectRoom
from streamlog.worker.engine import EngineThread
from streamlog.worker.global_reader import make_reader
from streamlog.worker.health.hot_keys import HotKeys
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
from streamlog.worker.inputs.pattern_watch import PatternWatch
from streamlog.worker.inputs.schema_waits import Marks, schema_waits_of
from streamlog.worker.inputs.source_watch import LOST, Lost
from streamlog.worker.program import Program, WorkerStart
from streamlog.worker.record_traces import tracing
from streamlog.worker.savepoint.savepoint_log import SavepointWatch, obey
from streamlog.worker.savepoint.task_savepoints import TaskSavepoints
from streamlog.worker.schedules.schedule_runner import RunLog, ScheduleRunner
from streamlog.worker.standbys import TaskLags
from streamlog.worker.state.restore import remove_abandoned
from streamlog.worker.task_deps import TaskDeps, prepare_log, task_deps_of
from streamlog.worker.tasks import AgentWrites, WorkerTasks
from streamlog.worker.topics.savepoint_messages import SavepointCut
from streamlog.worker.topics.topic_schemas import registry_config
from streamlog.worker.worker_agents import (
    Replies,
    WorkerAgents,
    WorkerGroupOffsets,
    rows_for_agents,
)
from streamlog.worker.worker_sites import (
    ConnectSite,
    ConsoleSite,
    ShowRestores,
    WorkerView,
    open_pages,
    show_nothing,
)

if TYPE_CHECKING:
    from streamlog.records.record_columns import RecordColumns
    from streamlog.topology import Topology
    from streamlog.worker.web.worker_server import WorkerServer


async def skip_damaged_batch(
    damaged: DamagedBatch,
    program: Program,
    tasks: WorkerTasks,
    agents: WorkerAgents,
    consumer: Consumer,
) -> dict[TopicPartition, RecordColumns]:
    """Continue after a damaged batch, by the error policies of its readers; returns no records.

    Raises:
        ProcessingError: the policy is `FAIL`.
    """
    agent_policies = [
        (topic.name, agent.on_error) for agent in program.agents for topic in agent.topics
    ]
    outbox = DamagedInputs(program.topology, agent_policies).outbox(damaged)
    part = TopicPartition(damaged.topic, damaged.partition)
    consumer.seek(part, damaged.next_offset)
    # The outbox covers all readers of the partition, so the first task writes it, or the agents.
    for running in tasks.reading(part)[:1]:
        await tasks.pass_on(running, outbox)
        return {}
    await agents.pass_on(outbox)
    return {}


GONE_MS = 5_000
"""How long a worker that is stopping waits for an answer of the brokers before it gives up."""
TELL_MS = 500
"""After this time without an answer, a log line says what the worker waits for."""
LOOK_MS = 500

logger = repeated.logger(__name__)


async def work_while_log_answers(log: Log, stop: asyncio.Event, work: Awaitable[None]) -> None:
    """Await `work`; cancel it if no broker answers after `stop` is set.

    Raises:
        ConnectionLost: no broker answered within `GONE_MS`; `work` was cancelled.
        StreamlogError: `work` raised it.
    """
    failure: Exception | None = None
    watching: asyncio.Task[None] | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(log, stop), name="end of the log")
            try:
                await work
            except Exception as error:  # noqa: BLE001 - raised below, outside of an exception group
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
        f"stopped without the last commit, because no broker answered for {GONE_MS // 1000} s;"
        " records since the last commit are processed again at the next start"
    )


async def _answers(log: Log, *, within_ms: int) -> bool:
    """Return whether a broker gives any answer in time; a refusal is an answer."""
    try:
        async with asyncio.timeout(within_ms / 1000):
            await log.admin().find_topics([])  # The client retries retriable errors.
    except TimeoutError:
        return False
    except StreamlogError as error:
        logger.debug("a broker refuses: %s", error)
    return True


UNDONE_MAX = 5
"""The number of aborted commits in a row after which the worker ends with their reason."""
POLL_MS = 100
"""The longest wait for records, and so the longest time that a stop goes unnoticed."""
POLL_HELD_MS = 10
"""The longest wait for records while inputs are paused or async calls run: they may end soon."""
POLL_RECORDS_MAX = 5_000
"""The records of one round of the loop. Heartbeats and agents run between two rounds."""
SESSION_TIMEOUT_MS = 15_000
"""How long the group waits for a worker that has died. An agent that blocks the event loop for
longer loses its partitions; a function of a stream may block, as it runs on the engine thread."""
HEARTBEAT_INTERVAL_MS = 3_000
REBALANCE_TIMEOUT_MS = 90_000
"""How long a rebalance waits for a worker to finish its records and commit. It exceeds the minute
for which a user's function may block."""
MAX_POLL_INTERVAL_MS = 2**31 - 1
"""No limit: a worker never leaves the group because a function blocks. Its process is alive, and
the function would block another worker as well. The watchdog reports it."""
STOP_WAIT_MS = 30_000
"""How long after the request to stop, or after its start, a running function is waited for."""
LAST_COMMIT_MS = 10_000
"""How long the last commit waits for a rebalance to end."""
JOIN_NOTICE_MS = 3_000
"""After this time in a rebalance, a log line says what the worker waits for."""
MOVED_ON = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # Deleted meanwhile; the next poll reports it.
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""Errors of an offset commit after which the worker continues. The group has given partitions to
other workers, which process uncommitted records again; or a topic was deleted."""


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
        connect_site: ConnectSite | None = None,
        console_site: ConsoleSite | None = None,
        show_restores: ShowRestores = show_nothing,
    ) -> None:
        """Create a worker of a program; `run` starts it.

        Args:
            program: the app in the form that workers run.
            log_url: the URL of the log.
            announce: called once the topics exist, with what the worker starts with.
            clock: by default the system's.
            security: the TLS and SASL settings of connections to brokers.
            instance_id: makes the worker a static member of the group (KIP-345). A later worker
                with this id takes over its tasks without a rebalance.
            connect_site: makes the REST API of the app's connectors; None: without it.
            console_site: makes the console; None: without it.
            show_restores: shows how far restores are, in a block.
        """
        self._program = program
        self._show_restores = show_restores
        self._connect_site, self._console_site = connect_site, console_site
        self._log_url = log_url
        self._security = security
        self._announce = announce
        self._instance_id = instance_id
        self._process = instance_id or uuid4().hex
        """The name of this process among the workers of the app."""
        self._clock = clock or SystemClock()
        self.exchange = StreamsAssignor(
            program.placement, process=self._process, policy=program.policy
        )
        """The assignor of this worker, with its view of the other workers."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then finish, commit and leave the group.

        Raises:
            ConnectionLost: no broker answered after `stop`, so the last commit is missing.
            StreamlogError: the worker can't continue; the work that failed is not committed.
        """
        config = registry_config(
            self._program.schema_registry, self._program.topics, embedded=self._log_url
        )
        log = Log.open(self._log_url, security=self._security, config=config, clock=self._clock)
        async with (
            log as opened,
            SavepointWatch(opened, self._program.app_id, self._clock) as watch,
        ):
            await work_while_log_answers(
                opened, stop, obey(watch, stop, partial(self._run, opened, watch))
            )

    async def _run(
        self, log: Log, watch: SavepointWatch, stop: asyncio.Event, cut: SavepointCut | None
    ) -> None:
        """Run until `stop` is set; with a cut, until all tasks of the app have reached it."""
        patterns = PatternWatch(self._program, log, self._clock)
        if not await patterns.resolve(stop):
            return
        self.exchange.placement = patterns.program.placement
        try:
            await self._run_with(patterns, log, watch, stop, cut)
        except (UnknownTopicOrPartition, ExceptionGroup) as error:
            # A topic that matched a pattern was deleted before the worker had joined: it begins
            # again without it.
            others: ExceptionGroup[Exception] | None = None
            if isinstance(error, ExceptionGroup):
                others = error.split(UnknownTopicOrPartition)[1]
            if others is not None or not await patterns.has_changed():
                raise

    async def _run_with(
        self,
        patterns: PatternWatch,
        log: Log,
        watch: SavepointWatch,
        stop: asyncio.Event,
        cut: SavepointCut | None,
    ) -> None:
        program, clock = patterns.program, self._clock
        async with AsyncExitStack() as stack:
            # First, so that a taken address ends the worker before it changes anything.
            server = stack.enter_context(make_server(program, clock))
            web = None if server is None else server.listener.endpoint
            self.exchange.endpoint = web or self.exchange.endpoint
            start = await prepare_log(program, log, log_url=self._log_url, web=web, clock=clock)
            self._announce(start)
            producer = await stack.enter_async_context(self._producer(log))
            transactor = await self._transactor(log, stack)
            consumer = await stack.enter_async_context(self._consumer(log))
            stack.push_async_exit(partial(_leave, consumer))
            reader = await asyncio.to_thread(make_reader, program, log, start.counts, clock)
            await stack.enter_async_context(reader)
            program.bind_global_tables(reader.tables)
            background = await stack.enter_async_context(asyncio.TaskGroup())
            deps = task_deps_of(
                start,
                cut,
                clock=clock,
                consumer=consumer,
                producer=producer,
                transactor=transactor,
                reader=reader,
                background=background,
                engine=stack.enter_context(closing(EngineThread(clock))),
                traces=await stack.enter_async_context(tracing(program, self._process)),
            )
            self.exchange.host = state_host(program.state_path)
            replies = self._bind_replies(stack, deps)
            loop = _WorkerLoop(program, start.counts, deps, self.exchange, replies.answer)
            loop.connect = await self._open_connectors(stack, start, deps)
            if cut is not None:
                loop.savepoints = TaskSavepoints(cut, watch, start, deps)
            tables = self._bind_tables(start, loop.rows, producer, server)
            await stack.enter_async_context(self._measured(deps, loop.state))
            if server is not None:
                view = WorkerView(start, deps, loop, tables, self.exchange.peers, server)
                pages = open_pages(view, self._connect_site, self._console_site)
                await stack.enter_async_context(pages)
            await stack.enter_async_context(self._show_restores(loop.records_left))
            # While the tasks go to a cut, they keep the topics that they have.
            loop.patterns = patterns if cut is None else None
            await loop.work(stop)

    def _measured(
        self, deps: TaskDeps, state: Callable[[], WorkerState]
    ) -> AbstractAsyncContextManager[None]:
        """Describe the metrics of this worker, and export them in the block if the app asks."""
        metrics = deps.metrics
        metrics.describe(state)
        metrics.describe_clients(partial(_clients, self._program.app_id, deps))
        if not self._program.otel_metrics:
            return nullcontext()
        service = MeasuredService(self._program.app_id, self._process)
        wall_ms = self._clock.wall_ms
        return exporting(metrics.registry, service, setting="otel_metrics", wall_ms=wall_ms)

    async def _open_connectors(
        self, stack: AsyncExitStack, start: WorkerStart, deps: TaskDeps
    ) -> ConnectRoom | None:
        """Return the connectors of this worker; None if the app has none."""
        # On the way to a cut connectors rest: what they read would lie behind it.
        if deps.cut is not None or not self._program.connectors:
            return None
        room = ConnectRoom(
            start.program, start.counts, deps, self.exchange, instance_id=self._instance_id
        )
        deps.metrics.registry.collect(ConnectMetrics(room.figures, self._clock).collect)
        return await stack.enter_async_context(room)

    def _bind_tables(
        self,
        start: WorkerStart,
        local: LocalRows,
        producer: Producer,
        server: WorkerServer | None,
    ) -> RoutedTables:
        """Give the app access to the rows of all tables; returns the access."""
        tables = make_table_access(
            start.program.topology,
            start.counts,
            peers=self.exchange.peers,
            local=local,
            producer=producer,
            clock=self._clock,
            login=None if server is None else server.login,
        )
        self._program.bind_tables(tables)
        return tables

    async def _transactor(self, log: Log, stack: AsyncExitStack) -> Transactor | None:
        """Return the writer of transactions; None with the guarantee at-least-once."""
        program = self._program
        if not program.is_transactional:
            return None
        identity = stack.enter_context(WorkerIdentity(program.app_id, program.state_path))
        options = program.clients.producer
        transactor = Transactor(
            log, identity.transactional_id, on_step=program.on_step, options=options
        )
        return await stack.enter_async_context(transactor)

    def _producer(self, log: Log) -> Producer:
        # No linger: tasks send whole batches, and agents wait for each record that they send.
        options: ProducerOptions = {"linger_ms": 0, **self._program.clients.producer}
        producer = log.producer(**options)
        producer.partition_by(self._program.partitioners)
        return producer

    def _consumer(self, log: Log) -> Consumer:
        # The app's settings replace those above them, and never those below.
        options: ConsumerOptions = {
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
            "max_poll_interval_ms": MAX_POLL_INTERVAL_MS,
            **self._program.clients.consumer,
            "group_id": self._program.app_id,
            "auto_offset_reset": "none",  # The worker seeks itself, and handles lost positions.
            "isolation_level": "read_committed",
            "time_marks": True,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
            "assignor": self.exchange,
            "group_instance_id": self._instance_id,
        }
        return log.consumer(**options)

    def _bind_replies(self, stack: AsyncExitStack, deps: TaskDeps) -> Replies:
        """Give the app a producer and a request sender; returns the latter."""
        peers = self.exchange.peers
        replies = Replies(
            deps.log,
            deps.producer,
            deps.background,
            app_id=self._program.app_id,
            process=peers.process,
            alive=lambda: [peer.process for peer in peers.all],
        )
        stack.push_async_callback(replies.close)
        self._program.bind(deps.producer)
        self._program.bind_requests(replies)
        return replies


def _clients(app_id: str, deps: TaskDeps) -> Iterator[tuple[str, Measured]]:
    """Yield the clients that a worker always has, with their names in metrics.

    Kafka Streams ends the names of its clients with these words, too.
    """
    yield f"{app_id}-consumer", deps.consumer
    yield f"{app_id}-producer", deps.producer
    yield f"{app_id}-admin", deps.log.admin()
    writer = deps.transactor and deps.transactor.producer
    if writer:
        yield f"{app_id}-transactional-producer", writer


class _WorkerLoop:
    """The loop of a worker, and its part in rebalances."""

    savepoints: TaskSavepoints | None = None
    """Brings the tasks to a cut; None without a savepoint."""
    connect: ConnectRoom | None = None
    """The connectors of the app; None without any."""
    patterns: PatternWatch | None = None
    """Looks for other topics that match the app's patterns; None on the way to a cut."""
    _aborts = 0
    """The number of aborted commits in a row."""
    _lacks_output = False
    """Whether all tasks were dropped because a topic was missing."""
    _stop: asyncio.Event
    """Set when the worker is asked to stop."""

    def __init__(
        self,
        program: Program,
        counts: Mapping[str, int],
        deps: TaskDeps,
        exchange: StreamsAssignor,
        answer: Answer,
    ) -> None:
        self._program = program
        self._counts, self._exchange = counts, exchange
        self._reader = deps.reader
        self._log, self._consumer = deps.log, deps.consumer
        self._sources, self._own_topics = deps.sources, deps.own_topics
        self._clock = deps.clock
        self._background = deps.background
        self._metrics = deps.metrics
        self._engine = deps.engine
        self._pauses = Pauses(deps.consumer)
        self._waits = schema_waits_of(deps.schemas, program.topics, deps.consumer, self._pauses)
        self._tasks = WorkerTasks(program.topology, counts, deps, self._pauses)
        self._outputs = OutputWatch(deps.log, deps.clock, program.app_id, program.outputs)
        self._agents = WorkerAgents(
            program.agents,
            self._pauses,
            deps.producer,
            deps.clock,
            deps.metrics,
            rows=rows_for_agents(program.topology, counts, self._tasks.committed),
            answer=answer,
        )
        self._copies = TaskLags(program.topology, deps, self._tasks, exchange)
        copy_of = self._copies.standbys.get
        self.rows = LocalRows(
            program.topology, self._tasks, self._clock, metrics=self._metrics, copy_of=copy_of
        )
        """The rows of tasks that run or are followed on this worker."""
        self._schedules = ScheduleRunner(
            program.timers,
            program.crontabs,
            clock=deps.clock,
            is_leader=lambda: deps.consumer.is_leader,
            run_log=partial(RunLog, self._log, program.app_id, clock=deps.clock),
        )
        self._transactor, self._on_step = deps.transactor, deps.on_step
        self._is_over = False
        """Whether everything is committed and closed, and only the group has to be left."""
        self._is_between = False
        """Whether the last commit was impossible, because the group was between generations."""
        self._starts_over = False
        """Whether all tasks were dropped, and have to be opened again from the log."""
        self._offsets = WorkerGroupOffsets(deps.consumer, self._agents, self._tasks)
        self._watch = WorkerWatch(program.limits, self, self._engine, self._clock)
        self._is_committing = self._has_begun = self._assigned = self._is_wait_logged = False
        self._committed_ms = self._joining_ms = self._clock.now_ms()

    @property
    def topology(self) -> Topology:
        """What the tasks of this worker compute."""
        return self._program.topology

    @property
    def hot_keys(self) -> HotKeys:
        """Which keys come most often, for as long as a request asks."""
        return self._tasks.hot_keys

    async def work(self, stop: asyncio.Event) -> None:
        """Join the group, work until `stop` is set, and commit.

        The consumer leaves the group when it is closed.
        """
        self._stop = stop
        path, delay_ms = self._program.state_path, self._program.state_cleanup_delay_ms
        cleanup = remove_abandoned(path, delay_ms=delay_ms, clock=self._clock)
        begin = self._background.create_task
        watches = [
            begin(watch_directory(self._log), name="log directory"),
            begin(self._watch.run(), name="watchdog"),
            begin(self._end_late(stop), name="late end"),
            begin(cleanup, name="state cleanup"),
            begin(self._tasks.ends.run(), name="ends of inputs"),
            begin(self._tasks.marks.run(), name="marks of inputs"),
            begin(self._outputs.run(), name="outputs"),
        ]
        self._copies.look_at_disk()
        try:
            await self._outputs.look()
            # Before the worker joins: tasks look up global tables from their first record on.
            await self._reader.load(stop)
            watches.append(begin(self._reader.follow(), name="global tables"))
            await self._consumer.subscribe(
                self._program.sources,
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                # At least once, a late commit does no harm: fences void its checkpoints, and the
                # group refuses its offsets. In a transaction, refused offsets abort everything.
                on_lost=self._on_revoked if self._transactor is None else self._on_lost,
            )
            if self.patterns is not None:
                follow = self.patterns.follow(stop, lambda: self._exchange.peers.rounds)
                watches.append(begin(follow, name="topics by pattern"))
            self._agents.start(self._background)
            begin(self._schedules.run(), name="schedules")
            watches += [begin(s.serve(), name=f"task {s.name}") for s in self._program.tasks]
            while not (stop.is_set() or self._has_other_topics or await self._has_reached_cut()):
                await self._round()
            self._schedules.stop()
            # Tasks stop before the agents finish: an agent that waits for a row to be committed
            # gets its answer without that, as `is_suspended` tells it.
            self._tasks.suspend()
            await self._agents.finish()
            if self.connect is not None:
                await self.connect.finish()
            await self._commit_last()
            await self._agents.close()
        finally:
            for watch in watches:
                watch.cancel()
            self._is_over = True
            if self._waits is not None:
                self._waits.close()
            await self._copies.standbys.close()
            await self._tasks.close()

    @property
    def _has_other_topics(self) -> bool:
        """Whether other topics match the app's patterns than those that this worker reads."""
        return self.patterns is not None and self.patterns.is_over

    async def _has_reached_cut(self) -> bool:
        """Return whether all tasks of the app are at the savepoint's cut."""
        return self.savepoints is not None and await self.savepoints.look(self._tasks, self._commit)

    def state(self) -> WorkerState:
        """Return the present state of this worker."""
        ends = {part: self._consumer.high_watermark(part) for part in self._consumer.assignment()}
        return WorkerState(
            is_assigned=self._assigned,
            has_begun=self._has_begun,
            global_left_records=self._reader.left,
            tasks=self._tasks.figures(),
            stalled_ms=self._watch.stalled,
            now_ms=self._clock.wall_ms(),
            lag_records={
                (topic, partition): max(end - done.offset, 0)
                for (topic, partition), done in self._offsets.done().items()
                if (end := ends.get(TopicPartition(topic, partition))) is not None
            },
        )

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The inputs that wait until tasks or agents have room for more records."""
        return self._pauses.partitions

    def records_left(self) -> dict[str, int]:
        """Return the records left of what is being restored, by changelog and global table."""
        tables = {topic: left for topic, left in self._reader.left.items() if left}
        changelogs = self._tasks.changelogs_left()
        return {**tables, **{f"{topic}-{number}": n for (topic, number), n in changelogs.items()}}

    def sights(self) -> dict[str, Sight]:
        """Return the progress of all tasks and agents, for the watchdog."""
        if not self._assigned:
            return {}
        ends, read = self._consumer.high_watermark, self._consumer.positions()
        sinks = {} if self.connect is None else self.connect.sights()
        return {**self._agents.sights(ends, read), **self._tasks.sights(), **sinks}

    def tap(self, node: str, tap: Tap | None) -> None:
        """Let `tap` look at the records of a node of this worker; None: no longer."""
        self._tasks.tap(node, tap)

    def reason(self, who: str) -> str:
        """Return what a task or an agent waits for, for the watchdog."""
        if self._is_committing:
            return "a commit is under way: the log has not acknowledged its records yet"
        waiting = None if self._waits is None else self._waits.reason()
        sink = "" if self.connect is None else self.connect.reason(who)
        return waiting or sink or self._agents.reason(who) or self._tasks.reason(who)

    async def _end_late(self, stop: asyncio.Event) -> None:
        """Raise if a function still runs long after the request to stop."""
        await stop.wait()
        asked_ms = self._clock.now_ms()
        while True:
            await asyncio.sleep(min(LOOK_MS, STOP_WAIT_MS) / 1000)
            busy, now_ms = self._engine.busy, self._clock.now_ms()
            if busy is not None and now_ms - max(busy.since_ms, asked_ms) >= STOP_WAIT_MS:
                raise ProcessingError(
                    f"task {busy.task_id} has been at work for {(now_ms - busy.since_ms) // 1000} "
                    "s: stopped without waiting for it and without a commit, so its records are "
                    "processed again at the next start"
                )

    async def _round(self) -> None:
        """Poll, process, and commit if it is time. Back-pressure works in three steps.

        1. A task or an agent has too many records: its partitions are paused, and polls return only
           records of other partitions.
        2. The producer's buffer is full: `process` waits, so no poll is sent at all.
        3. Uncommitted changes are large while no commit is possible: polls return no records.
        """
        self._log_wait()
        self._copies.look_around()
        try:
            polled = await self._consumer.poll_columns(
                timeout_ms=POLL_HELD_MS if self._pauses or self._tasks.awaits_calls else POLL_MS,
                # Step 3 above. The poll itself still runs, as it lets the group rebalance.
                max_records=0 if self._is_between and self._tasks.is_large else POLL_RECORDS_MAX,
            )
        except DamagedBatch as damaged:
            polled = await skip_damaged_batch(
                damaged, self._program, self._tasks, self._agents, self._consumer
            )
            self._metrics.passed_batches.series(damaged.topic, str(damaged.partition)).add()
        except LOST as error:
            await self._reopen(error)
            return
        marks: Marks = self._consumer.time_marks()
        # Before agents and tasks take anything: both read what is handed on here.
        if self._waits is not None:
            polled, marks = self._waits.admit(polled, marks)
        self._agents.take(polled)
        self._tasks.take(polled, marks)
        await self._take_outputs()
        try:
            await self._advance()
        except UnknownTopicOrPartition as error:
            if not await self._outputs.explain(error):
                raise
            self._lacks_output = True
            await self._drop_all()
        if self._starts_over and self._assigned and self._consumer.is_member:
            await self._try_to_start_over()

    async def _advance(self) -> None:
        """Process what was polled, and commit if it is time."""
        await self._tasks.process()
        self._tasks.admit()
        due_ms = self._committed_ms + self._program.commit_interval_ms
        is_large = self._tasks.is_large
        if self.connect is not None:
            await self.connect.look(self._commit)
            is_large = is_large or self.connect.is_full
        if self._assigned and (is_large or self._clock.now_ms() >= due_ms):
            await self._commit()

    async def _take_outputs(self) -> None:
        """Write to outputs that were created again by the partition counts that they have now."""
        counts = self._outputs.take_others()
        self._agents.recount(counts)
        if self._tasks.recount(counts):
            await self._drop_all()

    async def _try_to_start_over(self) -> None:
        if self._lacks_output:
            # Without this, tasks would compute their rows only to lose them at the next commit.
            if await self._outputs.has_waited(self._stop):
                self._aborts = 0
            self._lacks_output = False
        try:
            await self._start_over()
        except UnknownTopicOrPartition as error:
            # A poll meets the deleted input, too, and reports it; `_reopen` decides.
            logger.info("tasks can't restart yet: %s", error)

    def _log_wait(self) -> None:
        """Log once in each long rebalance what the worker waits for."""
        waited_ms = self._clock.now_ms() - self._joining_ms
        if not self._assigned and not self._is_wait_logged and waited_ms > JOIN_NOTICE_MS:
            self._is_wait_logged = True
            logger.info(
                "waiting for the group's other workers; the group removes a killed one after %d s",
                SESSION_TIMEOUT_MS // 1000,
            )

    async def _commit_last(self) -> None:
        """Make the last commit; waits up to `LAST_COMMIT_MS` for a rebalance to end."""
        deadline_ms = self._clock.now_ms() + LAST_COMMIT_MS
        while not await self._commit() and self._clock.now_ms() < deadline_ms:
            try:
                await self._consumer.poll_columns(timeout_ms=POLL_MS, max_records=0)
            except LOST as error:
                # What follows from it is decided by the workers that continue, or by the next
                # start: they do the work since the last commit again.
                logger.info("no last commit, as an input is gone: %s", error)
                return

    async def _commit(self) -> bool:
        """Commit; returns False if that is impossible, as the group is between two generations."""
        self._is_committing = True
        try:
            return await self._commit_all()
        finally:
            self._is_committing = False

    async def _commit_all(self) -> bool:
        if self._starts_over or self._is_over:
            return True
        started_ms = self._clock.now_ms()
        # 1. The offsets are taken: an agent has handled everything before offset 7.
        # 2. During the flush, agents continue: this one handles record 7, and yields an output.
        # 3. The flush does not cover that output, so offset 8 belongs to the next commit. Taken
        #    after the flush, the offsets would skip record 7 if the output were lost.
        offsets = self._offsets.done()
        # Rows that agents have set are committed together with the agents' offsets. If the task of
        # a row is not open, both wait for a later commit.
        written: AgentWrites = self._agents.rows.uncommitted()
        await self._agents.flush()
        held = {*self._tasks.held_by(written), *await self._consumer.outdated(offsets)}
        offsets = {p: at for p, at in offsets.items() if p not in held}
        moved = {p: at for p, at in offsets.items() if self._offsets.committed.get(p) != at}
        written = self._tasks.of_open_tasks(written)
        self._is_between = False
        if self._transactor is not None:
            # The coordinator refuses offsets while the group is between two generations. `staying`
            # keeps this member in its generation until the transaction ends.
            with self._consumer.staying() as is_staying:
                self._is_between = not is_staying
                if is_staying:
                    await self._commit_whole(self._transactor, moved, offsets, written)
        else:
            fenced = await self._commit_each(written)
            moved = {p: moved[p] for p in moved.keys() - fenced} if written else moved
            if moved:
                await self._commit_offsets(moved)
            self._agents.rows.committed_until(self._tasks.of_open_tasks(written))
        await self._tasks.save_snapshots()
        self._committed_ms = self._clock.now_ms()
        self._metrics.commits.record((self._committed_ms - started_ms) / 1000)
        return not self._is_between

    async def _commit_each(self, written: AgentWrites) -> list[TopicPartition]:
        """Commit at least once: the offsets of sources follow their records."""
        if self.connect is None:
            return await self._tasks.commit(written)
        # Offsets behind the flush: a crash in between reads the records again, and loses none.
        records, offsets = self.connect.take()
        await self._tasks.write(records)
        fenced = await self._tasks.commit(written)
        await self.connect.write_offsets(offsets)
        self.connect.counted()
        return fenced

    async def _commit_whole(
        self,
        transactor: Transactor,
        moved: dict[TopicPartition, OffsetAndMetadata],
        all_offsets: dict[TopicPartition, OffsetAndMetadata],
        written: AgentWrites,
    ) -> None:
        try:
            # Within `staying`: the generation of what is taken is that of the transaction.
            if self.connect is not None:
                records, offsets = self.connect.take()
                await self._tasks.write([*records, *offsets])
                all_offsets = all_offsets or self.connect.fence
            await self._tasks.commit_whole(transactor, moved, all_offsets, written)
        except CommitAborted as aborted:
            self._aborts += 1
            if self._aborts >= UNDONE_MAX:
                raise aborted.__cause__ or aborted from None
            logger.warning("a commit was aborted; tasks restart from the last one: %s", aborted)
            self._lacks_output = lacks_topic(aborted)
            await self._drop_all()
        else:
            self._aborts = 0
            self._offsets.committed.update(moved)
            self._agents.rows.committed_until(written)
            if self.connect is not None:
                self.connect.counted()

    async def _reopen(self, error: Lost) -> None:
        """Continue with sources that were created again or truncated, as `source_lost` says.

        The work on the old logs is committed together with the positions in the new ones.

        Raises:
            SourceLost: `source_lost` is "fail"; nothing more is committed.
        """
        # A topic of a pattern was deleted: the worker begins again without it.
        is_gone = isinstance(error, UnknownTopicOrPartition)
        if is_gone and self.patterns is not None and await self.patterns.has_changed():
            return
        affected = await self._sources.affected(error, self._stop)
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
        """Open all tasks again from the log's committed offsets and changelogs."""
        starts = await self._look_up(frozenset(self._consumer.assignment()))
        self._starts_over = False
        # The positions go back; agents skip the records that they have received already.
        self._go_to(starts)
        self._agents.resume()
        await self._tasks.assign(starts)
        if self.connect is not None:
            self.connect.begin_again()

    def _go_to(self, starts: Mapping[TopicPartition, StartOffset]) -> None:
        self._offsets.begin(starts)
        if self._waits is not None:
            # What was to be read again after the wait lies elsewhere now.
            self._waits.forget(starts)
        for partition, start in starts.items():
            self._consumer.seek(partition, start.start)

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
            logger.debug("committed %s", quantity(len(moved), "offset"))

    async def _on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Finish, commit, and close the tasks of the revoked partitions; others continue.

        1. Tasks stop, and agents finish their records.
        2. Everything is committed, so the next owner continues after the last record.
        3. If that is impossible, all tasks go back to the last commit. Sink records of the revoked
           tasks wait in one transaction with those of all others; a later commit of this worker
           must not contain them, as the next owner writes them too.
        4. The revoked tasks are closed, and the others continue.
        """
        logger.debug("rebalance: giving up %s", quantity(len(partitions), "partition"))
        self._tasks.suspend()
        await self._agents.revoke()
        if not await self._commit():
            await self._drop_all()
        await self._give_up(partitions)
        self._tasks.resume()

    async def _on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Close everything without a commit: other workers own the partitions already."""
        logger.info(
            "the group has given %s to other workers", quantity(len(partitions), "partition")
        )
        self._tasks.suspend()
        await self._agents.revoke()
        await self._drop_all()
        await self._give_up(partitions)
        self._tasks.resume()

    async def _drop_all(self) -> None:
        self._starts_over = True
        await self._agents.wait_for_tasks()
        if self.connect is not None:
            await self.connect.start_over()
        await self._tasks.drop()

    async def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        closed = self._tasks.of(partitions)
        self._agents.give_up(partitions)
        await self._tasks.give_up(partitions)
        if self._waits is not None:
            self._waits.forget(partitions)
        self._pauses.forget(partitions)
        self._offsets.forget(partitions)
        if partitions >= self._consumer.assignment():
            self._assigned = self._is_wait_logged = self._starts_over = False
            self._joining_ms = self._clock.now_ms()
        self._copies.look_at_disk(closed)

    async def _on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Start the tasks of added partitions; others continue."""
        refuse_growth(partitions, self._counts, self._tasks.of)
        self._assigned = self._has_begun = True
        kept = self._consumer.assignment() - partitions
        done, positions = self._offsets.done(), self._consumer.positions()
        # `_on_revoked` emptied the agents' queues, also those of kept partitions: their records
        # after the last handled one are read again.
        for partition in kept & self._agents.positions.keys() & positions.keys():
            if done[partition].offset < positions[partition]:
                self._consumer.seek(partition, done[partition])
        starts = await self._look_up(partitions)
        self._go_to(starts)
        self._agents.assign(
            {part: start.committed for part, start in starts.items()},
            {part: start.ahead for part, start in starts.items()},
            kept,
        )
        # Standbys first. 1. This worker follows 0_1 as a standby, and its store is open. 2. It is
        # assigned 0_1. 3. `follow` closes the standby. 4. The task opens the store in place:
        # RocksDB allows one owner, and the restore reads only what the standby lacks.
        await self._copies.follow()
        await self._tasks.assign(starts)
        self._copies.look_at_disk()
        # Last, as it may commit for slots that end here.
        if self.connect is not None:
            await self.connect.on_round(self._commit)
        mine = frozenset(self._consumer.assignment())
        logger.info("rebalance: %s", describe_start(mine, self._tasks.of(mine)))

    async def _look_up(
        self, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, StartOffset]:
        agents_read = {topic.name for agent in self._program.agents for topic in agent.topics}
        return await look_up(
            self._consumer,
            await self._sources.present(partitions),
            agents_read=agents_read,
            judge=self._sources.judge,
            losses=self._sources.losses,
            own_topics=self._own_topics,
        )


async def _leave(consumer: Consumer, exc_type: type[BaseException] | None, *_: object) -> None:
    """Leave the group after an orderly end, also as a static member; after an error, don't.

    After an error a static member keeps its tasks for the session's time-out, so that a restarted
    process gets them back without a rebalance.
    """
    if exc_type is None:
        await consumer.close(leave_group=True)
