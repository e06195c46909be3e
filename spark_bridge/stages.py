"""Stages: a stage of a history inside the tasks of Spark.

One Python worker reads what its task is given (the log itself, the rows of earlier stages), runs
it, and gives the rows for later stages: no row of the log crosses to the JVM. What counts besides
lies in the snapshot's directory, which all machines have to see: the task's state, its rows for
output topics, and last `tasks/<task>-<attempt>.json`. A task is a function of the plan and the log,
so one that is tried again, or twice at a time, gives the same, and any attempt that has left its
report will do. An error leaves a report too, so that the driver can say more than Spark.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from spark_bridge.failures import plainly
from spark_bridge.lowering import FoldedReader
from spark_bridge.pickled import dumped, loaded
from spark_bridge.progress import ProgressTeller
from spark_bridge.shuffles import ShuffleReader, ShuffleRows
from streamlog.assignors import TopicPartition
from streamlog.errors import StreamlogError
from streamlog.history.folded import FoldedStageTask
from streamlog.history.local import load_global_tables, one_by_one
from streamlog.history.lowering import NotLowered
from streamlog.history.plan import Plan, Stage
from streamlog.history.readers import LogReader
from streamlog.history.stage_task import Attempt, StageTask
from streamlog.history.stored import StoredReader
from streamlog.history.task_run import Feed, PartitionReader
from streamlog.processing.damaged_inputs import DamagedInputs
from streamlog.processing.global_tables import GlobalTables
from streamlog.snapshots import SnapshotPlace
from streamlog.tables.rocksdb import RocksBudget, RocksStore
from streamlog.transport.security import Security

TASKS, ERRORS = "tasks", "errors"
"""Where reports lie, in the snapshot's directory, in a folder of each run."""


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt has failed."""

    message: str
    topic: str = ""
    partition: int = -1
    offset: int = -1
    node: str = ""
    lowered: bool = True
    """False: its records are not what the stage was lowered for, which its tasks can take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What a task of Spark has to know; sent to it as bytes."""

    plan: Plan
    stage: Stage
    place: SnapshotPlace
    directory: str | None
    """Of the log's files; None: it is read through its brokers."""
    url: str
    security: Security | None
    now_ms: int
    state_memory_bytes: int
    run: str
    """Of this history: what is left of another one may still write, and does not count."""
    is_watched: bool = False
    """Whether somebody looks how far tasks have come."""


class StageFunction:
    """A stage, for `DataFrame.mapInArrow`."""

    def __init__(self, work: StageWork) -> None:
        # What users define may lie where only the driver looks for modules.
        self._path = [each for each in sys.path if each]
        self._work = dumped(work)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task over the rows that are for it."""
        sys.path += [each for each in self._path if each not in sys.path]
        work: StageWork = loaded(self._work)
        context: Any = TaskContext.get()
        attempt = str(0 if context is None else context.taskAttemptId())
        batches = iter(batches)
        shuffled: ShuffleReader | FoldedReader
        if work.stage.lowering is None:
            shuffled = ShuffleReader(work.plan, work.stage, batches)
        else:
            shuffled = FoldedReader(work.plan, work.stage, batches)
        try:
            with plainly():
                yield from _ran(work, shuffled, attempt)
            # What is read to its end leaves a process that Spark gives another task to.
            deque(batches, maxlen=0)
        except StreamlogError as error:
            _report(work, shuffled.partition, attempt, error)
            raise


def _ran(
    work: StageWork, shuffled: ShuffleReader | FoldedReader, attempt: str
) -> Iterator[pa.RecordBatch]:
    partition = shuffled.partition
    rows = ShuffleRows(work.plan, work.stage, partition)
    budget = RocksBudget(work.state_memory_bytes)
    task_id = f"{work.stage.number}_{partition}"
    teller = ProgressTeller(work.place if work.is_watched else None, f"{task_id}-{attempt}")
    with _opened(work) as reader, TemporaryDirectory(prefix="streamlog-history-") as directory:
        tables = GlobalTables(work.plan.topology.global_tables)
        load_global_tables(tables, work.plan, reader)
        going = Attempt(
            plan=work.plan,
            stage=work.stage,
            partition=partition,
            name=attempt,
            place=work.place,
            directory=Path(directory) / "task",
            now_ms=work.now_ms,
            open_store=lambda path: RocksStore.open(path, budget=budget),
            global_tables=tables,
            on_read=teller,
        )
        for finished in _task(going, work, shuffled, reader, rows).steps():
            if finished is not None:
                rows.finish()
                teller.tell()
                report = f"{TASKS}/{work.run}/{going.task_id}-{attempt}.json"
                work.place.add(report, finished.encode())
            yield from rows.drain(is_last=finished is not None)


def _task(
    going: Attempt,
    work: StageWork,
    shuffled: ShuffleReader | FoldedReader,
    reader: PartitionReader,
    rows: ShuffleRows,
) -> StageTask:
    if isinstance(shuffled, FoldedReader):
        ends = shuffled.read_ends()
        return FoldedStageTask(going, ends, shuffled.windows(), rows)
    return StageTask(going, list(_feeds(work, shuffled, reader)), rows)


def _feeds(work: StageWork, shuffled: ShuffleReader, reader: PartitionReader) -> Iterator[Feed]:
    sub, partition = work.stage.subtopology, shuffled.partition
    staged = {
        (topic, partition): (0, None)
        for topic in sub.inputs
        if topic in sub.feeders and partition < work.plan.counts[topic]
    }
    if staged:
        yield Feed(staged, shuffled.arrivals(), is_staged=True)
    damaged = DamagedInputs(work.plan.topology)
    for topic in sub.inputs:
        place = TopicPartition(topic, partition)
        if topic not in sub.feeders and partition < work.plan.counts[topic]:
            start, end = work.plan.ends[place]
            found = reader.read(place, start, end, damaged)
            yield Feed({place: (start, end)}, one_by_one(place, found))


@contextmanager
def _opened(work: StageWork) -> Iterator[PartitionReader]:
    """The log as a task reads it: its files, or through its brokers."""
    if work.directory is None:
        with LogReader(work.url, work.security) as reader:
            yield reader
        return
    with closing(StoredReader(work.directory)) as stored:
        yield stored


def _report(work: StageWork, partition: int, attempt: str, error: StreamlogError) -> None:
    report = ErrorReport(
        message=str(error),
        topic=getattr(error, "topic", ""),
        partition=getattr(error, "partition", -1),
        offset=getattr(error, "offset", -1),
        node=getattr(error, "node", ""),
        lowered=not isinstance(error, NotLowered),
    )
    with suppress(StreamlogError):
        name = f"{ERRORS}/{work.run}/{work.stage.number}_{partition}-{attempt}.json"
        work.place.add(name, msgspec.json.encode(report))
