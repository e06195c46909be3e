"""LocalRun: a plan, run in this process, one task after the other.

No JVM, no workers, no network but the log's: it starts at once, and is what every other engine is
held against. State lies in RocksDB, what goes from stage to stage in files, so that memory is
bounded by the open rows of one task. Rule of the file: a task that fails leaves its files behind
for nobody; whoever runs the plan again begins anew.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TypeAlias

from streamlog.agents.awaited import awaited
from streamlog.assignors import TopicPartition as Partition
from streamlog.history.finished import FinishedRun, FinishedTask
from streamlog.history.plan import Plan, Stage
from streamlog.history.readers import LogReader, read_all
from streamlog.history.staging import (
    Segment,
    SegmentWriter,
    Shuffle,
    ShuffleWriter,
    behind,
    write_segment,
)
from streamlog.history.task_run import Arrival, OnRead, Share, TaskRun, unheard
from streamlog.processing.calls import Call, CallResult
from streamlog.processing.global_tables import GlobalTables
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.parted import parted
from streamlog.processing.provenance import Mark
from streamlog.processing.record_queue import TopicPartition
from streamlog.processing.task import Task, TaskId
from streamlog.records.columns import RecordColumns
from streamlog.snapshots import PendingRecords, SnapshotPlace
from streamlog.snapshots.capture import capture
from streamlog.tables.store import Change, KeyValueStore
from streamlog.windows.emit import UNKNOWN_MS, Source

MERGE_BUFFER_BYTES = 1 << 40
"""What is staged comes in order: what waits is what a stage upstream took at a time."""


OpenStore: TypeAlias = Callable[[str], KeyValueStore]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run needs beside its plan."""

    reader: LogReader
    directory: Path
    """For state and staged files; what is in there goes."""
    place: SnapshotPlace
    """Of the snapshot that comes of it."""
    now_ms: int
    """The time on the wall."""
    open_store: OpenStore
    """For the state of a task, in a directory that is not there yet."""
    on_read: OnRead = unheard


class LocalRun:
    """A plan at work in this process."""

    def __init__(self, plan: Plan, surroundings: Surroundings) -> None:
        self._plan = plan
        self._with = surroundings
        self._shuffles = {
            topic: Shuffle.of(
                stage.subtopology, topic, plan.counts, surroundings.directory / "shuffles"
            )
            for stage in plan.stages
            for topic in stage.subtopology.feeders
        }
        self._outputs: dict[TopicPartition, list[Segment]] = {}
        self._global_tables = GlobalTables(plan.topology.global_tables)

    def run(self) -> FinishedRun:
        """All stages, one after the other.

        Raises:
            ProcessingError: a record can't be read, or a function failed on it.
            StreamlogError: the log can't be read, or the disk refused.
        """
        shutil.rmtree(self._with.directory, ignore_errors=True)
        self._with.directory.mkdir(parents=True)
        self._load_global_tables()
        tasks = [
            self._run_task(stage, TaskId(stage.number, partition))
            for stage in self._plan.stages
            for partition in range(stage.tasks)
        ]
        outputs = {place: tuple(segments) for place, segments in self._outputs.items()}
        return FinishedRun(tasks=tuple(tasks), outputs=outputs)

    def _load_global_tables(self) -> None:
        partitions = [
            Partition(topic, number)
            for topic in self._global_tables.topics
            for number in range(self._plan.counts[topic])
        ]
        if partitions:
            for topic, (records, _) in read_all(self._with.reader, partitions):
                self._global_tables.apply(topic, records.keys, records.values)

    def _run_task(self, stage: Stage, task_id: TaskId) -> FinishedTask:
        sub = stage.subtopology
        path = self._with.directory / "state" / str(task_id)
        has_state = sub.changelog_topic is not None
        store = self._with.open_store(str(path)) if has_state else None
        task = Task(
            sub,
            task_id,
            partitions=self._plan.counts,
            store=store,
            pause=_pause,
            global_tables=self._global_tables,
            history=self._plan.spans,
            merge_buffer_bytes=MERGE_BUFFER_BYTES,
        )
        effects = _Effects(self._plan, self._shuffles, task_id, self._with)
        shares = dict(self._shares(task))
        try:
            run = TaskRun(
                task,
                shares,
                effects,
                until_ms=self._plan.until_ms,
                now_ms=self._with.now_ms,
                on_read=self._with.on_read,
            )
            run.run()
            effects.finish(self._outputs)
            return FinishedTask(
                task_id=task_id,
                entry=capture(task, store, self._with.place),
                cuts=self._cuts(task),
                pending=tuple(self._pending(task)),
                figures=run.figures,
            )
        finally:
            for share in shares.values():
                share.arrivals.close()
            task.close()
            shutil.rmtree(path, ignore_errors=True)

    def _shares(self, task: Task) -> Iterator[tuple[TopicPartition, Share]]:
        for topic, partition in task.inputs:
            if topic in self._shuffles:
                shuffle = self._shuffles[topic]
                arrivals = _arrivals(shuffle.read(partition))
                yield (topic, partition), Share(0, shuffle.end(partition), arrivals)
            else:
                start, end = self._plan.ends[topic, partition]
                arrivals = self._with.reader.read(Partition(topic, partition), start, end)
                yield (topic, partition), Share(start, end, arrivals)

    def _cuts(self, task: Task) -> dict[TopicPartition, int]:
        places = [place for place in task.inputs if place[0] not in self._shuffles]
        return {at: task.cuts.get(at, self._plan.ends[at][1]) for at in places}

    def _pending(self, task: Task) -> Iterator[PendingRecords]:
        for place, position in task.positions.items():
            topic, partition = place
            shuffle = self._shuffles.get(topic)
            if shuffle is not None and position < shuffle.end(partition):
                name = f"shuffles/{topic}/{partition}.batches"
                with self._with.place.writing(name) as path:
                    segment = write_segment(path, behind(shuffle.read(partition), position))
                yield PendingRecords(
                    name=name,
                    size_bytes=segment.size_bytes,
                    crc=segment.crc32c,
                    topic=topic,
                    partition=partition,
                    records=segment.record_count,
                    position=position,
                )


