"""TestDriver: an app without a log, a disk or a clock, in the time it takes to run its code.

It runs the same `Task`s as a worker, one per partition, on stores in memory; topics are
lists, and repartition topics and changelogs are topics like the others. `send` returns when
everything that follows from the record has happened. Time stands still until `advance`,
which fires timers and crontabs on the way. `restart` commits, throws the stores away and
restores them from the changelog, by the code that a worker restores with. Rule of the file:
no threads and no sleeps; the user's async code runs on a loop of the driver's own, in real
time. Not done here: crashes (a restart is orderly), several workers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar
from zoneinfo import ZoneInfo

from streamlog.dsl.agent import Agent
from streamlog.dsl.schedule import Crontab, Timer
from streamlog.dsl.stream import Table
from streamlog.dsl.topic import Outlet, Topic
from streamlog.durations import Dur, When, duration_ms, moment, when_ms
from streamlog.errors import ProcessingError, StreamlogError, UsageError
from streamlog.processing.columns import failed
from streamlog.processing.joins import viewed
from streamlog.processing.task import Task, TaskId
from streamlog.record import Headers, Record
from streamlog.records.batch import Record as RawRecord
from streamlog.tables.changelog import Restoration
from streamlog.tables.memory import MemoryStore
from streamlog.tables.store import Change
from streamlog.topology import Subtopology, Topology

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""

START = "2025-01-01T00:00:00Z"
"""When a test begins, unless it says otherwise."""
AGENT_WAIT_S = 10
"""Real time an agent may take for the records it has been given."""
ROUNDS_MAX = 10_000
"""A topology that writes to its own input has no end."""


class MemoryTopic:
    """A topic as lists."""

    def __init__(self, partitions: int, partition_of: Callable[[bytes, int], int]) -> None:
        self._partition_of_key = partition_of
        self.partitions: list[list[RawRecord]] = [[] for _ in range(partitions)]
        self.arrivals: list[tuple[int, RawRecord]] = []
        self._turn = 0

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None,
        timestamp_ms: int,
        headers: Headers = (),
        partition: int | None = None,
    ) -> tuple[int, int]:
        """Add a record; partition and offset where it lies."""
        if partition is None:
            partition = self._partition_of(key)
        if not 0 <= partition < len(self.partitions):
            raise UsageError(
                f"there is no partition {partition}: the topic has {len(self.partitions)}"
            )
        records = self.partitions[partition]
        record = RawRecord(len(records), timestamp_ms, key, value, headers)
        records.append(record)
        self.arrivals.append((partition, record))
        return partition, record.offset

    def _partition_of(self, key: bytes | None) -> int:
        if key is not None:
            return self._partition_of_key(key, len(self.partitions))
        self._turn += 1
        return (self._turn - 1) % len(self.partitions)


class TestTopicIn(Generic[K, V]):
    """Where a test puts records in."""

    __test__ = False

    def __init__(self, driver: TestDriver, topic: Topic[K, V]) -> None:
        self._driver = driver
        self._topic = topic

    def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        at: When | None = None,
        partition: int | None = None,
    ) -> None:
        """Write one record and let everything happen that follows from it.

        Args:
            value: None deletes the key from tables.
            key: decides the partition; without one they take turns.
            at: the record's timestamp; the driver's time, if it is not given.
            partition: instead of the key's.

        Raises:
            SerdeError: key or value are not of the topic's types.
            ProcessingError: something failed on it.
        """
        raw_key, raw_value = self._topic.encoded(key, value)
        driver = self._driver
        driver.check_runs()
        driver.topic(self._topic.name).append(
            raw_value,
            key=raw_key,
            timestamp_ms=driver.now_ms if at is None else when_ms(at),
            partition=partition,
        )
        driver.settle()


class TestTopicOut(Generic[K, V]):
    """Where a test looks at what came out, decoded as the topic declares it."""

    __test__ = False

    def __init__(self, driver: TestDriver, topic: Topic[K, V]) -> None:
        self._driver = driver
        self._topic = topic

    @property
    def records(self) -> list[Record[K, V]]:
        """The records that have not been popped, in the order in which they were written."""
        topic, seen = self._topic, self._driver.popped(self._topic.name)
        arrivals = self._driver.topic(topic.name).arrivals
        return [topic.decoded(record, partition) for partition, record in arrivals[seen:]]

    @property
    def values(self) -> list[V]:
        """The values of `records`."""
        return [record.value for record in self.records]

    def pop(self) -> Record[K, V]:
        """The first of `records`, which is then gone from them.

        Raises:
            UsageError: there is none.
        """
        records = self.records
        if not records:
            raise UsageError(f"nothing (more) has come out of {self._topic.name!r}")
        self._driver.pop(self._topic.name)
        return records[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a driver runs: an app, ready-made."""

    topology: Topology
    partitions: Mapping[str, int]
    """Of the declared topics."""
    partition_of: Callable[[bytes, int], int]
    """The partition of a key, as producers choose it."""
    outlet: Outlet
    agents: Sequence[Agent[Any, Any]] = ()
    timers: Sequence[Timer] = ()
    crontabs: Sequence[Crontab] = ()
    start_ms: int = field(default_factory=lambda: when_ms(START))


