"""DriverAgents: the agents and `app.task` functions of a driver's app, on an event loop of its own.

Agents run by the `AgentRun` of a worker, fed from lists. Functions of `app.task` get some rounds of
the loop whenever the driver settles. User code runs in real time, but `take` waits by the driver's
clock. Records that were not handled before a restart come again after it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import count, groupby
from typing import Protocol

from streamlog.agents.asks import Ask
from streamlog.agents.call import await_call
from streamlog.agents.offsets import AgentPosition
from streamlog.agents.rows import AgentRows
from streamlog.agents.run import AgentRun
from streamlog.dsl.agent import Agent
from streamlog.dsl.schedules import Service
from streamlog.errors import ProcessingError, RequestTimedOut, StreamlogError, UsageError
from streamlog.processing.outbox import CallResult, Drop, SinkBatch, TaskCall
from streamlog.processing.tables.writable_table import RowWrite
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.testing.driver_topics import MemoryTopic

AGENT_WAIT_S = 10
"""The seconds of real time that an agent may take for the current records."""
SERVICE_TURNS = 20
"""The rounds of the loop that `app.task` functions get whenever the driver settles."""


class DriverClock(Protocol):
    """Port: the driver's time."""

    @property
    def now_ms(self) -> int:
        """The time in milliseconds since 1970."""


class DriverStage(DriverClock, Protocol):
    """Port: the driver, as far as agents need it."""

    def count_drop(self, drop: Drop) -> None:
        """Count records that an agent has dropped."""


WriteRows = Callable[[str, int, Sequence[RowWrite]], None]
"""Takes rows of a partition of a table that agents have set."""


def _nowhere(table: str, partition: int, rows: Sequence[RowWrite]) -> None:
    """Do nothing, for an app whose agents use no tables."""


