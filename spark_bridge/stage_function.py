"""StageFunction: runs the tasks of a history's stage inside Spark's tasks.

A Python worker reads its task's input (the log, and the rows of earlier stages), runs the task, and
returns rows for later stages: records of the log never reach the JVM. Everything else goes to the
snapshot's directory, which all machines share: state, output rows, progress for the driver's bars
(at most once a second), and finally a report, `tasks/<run>/<task>-<attempt>.json`, or one of an
error. A task is a function of the plan and the log, so any attempt with a report is valid.

Plans and functions are pickled by value if no module has them; msgspec's coders are rebuilt. Rule:
only Spark's own workers unpickle, and never bytes from the log.
"""

from __future__ import annotations

import copyreg
import logging
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec
import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from spark_bridge.partial_aggregation.folded_reader import FoldedReader
from spark_bridge.python_failures import without_traceback
from spark_bridge.shuffles import ShuffleReader, ShuffleRows
from streamlog.clock import Clock, SystemClock
from streamlog.errors import StreamlogError
from streamlog.history.local_run import load_global_tables, one_by_one
from streamlog.history.lowering import NotLowered
from streamlog.history.plan import Plan, Stage
from streamlog.history.readers import LogReader
from streamlog.history.stage_task import Attempt, FoldedStageTask, StageTask
from streamlog.history.stored_log_reader import StoredReader
from streamlog.history.task_run import InputReader, OnRead, PartitionReader, Read
from streamlog.processing.error_handling import DamagedInputs
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.processing.joins.stream_table_join import GlobalTables
from streamlog.record import TopicPartition
from streamlog.snapshots import SnapshotStore
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.transport.security import Security

Reduced = tuple[Callable[[], Any], tuple[()]]
"""The result of a reducer of `copyreg`: a function that rebuilds the object, and its arguments."""


def dump_pickle(item: object) -> bytes:
    """Pickle an object, by value if no module has its definition.

    Raises:
        TypeError: a part of it can't be sent to another process, such as an open file.
    """
    data: bytes = cloudpickle.dumps(item)  # type: ignore[no-untyped-call]
    return data


def load_pickle(data: bytes) -> Any:  # noqa: ANN401 - whatever was dumped
    """Unpickle what `dump_pickle` returned."""
    return cloudpickle.loads(data)


def _encoder(encoder: Any) -> Reduced:  # noqa: ANN401 - of one of two kinds
    names = ("enc_hook", "decimal_format", "uuid_format", "order")
    make: Callable[..., Any] = type(encoder)
    return partial(make, **{name: getattr(encoder, name) for name in names}), ()


def _decoder(decoder: Any) -> Reduced:  # noqa: ANN401 - of one of two kinds
    make: Callable[..., Any] = type(decoder)
    return partial(make, decoder.type, strict=decoder.strict, dec_hook=decoder.dec_hook), ()


copyreg.pickle(msgspec.json.Encoder, _encoder)
copyreg.pickle(msgspec.msgpack.Encoder, _encoder)
copyreg.pickle(msgspec.json.Decoder, _decoder)
copyreg.pickle(msgspec.msgpack.Decoder, _decoder)


PROGRESS = "progress"
"""Folder of the progress files, in the snapshot's directory."""
EVERY_MS = 1_000

TaskInput: TypeAlias = tuple[str, PartitionKey]
"""A task, and a partition that it reads."""

_log = logging.getLogger(__name__)


class PartitionProgress(msgspec.Struct, frozen=True, array_like=True):
    """Number of records that one attempt has read of a partition."""

    topic: str
    partition: int
    records: int
    total: int
    is_staged: bool


_decode = msgspec.json.Decoder(list[PartitionProgress]).decode


