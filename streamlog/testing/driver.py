"""TestDriver: runs an app without a log, a disk or a clock, as fast as its code runs.

It runs the same `Task`s as a worker, one per partition, on stores in memory. Topics are lists,
repartition topics and changelogs included. `send` returns when everything that follows from the
record has happened. Time moves only in `advance`, which fires timers and crontabs on its way.
`restart` commits, drops the stores and restores them from the changelogs with a worker's code;
`rebalance` does so for the tasks that move.

Rule: no threads and no sleeps; the user's async code runs on an event loop of the driver, in real
time. Not done here: crashes (`simulation`).
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
from streamlog.connect.declared_connectors import Connector, connector_entries
from streamlog.dsl.agent import Agent
from streamlog.dsl.app_runtime import AppRuntime
from streamlog.dsl.schedules import Crontab, Service, Timer
from streamlog.dsl.table import Table
from streamlog.dsl.topic import Topic, refuse_other
from streamlog.durations import Dur, duration_ms, when_ms
from streamlog.errors import StateLost, StreamlogError, UsageError, quantity
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
from streamlog.serdes.registered.schema_source import MEMORY_REGISTRY, SchemaAccess
from streamlog.tables.state.changelog import Restoration
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import Change
from streamlog.testing.connector_doubles import TestSink, TestSource
from streamlog.testing.driver_agents import DriverAgents
from streamlog.testing.driver_connectors import DriverConnectors
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
"""The driver's time when a test begins, by default."""
ROUNDS_MAX = 10_000
"""The rounds after which a topology counts as endless, because it writes to its own input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The app that a driver runs, and how the driver runs it."""

    topology: Topology
    declared: Topology
    """The topology before topics took the place of patterns."""
    partitions: Mapping[str, int]
    """The number of partitions of each declared topic."""
    partitioners: Mapping[str, Partitioner] = field(default_factory=dict)
    """The partitioners of topics that do not use the default one."""
    runtime: AppRuntime
    schemas: SchemaAccess = field(default_factory=SchemaAccess)
    """The source of the schemas that a registry keeps; in a test, one in memory."""
    agents: Sequence[Agent[UserKey, UserValue]] = ()
    timers: Sequence[Timer] = ()
    crontabs: Sequence[Crontab] = ()
    tasks: Sequence[Service] = ()
    """The functions that each worker runs once."""
    connectors: Sequence[Connector] = ()
    start_ms: int = field(default_factory=lambda: when_ms(START))
    seed: int | None = None
    """The seed of the order in which tasks run; None orders them by number."""
    after: TestDriver | None = None
    """The driver whose topics and state this one continues with."""


@dataclass(slots=True)
class _NewInput:
    """The input that a task has not processed yet."""

    records: dict[tuple[str, int], Sequence[RawRecord]] = field(default_factory=dict)
    marks: dict[tuple[str, int], Sequence[TimeMark]] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inheritance:
    """The topics and progress that a driver leaves to the one after it."""

    topics: Mapping[str, MemoryTopic] = field(default_factory=dict)
    committed: dict[tuple[TaskId, str, int], int] = field(default_factory=dict)
    """The committed position of each input of a task."""
    times: dict[TaskId, dict[tuple[str, int], int]] = field(default_factory=dict)
    """The stream times of tasks, by input."""
    agents: DriverAgents | None = None
    connectors: DriverConnectors | None = None
    now_ms: int = 0