class DriverAlarms:
    """`AgentAlarm` of a driver, whose time moves only when the test moves it."""

    def __init__(self, clock: DriverClock) -> None:
        self._clock = clock
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._cancelled: set[int] = set()
        self._numbers = count()

    @property
    def now_ms(self) -> int:
        """The driver's time."""
        return self._clock.now_ms

    @property
    def wall_ms(self) -> int:
        """The driver's time, which begins in 2025."""
        return self._clock.now_ms

    @property
    def due_ms(self) -> int | None:
        """When the next call is due; None if there is none."""
        while self._calls and self._calls[0][1] in self._cancelled:
            self._cancelled.discard(heapq.heappop(self._calls)[1])
        return self._calls[0][0] if self._calls else None

    def at(self, due_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        """See `AgentAlarm`."""
        # The number breaks ties: the heap can't compare functions.
        number = next(self._numbers)
        heapq.heappush(self._calls, (due_ms, number, call))

        def cancel() -> None:
            # A call that was made already must not stay in `_cancelled` for ever.
            if any(number == waiting for _, waiting, _ in self._calls):
                self._cancelled.add(number)

        return cancel

    def ring(self) -> None:
        """Make all calls that are due."""
        while (due_ms := self.due_ms) is not None and due_ms <= self.now_ms:
            heapq.heappop(self._calls)[2]()


class DriverAgents:
    """Runs the agents of a driver, on an event loop of its own."""

    def __init__(
        self,
        agents: Sequence[Agent[UserKey, UserValue]],
        services: Sequence[Service],
        topics: Mapping[str, MemoryTopic],
        stage: DriverStage,
        *,
        rows: AgentRows | None = None,
        write_rows: WriteRows = _nowhere,
    ) -> None:
        """`rows` are the agents' table rows; `write_rows` gets the rows of handled records."""
        self._agents = agents
        self._rows = rows
        self._write_rows = write_rows
        self._services = services
        self._serving: list[asyncio.Task[None]] = []
        self._topics = topics
        self._alarms = DriverAlarms(stage)
        self._stage = stage
        self._fed: dict[tuple[str, str], int] = {}
        """How many records of its topic each agent has got."""
        self._positions: dict[str, dict[TopicPartition, AgentPosition]] = {}
        self._runs: list[AgentRun] = []
        self._runner: asyncio.Runner | None = None
        self._failures: list[StreamlogError] = []
        self._work: asyncio.Task[None] | None = None
        self._asked: dict[bytes, asyncio.Future[bytes | None]] = {}
        self._numbers = count()
        self._was_stirred = False
        """Whether a coroutine of the user's may have sent records to agents."""

    def continue_from(self, before: DriverAgents) -> None:
        """Skip the records that the agents of an older program have handled."""
        self._positions |= before._positions

    @property
    def due_ms(self) -> int | None:
        """The time of the next agent call, in ms; None if no agent waits for time to pass."""
        return self._alarms.due_ms

    def start(self, *, workers: int = 1) -> None:
        """Start the agents, after the records that were handled before.

        Each of the workers runs the functions of `app.task`.
        """
        self._runs = [self._run_of(agent) for agent in self._agents]
        self._fed.clear()
        for run in self._runs:
            fresh = {
                TopicPartition(topic.name, number): AgentPosition(0)
                for topic in run.agent.topics
                for number in range(len(self._topics[topic.name].partitions))
            }
            run.assign({**fresh, **self._positions.get(run.agent.name, {})})
        if self._runs:
            # `close` awaits this task and the tasks of the services.
            self._work = self._loop().get_loop().create_task(self._keep())
        if self._services:
            loop = self._loop().get_loop()
            services = [each for _ in range(workers) for each in self._services]
            self._serving = [loop.create_task(self._serve(each)) for each in services]

    def _run_of(self, agent: Agent[UserKey, UserValue]) -> AgentRun:
        return AgentRun(
            agent,
            self._write,
            self._alarms,
            pause=_at_once,
            drop=self._stage.count_drop,
            answer=self._answer,
            rows=self._rows,
        )

    def run(self, work: Coroutine[object, None, object]) -> None:
        """Run a coroutine of the user's to its end."""
        self._was_stirred = True
        self._loop().run(work)

    async def ask(
        self, topic: str, value: bytes | None, *, key: bytes | None, timeout_ms: int
    ) -> bytes | None:
        """Append a record that asks for an answer, and wait for the answer.

        Raises:
            RequestTimedOut: no answer came within `timeout_ms` of real time.
        """
        number = b"%d" % next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._topics[topic].append(
            value, key=key, timestamp_ms=self._alarms.now_ms, headers=Ask("", number).headers
        )
        self._feed()
        try:
            async with asyncio.timeout(min(timeout_ms / 1000, AGENT_WAIT_S)):
                found: bytes | None = await answer
        except TimeoutError:
            raise RequestTimedOut(f"no answer within {timeout_ms} ms of real time") from None
        finally:
            del self._asked[number]
        return found

    def results(self, calls: Sequence[TaskCall]) -> list[CallResult]:
        """Await the calls of a task, concurrently.

        Raises:
            UsageError: a call takes longer than `AGENT_WAIT_S`.
        """
        return self._loop().run(_awaited(calls)) if calls else []

    def handle(self) -> bool:
        """Run the agents on new records; return whether anything happened."""
        moved, self._was_stirred = self._feed() or self._was_stirred, False
        due_ms = self._alarms.due_ms
        if due_ms is not None and due_ms <= self._alarms.now_ms:
            self._alarms.ring()
            moved = True
        if moved:
            self._loop().run(self._until_idle())
            self.write_rows()
        return self._let_serve() or moved

    def write_rows(self) -> None:
        """Pass the rows that agents have set to the tasks."""
        for run in self._runs:
            # Reading `positions` settles each call, so records are handled whose call has not asked
            # for another one yet.
            _ = run.positions
        written = {} if self._rows is None else self._rows.uncommitted()
        for (table, partition), rows in written.items():
            self._write_rows(table, partition, rows)
        if self._rows is not None:
            self._rows.committed_until(written)

    def close(self) -> None:
        """End the streams of the agents, and wait for the functions to return."""
        if self._runner is None:
            return
        # Before the streams end: a record that is current now counts as not handled, so it is
        # repeated after the next start.
        self._positions = {run.agent.name: run.positions for run in self._runs}
        for run in self._runs:
            run.end()
        runner, self._runner = self._runner, None
        work, self._work = self._work, None
        serving, self._serving = self._serving, []
        for each in serving:
            each.cancel()
        try:
            if serving:
                runner.run(asyncio.wait(serving))
            if work is not None:
                runner.run(_ended(work))
        finally:
            runner.close()
            if self._rows is not None:
                self._rows.clear()

    def _let_serve(self) -> bool:
        """Run the services for some rounds; return whether they have sent records."""
        if all(each.done() for each in self._serving):
            return False
        # New records, not finished turns: a service that only sleeps must not keep a test running.
        before = self._arrived
        self._loop().run(_turns())
        if self._failures:
            raise self._failures[0]
        return self._arrived > before

    @property
    def _arrived(self) -> int:
        return sum(len(topic.arrivals) for topic in self._topics.values())

    async def _serve(self, service: Service) -> None:
        try:
            await service.run()
        except Exception as error:  # noqa: BLE001 - user code: `handle` raises it
            text = f"task {service.name!r} failed: {type(error).__name__}: {error}"
            self._failures.append(ProcessingError(text, node=service.name))

    def _loop(self) -> asyncio.Runner:
        """Return the event loop, which is made on first use, because most tests need none."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner

    def _feed(self) -> bool:
        moved = False
        for run in self._runs:
            for topic in run.agent.topics:
                moved |= self._feed_one(run, topic.name)
        return moved

    def _feed_one(self, run: AgentRun, name: str) -> bool:
        arrivals = self._topics[name].arrivals
        fed = self._fed.get((run.agent.name, name), 0)
        self._fed[run.agent.name, name] = len(arrivals)
        for partition, many in groupby(arrivals[fed:], key=lambda arrival: arrival[0]):
            run.take(TopicPartition(name, partition), [record for _, record in many])
        return len(arrivals) > fed

    async def _write(self, batches: Sequence[SinkBatch]) -> None:
        for batch in batches:
            for record in batch.records():
                self._topics[record.topic].append(
                    record.value,
                    key=record.key,
                    timestamp_ms=record.timestamp_ms,
                    headers=record.headers,
                )

    def _answer(self, ask: Ask, data: bytes | None) -> None:
        answer = self._asked.get(ask.number)
        if answer is not None and not answer.done():
            answer.set_result(data)

    async def _keep(self) -> None:
        async with asyncio.TaskGroup() as group:
            for run in self._runs:
                group.create_task(self._run_agent(run), name=f"agent {run.agent.name}")

    async def _run_agent(self, run: AgentRun) -> None:
        try:
            await run.run()
        except StreamlogError as error:
            self._failures.append(error)
            # No agent will answer these any more.
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(error)

    async def _until_idle(self) -> None:
        try:
            async with asyncio.timeout(AGENT_WAIT_S):
                for run in self._runs:
                    await run.until_idle()
                    await run.results.drain()
        except TimeoutError:
            busy = [run.agent.name for run in self._runs if not run.is_idle]
            raise UsageError(
                f"agents {busy} have not asked for their next record within {AGENT_WAIT_S} s of "
                "real time: do they wait for something that can't happen in a test?"
            ) from None
        if self._failures:
            raise self._failures[0]


async def _awaited(calls: Sequence[TaskCall]) -> list[CallResult]:
    try:
        async with asyncio.timeout(AGENT_WAIT_S):
            # No delays in a test.
            return await asyncio.gather(*(await_call(replace(each, delay_ms=0)) for each in calls))
    except TimeoutError:
        names = sorted({call.node for call in calls})
        raise UsageError(
            f"calls of {names} have not returned within {AGENT_WAIT_S} s of real time: do they "
            "wait for something that can't happen in a test?"
        ) from None


async def _turns() -> None:
    for _ in range(SERVICE_TURNS):
        await asyncio.sleep(0)


async def _ended(work: asyncio.Task[None]) -> None:
    """Wait until the agents have returned, and cancel them after `AGENT_WAIT_S`."""
    await asyncio.wait([work], timeout=AGENT_WAIT_S)
    work.cancel()
    await asyncio.wait([work])


async def _at_once(_: float) -> None:
    """Pause for no time before another attempt, because time in a test moves by `advance` only."""
    await asyncio.sleep(0)