class TestDriver:
    """An app at work on lists; a context manager."""

    __test__ = False

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.now_ms = rehearsal.start_ms
        """The time of the driver, in milliseconds since the epoch."""
        self.drops: dict[tuple[str, str], int] = {}
        """Records left out so far, by operator and reason: "late", "null key", ..."""
        self._rehearsal = rehearsal
        self._topology = rehearsal.topology
        self._counts = rehearsal.topology.partition_counts(rehearsal.partitions)
        changelogs = self._topology.changelog_partitions(self._counts)
        self._topics = {
            name: MemoryTopic(number, rehearsal.partition_of)
            for name, number in {**self._counts, **changelogs}.items()
        }
        self._popped: dict[str, int] = {}
        self._committed: dict[tuple[TaskId, str, int], int] = {}
        self._fed: dict[tuple[TaskId, str, int], int] = {}
        self._tasks: dict[TaskId, Task] = {}
        self._agents = _Agents(rehearsal.agents, self._topics)
        self._schedules = _schedules(rehearsal)
        self._failure: StreamlogError | None = None
        self._runs = False

    def __enter__(self) -> Self:
        self._rehearsal.outlet.sender = _Sender(self)
        self._start_tasks()
        self._agents.start()
        self._runs = True
        self.settle()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runs = False
        self._rehearsal.outlet.sender = None
        self._agents.close()
        for task in self._tasks.values():
            task.close()

    def input(self, t: Topic[K, V]) -> TestTopicIn[K, V]:
        """Where records of this topic are put in."""
        self.topic(t.name)
        return TestTopicIn(self, t)

    def output(self, t: Topic[K, V]) -> TestTopicOut[K, V]:
        """Where records of this topic are looked at."""
        self.topic(t.name)
        return TestTopicOut(self, t)

    def table(self, t: Table[K, V]) -> Mapping[K, V]:
        """The rows of a table as they are now, of all partitions."""
        rows: dict[K, V] = {}
        for task in self._tasks.values():
            if t.side.owner not in task.subtopology.by_name:
                continue
            for key, value in task.table(t.side.owner):
                seen = value
                for view in t.side.views:
                    seen = None if seen is None else viewed(view, key, seen)
                if seen is not None:
                    rows[key] = seen
        return rows

    def advance(self, by: Dur) -> None:
        """Let time pass: timers and crontabs fire when they are due, quiet sources become idle.

        Raises:
            ProcessingError: something failed.
        """
        self.check_runs()
        until_ms = self.now_ms + duration_ms(by)
        while True:
            due = min(self._schedules, key=lambda each: each.due_ms, default=None)
            if due is None or due.due_ms > until_ms:
                break
            self.now_ms = due.due_ms
            self._agents.run(due.fire())
            self.settle()
        self.now_ms = until_ms
        self.settle()

    def restart(self) -> None:
        """Commit, stop, and start again with the state that the changelog holds."""
        self.check_runs()
        for task in self._tasks.values():
            self._commit(task)
            task.close()
        self._agents.close()
        self._start_tasks()
        self._agents.start()
        self.settle()

    def settle(self) -> None:
        """Let tasks and agents run until nothing is left to do."""
        try:
            for round_number in range(ROUNDS_MAX):
                moved = self._run_tasks(always=round_number == 0)
                if not self._agents.handle() and not moved:
                    return
        except StreamlogError as error:
            self._failure = error
            raise
        raise UsageError(
            f"the app has not come to rest after {ROUNDS_MAX} rounds: does it write to a topic "
            "that it reads?"
        )

    def check_runs(self) -> None:
        """Refuse to go on after the end, or after a failure."""
        if self._failure is not None:
            raise UsageError(f"the app has failed and can't go on: {self._failure}")
        if not self._runs:
            raise UsageError("the driver runs inside `with app.test() as t:` only")

    def topic(self, name: str) -> MemoryTopic:
        """A topic of the app.

        Raises:
            UsageError: there is none of this name.
        """
        found = self._topics.get(name)
        if found is None:
            raise UsageError(f"the app has no topic {name!r}; it has {sorted(self._topics)}")
        return found

    def popped(self, name: str) -> int:
        """How many records have been popped from a topic."""
        return self._popped.get(name, 0)

    def pop(self, name: str) -> None:
        """One more."""
        self._popped[name] = self.popped(name) + 1

    def _start_tasks(self) -> None:
        self._fed.clear()
        for sub in self._topology.subtopologies:
            for partition in range(sub.tasks(self._counts)):
                task_id = TaskId(sub.number, partition)
                self._tasks[task_id] = self._task(sub, task_id)

    def _task(self, sub: Subtopology, task_id: TaskId) -> Task:
        store = None
        if sub.changelog_topic is not None:
            store = MemoryStore()
            changes = self._changelog(sub.changelog_topic, task_id)
            restoration = Restoration(store, start_offset=0, end_offset=len(changes))
            restoration.apply(changes, next_offset=len(changes))
        task = Task(sub, task_id, partitions=self._counts, store=store)
        positions = task.positions
        for topic, partition in task.inputs:
            committed = self._committed.get((task_id, topic, partition), 0)
            position = positions.get((topic, partition), committed)
            task.start_at({(topic, partition): position})
            self._fed[task_id, topic, partition] = position
        return task

    def _changelog(self, topic: str, task_id: TaskId) -> list[Change]:
        records = self._topics[topic].partitions[task_id.partition]
        return [(record.key or b"", record.value) for record in records]

    def _commit(self, task: Task) -> None:
        changes = task.checkpoint()
        topic = task.subtopology.changelog_topic
        if topic is None:
            return
        log = self._topics[topic]
        for key, value in changes:
            log.append(value, key=key, timestamp_ms=self.now_ms, partition=task.id.partition)
        task.committed(changes, next_offset=len(log.partitions[task.id.partition]))

    def _run_tasks(self, *, always: bool) -> bool:
        """Give every task what is new; whether there was anything."""
        moved = False
        for task in self._tasks.values():
            records, ends = {}, {}
            for topic, partition in task.inputs:
                log = self._topics[topic].partitions[partition]
                fed = self._fed[task.id, topic, partition]
                ends[topic, partition] = len(log)
                if fed < len(log):
                    records[topic, partition] = log[fed:]
                    self._fed[task.id, topic, partition] = len(log)
            if records or always:
                self._process(task, records, ends)
                moved = moved or bool(records)
        return moved

    def _process(
        self,
        task: Task,
        records: Mapping[tuple[str, int], Sequence[RawRecord]],
        ends: Mapping[tuple[str, int], int],
    ) -> None:
        outbox = task.process(records, self.now_ms, ends=ends)
        for sink in outbox.sinks:
            self._topics[sink.topic].append(
                sink.value,
                key=sink.key,
                timestamp_ms=sink.timestamp_ms,
                headers=sink.headers,
                partition=sink.partition,
            )
        for (topic, partition), offset in outbox.offsets.items():
            self._committed[task.id, topic, partition] = offset
        for drop in outbox.drops:
            dropped = self.drops.get((drop.node, drop.reason), 0)
            self.drops[drop.node, drop.reason] = dropped + drop.count


