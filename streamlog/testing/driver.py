"""TestDriver: an app without a log, a disk or a clock, in the time it takes to run its code.

It runs the same `Task`s as a worker, one per partition, on stores in memory; topics are
lists, and repartition topics and changelogs are topics like the others. `send` returns when
everything that follows from the record has happened. Time stands still until `advance`,
which fires timers and crontabs on the way. `restart` commits, throws the stores away and
restores them from the changelog, by the code that a worker restores with; `rebalance` does so with
the tasks that move. Rule of the file: no threads and no sleeps; the user's async code runs on a
loop of the driver's own, in real time. Not done here: crashes (see `simulation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from streamlog.agents.rows import AgentRows
from streamlog.blueprints.blueprint import Blueprint
from streamlog.blueprints.clock_names import partners
from streamlog.blueprints.topology_difference import difference
from streamlog.dsl.agent import Agent
from streamlog.dsl.app_runtime import AppRuntime
from streamlog.dsl.schedule_times import Crontab, Service, Timer
from streamlog.dsl.table import Table
from streamlog.dsl.topic import Topic
from streamlog.durations import Dur, duration_ms, when_ms
from streamlog.errors import StateLost, StreamlogError, UsageError
from streamlog.processing.joins.stream_table_join import apply_view
from streamlog.processing.outbox import CallResult, Drop, Outbox, SinkRecord, TaskCall
from streamlog.processing.table_rows import tables_of
from streamlog.processing.tables.writable_table import RowWrite
from streamlog.processing.task import Task, TaskId
from streamlog.random_source import Random
from streamlog.record import Headers, Record
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.records.control_batches import TimeMark
from streamlog.records.partitioners import DEFAULT, Partitioner
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.tables.state.changelog import Restoration
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import Change
from streamlog.testing.driver_agents import DriverAgents
from streamlog.testing.driver_tables import DriverTables, DriverTaskRows, share_tasks
from streamlog.testing.driver_time import DriverMarks, schedules
from streamlog.testing.driver_topics import (
    ListedTables,
    MemoryTopic,
    TestTopicIn,
    TestTopicOut,
    check_outputs,
    check_state,
)
from streamlog.topology import Subtopology, Topology, dead_letter_topics
from streamlog.windows.emit import FAR_MS

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""

START = "2025-01-01T00:00:00Z"
"""When a test begins, unless it says otherwise."""
ROUNDS_MAX = 10_000
"""A topology that writes to its own input has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a driver runs: an app, ready-made."""

    topology: Topology
    partitions: Mapping[str, int]
    """Of the declared topics."""
    partitioners: Mapping[str, Partitioner] = field(default_factory=dict)
    """Of topics whose producers don't use the default."""
    outlet: AppRuntime
    agents: Sequence[Agent[UserKey, UserValue]] = ()
    timers: Sequence[Timer] = ()
    crontabs: Sequence[Crontab] = ()
    tasks: Sequence[Service] = ()
    """What each worker runs once."""
    start_ms: int = field(default_factory=lambda: when_ms(START))
    seed: int | None = None
    """Of the order in which tasks take their turns; None: by their numbers."""
    after: TestDriver | None = None
    """Whose topics and state it goes on with."""


@dataclass(slots=True)
class _Found:
    """What a task is given."""

    records: dict[tuple[str, int], Sequence[RawRecord]] = field(default_factory=dict)
    marks: dict[tuple[str, int], Sequence[TimeMark]] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """What a driver leaves to the one after it."""

    topics: Mapping[str, MemoryTopic] = field(default_factory=dict)
    committed: dict[tuple[TaskId, str, int], int] = field(default_factory=dict)
    """How far inputs were read."""
    times: dict[TaskId, dict[tuple[str, int], int]] = field(default_factory=dict)
    """Stream times of tasks."""
    agents: DriverAgents | None = None
    now_ms: int = 0


