"""The tasks that this worker runs: opened, fed, committed, given up.

A task is opened in the background, so that the worker goes on polling (and stays in its
group) while a long changelog is replayed; its inputs stay paused until then. A rebalance
disturbs only the tasks that come and go. Rules of the file: a task's inputs are read on from
where the task stands, not from where the consumer or the group believes it to be; what a task
itself does is done by the engine thread (`engine`), and the task is looked at from here only
while it is not at work. Not done here: polling (`worker`), who runs what (`placement`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from streamlog.agents.call import await_call
from streamlog.agents.offsets import AgentPosition as Reached
from streamlog.client.offset_metadata import Offsets
from streamlog.clock import SteadyWall
from streamlog.processing.outbox import CallResult, Outbox, SinkBatch, TaskCall
from streamlog.processing.table_rows import tables_of
from streamlog.processing.tables.writable_table import RowWrite
from streamlog.processing.task import Task, TaskId
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.tables.local_disk.rocksdb_store import RocksBudget
from streamlog.tables.state.store_transaction import DeferredStore
from streamlog.topology import Topology
from streamlog.windows.emit import UNKNOWN_MS
from streamlog.worker.access.questions import NotHere
from streamlog.worker.commit.commit import Fenced, TaskCheckpoints, apply_checkpoint, checkpoint
from streamlog.worker.commit.exactly_once import Transactor
from streamlog.worker.commit.sinks import Sinks
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.health.worker_health import DropLog, Holdups, TaskFigures
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
from streamlog.worker.task_deps import TaskDeps
from streamlog.worker.topics.savepoint_messages import CutLimits
from streamlog.worker.topics.version_log import Base


class TaskCalls:
    """The calls of all tasks of a worker."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._running: dict[TaskId, set[asyncio.Task[None]]] = {}
        self._results: dict[TaskId, list[CallResult]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def has_results(self, task_id: TaskId) -> bool:
        """Whether something has come of a task's calls."""
        return bool(self._results.get(task_id))

    def start(self, task_id: TaskId, calls: Sequence[TaskCall]) -> None:
        """Begin to await these."""
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
        """What has come of a task's calls since the last time."""
        results = self._results.get(task_id, [])
        taken = results[:]
        results.clear()
        return taken

    def cancel(self, task_id: TaskId) -> None:
        """The task was given up."""
        self._results.pop(task_id, None)
        for task in self._running.pop(task_id, ()):
            task.cancel()


logger = logging.getLogger(__name__)

T = TypeVar("T")
"""What a task answers."""
AgentWrites: TypeAlias = Mapping[tuple[str, int], Sequence[RowWrite]]
"""Rows that agents have set, by the node that keeps the table and the partition."""

BUFFERED_RECORDS_MAX = 10_000
"""A task that waits for one input stops reading its others at so many records."""
COMMIT_EARLY_BYTES = 8 * 1024 * 1024
"""Changes of state that wait for a commit: a checkpoint may be one batch, and has to fit."""
COMMIT_EARLY_BYTES_SUM = 4 * COMMIT_EARLY_BYTES
"""The same of all tasks together, as they are in memory until then."""
RESTORING_MAX = 4
"""Tasks that are restored at the same time: each has buffers of its own, outside the budget."""
HELD_BYTES = 64 * 1024 * 1024
"""Sink records that wait for the transaction of their commit, as bytes on the wire: half a second
of a worker at full speed. A commit that comes before its time writes the same rows once more."""
IDLE_PROCESS_MS = 100
"""Tasks are asked this often even if nothing came: quiet sources let windows close."""
CLOSE_WAIT_MS = 5_000
"""So long the end of a worker waits for what a task has begun."""
FENCED_DELAY_MS = 5_000
"""A task that another worker has taken is opened again only after this, if it is still ours:
by then a heartbeat has told whether the group counts on us at all."""


class WorkerTasks:
    """All tasks of this worker. Used from the worker's one loop, except for opening."""

    def __init__(
        self,
        topology: Topology,
        counts: Mapping[str, int],
        surroundings: TaskDeps,
        pauses: Pauses,
    ) -> None:
        self._topology = topology
        self._counts = counts
        self._with = surroundings
        self._wall = SteadyWall(surroundings.clock)
        self._pauses = pauses
        self._bounds = CutLimits(surroundings.cut, topology)
        self._drops = DropLog()
        self._sinks = Sinks(
            topology,
            surroundings.producer,
            surroundings.figures,
            self._drops,
            holds=surroundings.transactor is not None,
        )
        self._transactor = surroundings.transactor
        self._engine = surroundings.engine
        self.marks = TimeMarkRequests(
            topology, counts, surroundings.log, surroundings.consumer, surroundings.clock
        )
        """Sees to it that time goes on in quiet inputs."""
        self._holdups = Holdups()
        self._keys = KeyPartitionCheck(topology, counts, surroundings.clock)
        self._checkpoints = TaskCheckpoints(
            surroundings.log,
            surroundings.producer,
            surroundings.clock,
            surroundings.engine,
            on_step=surroundings.on_step,
        )
        self.budget = RocksBudget(surroundings.state_memory_bytes)
        """Shared by all state of this process."""
        self._restoring = asyncio.Semaphore(RESTORING_MAX)
        self._running: dict[TaskId, RunningTask] = {}
        self._opening: dict[TaskId, asyncio.Task[None]] = {}
        self._restorers: dict[TaskId, Restorer] = {}
        self._opened: dict[TaskId, RunningTask] = {}
        self._places: Mapping[TopicPartition, StartOffset] = {}
        self._suspended = False
        self._reached: dict[TopicPartition, Reached] = {}
        self._calls = TaskCalls(surroundings.background)
        log, consumer, clock = surroundings.log, surroundings.consumer, surroundings.clock
        self.ends = InputEnds(topology, counts, log, consumer, clock)
        """Whether what seems to be at its end has more."""
        self._tables = tables_of(topology)

    def of(self, assignment: Collection[TopicPartition]) -> list[TaskId]:
        """The tasks that read one of these partitions."""
        found = {
            TaskId(sub.number, partition)
            for topic, partition in assignment
            for sub in self._topology.subtopologies_of(topic)
        }
        return sorted(found)

    def inputs(self, task_id: TaskId) -> list[TopicPartition]:
        """What a task reads."""
        number = task_id.partition
        return [
            TopicPartition(topic, number)
            for topic in self._topology.subtopologies[task_id.subtopology].inputs
            if number < self._counts[topic]
        ]

    @property
    def reached(self) -> dict[TopicPartition, Reached]:
        """The next offsets to read, as of what was processed."""
        return dict(self._reached)

    @property
    def running(self) -> list[RunningTask]:
        """Those that are open and take part."""
        return list(self._running.values())

    async def write(self, batches: Sequence[SinkBatch]) -> None:
        """Write beside what tasks give, with the next commit."""
        await self._sinks.write(batches)

    @property
    def is_suspended(self) -> bool:
        """Whether nothing is processed for now."""
        return self._suspended

    def has_opened(self, part: TopicPartition) -> bool:
        """Whether all tasks that read a partition and have state are open."""
        subs = self._topology.subtopologies
        return all(
            task_id in self._running or subs[task_id.subtopology].changelog_topic is None
            for task_id in self.of([part])
        )

    def runs(self, task_id: TaskId) -> bool:
        """Whether the task is open and takes part."""
        return task_id in self._running

    async def ask(self, task_id: TaskId, question: Callable[[Task], T]) -> T:
        """Let a task answer between two batches.

        Raises:
            NotHere: it does not run here.
        """
        running = self._running.get(task_id)
        if running is None or self._engine.is_closed:
            raise NotHere(f"task {task_id} does not run in this worker just now")

        def answer() -> T:
            if self._running.get(task_id) is not running:
                raise NotHere(f"task {task_id} has just been given up by this worker")
            return question(running.task)

        return await self._engine.call(task_id, answer)

    def standing(self) -> tuple[TaskFigures, ...]:
        """Where each task stands, those that are being opened included."""
        found = [running.figures() for running in list(self._running.values())]
        for task_id in {*self._opening, *self._opened}:
            restorer = self._restorers.get(task_id)
            left = None if restorer is None else restorer.records_left
            found.append(TaskFigures(task=str(task_id), is_open=False, restore_left_records=left))
        return tuple(sorted(found, key=lambda each: each.task))

    def sights(self) -> dict[str, Sight]:
        """Where each task stands; while the engine is at work, where they stood before."""
        found: dict[str, Sight] = {}
        for task_id, running in self._running.items():
            if self._engine.busy is None:
                running.seen = {TopicPartition(*at): n for at, n in running.task.positions.items()}
            found[f"task {task_id}"] = running.sight(self._with.consumer.high_watermark)
        for task_id, restorer in self._restorers.items():
            left = restorer.records_left or 1
            found[f"task {task_id}"] = Sight({}, {restorer.changelog: left})
        return found

    def reason(self, who: str) -> str:
        """What a task that does not get on waits for, if it is not at work."""
        if any(who == f"task {task_id}" for task_id in self._restorers):
            return "its state is being restored"
        if self._suspended:
            return "the group forms anew"
        for task_id, running in self._running.items():
            if who == f"task {task_id}" and (doubts := self.ends.told(task_id)):
                return f"it waits to know whether {', and whether '.join(doubts)}"
            if who == f"task {task_id}" and (names := running.waited_for):
                return f"it waits for records of {', '.join(names)}"
        return ""

    @property
    def awaits_calls(self) -> bool:
        """Whether results of async functions may come at any time."""
        return len(self._calls) > 0

    @property
    def restoring(self) -> dict[TaskId, int]:
        """Tasks that are being restored: how far their state is still behind, if that is known."""
        left = {task_id: each.records_left for task_id, each in self._restorers.items()}
        return {task_id: records for task_id, records in left.items() if records is not None}

    @property
    def is_large(self) -> bool:
        """Whether so much has changed that it should be committed now."""
        if self._sinks.held_bytes > HELD_BYTES:
            return True
        sizes = [running.task.state_bytes for running in self._running.values()]
        return max(sizes, default=0) > COMMIT_EARLY_BYTES or sum(sizes) > COMMIT_EARLY_BYTES_SUM

    async def assign(self, places: Mapping[TopicPartition, StartOffset]) -> None:
        """Open the tasks that read these partitions, besides those that are here."""
        self._places = {**self._places, **places}
        for task_id in self.of(places):
            if task_id in self._running:
                self._read_on(self._running[task_id])
            else:
                self._open(task_id)

    async def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Close the tasks that read these partitions; what is not committed is forgotten."""
        gone = self.of(partitions)
        for task_id in gone:
            await self._stop_opening(task_id)
        for task_id in {*self._running, *self._opened}.intersection(gone):
            await self._close(task_id)
        self._places = {at: each for at, each in self._places.items() if at not in partitions}

    def suspend(self) -> None:
        """Process nothing for now: the worker waits for its agents."""
        self._suspended = True

    def resume(self) -> None:
        """Go on."""
        self._suspended = False

    def admit(self) -> None:
        """Let the tasks that have been opened meanwhile take part."""
        opened, self._opened = self._opened, {}
        for task_id, running in opened.items():
            begin_inputs(running, self._places)
            self._running[task_id] = running
            self._read_on(running)

    def take(
        self,
        polled: Mapping[TopicPartition, RecordColumns],
        marks: Mapping[TopicPartition, Sequence[TimeMark]],
    ) -> None:
        """Hand records, and the time marks between them, to the tasks that read them."""
        for running in self._running.values():
            for place in running.inputs:
                if place in polled:
                    self._keys.look(place, polled[place].keys)
                    running.arrived[place] = self._bounds.records(place, polled[place])
                if place in marks:
                    told = self._bounds.marks(place, marks[place])
                    running.marks.setdefault(place, []).extend(told)

    def reading(self, place: TopicPartition) -> list[RunningTask]:
        """The running tasks that read a partition."""
        return [running for running in self._running.values() if place in running.inputs]

    async def process(self) -> None:
        """Let the tasks work, and send what comes of it."""
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
                await self.took(running, outbox)
                self._tell_waits(running, now_ms)
        self._drops.tell(now_ms)

    def _tell_waits(self, running: RunningTask, now_ms: int) -> None:
        """Say for which sources a task has waited for long."""
        name = str(running.task.id)
        self._drops.warn(name, running.task.merge_waits, now_ms)
        running.held = self._holdups.note(name, running.task.holdups, now_ms)

    def committed(self, task_id: TaskId) -> DeferredStore | None:
        """What a task has committed, to be read while it is at work; None if it is not open."""
        running = self._running.get(task_id)
        return None if running is None or running.state is None else running.state.front

    def taken(self, written: AgentWrites) -> AgentWrites:
        """Those rows of agents whose tasks are open."""
        return {
            (table, partition): rows
            for (table, partition), rows in written.items()
            if TaskId(self._tables[table].subtopology, partition) in self._running
        }

    def held_by(self, written: AgentWrites) -> list[TopicPartition]:
        """What can't be committed: inputs of tasks that are to take in rows, and are not open."""
        tasks = {TaskId(self._tables[table].subtopology, number) for table, number in written}
        return [part for task_id in tasks - {*self._running} for part in self.inputs(task_id)]

    async def _write_rows(self, written: AgentWrites) -> None:
        """Let tasks take in what agents have set, by the records that are about to be committed."""
        takers: list[RunningTask] = []
        works: list[tuple[TaskId, Callable[[], Outbox]]] = []
        for (table, partition), rows in written.items():
            running = self._running[TaskId(self._tables[table].subtopology, partition)]
            takers.append(running)
            works.append((running.task.id, partial(running.task.write_rows, table, rows)))
        if works:
            for running, outbox in zip(takers, await self._engine.call_each(works), strict=True):
                await self.took(running, outbox)

    async def commit_whole(
        self, transactor: Transactor, moved: Offsets, standing: Offsets, written: AgentWrites
    ) -> None:
        """Write everything that was processed, and where the group goes on, as one transaction.

        Where no offset has `moved`, those that are `standing` are sent, as the group checks by them
        whether it counts on this worker.

        Raises:
            Undone: nothing of it counts, or it is not known: `drop` all tasks.
        """
        await self._write_rows(written)
        await self._emit()
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
        if not (sinks or changed or moved):
            return
        self._with.on_step("checkpointed")
        write = partial(
            transactor.write,
            checkpoints=[(state.changelog, made.packs) for _, state, made in changed],
            offsets=moved or standing,
            consumer=self._with.consumer,
        )
        next_offsets = await self._sinks.committed(sinks, write)
        for (_, state, _), next_offset in zip(changed, next_offsets, strict=True):
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
        now_ms = self._with.clock.now_ms()
        for _, state, _ in changed:
            if state.directory.is_snapshot_due(state.store, now_ms):
                await asyncio.to_thread(state.directory.snapshot, state.store, now_ms)

    async def drop(self) -> None:
        """Forget all that is not committed, and every task with it."""
        for task_id in [*self._opening]:
            await self._stop_opening(task_id)
        for task_id in [*self._running, *self._opened]:
            await self._close(task_id)
        self._sinks.forget()

    async def commit(self, written: AgentWrites) -> list[TopicPartition]:
        """Make everything durable that was processed: sinks, then state.

        Returns the inputs of tasks that others have: nothing of theirs counts.
        """
        await self._write_rows(written)
        await self._emit()
        self._note_logs()
        await self._sinks.flush()
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
                    logger.debug("task %s committed %d changes", task.id, records)
        return fenced

    async def close(self) -> None:
        """Close everything; what is not committed is forgotten.

        A task that is still at work is not waited for: its process is about to end, and its
        changelog has what its store lacks.
        """
        for task_id in self._running:
            self._calls.cancel(task_id)
        if not await self._engine.is_idle_within(CLOSE_WAIT_MS):
            logger.warning("a task is still at work: states are left as they are, not closed")
            self._engine.close()
        for task_id in [*self._opening]:
            await self._stop_opening(task_id)
        if not self._engine.is_closed:
            await self.drop()

    def _work(self, running: RunningTask, now_ms: int) -> Callable[[], Outbox]:
        """What there is to do for a task."""
        arrived, running.arrived = running.arrived, {}
        marks, running.marks = running.marks, {}
        running.processed_ms = now_ms
        figures = self._with.figures
        figures.taken[str(running.task.id)] += sum(map(len, arrived.values()))
        ends: dict[tuple[str, int], int] = {}
        consumer, positions = self._with.consumer, self._with.consumer.positions()
        for place in running.inputs:
            lag, records = consumer.lag(place), arrived.get(place)
            if lag is not None and place in positions:
                end = min(positions[place] + lag, self._bounds.end(place))
                running.ends[place] = max(end, running.ends[place])
            # What ends a transaction is behind the last record that there is.
            told = [mark.offset for mark in marks.get(place, ())]
            told += records.offsets[-1:] if records else ()
            is_all = bool(told) and positions.get(place) == running.ends[place]
            ends[place] = max(told) + 1 if is_all else running.ends[place]
        return partial(
            running.task.process,
            arrived,
            self._wall.now_ms(),
            ends=ends,
            results=self._calls.take(running.task.id),
            marks=marks,
            brought={} if self._with.cut is not None else self.marks.brought(running.task.id),
            confirmed=self.ends.take(running.task.id),
        )

    async def _emit(self) -> None:
        """Let tasks hand on what waits for a commit."""
        waiting = [running for running in self._running.values() if running.task.has_waiting]
        if not waiting:
            return
        works = [(running.task.id, running.task.emit) for running in waiting]
        for running, outbox in zip(waiting, await self._engine.call_each(works), strict=True):
            await self.took(running, outbox)

    async def took(self, running: RunningTask, outbox: Outbox) -> None:
        """A task has taken in what had arrived: pass on what has come of it."""
        self._calls.start(running.task.id, outbox.calls)
        await self._sinks.write(outbox.writes)
        self._with.figures.wrote(outbox.writes)
        self._with.figures.left_out(outbox.drops)
        self._drops.count(outbox.drops)
        # Offsets without records (gaps, control batches) count as read.
        positions = self._with.consumer.positions()
        running.task.start_at(self._bounds.positions(running.inputs, positions))
        done, times_ms = running.task.positions, running.task.stream_times
        for place in running.inputs:
            # What holds no records is committed, too: who waits for all above it looks at that.
            before = self._reached.get(place, self._places[place].task_at)
            if place in outbox.offsets or done.get(place, 0) > before.position:
                # A task with state has its times there, too: other workers look here.
                known_ms = times_ms[place] if times_ms[place] > UNKNOWN_MS else None
                self._reached[place] = Reached(done[place], time_ms=known_ms)
        self.ends.note(running.task.id, running.task.end_questions)
        self._hold_back(running)
        standing = {p: (done[p], times_ms[p]) for p in running.inputs if p in done}
        self.marks.note(running.task.id, standing, running.task.behind)
        waits = running.task.waits_quiet
        for part in positions.keys() & {*running.inputs}:
            await self.marks.want(running.task.id, part, waits.get(part))

    def _note_logs(self) -> None:
        """Tell the tasks which log, and which leader epoch, they have come to: before a commit."""
        for running in self._running.values():
            running.task.belong_to(logs_of(running.task, self._with.consumer))

    def _hold_back(self, running: RunningTask) -> None:
        """Pause inputs that are far ahead: of one that the task waits for, or of its calls."""
        hold = self._pauses.hold if running.task.is_full else self._pauses.let_go
        hold("calls", running.inputs)
        if len(running.inputs) == 1:
            return
        for place, buffered in running.task.buffered.items():
            if buffered > BUFFERED_RECORDS_MAX:
                self._pauses.hold("buffered", [TopicPartition(*place)])
            elif buffered < BUFFERED_RECORDS_MAX // 2:
                self._pauses.let_go("buffered", [TopicPartition(*place)])

    def _read_on(self, running: RunningTask) -> None:
        """Set the consumer to where the task stands, or an agent that is behind it."""
        for part in running.inputs:
            place = self._places[part]
            running.ends[part] = max(
                min(place.end, self._bounds.end(part)), running.ends.get(part, 0)
            )
            self._with.consumer.seek(part, start_of(running, part, place))
        self._pauses.let_go("opening", running.inputs)

    def _open(self, task_id: TaskId, *, delay_ms: int = 0) -> None:
        self._pauses.hold("opening", self.inputs(task_id))
        if task_id not in self._opening and task_id not in self._opened:
            self._opening[task_id] = self._with.background.create_task(
                self._opened_task(task_id, delay_ms), name=f"open task {task_id}"
            )

    async def _opened_task(self, task_id: TaskId, delay_ms: int) -> None:
        await asyncio.sleep(delay_ms / 1000)
        sub = self._topology.subtopologies[task_id.subtopology]
        state = None
        if sub.changelog_topic is not None:
            state = await self._restored(task_id, sub.changelog_topic)
        store = None if state is None else state.front
        parts, judge = self.inputs(task_id), self._with.sources.judge
        progress = None if state is None else progress_of(state, parts, self._places, judge)
        # In the order of the log: what is sent again after a crash comes in no other.
        build = partial(
            Task,
            sub,
            task_id,
            partitions=self._counts,
            store=store,
            progress=progress,
            era=self._with.era,
            # Sent again after a crash, records are told by their place in the log: see `merged`.
            merges=self._transactor is not None,
            pause=self._engine.pause,
            caches=self.budget.caches,
            global_tables=self._with.reader.tables,
            # On its way to a cut it is told where all inputs end.
            asks_about_ends=self._with.cut is None,
            history=self._bounds.spans(sub.topics),
        )
        task = await build_task(self._engine, task_id, build, state)
        self._opening.pop(task_id, None)
        self._opened[task_id] = RunningTask(task, state, self.inputs(task_id))

    async def _restored(self, task_id: TaskId, changelog: str) -> TaskState:
        """The state of a task, brought up to date."""
        handed = self._with.hand_over
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
        )
        self._restorers[task_id] = restorer
        try:
            async with self._restoring:
                state = await restorer.run()
        finally:
            del self._restorers[task_id]
        self._with.figures.restored += restorer.records
        level = logging.INFO if restorer.records else logging.DEBUG
        logger.log(level, "task %s: restored %d records", task_id, restorer.records)
        return state

    async def _stop_opening(self, task_id: TaskId) -> None:
        opening = self._opening.pop(task_id, None)
        if opening is None:
            return  # It came to its end while another one was waited for.
        opening.cancel()
        await asyncio.wait([opening])

    async def _close(self, task_id: TaskId) -> None:
        running = self._running.pop(task_id, None) or self._opened.pop(task_id)
        self._calls.cancel(task_id)
        self.ends.forget(task_id)
        self.marks.forget(task_id, running.inputs)
        self._holdups.forget(str(task_id))
        for part in running.inputs:
            self._reached.pop(part, None)
        await self._engine.call(task_id, running.task.close)
