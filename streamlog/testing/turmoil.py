"""Turmoil: runs an app's tasks on workers that join, leave and are killed, in batches of any size.

It runs the tasks of the test driver with the commits of a worker under `exactly_once`: the writes,
the state and the offsets of a worker's tasks take effect together. A killed worker loses what it
has not committed. Its tasks start elsewhere, from the changelog or from a copy of the state that is
one commit behind. All randomness comes from one seed.

Rule: `story` notes each fault, to explain a difference. Not done here: agents, and timers by the
wall clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from streamlog.errors import UsageError
from streamlog.processing.outbox import CallResult, Outbox, SinkBatch, TaskCall
from streamlog.processing.task import Task, TaskId
from streamlog.random_source import Random
from streamlog.tables.state.changelog import Restoration
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.testing.driver_topics import ListedTables, MemoryTopic
from streamlog.topology import Subtopology, Topology

WORKERS_MAX = 4
BATCHES = (0, 1, 2, 9, 9, 50, None)
"""The most records of an input that a task gets at a time; None: all of them."""
TROUBLE_MAX = 12
"""The most kills, moves, joins and leaves in a run."""
TROUBLE = 0.12
COMMIT = 0.3
DEAD_IN_COMMIT = 0.3
KEPT = 0.5
"""Probabilities: a fault after a turn; a commit after a turn; that a kill comes between the log and
the disk; and that a task finds its state on the disk of its new worker."""
ROUNDS_MAX = 10_000
"""The rounds after which a topology counts as endless, because it writes to its own input."""

Results = Callable[[Sequence[TaskCall]], list[CallResult]]
"""Awaits the calls of a task."""


class _Worker:
    """Tasks that commit together, and what they have written since the last commit."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tasks: dict[TaskId, Task] = {}
        self.writes: list[SinkBatch] = []
        self.offsets: dict[tuple[TaskId, str, int], int] = {}
        self.calls: dict[TaskId, list[TaskCall]] = {}

    def __str__(self) -> str:
        return f"worker {self.number} ({', '.join(map(str, self.tasks)) or 'no tasks'})"