class _Sender:
    """`Topic.send` during a test."""

    def __init__(self, driver: TestDriver) -> None:
        self._driver = driver

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        timestamp_ms: int | None,
        headers: Headers,
        partition: int | None,
    ) -> tuple[str, int, int, int]:
        """Add the record; tasks and agents see it when the caller waits or returns."""
        at_ms = self._driver.now_ms if timestamp_ms is None else timestamp_ms
        place = self._driver.topic(topic).append(
            value, key=key, timestamp_ms=at_ms, headers=headers, partition=partition
        )
        return topic, *place, at_ms


class _Feed:
    """The records of one agent, as an async iterator."""

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self.agent = agent
        self.idle = asyncio.Event()
        self.current: Record[Any, Any] | None = None
        self._records: deque[Record[Any, Any]] = deque()
        self._arrived = asyncio.Event()
        self.is_closed = False

    def put(self, records: Sequence[Record[Any, Any]]) -> None:
        """More records."""
        self.idle.clear()
        self._records.extend(records)
        self._arrived.set()

    def close(self) -> None:
        """No more records: the loop over them ends."""
        self.is_closed = True
        self._arrived.set()

    def __aiter__(self) -> AsyncIterator[Record[Any, Any]]:
        return self

    async def __anext__(self) -> Record[Any, Any]:
        self.current = None
        while not self._records:
            if self.is_closed:
                raise StopAsyncIteration
            self._arrived.clear()
            self.idle.set()
            await self._arrived.wait()
        self.current = self._records.popleft()
        return self.current