def with_ends(plan: Plan, reader: LogReader) -> Plan:
    """The plan with what the log holds now: where each partition that is read begins and ends.

    Raises:
        StreamlogError: the log can't be asked.
    """
    places = [
        Partition(topic, number) for topic in plan.spans for number in range(plan.counts[topic])
    ]
    ends = reader.bounds(places)
    for topic, span in plan.spans.items():
        spec = plan.topology.topics[topic]
        if span.since_ms == UNKNOWN_MS or spec.timestamp is not None:
            continue
        # Where the time is that of the records, what is before it need not be read.
        wanted = [place for place in places if place.topic == topic]
        for place, start in reader.starts(wanted, span.since_ms).items():
            begin, end = ends[place]
            ends[place] = (end if start is None else max(begin, min(start, end)), end)
    return replace(plan, ends={(at.topic, at.partition): found for at, found in ends.items()})


class _Effects:
    """What comes of one task, into files and its store."""

    def __init__(
        self,
        plan: Plan,
        shuffles: Mapping[str, Shuffle],
        task_id: TaskId,
        surroundings: Surroundings,
    ) -> None:
        self.changes = 0
        self._counts = plan.counts
        self._keeps_rows = plan.outputs != "discard"
        self._shuffled = ShuffleWriter(shuffles)
        self._shuffles = shuffles
        self._task_id = task_id
        self._with = surroundings
        self._writers: dict[TopicPartition, SegmentWriter] = {}

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Rows for topics, repartition topics included, in order."""
        for batch in batches:
            if batch.topic in self._shuffles:
                self._shuffled.write(batch)
        if self._keeps_rows:
            rows = [batch for batch in batches if batch.topic not in self._shuffles]
            for place, columns in parted(rows, self._counts).items():
                self._writer(place).append(columns)

    def tell(self, source: Source, mark: Mark) -> None:
        """A mark for those behind all repartition topics that hear of this source."""
        self._shuffled.tell(source, mark)

    def commit(self, task: Task, changes: Sequence[Change]) -> None:
        """Changes of state."""
        self.changes += len(changes)
        task.committed(changes, next_offset=self.changes)

    def answers(self, calls: Sequence[Call]) -> list[CallResult]:
        """Await calls of async functions, all at a time."""
        return self._with.reader.run(_awaited(calls))

    def finish(self, outputs: dict[TopicPartition, list[Segment]]) -> None:
        """All is written."""
        self._shuffled.finish()
        for place, writer in self._writers.items():
            outputs.setdefault(place, []).append(writer.finish())

    def _writer(self, place: TopicPartition) -> SegmentWriter:
        if place not in self._writers:
            topic, partition = place
            folder = self._with.directory / "outputs" / topic / str(partition)
            self._writers[place] = SegmentWriter(folder / f"{self._task_id}.batches")
        return self._writers[place]


async def _awaited(calls: Iterable[Call]) -> list[CallResult]:
    return list(await asyncio.gather(*map(awaited, calls)))


def _arrivals(pieces: Iterable[RecordColumns]) -> Generator[Arrival, None, None]:
    for piece in pieces:
        yield Arrival(piece)


def _pause(backoff_ms: int) -> None:
    Event().wait(backoff_ms / 1000)
