"""Tasks: the tasks that this worker runs, from opening through processing and commits to closing.

A task is opened in the background, so that the worker keeps polling, and stays in its group, while
a long changelog is restored. The task's inputs are paused until then. A rebalance affects only the
tasks that come or go.

Rules: an input is read from the task's own position, not from the consumer's or the group's. Tasks
work on the engine thread (`engine`), and this module reads a task only while the engine is idle.
Not done here: polling (`worker`), and the assignment of tasks (`assignment/`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TypeAlias, TypeVar

from streamlog.agents.call import await_call
from streamlog.agents.offsets import AgentPosition as Reached
from streamlog.client.offset_metadata import Offsets
from streamlog.clock import SteadyWall
from streamlog.errors import quantity
from streamlog.nodes.stream_nodes import Sink
from streamlog.processing.outbox import CallResult, Outbox, SinkBatch, TaskCall
from streamlog.processing.step import Tap
from streamlog.processing.table_rows import tables_of
from streamlog.processing.tables.writable_table import RowWrite
from streamlog.processing.task import Task, TaskId
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.replace import replace
from streamlog.tables.local_disk.rocksdb_store import RocksBudget
from streamlog.tables.state.store_transaction import DeferredStore
from streamlog.topology import Topology
from streamlog.windows.emit import UNKNOWN_MS
from streamlog.worker.access.questions import NotHere
from streamlog.worker.commit.commit import Fenced, TaskCheckpoints, apply_checkpoint, checkpoint
from streamlog.worker.commit.exactly_once import Transactor
from streamlog.worker.commit.sink_latency import SinkLatency
from streamlog.worker.commit.sinks import Sinks
from streamlog.worker.health.hot_keys import HotKeys
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.health.worker_health import DropLog, Holdups, TaskFigures
from streamlog.worker.health.worker_metrics import CommitPhases
from streamlog.worker.inputs.assigned_partitions import Pauses, StartOffset
from streamlog.worker.inputs.input_ends import InputEnds, TimeMarkRequests
from streamlog.worker.inputs.source_watch import KeyPartitionCheck
from streamlog.worker.running_task import (
    RunningTask,
    begin_inputs,
    build_task,
    logs_of,
    progress_of,
    start_of,
)
from streamlog.worker.state.restore import Restorer, TaskState
from streamlog.worker.state.snapshot_restore import SnapshotRestore
from streamlog.worker.state.snapshot_uploads import AppSnapshots, SnapshotUploads
from streamlog.worker.task_deps import TaskDeps
from streamlog.worker.topics.savepoint_messages import CutLimits
from streamlog.worker.topics.version_log import Base


class TaskCalls:
    """The async calls of all tasks of a worker (`map_async` and the like)."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._running: dict[TaskId, set[asyncio.Task[None]]] = {}
        self._results: dict[TaskId, list[CallResult]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def has_results(self, task_id: TaskId) -> bool:
        """Return whether calls of a task have results that were not taken."""
        return bool(self._results.get(task_id))

    def start(self, task_id: TaskId, calls: Sequence[TaskCall]) -> None:
        """Start the calls of a task."""
        if not calls:
            return
        running = self._running.setdefault(task_id, set())
        results = self._results.setdefault(task_id, [])

        async def run(call: TaskCall) -> None:
            results.append(await await_call(call))

        for call in calls:
            task = self._group.create_task(run(call), name=f"{call.node} {call.number}")
            running.add(task)
            task.add_done_callback(running.discard)

    def take(self, task_id: TaskId) -> list[CallResult]:
        """Return the results of a task's calls since the last time."""
        results = self._results.get(task_id, [])
        taken = results[:]
        results.clear()
        return taken

    def cancel(self, task_id: TaskId) -> None:
        """Cancel the calls of a task that is closed, and drop their results."""
        self._results.pop(task_id, None)
        for task in self._running.pop(task_id, ()):
            task.cancel()


logger = logging.getLogger(__name__)

T = TypeVar("T")
"""The type of a task's answer."""
AgentWrites: TypeAlias = Mapping[tuple[str, int], Sequence[RowWrite]]
"""Rows that agents have set, by the table's node and the partition."""

BUFFERED_RECORDS_MAX = 10_000
"""The records of an input that may wait for another input of the task before the input is
paused."""
COMMIT_EARLY_BYTES = 8 * 1024 * 1024
"""The uncommitted state changes of one task that start a commit early. A checkpoint may be one
batch, which is limited in size."""
COMMIT_EARLY_BYTES_SUM = 4 * COMMIT_EARLY_BYTES
"""The uncommitted state changes of all tasks that start a commit early; they are in memory."""
RESTORING_MAX = 4
"""The number of tasks that restore at the same time: each has buffers outside of the budget."""
HELD_BYTES = 64 * 1024 * 1024
"""The size on the wire of held sink records that starts a commit early: half a second of a worker
at full speed. Early commits cost, as each writes the rows that changed since the last one."""
IDLE_PROCESS_MS = 100
"""Tasks without input process at this interval, so that windows of quiet sources close."""
CLOSE_WAIT_MS = 5_000
"""How long the end of a worker waits for a task's running function."""
FENCED_DELAY_MS = 5_000
"""The delay before a fenced task is opened again. By then a heartbeat has shown whether the task
still belongs to this worker."""


def uploads_of(deps: TaskDeps, snapshots: AppSnapshots) -> SnapshotUploads:
    """Return what snapshots the tasks of a worker to object storage."""
    return SnapshotUploads(
        snapshots.settings, deps.engine, deps.background, deps.clock, deps.metrics.snapshots
    )


class WorkerTasks:
    """All tasks of this worker. Only the worker's loop uses it, except for the opening of tasks."""

    def __init__(
        self,
        topology: Topology,
        counts: Mapping[str, int],
        deps: TaskDeps,
        pauses: Pauses,
    ) -> None:
        self._topology = topology
        self._counts = counts
        self._with = deps
        self._wall = SteadyWall(deps.clock)
        self._pauses = pauses
        self._bounds = CutLimits(deps.cut, topology)
        self._drops = DropLog()
        self._sinks = Sinks(
            topology,
            deps.producer,
            deps.metrics,
            self._drops,
            holds=deps.transactor is not None,
            sources=deps.source_connectors,
        )
        self._transactor, self._engine = deps.transactor, deps.engine
        self.marks = TimeMarkRequests(topology, counts, deps.log, deps.consumer, deps.clock)
        """Requests time marks, so that stream time advances in quiet inputs."""
        self._holdups = Holdups()
        self._keys = KeyPartitionCheck(topology, counts, deps.clock)
        self._checkpoints = TaskCheckpoints(
            deps.log,
            deps.producer,
            deps.clock,
            deps.engine,
            on_step=deps.on_step,
        )
        self.budget = RocksBudget(deps.state_memory_bytes)
        """The memory of RocksDB, shared by all stores of this process."""
        self._uploads = None if deps.snapshots is None else uploads_of(deps, deps.snapshots)
        self._restoring = asyncio.Semaphore(RESTORING_MAX)
        self._running: dict[TaskId, RunningTask] = {}
        self._opening: dict[TaskId, asyncio.Task[None]] = {}
        self._restorers: dict[TaskId, Restorer] = {}
        self._opened: dict[TaskId, RunningTask] = {}
        self._starts: Mapping[TopicPartition, StartOffset] = {}
        self._suspended = False
        self._reached: dict[TopicPartition, Reached] = {}
        self._calls = TaskCalls(deps.background)
        self.ends = InputEnds(topology, counts, deps.log, deps.consumer, deps.clock)
        """Finds out whether inputs that seem to be read to their end have more records."""
        self._tables = tables_of(topology)
        self.hot_keys = HotKeys()
        """Counts the keys of the inputs on demand."""
        nodes = (node for sub in topology.subtopologies for node in sub.nodes)
        sinks = (node.topic.name for node in nodes if isinstance(node, Sink))
        self._latency = SinkLatency(deps.metrics.latency, sinks)

    def of(self, assignment: Collection[TopicPartition]) -> list[TaskId]:
        """Return the tasks that read at least one of these partitions, sorted."""
        found = {
            TaskId(sub.number, partition)
            for topic, partition in assignment
            for sub in self._topology.subtopologies_of(topic)
        }
        return sorted(found)

    def inputs(self, task_id: TaskId) -> list[TopicPartition]:
        """Return the partitions that a task reads."""
        number = task_id.partition
        return [
            TopicPartition(topic, number)
            for topic in self._topology.subtopologies[task_id.subtopology].inputs
            if number < self._counts[topic]
        ]

    @property
    def reached(self) -> dict[TopicPartition, Reached]:
        """The position of each input after the records that were processed."""
        return dict(self._reached)

    @property
    def running(self) -> list[RunningTask]:
        """The open tasks."""
        return list(self._running.values())

    async def write(self, batches: Sequence[SinkBatch]) -> None:
        """Write records as part of the next commit."""
        await self._sinks.write(batches)

    @property
    def is_suspended(self) -> bool:
        """Whether the tasks process nothing at present."""
        return self._suspended

    def has_opened(self, part: TopicPartition) -> bool:
        """Return whether all stateful tasks that read a partition are open."""
        subs = self._topology.subtopologies
        return all(
            task_id in self._running or subs[task_id.subtopology].changelog_topic is None
            for task_id in self.of([part])
        )

    def runs(self, task_id: TaskId) -> bool:
        """Return whether the task is open."""
        return task_id in self._running

    async def ask(self, task_id: TaskId, question: Callable[[Task], T]) -> T:
        """Call `question` with a task, on the engine thread between two batches.

        Raises:
            NotHere: the task does not run on this worker.
        """
        running = self._running.get(task_id)
        if running is None or self._engine.is_closed:
            raise NotHere(f"task {task_id} does not run on this worker at present")

        def answer() -> T:
            # The task may have been closed, or closed and opened again, while this call waited.
            if self._running.get(task_id) is not running:
                raise NotHere(f"task {task_id} no longer runs on this worker")
            return question(running.task)

        return await self._engine.call(task_id, answer)

    def figures(self) -> tuple[TaskFigures, ...]:
        """Return the figures of each task, tasks that are being opened included."""
        found = [
            replace(running.figures(), snapshot_age_ms=self._snapshot_age_ms(running.task.id))
            for running in list(self._running.values())
        ]
        for task_id in {*self._opening, *self._opened}:
            restorer = self._restorers.get(task_id)
            left = None if restorer is None else restorer.records_left
            read = None if restorer is None else restorer.records
            found.append(
                TaskFigures(
                    task=str(task_id),
                    is_open=False,
                    restore_left_records=left,
                    restored_records=read,
                )
            )
        return tuple(sorted(found, key=lambda each: each.task))

    def tap(self, node: str, tap: Tap | None) -> None:
        """Let `tap` look at the records of a node, in all tasks that run here; None: no longer."""
        for running in self._running.values():
            running.task.tap(node, tap)

    def _snapshot_age_ms(self, task_id: TaskId) -> int | None:
        return None if self._uploads is None else self._uploads.age_ms(task_id)

    def sights(self) -> dict[str, Sight]:
        """Return the progress of each task; while the engine works, as of the last idle moment."""
        found: dict[str, Sight] = {}
        for task_id, running in self._running.items():
            if self._engine.busy is None:
                running.seen = {TopicPartition(*at): n for at, n in running.task.positions.items()}
            found[f"task {task_id}"] = running.sight(self._with.consumer.high_watermark)
        for task_id, restorer in self._restorers.items():
            # 1 while unknown: a restore that hangs before its first read counts as behind, too.
            left = restorer.records_left or 1
            at = {restorer.changelog: restorer.position}
            found[f"task {task_id}"] = Sight(at, {restorer.changelog: left})
        return found

    def reason(self, who: str) -> str:
        """Return what a stalled task waits for; empty if it waits for nothing known here."""
        if any(who == f"task {task_id}" for task_id in self._restorers):
            return "its state is being restored"
        if self._suspended:
            return "the group rebalances"
        for task_id, running in self._running.items():
            if who == f"task {task_id}" and (checks := self.ends.describe(task_id)):
                return f"it waits to know whether {', and whether '.join(checks)}"
            if who == f"task {task_id}" and (names := running.waited_for):
                return f"it waits for records of {', '.join(names)}"
        return ""

    def changelogs_left(self) -> dict[TopicPartition, int]:
        """Return the records left of each changelog that a task is restored from, where known."""
        left = {each.changelog: each.records_left for each in self._restorers.values()}
        return {part: records for part, records in left.items() if records}

    @property
    def awaits_calls(self) -> bool:
        """Whether async calls of tasks run."""
        return len(self._calls) > 0

    @property
    def restoring(self) -> dict[TaskId, int]:
        """The restoring tasks with the number of changelog records left, where it is known."""
        left = {task_id: each.records_left for task_id, each in self._restorers.items()}
        return {task_id: records for task_id, records in left.items() if records is not None}

    @property
    def is_large(self) -> bool:
        """Whether uncommitted changes are so large that a commit should not wait."""
        if self._sinks.held_bytes > HELD_BYTES:
            return True
        sizes = [running.task.state_bytes for running in self._running.values()]
        return max(sizes, default=0) > COMMIT_EARLY_BYTES or sum(sizes) > COMMIT_EARLY_BYTES_SUM

    async def assign(self, starts: Mapping[TopicPartition, StartOffset]) -> None:
        """Open the tasks that read these partitions; open tasks continue at their positions."""
        self._starts = {**self._starts, **starts}
        for task_id in self.of(starts):
            if task_id in self._running:
                self._seek_inputs(self._running[task_id])
            elif self._lacks_topic_of_pattern(task_id):
                there = {*self.inputs(task_id)} & self._with.consumer.assignment()
                self._pauses.hold("opening", there)
            else:
                self._open(task_id)

    def _lacks_topic_of_pattern(self, task_id: TaskId) -> bool:
        """Return whether an input is not assigned, as its topic was deleted.

        1. A topic of a pattern is deleted. 2. The group's leader knows, and assigns the task's
        other inputs. 3. This worker still has the topology with the topic: it begins again without
        it as soon as it looks, and until then must not read the others alone.
        """
        sub = self._topology.subtopologies[task_id.subtopology]
        lacking = {*self.inputs(task_id)} - self._with.consumer.assignment()
        return any(sub.may_have_read(part.topic) for part in lacking)

    async def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Close the tasks that read these partitions; uncommitted changes are dropped."""
        gone = self.of(partitions)
        for task_id in gone:
            await self._stop_opening(task_id)
        for task_id in {*self._running, *self._opened}.intersection(gone):
            await self._close(task_id)
        self._starts = {at: each for at, each in self._starts.items() if at not in partitions}

    def suspend(self) -> None:
        """Stop processing until `resume`, as in a rebalance."""
        self._suspended = True

    def resume(self) -> None:
        """Process again."""
        self._suspended = False

    def admit(self) -> None:
        """Start the tasks whose opening is complete."""
        opened, self._opened = self._opened, {}
        for task_id, running in opened.items():
            begin_inputs(running, self._starts)
            self._running[task_id] = running
            self._seek_inputs(running)

    def take(
        self,
        polled: Mapping[TopicPartition, RecordColumns],
        marks: Mapping[TopicPartition, Sequence[TimeMark]],
    ) -> None:
        """Give records, and the time marks between them, to the tasks that read them."""
        for running in self._running.values():
            for part in running.inputs:
                if part in polled:
                    self._look_at_keys(part, polled[part].keys)
                    running.arrived[part] = self._bounds.records(part, polled[part])
                if part in marks:
                    taken = self._bounds.marks(part, marks[part])
                    running.marks.setdefault(part, []).extend(taken)

    def _look_at_keys(self, part: TopicPartition, keys: Sequence[bytes | None]) -> None:
        self._keys.look(part, keys)
        if self.hot_keys.is_on:
            self.hot_keys.look(part, keys)

    def reading(self, part: TopicPartition) -> list[RunningTask]:
        """Return the open tasks that read a partition."""
        return [running for running in self._running.values() if part in running.inputs]

    async def process(self) -> None:
        """Let the tasks process their records, and pass on the results."""
        if self._suspended:
            return
        now_ms = self._with.clock.now_ms()
        due = [
            running
            for running in self._running.values()
            if running.arrived
            or running.marks
            or self._calls.has_results(running.task.id)
            or self.ends.has_settled(running.task.id)
            or now_ms - running.processed_ms >= IDLE_PROCESS_MS
        ]
        if due:
            works = [(running.task.id, self._work(running, now_ms)) for running in due]
            for running, outbox in zip(due, await self._engine.call_each(works), strict=True):
                await self.pass_on(running, outbox)
                self._log_waits(running, now_ms)
        self._drops.log(now_ms)

    def _log_waits(self, running: RunningTask, now_ms: int) -> None:
        """Log the sources that a task has waited for too long."""
        name = str(running.task.id)
        self._drops.warn(name, running.task.merge_waits, now_ms)
        running.held = self._holdups.note(name, running.task.holdups, now_ms)

    def committed(self, task_id: TaskId) -> DeferredStore | None:
        """Return a task's store for reads of committed rows on any thread; None if not open."""
        running = self._running.get(task_id)
        return None if running is None or running.state is None else running.state.front

    def of_open_tasks(self, written: AgentWrites) -> AgentWrites:
        """Return the agents' rows whose tasks are open."""
        return {
            (table, partition): rows
            for (table, partition), rows in written.items()
            if TaskId(self._tables[table].subtopology, partition) in self._running
        }

    def held_by(self, written: AgentWrites) -> list[TopicPartition]:
        """Return the inputs of tasks that are not open and have rows of agents to write.

        Their offsets can't be committed: the rows would be lost.
        """
        tasks = {TaskId(self._tables[table].subtopology, number) for table, number in written}
        return [part for task_id in tasks - {*self._running} for part in self.inputs(task_id)]

    async def _write_rows(self, written: AgentWrites) -> None:
        """Apply the rows that agents have set by the records of this commit."""
        takers: list[RunningTask] = []
        works: list[tuple[TaskId, Callable[[], Outbox]]] = []
        for (table, partition), rows in written.items():
            running = self._running[TaskId(self._tables[table].subtopology, partition)]
            takers.append(running)
            works.append((running.task.id, partial(running.task.write_rows, table, rows)))
        if works:
            for running, outbox in zip(takers, await self._engine.call_each(works), strict=True):
                await self.pass_on(running, outbox)

    async def commit_whole(
        self, transactor: Transactor, moved: Offsets, all_offsets: Offsets, written: AgentWrites
    ) -> None:
        """Commit sinks, state and offsets in one transaction.

        The order: agents' rows and results that waited for the commit, checkpoints on the engine
        thread, the transaction, and then the stores. A store takes a checkpoint only once the
        transaction is committed.

        Args:
            transactor: writes the transaction.
            moved: the offsets that differ from the committed ones.
            all_offsets: the offsets to send if none has moved: the coordinator fences a worker of
                an old generation by the offsets of its transaction.
            written: the rows that agents have set.

        Raises:
            CommitAborted: the transaction is aborted, or its outcome unknown: `drop` all tasks.
        """
        phases = CommitPhases(self._with.metrics.commit_phases)
        await self._write_rows(written)
        await self._emit()
        phases.end("emit")
        self._note_logs()
        stateful = [(each, each.state) for each in self._running.values() if each.state is not None]
        wall_ms = self._with.clock.wall_ms()
        works = [
            (each.task.id, partial(checkpoint, each.task, wall_ms, epoch=None))
            for each, _ in stateful
        ]
        found = zip(stateful, await self._engine.call_each(works), strict=True)
        changed = [(each, state, made) for (each, state), made in found if made is not None]
        sinks = await self._sinks.take()
        phases.end("checkpoint")
        # Sinks can be empty while state has changed, and offsets can move without either: marks and
        # gaps move a position.
        if not (sinks or changed or moved):
            return
        self._with.on_step("checkpointed")
        write = partial(
            transactor.write,
            checkpoints=[(state.changelog, made.packs) for _, state, made in changed],
            offsets=moved or all_offsets,
            consumer=self._with.consumer,
        )
        next_offsets = await self._sinks.commit(sinks, write)
        self._latency.end(self._with.clock.wall_ms())
        phases.end("transaction")
        for (_, state, _), next_offset in zip(changed, next_offsets, strict=True):
            # Before any store takes its changes: if a changelog was created again, this raises, and
            # the stores stay as they were.
            state.reach(next_offset)
        stores = [
            (each.task.id, partial(apply_checkpoint, each.task, made.changes, next_offset))
            for (each, _, made), next_offset in zip(changed, next_offsets, strict=True)
        ]
        stores += [
            (each.task.id, partial(state.settle_late)) for each, state, _ in changed if state.late
        ]
        await self._engine.call_each(stores)
        self._with.on_step("stored")
        phases.end("store")
        now_ms = self._with.clock.now_ms()
        for _, state, _ in changed:
            if state.directory.is_snapshot_due(state.store, now_ms):
                await asyncio.to_thread(state.directory.snapshot, state.store, now_ms)

    async def save_snapshots(self) -> None:
        """Begin to snapshot a task to object storage if it is time; call it after a commit."""
        if self._uploads is not None:
            states = [(each.task.id, each.state) for each in self._running.values()]
            await self._uploads.offer({at: state for at, state in states if state is not None})

    def recount(self, outputs: Mapping[str, int]) -> bool:
        """Take in the partition counts of outputs; returns whether held rows have other ones."""
        return self._sinks.recount(outputs)

    async def drop(self) -> None:
        """Close all tasks, and drop everything that is not committed."""
        for task_id in [*self._opening]:
            await self._stop_opening(task_id)
        for task_id in [*self._running, *self._opened]:
            await self._close(task_id)
        await self._sinks.forget()
        self._latency.forget()

    async def commit(self, written: AgentWrites) -> list[TopicPartition]:
        """Commit at least once: write sinks, then state.

        Returns:
            The inputs of tasks that other workers have taken over; their offsets may not be
            committed.
        """
        phases = CommitPhases(self._with.metrics.commit_phases)
        await self._write_rows(written)
        await self._emit()
        phases.end("emit")
        self._note_logs()
        # Sinks first. 1. A checkpoint holds position 100. 2. The worker crashes before the output
        # of record 99 is in the log. 3. The restored task continues at 100: that output would be
        # lost.
        await self._sinks.flush()
        self._latency.end(self._with.clock.wall_ms())
        phases.end("sinks")
        self._with.on_step("sinks written")
        stateful = [
            (running.task, running.state)
            for running in self._running.values()
            if running.state is not None
        ]
        results = await asyncio.gather(
            *(self._checkpoints.write(task, state) for task, state in stateful),
            return_exceptions=True,
        )
        phases.end("state")
        fenced: list[TopicPartition] = []
        for (task, _), result in zip(stateful, results, strict=True):
            match result:
                case Fenced():
                    fenced += self.inputs(task.id)
                    await self._close(task.id)
                    self._open(task.id, delay_ms=FENCED_DELAY_MS)
                case BaseException():
                    raise result
                case 0:
                    pass
                case records:
                    logger.debug("task %s committed %s", task.id, quantity(records, "change"))
        return fenced

    async def close(self) -> None:
        """Close all tasks; uncommitted changes are dropped.

        A function that still runs after `CLOSE_WAIT_MS` is not waited for: the process is about to
        end, and the changelog has what the store lacks.
        """
        for task_id in self._running:
            self._calls.cancel(task_id)
        if not await self._engine.is_idle_within(CLOSE_WAIT_MS):
            logger.warning(
                "a task is still at work: stores are not closed; the changelogs have their content"
            )
            self._engine.close()
        for task_id in [*self._opening]:
            await self._stop_opening(task_id)
        if self._uploads is not None:
            # A hanging object store must not keep the process alive.
            self._uploads.close()
        if not self._engine.is_closed:
            await self.drop()

    def _work(self, running: RunningTask, now_ms: int) -> Callable[[], Outbox]:
        """Return the next call of a task's `process`, with its input of this round."""
        arrived, running.arrived = running.arrived, {}
        marks, running.marks = running.marks, {}
        running.processed_ms = now_ms
        records_in = self._with.metrics.records_in.series(str(running.task.id))
        records_in.add(sum(map(len, arrived.values())))
        if (traces := self._with.traces) is not None:
            topics = running.task.subtopology.topics
            internal = {name for name, topic in topics.items() if topic.internal}
            arrived = traces.enter(running.task.id, arrived, internal)
        ends: dict[tuple[str, int], int] = {}
        consumer, positions = self._with.consumer, self._with.consumer.positions()
        for part in running.inputs:
            lag, records = consumer.lag(part), arrived.get(part)
            if lag is not None and part in positions:
                end = min(positions[part] + lag, self._bounds.end(part))
                running.ends[part] = max(end, running.ends[part])
            # 1. The log ends with record 9 and the commit marker of its transaction, at offset 10.
            # 2. The consumer's position is 11, but the task's position is 10 after record 9.
            # 3. With 11 as the end the task would seem to have more to read, so the end is 10.
            offsets = [mark.offset for mark in marks.get(part, ())]
            offsets += records.offsets[-1:] if records else ()
            is_all = bool(offsets) and positions.get(part) == running.ends[part]
            ends[part] = max(offsets) + 1 if is_all else running.ends[part]
        return partial(
            running.task.process,
            arrived,
            self._wall.now_ms(),
            ends=ends,
            results=self._calls.take(running.task.id),
            marks=marks,
            brought={} if self._with.cut is not None else self.marks.reached_times(running.task.id),
            confirmed=self.ends.take(running.task.id),
        )

    async def _emit(self) -> None:
        """Let tasks emit the results that wait for a commit."""
        waiting = [running for running in self._running.values() if running.task.has_waiting]
        if not waiting:
            return
        works = [(running.task.id, running.task.emit) for running in waiting]
        for running, outbox in zip(waiting, await self._engine.call_each(works), strict=True):
            await self.pass_on(running, outbox)

    async def pass_on(self, running: RunningTask, outbox: Outbox) -> None:
        """Pass on the results of a task: calls, sink records, drops, positions and pauses."""
        self._calls.start(running.task.id, outbox.calls)
        await self._sinks.write(outbox.writes)
        self._with.metrics.count_writes(outbox.writes)
        self._latency.note(outbox.writes)
        if self._with.traces is not None:
            self._with.traces.leave(running.task.id, outbox.offsets)
        self._with.metrics.count_drops(outbox.drops)
        self._drops.count(outbox.drops)
        # Offsets without records (gaps, control batches) count as read.
        positions = self._with.consumer.positions()
        running.task.start_at(self._bounds.positions(running.inputs, positions))
        done, times_ms = running.task.positions, running.task.stream_times
        for part in running.inputs:
            # Positions after gaps and control batches are committed as well: tasks downstream that
            # wait for everything upstream compare committed positions with the log's end.
            before = self._reached.get(part, self._starts[part].task_at)
            if part in outbox.offsets or done.get(part, 0) > before.position:
                # Stream times are committed also for tasks whose progress holds them, as other
                # workers read them from the group.
                known_ms = times_ms[part] if times_ms[part] > UNKNOWN_MS else None
                self._reached[part] = Reached(done[part], time_ms=known_ms)
        self.ends.note(running.task.id, running.task.end_questions)
        self._hold_back(running)
        now_at = {p: (done[p], times_ms[p]) for p in running.inputs if p in done}
        self.marks.note(running.task.id, now_at, running.task.behind)
        waits = running.task.waits_quiet
        for part in positions.keys() & {*running.inputs}:
            await self.marks.want(running.task.id, part, waits.get(part))

    def _note_logs(self) -> None:
        """Set the topic id and leader epoch of each task's positions, for the checkpoints."""
        for running in self._running.values():
            running.task.belong_to(logs_of(running.task, self._with.consumer))

    def _hold_back(self, running: RunningTask) -> None:
        """Pause inputs whose records wait: for another input of the task, or for its async calls.

        1. Input a has 10,001 records that wait for the time of input b: a is paused.
        2. b moves on, and the task processes records of a.
        3. At fewer than 5,000 waiting records a is read again. The gap between the two limits keeps
           the consumer from pausing and resuming in every round.
        """
        hold = self._pauses.hold if running.task.is_full else self._pauses.let_go
        hold("calls", running.inputs)
        if len(running.inputs) == 1:
            return
        for part, buffered in running.task.buffered.items():
            if buffered > BUFFERED_RECORDS_MAX:
                self._pauses.hold("buffered", [TopicPartition(*part)])
            elif buffered < BUFFERED_RECORDS_MAX // 2:
                self._pauses.let_go("buffered", [TopicPartition(*part)])

    def _seek_inputs(self, running: RunningTask) -> None:
        """Set the consumer to the task's positions, or to an agent's if it is smaller."""
        for part in running.inputs:
            start = self._starts[part]
            running.ends[part] = max(
                min(start.end, self._bounds.end(part)), running.ends.get(part, 0)
            )
            self._with.consumer.seek(part, start_of(running, part, start))
        self._pauses.let_go("opening", running.inputs)

    def _open(self, task_id: TaskId, *, delay_ms: int = 0) -> None:
        self._pauses.hold("opening", self.inputs(task_id))
        if task_id not in self._opening and task_id not in self._opened:
            self._opening[task_id] = self._with.background.create_task(
                self._open_task(task_id, delay_ms), name=f"open task {task_id}"
            )

    async def _open_task(self, task_id: TaskId, delay_ms: int) -> None:
        """Restore the state of a task and build it; `admit` starts it later."""
        await asyncio.sleep(delay_ms / 1000)
        sub = self._topology.subtopologies[task_id.subtopology]
        state = None
        if sub.changelog_topic is not None:
            state = await self._restore(task_id, sub.changelog_topic)
        store = None if state is None else state.front
        parts, sources = self.inputs(task_id), self._with.sources
        progress = None if state is None else progress_of(state, parts, self._starts, sources)
        traces = self._with.traces
        build = partial(
            Task,
            sub,
            task_id,
            partitions=self._counts,
            store=store,
            progress=progress,
            era=self._with.era,
            # At least once, records are written again after a crash, behind later ones. A merge by
            # event time would wait for them in the wrong order, so it is for exactly-once only.
            merges=self._transactor is not None,
            pause=self._engine.pause,
            stopwatch_ns=perf_counter_ns,
            caches=self.budget.caches,
            global_tables=self._with.reader.tables,
            # On the way to a cut the ends of all inputs are known.
            asks_about_ends=self._with.cut is None,
            history=self._bounds.spans(sub.topics),
            make_span=None if traces is None else traces.spans_of(task_id),
        )
        task = await build_task(self._engine, task_id, build, state)
        self._opening.pop(task_id, None)
        self._opened[task_id] = RunningTask(task, state, self.inputs(task_id))

    async def _restore(self, task_id: TaskId, changelog: str) -> TaskState:
        """Return the state of a task, restored to the end of its changelog."""
        handed = self._with.hand_over
        snapshots = self.snapshot_restore(task_id)
        restorer = Restorer(
            self._with.log,
            self._with.producer,
            changelog=TopicPartition(changelog, task_id.partition),
            path=f"{self._with.state_path}/{task_id}",
            budget=self.budget,
            clock=self._with.clock,
            base=None if handed is None else Base(handed, str(task_id)),
            own_topics=self._with.own_topics,
            accept_state_loss=self._with.accept_state_loss,
            in_transactions=self._transactor is not None,
            snapshots=snapshots,
        )
        self._restorers[task_id] = restorer
        try:
            async with self._restoring:
                state = await restorer.run()
        finally:
            del self._restorers[task_id]
        if self._uploads is not None and snapshots is not None:
            # After the restore, which has looked for snapshots: the age of the newest one decides
            # when the next one is due.
            self._uploads.add(task_id, snapshots.snapshots)
        self._with.metrics.restored.add(restorer.records)
        level = logging.INFO if restorer.records else logging.DEBUG
        logger.log(level, "task %s: restored %s", task_id, quantity(restorer.records, "record"))
        return state

    def snapshot_restore(self, task_id: TaskId) -> SnapshotRestore | None:
        """Return the snapshots of a task, for its store to begin with; None if there are none."""
        snapshots = self._with.snapshots
        changelog = self._topology.subtopologies[task_id.subtopology].changelog_topic
        if snapshots is None or changelog is None:
            return None
        return SnapshotRestore(
            self._with.log,
            snapshots.of(task_id),
            changelog=TopicPartition(changelog, task_id.partition),
            clock=self._with.clock,
            metrics=self._with.metrics.snapshots,
        )

    async def _stop_opening(self, task_id: TaskId) -> None:
        opening = self._opening.pop(task_id, None)
        if opening is None:
            return  # It was completed while this method waited for another task.
        opening.cancel()
        # `wait`, and not `await opening`: its error belongs to the background group, and its
        # cancellation must not cancel this caller.
        await asyncio.wait([opening])

    async def _close(self, task_id: TaskId) -> None:
        running = self._running.pop(task_id, None) or self._opened.pop(task_id)
        self._calls.cancel(task_id)
        if self._uploads is not None:
            self._uploads.drop(task_id)
        self.ends.forget(task_id)
        self.marks.forget(task_id, running.inputs)
        self._holdups.forget(str(task_id))
        for part in running.inputs:
            self._reached.pop(part, None)
        self._with.metrics.keep(running.task.node_figures)
        if self._with.traces is not None:
            self._with.traces.drop(task_id)
        # On the engine thread: calls that are queued for the task run before.
        await self._engine.call(task_id, running.task.close)
