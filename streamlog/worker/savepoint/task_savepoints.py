"""Task savepoints: brings the tasks of a worker to a cut, and writes their state to files there.

A task is at the cut when all tasks upstream are, and when it has read every source up to the cut
and every repartition topic to its end. Records that it can't process yet stay in their topics;
those of repartition topics go into the snapshot as well.

The order at the cut:

1. The task sends marks downstream: no record before the cut follows.
2. Its rows, offsets and marks are committed.
3. Its state and its progress are written to files.
4. It reports the files (`SavepointReached`), so that tasks downstream can reach the cut.

Rule: each step waits only for facts that do not change any more, so a task may run several times,
on any worker. Not done here: leaving the group (`savepoint_log`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

from streamlog import repeated
from streamlog.agents.offsets import TASK, positions_of
from streamlog.errors import UsageError, quantity
from streamlog.log import Log
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.provenance import BUSY_MS, MARK, ProvenanceMark, identity, pack_mark
from streamlog.processing.task import Task, TaskId
from streamlog.processing.task_progress import INPUTS_SECTION
from streamlog.record import TopicPartition
from streamlog.records.record_columns import RecordColumns
from streamlog.snapshots import PendingRecords, SnapshotStore, TaskEntry
from streamlog.snapshots.capture import entry_of, finish_snapshot, pending_of
from streamlog.snapshots.manifest import MANIFEST_FILE, REPARTITION, renumber_progress
from streamlog.tables.state.changelog import PROGRESS_KEY, TaskProgress
from streamlog.tables.stores.store import KeyValueStore
from streamlog.windows.emit import UNKNOWN_MS
from streamlog.worker.program import WorkerStart
from streamlog.worker.running_task import RunningTask
from streamlog.worker.savepoint.savepoint_log import SavepointWatch
from streamlog.worker.state.changelog_reader import offload
from streamlog.worker.task_deps import TaskDeps
from streamlog.worker.tasks import WorkerTasks
from streamlog.worker.topics.app_topics import read_whole_topic
from streamlog.worker.topics.savepoint_messages import (
    SavepointCut,
    SavepointMessage,
    SavepointReached,
    SavepointReleased,
    encode_savepoint,
    savepoint_topic,
)
from streamlog.worker.topics.version_log import current, version_topic

logger = repeated.logger(__name__)


class TaskSavepoints:
    """Brings the tasks of one worker to a cut."""

    def __init__(
        self,
        cut: SavepointCut,
        watch: SavepointWatch,
        start: WorkerStart,
        deps: TaskDeps,
    ) -> None:
        self._cut = cut
        self._watch = watch
        self._program = start.program
        self._topology = start.program.topology
        self._counts = start.counts
        self._with = deps
        self._snapshots = SnapshotStore(cut.url)
        self._ends: dict[TopicPartition, int] = {}
        """The ends of repartition topics whose writers are all at the cut."""
        self._seen: dict[TaskId, tuple[int, Mapping[tuple[str, int], int]]] = {}
        """For tasks that may be at the cut: when they last processed a record, and their
        positions."""
        self._reported: set[str] = set()
        """The tasks that this worker has reported at the cut."""

    async def look(self, tasks: WorkerTasks, commit: Callable[[], Awaitable[bool]]) -> bool:
        """Report tasks that are at the cut; returns whether all tasks of the app are.

        Call it between two rounds of the worker's loop.

        Args:
            tasks: the tasks of this worker.
            commit: commits them; returns whether the commit succeeded.

        Raises:
            StreamlogError: a snapshot can't be written, or the log can't be reached.
        """
        reached = self._reached
        fresh = [each for each in tasks.running if str(each.task.id) not in reached]
        there = [each for each in fresh if await self._is_there(each, tasks)]
        for running in there:
            await tasks.write(self._marks(running.task))
        # The marks are committed before any file is written: tasks downstream rely on both.
        if there and await commit():
            for running in there:
                # An aborted commit closes its tasks: they run again and reach the cut once more.
                if tasks.runs(running.task.id):
                    await self._write_savepoint(running, tasks)
        if not all(str(each) in self._reached for each in self._all_tasks):
            return False
        return await self._finish()

    @property
    def _reached(self) -> set[str]:
        """The tasks at the cut, by the messages read so far and by this worker's own reports."""
        savepoint = self._watch.savepoint
        is_ours = savepoint is not None and savepoint.id == self._cut.id
        read = {*savepoint.reached} if savepoint is not None and is_ours else set()
        return read | self._reported

    @property
    def _all_tasks(self) -> list[TaskId]:
        return [
            TaskId(sub.number, partition)
            for sub in self._topology.subtopologies
            for partition in range(sub.tasks(self._counts))
        ]

    async def _is_there(self, running: RunningTask, tasks: WorkerTasks) -> bool:
        """Return whether the task has processed everything before the cut."""
        task = running.task
        if running.arrived or running.marks or tasks.awaits_calls:
            return False
        if not all(str(each) in self._reached for each in self._upstream(task)):
            return False
        for part in running.inputs:
            if not await self._is_read(part, running):
                return False
        # 1. All inputs are read to the cut, but one of them holds records back until the other's
        #    time has passed.
        # 2. The record that was read last moves that time: the held records are processed next.
        # 3. So the task is at the cut only if another round has processed nothing.
        before = self._seen.get(task.id)
        self._seen[task.id] = (running.processed_ms, positions := task.positions)
        if before is None or before[0] == running.processed_ms or before[1] != positions:
            return False
        await self._refuse_beyond(task)
        return True

    async def _is_read(self, part: TopicPartition, running: RunningTask) -> bool:
        """Return whether a task has received an input up to the cut.

        It need not have processed all of it: records may wait for the time of another input. If so
        many wait that the partition is paused, the records after them wait in the topic.
        """
        task, read = running.task, self._with.consumer.positions().get(part, -1)
        if self._topology.topics[part.topic].internal:
            return read >= await self._end(part)
        is_held = part in self._with.consumer.paused() and task.buffered[part] > 0
        return part in task.cuts or is_held or read >= self._cut.limit(part)

    async def _refuse_beyond(self, task: Task) -> None:
        """Raise if a task has processed a source beyond the cut.

        Raises:
            UsageError: it has; the savepoint is released as given up.
        """
        for (topic, partition), time_ms in task.stream_times.items():
            # Only sources count. The tasks that write a repartition topic are at the cut, but its
            # records may have later times, which `set_timestamp` gave them.
            is_source = not self._topology.topics[topic].internal
            if is_source and time_ms >= self._cut.until_ms:
                message = f"task {task.id} has processed {topic}-{partition} beyond the cut"
                await self._report(
                    SavepointReleased(id=self._cut.id, outcome="given up", message=message)
                )
                raise UsageError(f"{message}: start the workers again, and repeat the savepoint")

    def _upstream(self, task: Task) -> Iterable[TaskId]:
        for sub in self._topology.subtopologies:
            if {*sub.repartition_topics} & {*task.subtopology.topics}:
                yield from (TaskId(sub.number, n) for n in range(sub.tasks(self._counts)))

    async def _end(self, part: TopicPartition) -> int:
        if part not in self._ends:
            self._ends |= await self._with.consumer.end_offsets([part])
        return self._ends[part]

    def _marks(self, task: Task) -> list[SinkBatch]:
        """Return marks for the tasks downstream: no record before the cut follows.

        They move on the order of inputs, and not stream time (docs/decisions/012, rule 8).
        """
        mark = ProvenanceMark(self._cut.until_ms, UNKNOWN_MS, BUSY_MS)
        found: list[SinkBatch] = []
        for source in sorted(task.cuts):
            headers = [((MARK, pack_mark(mark, identity(source))),)]
            found += [
                SinkBatch(topic, partition, [max(mark.turn_ms, 0)], [None], [None], headers)
                for topic in self._topics_behind(source)
                for partition in range(self._counts[topic])
            ]
        return found

    def _topics_behind(self, source: tuple[str, int]) -> list[str]:
        """Return the repartition topics that a source feeds."""
        name, partition = source
        return [
            topic
            for sub in self._topology.subtopologies
            for topic, feeders in sub.feeders.items()
            if any(f.name == name and partition < f.partitions(self._counts) for f in feeders)
        ]

    async def _write_savepoint(self, running: RunningTask, tasks: WorkerTasks) -> None:
        """Write the state of a task at the cut to files, and report them."""
        task = running.task
        attempt = uuid4().hex[:8]
        tails = {
            part: await self._tail(part, task.positions.get(part, 0))
            for part in running.inputs
            if self._topology.topics[part.topic].internal
        }
        pending = await offload(partial(self._pending, task.id, tails, attempt))
        store = None if running.state is None else running.state.front
        entry = await tasks.ask(task.id, partial(self._entry, store, tails, attempt))
        await self._report(SavepointReached(id=self._cut.id, entry=entry, pending=tuple(pending)))
        self._reported.add(entry.task)
        logger.info(
            "savepoint: task %s is at the cut, with %s", entry.task, quantity(entry.rows, "row")
        )

    def _entry(
        self,
        store: KeyValueStore | None,
        tails: Mapping[TopicPartition, RecordColumns],
        attempt: str,
        task: Task,
    ) -> TaskEntry:
        progress: TaskProgress | None = None
        if store is not None:
            offsets = {(*part,): tail.offsets for part, tail in tails.items()}
            progress = renumber_progress(task.progress, offsets)
        return entry_of(
            (task.id.subtopology, task.id.partition),
            store=store,
            progress=progress,
            offsets=task.positions,
            times=task.stream_times,
            logs={
                at: log
                for at, log in task.logs.items()
                if not self._topology.topics[at[0]].internal
            },
            snapshots=self._snapshots,
            attempt=attempt,
        )

    def _pending(
        self, task_id: TaskId, tails: Mapping[TopicPartition, RecordColumns], attempt: str
    ) -> list[PendingRecords]:
        return [
            pending_of(self._snapshots, f"{task_id}-{attempt}", (*part,), tail)
            for part, tail in tails.items()
            if len(tail)
        ]

    async def _tail(self, part: TopicPartition, position: int) -> RecordColumns:
        """Return the records of a repartition topic from a position to its end."""
        return await self._with.log.read_range(part, position, await self._end(part))

    async def _finish(self) -> bool:
        """Write the snapshot's manifest if no other worker has; returns whether it exists."""
        savepoint = self._watch.savepoint
        # Built from the messages in the topic, and not from this worker's own reports: several
        # workers that write the manifest at one time then write equal ones.
        if savepoint is None or not savepoint.has_reached(map(str, self._all_tasks)):
            return False
        if not await offload(partial(self._snapshots.has, MANIFEST_FILE)):
            reached = list(savepoint.reached.values())
            await offload(
                partial(
                    finish_snapshot,
                    self._snapshots,
                    [each.entry for each in reached],
                    topology=self._topology,
                    origin=self._program.origin,
                    partitions=self._counts,
                    cut_ms=self._cut.until_ms,
                    created_ms=savepoint.request.wall_ms,
                    pending=[records for each in reached for records in each.pending],
                )
            )
        return True

    async def _report(self, message: SavepointMessage) -> None:
        topic = savepoint_topic(self._program.app_id)
        await (await self._with.producer.send(topic, encode_savepoint(message), partition=0))