class ProgressWriter:
    """Writes the progress of one attempt at a task; an `OnRead`."""

    def __init__(
        self, snapshots: SnapshotStore | None, attempt: str, *, clock: Clock | None = None
    ) -> None:
        """Prepare a writer.

        Args:
            snapshots: directory of the snapshot; None writes nothing.
            attempt: a name that is unique among all attempts at all tasks.
            clock: limits how often the file is written.
        """
        self._snapshots = snapshots
        self._name = f"{PROGRESS}/{attempt}.json"
        self._clock = clock or SystemClock()
        self._found: dict[PartitionKey, PartitionProgress] = {}
        self._written_ms = self._clock.now_ms()

    def __call__(self, read: Read) -> None:
        """Add records that were read."""
        if self._snapshots is None:
            return
        before = self._found.get(read.partition)
        records = read.records + (0 if before is None else before.records)
        self._found[read.partition] = PartitionProgress(
            *read.partition, records, read.total, read.is_staged
        )
        if self._clock.now_ms() - self._written_ms >= EVERY_MS:
            self.write()

    def write(self) -> None:
        """Write the counts of all records read so far."""
        self._written_ms = self._clock.now_ms()
        if self._snapshots is not None:
            self._snapshots.add(self._name, msgspec.json.encode([*self._found.values()]))