class _Agents:
    """The agents of a driver, on a loop of their own."""

    def __init__(self, agents: Sequence[Agent[Any, Any]], topics: dict[str, MemoryTopic]) -> None:
        self._agents = agents
        self._topics = topics
        self._fed: dict[str, int] = {}
        self._feeds: list[_Feed] = []
        self._runner: asyncio.Runner | None = None
        self._failures: list[StreamlogError] = []
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen; records that were handled before do not come again."""
        self._feeds = [_Feed(agent) for agent in self._agents]
        if self._feeds:
            # Owned by this object: `close` awaits it.
            self._work = self._loop().get_loop().create_task(self._keep())

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run the user's coroutine to its end."""
        self._loop().run(work)

    def _loop(self) -> asyncio.Runner:
        """A loop, from when one is needed: most tests run without."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner

    def handle(self) -> bool:
        """Let the agents handle what is new; whether there was anything."""
        moved = False
        for feed in self._feeds:
            name = feed.agent.topic.name
            arrivals = self._topics[name].arrivals
            fed = self._fed.get(feed.agent.name, 0)
            if fed < len(arrivals):
                self._fed[feed.agent.name] = len(arrivals)
                feed.put([feed.agent.topic.decoded(record, at) for at, record in arrivals[fed:]])
                moved = True
        if moved:
            self.run(self._until_idle())
        return moved

    def close(self) -> None:
        """End the streams of the agents, and wait for the functions to return."""
        if self._runner is None:
            return
        for feed in self._feeds:
            feed.close()
        runner, self._runner = self._runner, None
        work, self._work = self._work, None
        try:
            if work is not None:
                runner.run(_ended(work))
        finally:
            runner.close()

    async def _keep(self) -> None:
        async with asyncio.TaskGroup() as group:
            for feed in self._feeds:
                group.create_task(self._run_agent(feed), name=f"agent {feed.agent.name}")

    async def _run_agent(self, feed: _Feed) -> None:
        name = feed.agent.name
        try:
            await feed.agent.run(feed)
        except Exception as error:  # noqa: BLE001 - the user's code: raised again by the driver
            record = feed.current
            if record is None:
                self._failures.append(ProcessingError(f"agent {name!r} failed: {error!r}"))
            else:
                at = (record.topic, record.partition, record.offset)
                self._failures.append(failed(name, *at, error))
        else:
            if not feed.is_closed:
                text = f"agent {name!r} returned: it must go on iterating over its stream"
                self._failures.append(ProcessingError(text, node=name))
        feed.idle.set()

    async def _until_idle(self) -> None:
        try:
            async with asyncio.timeout(AGENT_WAIT_S):
                for feed in self._feeds:
                    await feed.idle.wait()
        except TimeoutError:
            busy = [feed.agent.name for feed in self._feeds if not feed.idle.is_set()]
            raise UsageError(
                f"agents {busy} have not asked for their next record within {AGENT_WAIT_S} s of "
                "real time: do they wait for something that can't happen in a test?"
            ) from None
        if self._failures:
            raise self._failures[0]


async def _ended(work: asyncio.Task[None]) -> None:
    """Wait for the agents to return; those that do not are cancelled."""
    await asyncio.wait([work], timeout=AGENT_WAIT_S)
    work.cancel()
    await asyncio.wait([work])


class _Schedule(Protocol):
    """A timer or crontab under way."""

    due_ms: int

    def fire(self) -> Coroutine[Any, Any, object]:
        """What is to be run; it is then due the next time."""


class _TimerSchedule:
    """A timer under way."""

    def __init__(self, timer: Timer, start_ms: int) -> None:
        self._timer = timer
        self.due_ms = start_ms + timer.every_ms

    def fire(self) -> Coroutine[Any, Any, object]:
        """The timer's function."""
        self.due_ms += self._timer.every_ms
        return _awaited(self._timer.run)


class _CronSchedule:
    """A crontab under way."""

    def __init__(self, crontab: Crontab, start_ms: int) -> None:
        from croniter import croniter  # noqa: PLC0415 - `import streamlog` stays light

        self._crontab = crontab
        self._zone = ZoneInfo(crontab.timezone)
        self._times: Iterator[datetime] = croniter(
            crontab.spec, moment(start_ms).astimezone(self._zone), ret_type=datetime
        )
        self.due_ms = when_ms(next(self._times))

    def fire(self) -> Coroutine[Any, Any, object]:
        """The crontab's function with the time at which it is due, in local time."""
        due = moment(self.due_ms).astimezone(self._zone)
        self.due_ms = when_ms(next(self._times))
        return _awaited(lambda: self._crontab.run(due))


async def _awaited(run: Callable[[], Any]) -> None:
    await run()


def _schedules(rehearsal: Rehearsal) -> list[_Schedule]:
    start_ms = rehearsal.start_ms
    timers: list[_Schedule] = [_TimerSchedule(timer, start_ms) for timer in rehearsal.timers]
    return [*timers, *(_CronSchedule(each, start_ms) for each in rehearsal.crontabs)]