TAIL_RECORDS: Final = 64
"""The number of records at a changelog's end that are searched for the last progress. If it is not
there, eight times as many are searched next."""


class CutChoice:
    """Finds out from the log how far the tasks of an app have come, in order to choose a cut."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def lag(self, app_id: str) -> int:
        """Return the number of records that an app has not read; 0 if it has never run."""
        offsets = await self._offsets(app_id)
        async with self._log.consumer() as consumer:
            ends = await consumer.end_offsets(offsets)
        return sum(max(ends[at] - offset, 0) for at, offset in offsets.items())

    async def latest_time(self, app_id: str) -> int:
        """Return the latest stream time that a task of an app has reached, in milliseconds."""
        found = [UNKNOWN_MS]
        parts = list(await self._log.admin().group_offsets(app_id))
        async with self._log.consumer(group_id=app_id) as consumer:
            stored = await consumer.committed_metadata(parts)
        for at in stored.values():
            task = None if at is None else positions_of(at.offset, at.metadata).get(TASK)
            if task is not None and task.time_ms is not None:
                found.append(task.time_ms)
        version = current(await read_whole_topic(self._log, version_topic(app_id)))
        changelogs = () if version is None else version.blueprint.changelogs
        for topic in await self._log.admin().find_topics(list(changelogs)):
            for partition in range(topic.partitions):
                progress = await self._progress(TopicPartition(topic.name, partition))
                found += [] if progress is None else _times(progress)
        return max(found)

    async def ends(self, app_ids: Collection[str], also: Collection[str]) -> dict[str, list[int]]:
        """Return the current end of each partition of the apps' inputs and of the topics `also`."""
        names = {at.topic for app_id in app_ids for at in await self._offsets(app_id)} | {*also}
        topics = await self._log.admin().find_topics(sorted(names))
        parts = [TopicPartition(t.name, number) for t in topics for number in range(t.partitions)]
        async with self._log.consumer(isolation_level="read_committed") as consumer:
            found = await consumer.end_offsets(parts)
        return {
            t.name: [found[TopicPartition(t.name, n)] for n in range(t.partitions)] for t in topics
        }

    async def _offsets(self, app_id: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, without those of repartition topics."""
        found = await self._log.admin().group_offsets(app_id)
        return {at: n for at, n in found.items() if not is_internal(at.topic, app_id)}

    async def _progress(self, changelog: TopicPartition) -> TaskProgress | None:
        """Return the last progress in a changelog partition, or None if it has none."""
        async with self._log.consumer(isolation_level="read_committed") as consumer:
            begin = (await consumer.begin_offsets([changelog]))[changelog]
            end = (await consumer.end_offsets([changelog]))[changelog]
        size = TAIL_RECORDS
        while begin < end:
            start = max(end - size, begin)
            tail = await self._log.read_range(changelog, start, end)
            if PROGRESS_KEY in tail.keys:
                last = len(tail) - 1 - tail.keys[::-1].index(PROGRESS_KEY)
                data = tail.values[last]
                return None if data is None else TaskProgress.decode(data)
            if start == begin:
                break
            size *= 8
        return None


def is_internal(topic: str, app_id: str) -> bool:
    """Return whether the topic is a repartition topic of the app."""
    return topic.startswith(f"{app_id}-") and topic.endswith(REPARTITION)


def _times(progress: TaskProgress) -> Iterator[int]:
    """Yield the stream times of a task's inputs, in milliseconds.

    The time of a repartition topic may be later than that of all its records: where a history was
    cut, time marks announced that no earlier record follows.
    """
    inputs: Any = progress.sections.get(INPUTS_SECTION, {})
    for data in inputs.values():
        yield int(data["time_ms"])
        for _, _, _, _, time_ms, *_ in data.get("sources", ()):
            yield int(time_ms)