class ProgressWatch:
    """Reports the progress of tasks while a history runs; a context manager with a thread."""

    def __init__(
        self, snapshots: SnapshotStore, on_read: OnRead, reported: Counter[TaskInput] | None = None
    ) -> None:
        """Prepare a watch.

        Args:
            snapshots: directory of the snapshot.
            on_read: called with records that no attempt at the task had read before.
            reported: counts of records that were reported already.
        """
        self._progress = snapshots / PROGRESS
        self._on_read = on_read
        self._reported = Counter[TaskInput]() if reported is None else reported
        self._done = Event()
        self._thread = Thread(target=self._watch, name="streamlog-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def look(self) -> None:
        """Read all progress files, and report the records that were not reported before.

        Raises:
            CorruptData: a file was removed in the middle.
        """
        for name in self._progress.names():
            if not name.endswith(".json"):
                continue
            task = name.partition("-")[0]
            for found in _decode(self._progress.read(name)):
                partition = (found.topic, found.partition)
                # 1. The first attempt at a task reads 500 records, and fails.
                # 2. The second one counts from 0: up to 500, nothing is new.
                # 3. Beyond that, only the difference is reported, so no record counts twice.
                more = found.records - self._reported[task, partition]
                if more > 0:
                    self._reported[task, partition] += more
                    self._on_read(Read(partition, more, found.total, found.is_staged))

    def _watch(self) -> None:
        while True:
            # After `_done` is set, look once more: tasks may have written since the last look.
            is_done = self._done.wait(EVERY_MS / 1000)
            try:
                self.look()
            except (StreamlogError, OSError) as error:
                _log.warning("the progress of tasks can no longer be read: %s", error)
                return
            if is_done:
                return


TASKS, ERRORS = "tasks", "errors"
"""Folders of reports in the snapshot's directory; each has a folder per run."""


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The error of an attempt, with the coordinates of its record."""

    message: str
    topic: str = ""
    partition: int = -1
    offset: int = -1
    node: str = ""
    lowered: bool = True
    """False if the records don't meet the conditions of the lowering: tasks must run the stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What a Spark task needs to run a task of a stage; sent to it as bytes."""

    plan: Plan
    stage: Stage
    snapshots: SnapshotStore
    directory: str | None
    """Directory of the log's files; None if the log is read through its brokers."""
    url: str
    security: Security | None
    now_ms: int
    state_memory_bytes: int
    run: str
    """ID of this run: tasks of an earlier run may still write, and don't count."""
    is_watched: bool = False
    """Whether tasks write their progress."""


class StageFunction:
    """The function of a stage for `DataFrame.mapInArrow`."""

    def __init__(self, work: StageWork) -> None:
        # Users' modules may be on a path that only the driver searches.
        self._path = [each for each in sys.path if each]
        self._work = dump_pickle(work)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task over its rows; yield rows for later stages."""
        sys.path += [each for each in self._path if each not in sys.path]
        work: StageWork = load_pickle(self._work)
        context: Any = TaskContext.get()
        attempt = str(0 if context is None else context.taskAttemptId())
        batches = iter(batches)
        shuffled: ShuffleReader | FoldedReader
        if work.stage.lowering is None:
            shuffled = ShuffleReader(work.plan, work.stage, batches)
        else:
            shuffled = FoldedReader(work.plan, work.stage, batches)
        try:
            with without_traceback():
                yield from _run(work, shuffled, attempt)
            # Spark reuses a worker process only if it has read its input to the end.
            deque(batches, maxlen=0)
        except StreamlogError as error:
            _report(work, shuffled.partition, attempt, error)
            raise


def _run(
    work: StageWork, shuffled: ShuffleReader | FoldedReader, attempt: str
) -> Iterator[pa.RecordBatch]:
    partition = shuffled.partition
    rows = ShuffleRows(work.plan, work.stage, partition)
    budget = RocksBudget(work.state_memory_bytes)
    task_id = f"{work.stage.number}_{partition}"
    progress = ProgressWriter(work.snapshots if work.is_watched else None, f"{task_id}-{attempt}")
    with _open_log(work) as reader, TemporaryDirectory(prefix="streamlog-history-") as directory:
        tables = GlobalTables(work.plan.topology.global_tables)
        load_global_tables(tables, work.plan, reader)
        going = Attempt(
            plan=work.plan,
            stage=work.stage,
            partition=partition,
            name=attempt,
            snapshots=work.snapshots,
            directory=Path(directory) / "task",
            now_ms=work.now_ms,
            open_store=lambda path: RocksStore.open(path, budget=budget),
            global_tables=tables,
            on_read=progress,
        )
        for finished in _task(going, work, shuffled, reader, rows).steps():
            # The report comes before the last rows. If the attempt fails after it, another one
            # repeats the task, and either report is valid: the files of both are complete.
            if finished is not None:
                rows.finish()
                progress.write()
                report = f"{TASKS}/{work.run}/{going.task_id}-{attempt}.json"
                work.snapshots.add(report, finished.encode())
            yield from rows.drain(is_last=finished is not None)


def _task(
    going: Attempt,
    work: StageWork,
    shuffled: ShuffleReader | FoldedReader,
    reader: PartitionReader,
    rows: ShuffleRows,
) -> StageTask:
    if isinstance(shuffled, FoldedReader):
        # In this order: rows of sources come before all windows.
        ends = shuffled.read_ends()
        return FoldedStageTask(going, ends, shuffled.windows(), rows)
    return StageTask(going, list(_input_readers(work, shuffled, reader)), rows)


def _input_readers(
    work: StageWork, shuffled: ShuffleReader, reader: PartitionReader
) -> Iterator[InputReader]:
    sub, partition = work.stage.subtopology, shuffled.partition
    staged = {
        (topic, partition): (0, None)
        for topic in sub.inputs
        if topic in sub.feeders and partition < work.plan.counts[topic]
    }
    if staged:
        yield InputReader(staged, shuffled.arrivals(), is_staged=True)
    damaged = DamagedInputs(work.plan.topology)
    for topic in sub.inputs:
        topic_partition = TopicPartition(topic, partition)
        if topic not in sub.feeders and partition < work.plan.counts[topic]:
            start, end = work.plan.ends[topic_partition]
            found = reader.read(topic_partition, start, end, damaged)
            yield InputReader({topic_partition: (start, end)}, one_by_one(topic_partition, found))


@contextmanager
def _open_log(work: StageWork) -> Iterator[PartitionReader]:
    """Open the log for a task: its files, or its brokers."""
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
    # A report that can't be written must not hide the error itself, which Spark then shows.
    with suppress(StreamlogError):
        name = f"{ERRORS}/{work.run}/{work.stage.number}_{partition}-{attempt}.json"
        work.snapshots.add(name, msgspec.json.encode(report))
