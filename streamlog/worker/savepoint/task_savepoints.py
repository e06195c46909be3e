"""Standstill: the tasks of a worker are taken to a cut, and what they know there is left in files.

A task stands when all tasks upstream do, and it has been given what comes before the cut: of every
source what the log has, of every repartition topic all that is there. What then still waits for its
turn stays in its topic; that of repartition topics goes into the snapshot as well. It has told
those downstream that nothing comes before the cut's time any more, and all of it is committed; only
then its rows and its progress are written to files, and said to be. So each task waits for nothing
but facts that do not change any more, whoever runs it, and however often. Not done here: leaving
the group (`halting`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

from streamlog import repeated
from streamlog.agents.offsets import TASK, positions_of
from streamlog.errors import UsageError
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
    """Takes the tasks of one worker to a cut."""

    def __init__(
        self,
        cut: SavepointCut,
        watch: SavepointWatch,
        start: WorkerStart,
        surroundings: TaskDeps,
    ) -> None:
        self._cut = cut
        self._watch = watch
        self._program = start.program
        self._topology = start.program.topology
        self._counts = start.counts
        self._with = surroundings
        self._place = SnapshotStore(cut.url)
        self._ends: dict[TopicPartition, int] = {}
        """Of repartition topics into which nothing more is written."""
        self._seen: dict[TaskId, tuple[int, Mapping[tuple[str, int], int]]] = {}
        """When tasks worked last that may stand, and where they were."""
        self._said: set[str] = set()
        """Tasks of which we have said ourselves that they stand."""

    async def look(self, tasks: WorkerTasks, commit: Callable[[], Awaitable[bool]]) -> bool:
        """Let tasks that have come to the cut stand there; whether all of the app's do.

        To be called between two rounds of the worker.

        Raises:
            StreamlogError: a snapshot can't be written, or the log not be reached.
        """
        standing = self._standing
        fresh = [each for each in tasks.running if str(each.task.id) not in standing]
        there = [each for each in fresh if await self._is_there(each, tasks)]
        for running in there:
            await tasks.write(self._marks(running.task))
        if there and await commit():
            for running in there:
                # The commit may not have counted: then it was closed, and is opened again.
                if tasks.runs(running.task.id):
                    await self._stand(running, tasks)
        if not all(str(each) in self._standing for each in self._all):
            return False
        return await self._finish()

    @property
    def _standing(self) -> set[str]:
        halt = self._watch.halt
        heard = set() if halt is None or halt.id != self._cut.id else {*halt.stood}
        return heard | self._said

    @property
    def _all(self) -> list[TaskId]:
        return [
            TaskId(sub.number, partition)
            for sub in self._topology.subtopologies
            for partition in range(sub.tasks(self._counts))
        ]

    async def _is_there(self, running: RunningTask, tasks: WorkerTasks) -> bool:
        """Whether nothing more comes of it before the cut."""
        task = running.task
        if running.arrived or running.marks or tasks.awaits_calls:
            return False
        if not all(str(each) in self._standing for each in self._upstream(task)):
            return False
        for part in running.inputs:
            if not await self._is_given(part, running):
                return False
        # What was read last may let go what waits: so once more, and nothing has moved.
        before = self._seen.get(task.id)
        self._seen[task.id] = (running.processed_ms, positions := task.positions)
        if before is None or before[0] == running.processed_ms or before[1] != positions:
            return False
        await self._refuse_beyond(task)
        return True

    async def _is_given(self, part: TopicPartition, running: RunningTask) -> bool:
        """Whether a task has been given all of an input that comes before the cut.

        It need not have taken all: some may wait for a window or timer of another input. What comes
        behind so many of those that they are not read on waits with them.
        """
        task, read = running.task, self._with.consumer.positions().get(part, -1)
        if self._topology.topics[part.topic].internal:
            return read >= await self._end(part)
        is_held = part in self._with.consumer.paused() and task.buffered[part] > 0
        return part in task.cuts or is_held or read >= self._cut.limit(part)

    async def _refuse_beyond(self, task: Task) -> None:
        """No task may have been further than where all are to stand."""
        for (topic, partition), time_ms in task.stream_times.items():
            # Behind repartition topics nothing is further than the tasks above, which stand; their
            # times may be, as records can be given other ones (`set_timestamp`).
            is_source = not self._topology.topics[topic].internal
            if is_source and time_ms >= self._cut.until_ms:
                told = f"task {task.id} has come further in {topic}-{partition} than the others"
                await self._say(SavepointReleased(id=self._cut.id, outcome="given up", told=told))
                raise UsageError(f"{told}: start the workers again, and repeat what halted them")

    def _upstream(self, task: Task) -> Iterable[TaskId]:
        for sub in self._topology.subtopologies:
            if {*sub.repartition_topics} & {*task.subtopology.topics}:
                yield from (TaskId(sub.number, n) for n in range(sub.tasks(self._counts)))

    async def _end(self, part: TopicPartition) -> int:
        if part not in self._ends:
            self._ends |= await self._with.consumer.end_offsets([part])
        return self._ends[part]

    def _marks(self, task: Task) -> list[SinkBatch]:
        """Return marks for downstream tasks: no record of a cut input comes before the savepoint.

        They bring on the order and not the time (docs/decisions/012, rule 8).
        """
        mark = ProvenanceMark(self._cut.until_ms, UNKNOWN_MS, BUSY_MS)
        found: list[SinkBatch] = []
        for source in sorted(task.cuts):
            headers = [((MARK, pack_mark(mark, identity(source))),)]
            found += [
                SinkBatch(topic, partition, [max(mark.turn_ms, 0)], [None], [None], headers)
                for topic in self._behind(source)
                for partition in range(self._counts[topic])
            ]
        return found

    def _behind(self, source: tuple[str, int]) -> list[str]:
        """The repartition topics that hear of a source."""
        name, partition = source
        return [
            topic
            for sub in self._topology.subtopologies
            for topic, feeders in sub.feeders.items()
            if any(f.name == name and partition < f.partitions(self._counts) for f in feeders)
        ]

    async def _stand(self, running: RunningTask, tasks: WorkerTasks) -> None:
        """Leave what a task knows, and say so."""
        task = running.task
        attempt = uuid4().hex[:8]
        tails = {
            part: await self._tail(part, task.positions.get(part, 0))
            for part in running.inputs
            if self._topology.topics[part.topic].internal
        }
        pending = await offload(partial(self._pending, task.id, tails, attempt))
        store = None if running.state is None else running.state.front
        leave = partial(self._entry, store, tails, attempt)
        entry = await tasks.ask(task.id, leave)
        await self._say(SavepointReached(id=self._cut.id, entry=entry, pending=tuple(pending)))
        self._said.add(entry.task)
        logger.info("task %s stands at the cut, with %d rows", entry.task, entry.rows)

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
            place=self._place,
            attempt=attempt,
        )

    def _pending(
        self, task_id: TaskId, tails: Mapping[TopicPartition, RecordColumns], attempt: str
    ) -> list[PendingRecords]:
        return [
            pending_of(self._place, f"{task_id}-{attempt}", (*part,), tail)
            for part, tail in tails.items()
            if len(tail)
        ]

    async def _tail(self, part: TopicPartition, position: int) -> RecordColumns:
        """What is in a repartition topic from there on."""
        return await self._with.log.read_range(part, position, await self._end(part))

    async def _finish(self) -> bool:
        """All stand: the snapshot is made of what they have left, by whoever comes first."""
        halt = self._watch.halt
        if halt is None or not halt.stands(map(str, self._all)):
            return False  # What was said has not come back yet.
        if not await offload(partial(self._place.has, MANIFEST_FILE)):
            stood = list(halt.stood.values())
            await offload(
                partial(
                    finish_snapshot,
                    self._place,
                    [each.entry for each in stood],
                    topology=self._topology,
                    origin=self._program.origin,
                    partitions=self._counts,
                    cut_ms=self._cut.until_ms,
                    created_ms=halt.hold.wall_ms,
                    pending=[records for each in stood for records in each.pending],
                )
            )
        return True

    async def _say(self, word: SavepointMessage) -> None:
        topic = savepoint_topic(self._program.app_id)
        await (await self._with.producer.send(topic, encode_savepoint(word), partition=0))


TAIL_RECORDS: Final = 64
"""Of a changelog that are searched for the last progress at first; eight times as many next."""


class CutChoice:
    """Where tasks have come to, by what a log holds."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def lag(self, app_id: str) -> int:
        """How many records an app has not read; 0 if it has never run."""
        offsets = await self._offsets(app_id)
        async with self._log.consumer() as consumer:
            ends = await consumer.end_offsets(offsets)
        return sum(max(ends[at] - offset, 0) for at, offset in offsets.items())

    async def come_to(self, app_id: str) -> int:
        """The latest stream time that a task of an app has come to."""
        found = [UNKNOWN_MS]
        places = list(await self._log.admin().group_offsets(app_id))
        async with self._log.consumer(group_id=app_id) as consumer:
            stored = await consumer.committed_metadata(places)
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
        """Where all that apps read, and some other topics, end just now, per partition."""
        names = {at.topic for app_id in app_ids for at in await self._offsets(app_id)} | {*also}
        topics = await self._log.admin().find_topics(sorted(names))
        places = [TopicPartition(t.name, number) for t in topics for number in range(t.partitions)]
        async with self._log.consumer(isolation_level="read_committed") as consumer:
            found = await consumer.end_offsets(places)
        return {
            t.name: [found[TopicPartition(t.name, n)] for n in range(t.partitions)] for t in topics
        }

    async def _offsets(self, app_id: str) -> dict[TopicPartition, int]:
        """Of a group, repartition topics left out."""
        found = await self._log.admin().group_offsets(app_id)
        return {at: n for at, n in found.items() if not is_internal(at.topic, app_id)}

    async def _progress(self, changelog: TopicPartition) -> TaskProgress | None:
        """The last progress in a changelog."""
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
    """Whether it is a repartition topic of an app."""
    return topic.startswith(f"{app_id}-") and topic.endswith(REPARTITION)


def _times(progress: TaskProgress) -> Iterator[int]:
    """What its inputs have come to. Behind repartition topics that may be more than any record.

    Where a history was cut, they have been told that nothing earlier comes.
    """
    inputs: Any = progress.sections.get(INPUTS_SECTION, {})
    for data in inputs.values():
        yield int(data["time_ms"])
        for _, _, _, _, time_ms, *_ in data.get("sources", ()):
            yield int(time_ms)