class TestDriver:
    """An app at work on lists; a context manager."""

    __test__ = False

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.drops: dict[tuple[str, str], int] = {}
        """Records left out so far, by operator and reason: "late", "null key", ..."""
        self._rehearsal = rehearsal
        self._topology = rehearsal.topology
        self._counts = rehearsal.topology.partition_counts(rehearsal.partitions)
        counts = {**self._counts, **self._topology.changelog_partitions(self._counts)}
        after = rehearsal.after
        before = _Left() if after is None else after.leave_to(self._topology, counts)
        self.now_ms = max(rehearsal.start_ms, before.now_ms)
        """The time of the driver, in milliseconds since the epoch."""
        self._topics = {
            name: before.topics.get(name)
            or MemoryTopic(number, rehearsal.partitioners.get(name, DEFAULT))
            for name, number in counts.items()
        }
        self._global_tables = ListedTables(self._topology, self._topics)
        self._marks = DriverMarks(
            self._topics,
            [n for n, t in self._topology.topics.items() if not (t.compact or t.internal)],
            partners(self._topology),
        )
        self._popped: dict[str, int] = {}
        self._committed, self._times = before.committed, before.times
        self._fed: dict[tuple[TaskId, str, int], int] = {}
        self._tasks: dict[TaskId, Task] = {}
        self._workers = 1
        self._owners: dict[TaskId, int] = {}
        """Which worker has a task, by number; all are with the first one, if it is not told."""
        self._calls: dict[TaskId, list[TaskCall]] = {}
        """Of tasks, to be awaited before anything else happens."""
        tables = tables_of(self._topology)
        rows = AgentRows(
            tables, self._counts, self._topology.worked_on, DriverTaskRows(self._tasks)
        )
        self._agents = DriverAgents(
            rehearsal.agents,
            rehearsal.tasks,
            self._topics,
            self,
            rows=rows,
            write_rows=self.write_rows,
        )
        if before.agents is not None:
            self._agents.go_on_from(before.agents)
        self._schedules = schedules(
            rehearsal.timers,
            rehearsal.crontabs,
            start_ms=rehearsal.start_ms,
            workers=lambda: self._workers,
        )
        self._turns = None if rehearsal.seed is None else Random(rehearsal.seed)
        self._failure: StreamlogError | None = None
        self._runs = False

    def __enter__(self) -> Self:
        self._rehearsal.outlet.sender = _Sender(self)
        self._rehearsal.outlet.asker = self._agents
        self._rehearsal.outlet.global_tables = self._global_tables.tables
        self._rehearsal.outlet.tables = DriverTables(
            tables=tables_of(self._topology),
            tasks=self._tasks,
            topics=self._topics,
            counts=self._counts,
            now_ms=lambda: self.now_ms,
            run_tasks=self.run_tasks,
        )
        try:
            self._start_tasks()
            self._agents.start()
            self._runs = True
            self.settle()
        except BaseException:
            # Nobody leaves a block that was not entered.
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and self._runs and self._failure is None:
                self._check_end()
        finally:
            self._stop()

    def _check_end(self) -> None:
        """Commit, and read what is stored and written: what a worker could not must not pass.

        Raises:
            ProcessingError: a state can't be stored, or something can't be read again.
        """
        self._agents.write_rows()
        for task in self._tasks.values():
            self._commit(task)
            check_state(task.subtopology, self._restored(task.subtopology, task.id))
        check_outputs(self._topology, self._topics)

    def _stop(self) -> None:
        self._runs = False
        self._rehearsal.outlet.sender = self._rehearsal.outlet.tables = None
        self._rehearsal.outlet.asker = self._rehearsal.outlet.global_tables = None
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
                    seen = None if seen is None else apply_view(view, key, seen)
                if seen is not None:
                    rows[key] = seen
        return rows

    def left_out(self, drop: Drop) -> None:
        """Count it."""
        dropped = self.drops.get((drop.node, drop.reason), 0)
        self.drops[drop.node, drop.reason] = dropped + drop.count

    def write_rows(self, table: str, partition: int, rows: Sequence[RowWrite]) -> None:
        """Agents have set rows of a table: the task that has them takes them in."""
        for task in self._tasks.values():
            if task.id.partition == partition and table in task.subtopology.by_name:
                self._took(task, task.write_rows(table, rows))

    def dead_letters(self, topic: str | None = None) -> list[Record[bytes, bytes]]:
        """The records that were written to a topic for dead letters; by default the app's own.

        Raises:
            UsageError: no policy writes there.
        """
        name = topic or f"{self._topology.app_id}-dlq"
        if name not in self._topics:
            raise UsageError(
                f"no error policy of the app writes to {name!r}, so there are no dead letters: "
                "give on_error=on_error.dlq() to the app, a topic or an operator"
            )
        source = Topic[bytes, bytes](dead_letter_topics([name])[name], self._rehearsal.outlet)
        return [source.decoded(record, at) for at, record in self.topic(name).arrivals]

    def advance(self, by: Dur) -> None:
        """Let time pass: what is due by the clock happens at its time, quiet sources become idle.

        In event time, too, as on a log: where nothing is sent it goes on from the newest record.

        Raises:
            ProcessingError: something failed.
        """
        self.check_runs()
        until_ms = self.now_ms + duration_ms(by)
        self._marks.look(self.now_ms)
        while (due_ms := self._due_ms) <= until_ms:
            self.now_ms = max(due_ms, self.now_ms)
            self._marks.mark(self._tasks.values(), self.now_ms)
            due = min(self._schedules, key=lambda each: each.due_ms, default=None)
            if due is not None and due.due_ms == due_ms:
                self._agents.run(due.fire())
            self.settle()
            self._marks.look(self.now_ms)
        self.now_ms = until_ms
        self.settle()

    @property
    def _due_ms(self) -> int:
        """When something happens by the clock next."""
        times = [each.due_ms for each in self._schedules]
        times += [task.next_wall_ms for task in self._tasks.values()]
        times.append(self._marks.next_ms(self._tasks.values()))
        waiting_ms = self._agents.due_ms
        return min(times if waiting_ms is None else [*times, waiting_ms], default=FAR_MS)

    def restart(self) -> None:
        """Commit, stop, and start again with the state that the changelog holds."""
        self.check_runs()
        self._agents.write_rows()
        for task in self._tasks.values():
            self._commit(task)
            task.close()
        self._agents.close()
        self._start_tasks()
        self._agents.start(workers=self._workers)
        self.settle()

    def leave_to(self, topology: Topology, counts: Mapping[str, int]) -> _Left:
        """Commit and stop, for a newer program: what it goes on with.

        Args:
            topology: of that program.
            counts: the partitions of its topics.

        Raises:
            StateLost: that program could not go on with the state.
            UsageError: this is no driver that runs, or a topic has other partitions.
        """
        self.check_runs()
        found = difference(Blueprint.of(self._topology), Blueprint.of(topology))
        if found.losses:
            lines = "\n".join(f"  {line}" for line in found.lines())
            raise StateLost(f"app {topology.app_id!r} would lose state:\n{lines}")
        for name in counts.keys() & self._topics.keys():
            there = len(self._topics[name].partitions)
            if there != counts[name]:
                raise UsageError(
                    f"topic {name!r} has {there} partitions in the test before, not "
                    f"{counts[name]}: give both tests the same partitions="
                )
        for task in self._tasks.values():
            self._commit(task)
        self._stop()
        return _Left(
            topics=self._topics,
            committed=self._committed,
            times=self._times,
            agents=self._agents,
            now_ms=self.now_ms,
        )

    def rebalance(self, workers: int) -> None:
        """Let so many workers share the tasks from now on, evenly; a test begins with one.

        All commit. A task that has another worker then is closed, and begins there with the state
        that the changelog holds; the others go on as they are. Agents are called anew. What every
        worker runs by itself (`app.task`, timers and crontabs on "every_worker") each of them
        runs.

        Raises:
            UsageError: there would be no worker.
            ProcessingError: something failed.
        """
        self.check_runs()
        if workers < 1:
            raise UsageError(f"an app needs 1 worker or more, not {workers}")
        owners = share_tasks(self._tasks, self._owners, workers)
        self._agents.write_rows()
        for task in self._tasks.values():
            self._commit(task)
        self._agents.close()
        for task_id, task in self._tasks.items():
            if owners[task_id] != self._owners.get(task_id, 0):
                task.close()
                self._calls.pop(task_id, None)
                self._tasks[task_id] = self._task(task.subtopology, task_id)
        self._owners, self._workers = owners, workers
        self._agents.start(workers=workers)
        self.settle()

    def settle(self) -> None:
        """Let tasks and agents run until nothing is left to do."""
        self._rest(self._agents.handle)

    def run_tasks(self) -> None:
        """Let the tasks alone run until nothing is left for them to do."""
        self._rest(lambda: False)

    def _rest(self, others: Callable[[], bool]) -> None:
        try:
            for round_number in range(ROUNDS_MAX):
                moved = self._run_tasks(always=round_number == 0)
                if not others() and not moved and not self._emit():
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
        self._calls.clear()
        for sub in self._topology.subtopologies:
            for partition in range(sub.tasks(self._counts)):
                task_id = TaskId(sub.number, partition)
                self._tasks[task_id] = self._task(sub, task_id)

    def _task(self, sub: Subtopology, task_id: TaskId) -> Task:
        task = Task(
            sub,
            task_id,
            partitions=self._counts,
            store=None if sub.changelog_topic is None else self._restored(sub, task_id),
            global_tables=self._global_tables.tables,
        )
        positions = task.positions
        for topic, partition in task.inputs:
            committed = self._committed.get((task_id, topic, partition), 0)
            position = positions.get((topic, partition), committed)
            task.start_at({(topic, partition): position}, self._times.get(task_id))
            self._fed[task_id, topic, partition] = position
        return task

    def _restored(self, sub: Subtopology, task_id: TaskId) -> MemoryStore:
        """The state of a task, as its changelog has it."""
        store = MemoryStore()
        if sub.changelog_topic is not None:
            changes = self._changelog(sub.changelog_topic, task_id)
            restoration = Restoration(store, start_offset=0, end_offset=len(changes))
            restoration.apply(changes, next_offset=len(changes))
        return store

    def _changelog(self, topic: str, task_id: TaskId) -> list[Change]:
        records = self._topics[topic].partitions[task_id.partition]
        return [(record.key or b"", record.value) for record in records]

    def _commit(self, task: Task) -> None:
        try:
            changes = task.checkpoint()
        except StreamlogError as error:
            self._failure = error
            raise
        self._times[task.id] = task.stream_times
        topic = task.subtopology.changelog_topic
        if topic is None:
            return
        log = self._topics[topic]
        for key, value in changes:
            log.append(value, key=key, timestamp_ms=self.now_ms, partition=task.id.partition)
        task.committed(changes, next_offset=len(log.partitions[task.id.partition]))

    def _run_tasks(self, *, always: bool) -> bool:
        """Give every task what is new; whether there was anything."""
        self._global_tables.follow()
        moved = False
        tasks = list(self._tasks.values())
        if self._turns is not None:
            self._turns.shuffle(tasks)
        for task in tasks:
            found = self._new_of(task)
            results = self._agents.results(self._calls.pop(task.id, ()))
            if found.records or found.marks or results or always:
                sent = self._process(task, found, results)
                moved = moved or sent or bool(found.records or found.marks or results)
        return moved

    def _new_of(self, task: Task) -> _Found:
        """What a task has not been given yet."""
        found = _Found()
        for place in task.inputs:
            topic, partition = self._topics[place[0]], place[1]
            fed, end = self._fed[task.id, *place], topic.end(partition)
            found.ends[place] = end
            if fed < end:
                records, marks = topic.since(partition, fed)
                found.records |= {place: records} if records else {}
                found.marks |= {place: marks} if marks else {}
                self._fed[task.id, *place] = end
        return found

    def _process(self, task: Task, found: _Found, results: Sequence[CallResult]) -> bool:
        """Whether anything was sent."""
        outbox = task.process(
            found.records, self.now_ms, ends=found.ends, results=results, marks=found.marks
        )
        return self._took(task, outbox)

    def _emit(self) -> bool:
        """All has come to rest, which is the commit: hand on what waits for it, if anything."""
        waiting = [task for task in self._tasks.values() if task.has_waiting]
        for task in waiting:
            self._took(task, task.emit())
        return bool(waiting)

    def _took(self, task: Task, outbox: Outbox) -> bool:
        self._calls[task.id] = [*self._calls.get(task.id, ()), *outbox.calls]
        for sink in outbox.sinks:
            self._topics[sink.topic].append(
                sink.value,
                key=sink.key,
                timestamp_ms=sink.timestamp_ms,
                headers=sink.headers,
                partition=self._partition(sink),
            )
        for (topic, partition), offset in outbox.offsets.items():
            self._committed[task.id, topic, partition] = offset
        for drop in outbox.drops:
            self.left_out(drop)
        return bool(outbox.writes)

    def _partition(self, sink: SinkRecord) -> int:
        if sink.partition is not None:
            return sink.partition
        return self._topics[sink.topic].partition_of(sink.route)


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