class Turmoil:
    """One run of an app under faults."""

    def __init__(
        self,
        topology: Topology,
        counts: Mapping[str, int],
        topics: Mapping[str, MemoryTopic],
        *,
        seed: int,
        now_ms: int,
        results: Results,
    ) -> None:
        """Prepare a run; `topics` hold the input records, and get the output records."""
        self.story: list[str] = []
        """The faults, in order, as text."""
        self.troubles: Counter[str] = Counter()
        """The number of faults by kind."""
        self._rng = Random(seed)
        self._counts = counts
        self._topics = topics
        self._global_tables = ListedTables(topology, topics)
        self._now_ms = now_ms
        self._results = results
        self._subs: dict[TaskId, Subtopology] = {
            TaskId(sub.number, partition): sub
            for sub in topology.subtopologies
            for partition in range(sub.tasks(counts))
        }
        self._committed: dict[tuple[TaskId, str, int], int] = {}
        self._times: dict[TaskId, dict[tuple[str, int], int]] = {}
        self._disks: dict[TaskId, MemoryStore] = {}
        """The state of each task, on the disk of the worker that has it or had it last."""
        self._fed: dict[tuple[TaskId, str, int], int] = {}
        self._workers: list[_Worker] = []
        self._numbers = 0

    def run(self) -> None:
        """Run the app over all records.

        Raises:
            ProcessingError: the app failed on a record.
            UsageError: the app writes more records in every round.
        """
        self._global_tables.follow()
        for _ in range(self._rng.randint(1, 3)):
            self._add_worker()
        for task_id in self._subs:
            self._open(task_id, self._rng.choice(self._workers))
        rounds = 0
        # Some turns even without input, so that short inputs meet faults too.
        while self._behind or rounds < TROUBLE_MAX:
            self._turn()
            rounds += 1
            if rounds > ROUNDS_MAX:
                break  # `_drain` finds out whether the topology is endless, or only slow.
        while self._drain():
            rounds += 1
            if rounds > ROUNDS_MAX:
                raise UsageError(
                    f"the app has not come to rest after {ROUNDS_MAX} rounds: does it write to a "
                    "topic that it reads?"
                )

    @property
    def _behind(self) -> bool:
        return any(
            self._fed[task_id, *partition] < self._end(partition)
            for worker in self._workers
            for task_id, task in worker.tasks.items()
            for partition in task.inputs
        )

    def _end(self, partition_key: tuple[str, int]) -> int:
        topic, partition = partition_key
        return len(self._topics[topic].partitions[partition])

    def _turn(self) -> None:
        """Run one task; then perhaps commit its worker, and perhaps cause a fault."""
        rng = self._rng
        worker = rng.choice(self._workers)
        if worker.tasks:
            self._work(worker, rng.choice(list(worker.tasks)), rng.choice(BATCHES))
        if rng.random() < COMMIT:
            self._commit(worker)
        if rng.random() < TROUBLE and self.troubles.total() < TROUBLE_MAX:
            trouble = rng.choice([self._kill, self._kill, self._move, self._join, self._leave])
            trouble()

    def _drain(self) -> bool:
        """Run all tasks on all their input; return whether there was any."""
        moved = False
        for worker in self._workers:
            for task_id in worker.tasks:
                moved = self._work(worker, task_id, None) or moved
            moved = self._commit(worker) or moved
        return moved

    def _work(self, worker: _Worker, task_id: TaskId, at_most: int | None) -> bool:
        task = worker.tasks[task_id]
        records, ends = {}, {}
        for partition_key in task.inputs:
            log = self._topics[partition_key[0]].partitions[partition_key[1]]
            fed, ends[partition_key] = self._fed[task_id, *partition_key], len(log)
            # Possibly nothing: the inputs of a task then arrive at different speeds.
            more = log[fed:] if at_most is None else log[fed : fed + self._rng.randint(0, at_most)]
            if more:
                records[partition_key] = more
                self._fed[task_id, *partition_key] = fed + len(more)
        results = self._results(worker.calls.pop(task_id, ()))
        outbox = task.process(records, self._now_ms, ends=ends, results=results)
        self._collect(worker, task_id, outbox)
        for (topic, partition), offset in outbox.offsets.items():
            worker.offsets[task_id, topic, partition] = offset
        return bool(records or results or outbox.writes)

    def _collect(self, worker: _Worker, task_id: TaskId, outbox: Outbox) -> None:
        worker.writes += outbox.writes
        if outbox.calls:
            worker.calls.setdefault(task_id, []).extend(outbox.calls)

    def _commit(self, worker: _Worker, *, dies: bool = False) -> bool:
        """Commit what a worker has done; return whether it has written records.

        Args:
            worker: the worker.
            dies: whether it is killed after the log has the commit, and before its disk has.
        """
        for task_id, task in worker.tasks.items():
            if task.has_waiting:
                self._collect(worker, task_id, task.emit())
        # Writes, offsets and changelogs together are the transaction of a worker: no fault can come
        # between them.
        writes, worker.writes = worker.writes, []
        self._write(writes)
        self._committed |= worker.offsets
        worker.offsets = {}
        for task_id, task in worker.tasks.items():
            self._times[task_id] = task.stream_times
            name = task.subtopology.changelog_topic
            if name is None:
                continue
            changes, log = task.checkpoint(), self._topics[name]
            for key, value in changes:
                log.append(value, key=key, timestamp_ms=self._now_ms, partition=task_id.partition)
            # 1. The log has the commit. 2. The worker is killed before RocksDB has it. 3. The task
            #    starts elsewhere, or here: the changelog is ahead of the disk, and its tail is
            #    replayed.
            if not dies:
                task.committed(changes, next_offset=len(log.partitions[task_id.partition]))
        return bool(writes)

    def _write(self, writes: Sequence[SinkBatch]) -> None:
        for sink in (record for batch in writes for record in batch.records()):
            topic = self._topics[sink.topic]
            partition = sink.partition
            if partition is None:
                partition = topic.partition_of(sink.route)
            topic.append(
                sink.value,
                key=sink.key,
                timestamp_ms=sink.timestamp_ms,
                headers=sink.headers,
                partition=partition,
            )
        self._global_tables.follow()

    def _open(self, task_id: TaskId, worker: _Worker) -> None:
        """Start a task on a worker, with state from the changelog, or partly from a disk."""
        sub, store = self._subs[task_id], None
        if sub.changelog_topic is not None:
            left = self._disks.get(task_id)
            store = left if left is not None and self._rng.random() < KEPT else MemoryStore()
            self._disks[task_id] = store
            log = self._topics[sub.changelog_topic].partitions[task_id.partition]
            # An old store is a prefix of the changelog, so only the tail is applied.
            restoration = Restoration(store, start_offset=0, end_offset=len(log))
            tail = [(record.key or b"", record.value) for record in log[restoration.position :]]
            restoration.apply(tail, next_offset=len(log))
        task = Task(
            sub,
            task_id,
            partitions=self._counts,
            store=store,
            global_tables=self._global_tables.tables,
        )
        known = task.positions
        for topic, partition in task.inputs:
            committed = self._committed.get((task_id, topic, partition), 0)
            position = known.get((topic, partition), committed)
            task.start_at({(topic, partition): position}, self._times.get(task_id))
            self._fed[task_id, topic, partition] = position
        worker.tasks[task_id] = task

    # Faults

    def _join(self) -> None:
        if len(self._workers) < WORKERS_MAX:
            self._add_worker()
            self._tell("join", f"worker {self._numbers} joins")

    def _add_worker(self) -> None:
        self._numbers += 1
        self._workers.append(_Worker(self._numbers))

    def _kill(self) -> None:
        """Kill a worker: what it has not committed is lost, and its disk may stay."""
        # Its tasks are not closed: nothing of a killed process runs any more.
        worker = self._rng.choice(self._workers)
        if self._rng.random() < DEAD_IN_COMMIT:
            self._commit(worker, dies=True)
            self._tell("kill", f"{worker} is killed between the log and its disk")
        else:
            self._tell("kill", f"{worker} is killed")
        self._workers.remove(worker)
        self._scatter(worker)

    def _leave(self) -> None:
        worker = self._rng.choice(self._workers)
        self._tell("leave", f"{worker} commits and leaves")
        self._commit(worker)
        self._workers.remove(worker)
        for task_id, task in worker.tasks.items():
            self._close(task_id, task)
        self._scatter(worker)

    def _move(self) -> None:
        busy = [worker for worker in self._workers if worker.tasks]
        if len(self._workers) < 2 or not busy:  # noqa: PLR2004 - one to go from, one to go to
            return
        worker = self._rng.choice(busy)
        other = self._rng.choice([each for each in self._workers if each is not worker])
        self._commit(worker)
        task_id = self._rng.choice(list(worker.tasks))
        self._tell("move", f"task {task_id} moves from {worker} to worker {other.number}")
        self._close(task_id, worker.tasks.pop(task_id))
        # Calls that have no result yet end here; the task repeats them on its new worker.
        worker.calls.pop(task_id, None)
        self._open(task_id, other)

    def _close(self, task_id: TaskId, task: Task) -> None:
        # A closed store can't be read, so another worker finds a copy on the disk.
        left = self._disks.get(task_id)
        if left is not None:
            copy = MemoryStore()
            copy.write(list(left.range()))
            self._disks[task_id] = copy
        task.close()

    def _scatter(self, worker: _Worker) -> None:
        # After the last worker, a new one takes over.
        if not self._workers:
            self._add_worker()
        for task_id in worker.tasks:
            self._open(task_id, self._rng.choice(self._workers))

    def _tell(self, kind: str, what: str) -> None:
        self.troubles[kind] += 1
        self.story.append(what)
