"""LocalRun: runs the plan of a history in this process, stage by stage, one task at a time.

Without a JVM, workers or a network, other than the log's, it starts at once; it is the reference
that every other engine has to match. State is in RocksDB and data between stages in files, so the
open rows of one task bound its memory. Rule of the file: a run that fails leaves nothing visible;
the next run of the plan starts from the beginning.

The first half of the file identifies the source logs. A topic that is deleted and created again is
another log, and so is a truncated one from some offset on. The plan notes topic IDs and leader
epochs before it reads offsets. When all tasks are done, the logs must be unchanged: otherwise the
run may have read parts of two logs. The snapshot keeps IDs and epochs with each task's offsets.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from streamlog.errors import SourceLost
from streamlog.history.plan import Plan, PlannedLog, Stage
from streamlog.history.readers import LogReader
from streamlog.history.stage_task import Attempt, OpenStore, Shuffled, StageTask
from streamlog.history.staging import Shuffle, ShuffleWriter
from streamlog.history.task_run import (
    Arrival,
    Arrivals,
    FinishedTask,
    InputReader,
    OnRead,
    PartitionReader,
    unheard,
)
from streamlog.processing.error_handling import DamagedInputs
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.processing.joins.stream_table_join import GlobalTables
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.snapshots import SnapshotStore, SourceEntry, TaskEntry
from streamlog.windows.emit import UNKNOWN_MS


def with_logs(plan: Plan, reader: LogReader, ids: Mapping[str, bytes]) -> Plan:
    """Add to a plan the identity of the logs that its offsets belong to.

    Args:
        plan: the plan, with its ends.
        reader: reads the log.
        ids: topic IDs that were looked up before the ends.

    Raises:
        StreamlogError: the log can't be read.
    """
    epochs = reader.leader_epochs({TopicPartition(*at): end for at, (_, end) in plan.ends.items()})
    logs = {
        at: PlannedLog(ids.get(at[0], b"").hex(), epochs[TopicPartition(*at)]) for at in plan.ends
    }
    return replace(plan, logs=logs)


def add_source_logs(entries: Iterable[TaskEntry], plan: Plan, reader: LogReader) -> list[TaskEntry]:
    """Add to the tasks' entries the identity of the logs that their offsets belong to.

    Raises:
        SourceLost: a log is no longer the one that the plan was made in.
        StreamlogError: the log can't be read.
    """
    tasks = [*entries]
    wanted = {
        (entry.task, TopicPartition(topic, number)): offset
        for entry in tasks
        for topic, number, offset in entry.offsets
        if (topic, number) in plan.logs
    }
    # The plan has the epochs at its ends. Only a task that was cut before an end needs a request.
    epochs = {
        (at, offset): reader.leader_epochs({at: offset})[at]
        for at, offset in {(at, offset) for (_, at), offset in wanted.items()}
        if plan.ends[at.topic, at.partition][1] != offset
    }
    found: list[TaskEntry] = []
    for entry in tasks:
        sources = []
        for (task, at), offset in wanted.items():
            if task != entry.task:
                continue
            log = plan.logs[at.topic, at.partition]
            chain = epochs.get((at, offset), log.epochs)
            epoch, start = chain[-1] if chain else (-1, -1)
            sources.append(
                SourceEntry(
                    topic=at.topic,
                    partition=at.partition,
                    topic_id=log.topic_id,
                    epoch=epoch,
                    epoch_start=start,
                )
            )
        found.append(replace(entry, sources=tuple(sources)))
    # Last: if the logs are unchanged now, the epochs that were read above belong to them too.
    check_logs(plan.logs, plan.ends, reader)
    return found


def check_logs(
    logs: Mapping[PartitionKey, PlannedLog],
    ends: Mapping[PartitionKey, tuple[int, int]],
    reader: LogReader,
) -> None:
    """Check that the logs of a history are still those that its plan was made in.

    Raises:
        SourceLost: a topic was created again, or its log was truncated.
    """
    ids = reader.topic_ids(_topics(logs))
    for (topic, number), log in sorted(logs.items()):
        # Brokers without topic IDs answer with zeros, which say nothing about the topic.
        now = ids.get(topic)
        if now is None or (log.topic_id and any(now) and now.hex() != log.topic_id):
            what = "deleted" if now is None else "deleted and created again"
            raise SourceLost(
                f"{topic}-{number}: the topic was {what} after the history was planned. The results"
                " of this run are dropped: run the history again",
                topic=topic,
                partition=number,
                ids=(bytes.fromhex(log.topic_id), now or b""),
            )
    marks = {TopicPartition(*at): (ends[at][1], log.epochs) for at, log in logs.items()}
    for at, offset in sorted(reader.divergences(marks).items()):
        raise SourceLost(
            f"{at.topic}-{at.partition}: the log was truncated after the history was planned: its"
            f" records from offset {max(offset, 0)} to {ends[at.topic, at.partition][1] - 1} are"
            " gone or replaced. The results of this run are dropped: run the history again",
            topic=at.topic,
            partition=at.partition,
            position=ends[at.topic, at.partition][1],
            resume=(offset, -1),
        )


def _topics(logs: Collection[PartitionKey]) -> list[str]:
    return sorted({topic for topic, _ in logs})


ATTEMPT = "0"
"""Name of the only attempt at each task."""


class RunDeps(msgspec.Struct, frozen=True, kw_only=True):
    """The dependencies and directories of a run, apart from its plan."""

    reader: LogReader
    directory: Path
    """Holds state and staged files during the run; its content is removed before and after."""
    snapshots: SnapshotStore
    """Directory of the snapshot that the run writes."""
    now_ms: int
    """Wall-clock time of the whole run, ms since 1970."""
    open_store: OpenStore
    """Creates the state store of a task in a directory that does not exist yet."""
    on_read: OnRead = unheard


class LocalRun:
    """Runs a plan in this process."""

    def __init__(self, plan: Plan, deps: RunDeps) -> None:
        self._plan = plan
        self._stages = plan.stages
        """The stages to run, in order."""
        self._deps = deps
        self._shuffles = {
            topic: Shuffle.of(stage.subtopology, topic, plan.counts, deps.directory / "shuffles")
            for stage in plan.stages
            for topic in stage.subtopology.feeders
        }
        self._global_tables = GlobalTables(plan.topology.global_tables)
        self._damaged = DamagedInputs(plan.topology)

    def run(self) -> list[FinishedTask]:
        """Run all stages, one after the other; return their tasks' results.

        Raises:
            ProcessingError: a record can't be read, or a function failed on it.
            StreamlogError: the log can't be read, or the disk refused.
        """
        shutil.rmtree(self._deps.directory, ignore_errors=True)
        try:
            load_global_tables(self._global_tables, self._plan, self._deps.reader)
            return [
                self._run_task(stage, partition)
                for stage in self._stages
                for partition in range(stage.tasks)
            ]
        finally:
            shutil.rmtree(self._deps.directory, ignore_errors=True)

    def _run_task(self, stage: Stage, partition: int) -> FinishedTask:
        attempt = Attempt(
            plan=self._plan,
            stage=stage,
            partition=partition,
            name=ATTEMPT,
            snapshots=self._deps.snapshots,
            directory=self._deps.directory / f"{stage.number}_{partition}",
            now_ms=self._deps.now_ms,
            open_store=self._deps.open_store,
            global_tables=self._global_tables,
            on_read=self._deps.on_read,
        )
        writer = ShuffleWriter(self._shuffles)
        finished = self._task(attempt, list(self._feeds(stage, partition)), writer).run()
        # Only now: the rows of a task that fails never reach the next stage.
        writer.finish()
        return finished

    def _task(
        self, attempt: Attempt, feeds: Sequence[InputReader], shuffled: Shuffled
    ) -> StageTask:
        return StageTask(attempt, feeds, shuffled)

    def _feeds(self, stage: Stage, partition: int) -> Iterator[InputReader]:
        for topic in stage.subtopology.inputs:
            if partition >= self._plan.counts[topic]:
                continue  # Another input of the stage has more partitions.
            partition_key = (topic, partition)
            if topic in self._shuffles:
                shuffle = self._shuffles[topic]
                arrivals = one_by_one(partition_key, map(Arrival, shuffle.read(partition)))
                yield InputReader(
                    {partition_key: (0, shuffle.end(partition))}, arrivals, is_staged=True
                )
            else:
                start, end = self._plan.ends[partition_key]
                at = TopicPartition(topic, partition)
                found = self._deps.reader.read(at, start, end, self._damaged)
                yield InputReader({partition_key: (start, end)}, one_by_one(partition_key, found))


def one_by_one(partition: PartitionKey, arrivals: Iterable[Arrival]) -> Arrivals:
    """Yield the arrivals of one partition in the form of an `InputReader`."""
    for arrival in arrivals:
        yield {partition: arrival}


def load_global_tables(tables: GlobalTables, plan: Plan, reader: PartitionReader) -> None:
    """Read the topics of all global tables to their planned ends.

    The `on_error` policy of a topic decides on an unreadable batch; its rows are left out.

    Raises:
        StreamlogError: the log can't be read.
    """
    damaged = DamagedInputs.of_global_tables(plan.topology)
    for topic in tables.topics:
        for number in range(plan.counts[topic]):
            start, end = plan.ends[topic, number]
            for arrival in reader.read(TopicPartition(topic, number), start, end, damaged):
                tables.apply(topic, arrival.records)


def with_ends(plan: Plan, reader: LogReader) -> Plan:
    """Add to a plan the first offset and end that each partition has now.

    Raises:
        StreamlogError: the log can't be read.
    """
    looked_up = (table.topic.name for table in plan.topology.global_tables)
    partitions = [
        TopicPartition(topic, number)
        for topic in dict.fromkeys([*plan.spans, *looked_up])
        for number in range(plan.counts[topic])
    ]
    # IDs first: then `check_logs` notices a topic that is created again after this line.
    ids = reader.topic_ids({partition.topic for partition in partitions})
    ends = reader.bounds(partitions)
    for topic, span in plan.spans.items():
        spec = plan.topology.topics[topic]
        if span.since_ms == UNKNOWN_MS or spec.timestamp is not None:
            continue
        # Event time is record time here, so earlier records need not be read.
        wanted = [partition for partition in partitions if partition.topic == topic]
        # 1. `bounds` has returned the end 10.
        # 2. Records 10 and 11 are appended, and 11 is the first at or after `since_ms`.
        # 3. `start` is 11, so it is limited to 10: the range is empty.
        for partition, start in reader.starts(wanted, span.since_ms).items():
            begin, end = ends[partition]
            ends[partition] = (end if start is None else max(begin, min(start, end)), end)
    found = {(at.topic, at.partition): bounds for at, bounds in ends.items()}
    return with_logs(replace(plan, ends=found), reader, ids)