class TestDriver:
    """Runs an app on topics in memory; a context manager."""

    __test__ = False

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.drops: dict[tuple[str, str], int] = {}
        """The number of dropped records, by operator and reason: "late", "null key", ..."""
        self._rehearsal = rehearsal
        self._topology = rehearsal.topology
        self._counts = rehearsal.topology.partition_counts(rehearsal.partitions)
        counts = {**self._counts, **self._topology.changelog_partitions(self._counts)}
        after = rehearsal.after
        before = _Inheritance() if after is None else after.leave_to(rehearsal, counts)
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
        """The number of the worker that has a task; by default, the first worker has it."""
        self._calls: dict[TaskId, list[TaskCall]] = {}
        """The calls of tasks, which are awaited before the tasks process anything else."""
        self._agents = DriverAgents(
            rehearsal.agents,
            rehearsal.tasks,
            self._topics,
            self,
            rows=self._agent_rows(),
            write_rows=self.write_rows,
        )
        if before.agents is not None:
            self._agents.continue_from(before.agents)
        self._connectors = DriverConnectors(
            rehearsal.connectors, self._topics, self, before=before.connectors
        )
        self._schedules = schedules(
            rehearsal.timers,
            rehearsal.crontabs,
            start_ms=rehearsal.start_ms,
            workers=lambda: self._workers,
        )
        self._turns = None if rehearsal.seed is None else Random(rehearsal.seed)
        self._failure: StreamlogError | None = None
        self._runs = False

    def _agent_rows(self) -> AgentRows:
        tables, rows = tables_of(self._topology), DriverTaskRows(self._tasks)
        return AgentRows(tables, self._counts, self._topology.worked_on, rows)

    def __enter__(self) -> Self:
        self._rehearsal.schemas.use(MEMORY_REGISTRY)
        self._rehearsal.runtime.sender = _Sender(self)
        self._rehearsal.runtime.requests = self._agents
        self._rehearsal.runtime.global_tables = self._global_tables.tables
        self._rehearsal.runtime.tables = DriverTables(
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
            self._connectors.start()
            self._runs = True
            self.settle()
        except BaseException:
            # Python calls `__exit__` only if `__enter__` has returned.
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
        """Commit, and read all that was stored and written, as a worker does after a restart.

        Raises:
            ProcessingError: a state can't be stored, or a row or record can't be read back.
        """
        self._agents.write_rows()
        for task in self._tasks.values():
            self._commit(task)
            check_state(task.subtopology, self._restored(task.subtopology, task.id))
        check_outputs(self._topology, self._topics)

    def _stop(self) -> None:
        self._runs = False
        self._rehearsal.runtime.sender = self._rehearsal.runtime.tables = None
        self._rehearsal.runtime.requests = self._rehearsal.runtime.global_tables = None
        self._connectors.close()
        self._agents.close()
        for task in self._tasks.values():
            task.close()

    def input(self, t: Topic[K, V]) -> TestTopicIn[K, V]:
        """Return the object with which a test writes to this topic."""
        refuse_other(t)
        self.topic(t.name)
        return TestTopicIn(self, t)

    def output(self, t: Topic[K, V]) -> TestTopicOut[K, V]:
        """Return the object with which a test reads this topic."""
        refuse_other(t)
        self.topic(t.name)
        return TestTopicOut(self, t)

    def source(self, name: str) -> TestSource:
        """Return what stands for a source of the app, by the connector's name.

        Raises:
            UsageError: the app has no source of this name.
        """
        return TestSource(name, self._connectors, self, self._topics)

    def sink(self, name: str) -> TestSink:
        """Return what stands for a sink of the app, by the connector's name.

        Raises:
            UsageError: the app has no sink of this name.
        """
        return TestSink(name, self._connectors)

    def table(self, t: Table[K, V]) -> Mapping[K, V]:
        """Return the current rows of a table, of all partitions.

        Raises:
            UsageError: the argument is not a table.
        """
        if not isinstance(t, Table):
            raise UsageError(
                f"{t!r} is not a table: pass what app.table, count, reduce, or agg returned"
            )
        rows: dict[K, V] = {}
        for task in self._tasks.values():
            if t.side.owner not in task.subtopology.by_name:
                continue
            for key, value in task.table(t.side.owner):
                row = value
                for view in t.side.views:
                    row = None if row is None else apply_view(view, key, row)
                if row is not None:
                    rows[key] = row
        return rows

    def count_drop(self, drop: Drop) -> None:
        """Count dropped records."""
        dropped = self.drops.get((drop.node, drop.reason), 0)
        self.drops[drop.node, drop.reason] = dropped + drop.count

    def write_rows(self, table: str, partition: int, rows: Sequence[RowWrite]) -> None:
        """Pass rows that agents have set to the task of the table's partition."""
        for task in self._tasks.values():
            if task.id.partition == partition and table in task.subtopology.by_name:
                self._apply(task, task.write_rows(table, rows))

    def dead_letters(self, topic: str | None = None) -> list[Record[bytes, bytes]]:
        """Return the records of a dead-letter topic, by default the app's own.

        Raises:
            UsageError: no error policy of the app writes to this topic.
        """
        name = topic or f"{self._topology.app_id}-dlq"
        if name not in self._topics:
            raise UsageError(
                f"no error policy of the app writes to {name!r}, so there are no dead letters: "
                "pass on_error=on_error.dlq() to the app, a topic or an operator"
            )
        source = Topic[bytes, bytes](dead_letter_topics([name])[name], self._rehearsal.runtime)
        return [source.decoded(record, at) for at, record in self.topic(name).arrivals]

    def advance(self, by: Dur) -> None:
        """Let time pass: timers and crontabs fire at their times, and quiet sources become idle.

        Event time passes too, as on a log: without new records, it continues from the newest one.

        Args:
            by: how far time moves.

        Raises:
            ProcessingError: a record, timer or crontab failed.
        """
        self.check_runs()
        until_ms = self.now_ms + duration_ms(by)
        # From one due time to the next: what fires at one may schedule something before `until_ms`.
        self._marks.look(self.now_ms)
        while (due_ms := self._due_ms) <= until_ms:
            # Time never goes back, even if something was due before the test moved the time.
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
        """The time of the next timer, crontab, mark or agent call; `FAR_MS` if none is due."""
        times = [each.due_ms for each in self._schedules]
        times += [task.next_wall_ms for task in self._tasks.values()]
        times.append(self._marks.next_ms(self._tasks.values()))
        waiting = (self._agents.due_ms, self._connectors.due_ms)
        times += [due_ms for due_ms in waiting if due_ms is not None]
        return min(times, default=FAR_MS)

    def restart(self) -> None:
        """Commit, stop, and start again with the state of the changelogs."""
        self.check_runs()
        self._agents.write_rows()
        for task in self._tasks.values():
            self._commit(task)
            task.close()
        self._agents.close()
        self._connectors.close()
        self._start_tasks()
        self._agents.start(workers=self._workers)
        self._connectors.start()
        self.settle()

    def leave_to(self, newer: Rehearsal, counts: Mapping[str, int]) -> _Inheritance:
        """Commit and stop; return the topics and progress with which a newer program continues.

        Args:
            newer: the newer program.
            counts: the number of partitions of its topics.

        Raises:
            StateLost: the newer program would lose state.
            UsageError: this driver does not run, or a topic has another number of partitions.
        """
        self.check_runs()
        found = difference(_blueprint(self._rehearsal), _blueprint(newer))
        if found.losses:
            lines = "\n".join(f"  {line}" for line in found.lines())
            raise StateLost(f"app {newer.topology.app_id!r} would lose state:\n{lines}")
        for name in counts.keys() & self._topics.keys():
            there = len(self._topics[name].partitions)
            if there != counts[name]:
                raise UsageError(
                    f"topic {name!r} had {quantity(there, 'partition')} in the previous test, not "
                    f"{counts[name]}: give both tests the same partitions="
                )
        for task in self._tasks.values():
            self._commit(task)
        self._stop()
        return _Inheritance(
            topics=self._topics,
            committed=self._committed,
            times=self._times,
            agents=self._agents,
            connectors=self._connectors,
            now_ms=self.now_ms,
        )

    def rebalance(self, workers: int) -> None:
        """Change the number of workers, which share the tasks evenly; a test begins with one.

        All tasks commit. A task that moves is closed, and starts on its new worker with the state
        of its changelog; the others continue. Agents are called anew. Each worker runs its own
        `app.task` functions, and timers and crontabs with `on="every_worker"`.

        Args:
            workers: the number of workers, 1 or more.

        Raises:
            UsageError: `workers` is less than 1.
            ProcessingError: a record failed.
        """
        self.check_runs()
        if workers < 1:
            raise UsageError(f"an app needs 1 worker or more, not {workers}")
        owners = share_tasks(self._tasks, self._owners, workers)
        # As in a worker: rows of agents reach the tasks before these commit, and no task closes
        # before all have committed.
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
        """Run tasks, agents and connectors until nothing is left to do."""
        self._run_rounds(self._handle_others)

    def _handle_others(self) -> bool:
        moved = self._agents.handle()
        return self._connectors.handle() or moved

    def run_tasks(self) -> None:
        """Run the tasks alone until they have nothing to do."""
        self._run_rounds(lambda: False)

    def _run_rounds(self, others: Callable[[], bool]) -> None:
        try:
            for round_number in range(ROUNDS_MAX):
                # In the first round, tasks run without new records too, because time may have
                # moved. Waiting rows are emitted only when nothing else happens: that is the
                # commit.
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
        """Raise UsageError after the end of the block, or after a failure."""
        if self._failure is not None:
            raise UsageError(f"the app has failed and can't continue: {self._failure}")
        if not self._runs:
            raise UsageError("the driver works only inside `with app.test() as t:`")

    def topic(self, name: str) -> MemoryTopic:
        """Return a topic of the app.

        Raises:
            UsageError: the app has no topic of this name.
        """
        found = self._topics.get(name)
        if found is None:
            raise UsageError(f"the app has no topic {name!r}; it has {sorted(self._topics)}")
        return found

    def popped(self, name: str) -> int:
        """Return how many records were popped from a topic."""
        return self._popped.get(name, 0)

    def pop(self, name: str) -> None:
        """Count one more popped record of a topic."""
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
        # A task with state has its positions in its store, where they were committed with the rows;
        # only a task without state relies on `_committed`.
        for topic, partition in task.inputs:
            committed = self._committed.get((task_id, topic, partition), 0)
            position = positions.get((topic, partition), committed)
            # A program before may have read topics that matched a pattern and are gone.
            read = {at: ms for at, ms in self._times.get(task_id, {}).items() if at in task.inputs}
            task.start_at({(topic, partition): position}, read)
            self._fed[task_id, topic, partition] = position
        return task

    def _restored(self, sub: Subtopology, task_id: TaskId) -> MemoryStore:
        """Return a store with the state of a task, from its changelog."""
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
        # The order of a worker: first the changelog has the changes, then the store its new offset.
        try:
            changes = task.checkpoint()
        except StreamlogError as error:
            self._failure = error
            raise
        self._times[task.id] = task.stream_times
        topic = task.subtopology.changelog_topic
        if topic is None:
            return
        # In the changelog, partition n belongs to task n.
        log = self._topics[topic]
        for key, value in changes:
            log.append(value, key=key, timestamp_ms=self.now_ms, partition=task.id.partition)
        task.committed(changes, next_offset=len(log.partitions[task.id.partition]))

    def _run_tasks(self, *, always: bool) -> bool:
        """Run each task on its new input; return whether anything happened."""
        self._global_tables.follow()
        moved = False
        tasks = list(self._tasks.values())
        if self._turns is not None:
            self._turns.shuffle(tasks)
        for task in tasks:
            found = self._new_of(task)
            results = self._agents.results(self._calls.pop(task.id, ()))
            # `always`: a task may also have work because time has moved.
            if found.records or found.marks or results or always:
                sent = self._process(task, found, results)
                moved = moved or sent or bool(found.records or found.marks or results)
        return moved

    def _new_of(self, task: Task) -> _NewInput:
        """Return the input that a task has not processed yet, and mark it as processed."""
        found = _NewInput()
        for partition_key in task.inputs:
            topic, partition = self._topics[partition_key[0]], partition_key[1]
            fed, end = self._fed[task.id, *partition_key], topic.end(partition)
            found.ends[partition_key] = end
            if fed < end:
                records, marks = topic.since(partition, fed)
                found.records |= {partition_key: records} if records else {}
                found.marks |= {partition_key: marks} if marks else {}
                self._fed[task.id, *partition_key] = end
        return found

    def _process(self, task: Task, found: _NewInput, results: Sequence[CallResult]) -> bool:
        """Run a task; return whether it has written anything."""
        outbox = task.process(
            found.records, self.now_ms, ends=found.ends, results=results, marks=found.marks
        )
        return self._apply(task, outbox)

    def _emit(self) -> bool:
        """Emit the rows that wait for a commit; return whether there were any.

        The driver commits when tasks and agents have nothing else to do.
        """
        waiting = [task for task in self._tasks.values() if task.has_waiting]
        for task in waiting:
            self._apply(task, task.emit())
        return bool(waiting)

    def _apply(self, task: Task, outbox: Outbox) -> bool:
        """Write the outbox of a task; return whether it contains records."""
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
            self.count_drop(drop)
        return bool(outbox.writes)

    def _partition(self, sink: SinkRecord) -> int:
        if sink.partition is not None:
            return sink.partition
        return self._topics[sink.topic].partition_of(sink.route)


class _Sender:
    """`RecordSender` of a test: writes to the topics of the driver."""

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
        """Append the record; tasks and agents process it once the caller awaits or returns."""
        at_ms = self._driver.now_ms if timestamp_ms is None else timestamp_ms
        number, offset = self._driver.topic(topic).append(
            value, key=key, timestamp_ms=at_ms, headers=headers, partition=partition
        )
        return topic, number, offset, at_ms


def _blueprint(rehearsal: Rehearsal) -> Blueprint:
    return Blueprint.of(rehearsal.declared, connector_entries(rehearsal.connectors))
