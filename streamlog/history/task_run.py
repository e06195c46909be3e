"""TaskRun: runs one task over all of its inputs, from their start to their end.

It is a worker's loop without a log: an input whose records are used up gets more until there are
none, and results go to `Effects`. It is the same under every engine. Rule of the file: nothing
depends on how inputs are cut into arrivals, nor on a clock. Not done here: reading inputs
(`readers`, `staging`) and storing state (`snapshots.capture`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from streamlog.errors import CorruptData
from streamlog.processing.error_handling import DamagedInputs
from streamlog.processing.inputs.record_queue import PartitionKey
from streamlog.processing.outbox import CallResult, Outbox, SinkBatch, TaskCall
from streamlog.processing.provenance import BUSY_MS, ProvenanceMark
from streamlog.processing.task import Task
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.snapshots import PendingRecords, StagedRecords, TaskEntry
from streamlog.tables.stores.store import Changes
from streamlog.windows.emit import UNKNOWN_MS, Source

Count: TypeAlias = tuple[str, int]
Dropped: TypeAlias = tuple[str, str, int]


class FinishedTask(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a task whose history has ended."""

    entry: TaskEntry
    """The task's state, as an entry of the snapshot."""
    pending: tuple[PendingRecords, ...]
    """Records of repartition topics that were not processed: a source, mostly an open window, may
    still send an earlier one."""
    staged: tuple[StagedRecords, ...]
    """The rows for output topics, one file per partition."""
    records: int
    """Number of records processed, of all inputs."""
    rows: tuple[Count, ...]
    """Number of rows written, by topic; time marks count in repartition topics."""
    drops: tuple[Dropped, ...]
    """Number of records dropped, by operator and reason."""

    def encode(self) -> bytes:
        """Return the results as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> FinishedTask:
        """Decode what `encode` returned.

        Raises:
            CorruptData: the bytes are not such JSON.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"the results of a history's task can't be decoded: {error}") from (
                error
            )


def sum_by_name(counts: Iterable[Count]) -> dict[str, int]:
    """Return the sum of the counts of each name."""
    found: dict[str, int] = {}
    for name, count in counts:
        found[name] = found.get(name, 0) + count
    return found


COMMIT_BYTES = 8 * 1024 * 1024
"""Approximate limit of uncommitted state changes in memory."""


class Arrival(NamedTuple):
    """Records of one partition in the order of their offsets, with the marks between them."""

    records: RecordColumns
    marks: Sequence[TimeMark] = ()
    is_last: bool = False
    """Whether the partition has no more records."""
    passed: Outbox | None = None
    """The effects of an unreadable batch that an `on_error` policy has skipped."""


Arrivals: TypeAlias = Generator[Mapping[PartitionKey, Arrival], None, None]


class PartitionReader(Protocol):
    """Port: reads partitions of a log, committed records and time marks."""

    def read(
        self, partition: TopicPartition, start: int, end: int, damaged: DamagedInputs | None = None
    ) -> Generator[Arrival, None, None]:
        """Yield what the partition holds from `start` up to `end`, without `end`.

        An unreadable batch raises, unless a policy of `damaged` skips it.
        """


@dataclass(slots=True)
class InputReader:
    """Yields the records of one or more inputs of a task, in order."""

    bounds: Mapping[PartitionKey, tuple[int, int | None]]
    """First offset and end of each partition; end None: an arrival has `is_last`."""
    arrivals: Arrivals
    is_staged: bool = False
    """Whether an earlier stage has staged the records; else they come from the log."""


class Effects(Protocol):
    """Port: receives the effects of a task."""

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Write rows for topics, repartition topics included, in order."""

    def commit(self, task: Task, changes: Changes) -> None:
        """Apply changes of state to the task's store."""

    def tell(self, source: Source, mark: ProvenanceMark) -> None:
        """Send a mark to all partitions of the repartition topics that this source feeds."""

    def answers(self, calls: Sequence[TaskCall]) -> list[CallResult]:
        """Await calls of async functions; return their results."""


class Read(msgspec.Struct, frozen=True):
    """Progress: records of a partition were read."""

    partition: PartitionKey
    records: int
    total: int
    """Offsets in the partition's range: an upper bound of its records."""
    is_staged: bool
    """Whether an earlier stage has staged the records; else they come from the log."""


OnRead = Callable[[Read], None]


def unheard(_read: Read) -> None:
    """Ignore progress: the default `OnRead`."""


@dataclass(slots=True)
class TaskRunFigures:
    """What a task has processed, in numbers of records."""

    records: int = 0
    """Processed, of all inputs."""
    rows: Counter[str] = field(default_factory=Counter)
    """Written, by topic."""
    drops: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Dropped, by operator and reason."""


class TaskRun:
    """Runs one task over all of its inputs."""

    def __init__(
        self,
        task: Task,
        feeds: Sequence[InputReader],
        effects: Effects,
        *,
        until_ms: int,
        now_ms: int,
        on_read: OnRead = unheard,
    ) -> None:
        """Prepare a run.

        Args:
            task: the task; its `history` says which times it takes of its inputs.
            feeds: the readers of all of its inputs.
            effects: receives the results.
            until_ms: the event time at which the history ends, ms since 1970.
            now_ms: the wall-clock time of the whole run, so that no input becomes idle.
            on_read: called after records were read.
        """
        self.figures = TaskRunFigures()
        self._task = task
        self._left = list(feeds)
        """Readers that may have more records."""
        self._effects = effects
        self._until_ms = until_ms
        self._now_ms = now_ms
        self._on_read = on_read
        self._starts = {
            at: start for f in feeds if not f.is_staged for at, (start, _) in f.bounds.items()
        }
        self._ends = {
            at: end for f in feeds for at, (_, end) in f.bounds.items() if end is not None
        }
        self._waiting: dict[PartitionKey, deque[RecordColumns]] = {
            at: deque() for feed in feeds if feed.is_staged for at in feed.bounds
        }
        """Staged records that may not have been processed, by partition."""
        self._fed: dict[PartitionKey, int] = {}
        """The offset after the last staged record that has arrived, by partition."""
        self._results: list[CallResult] = []

    def run(self) -> None:
        """Run to the end; raises what `steps` raises."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """Run to the end in small steps, between which the caller can handle effects.

        Raises:
            ProcessingError: a record can't be read, or a function failed on it.
            StreamlogError: an input can't be read.
        """
        task = self._task
        task.start_at(self._starts)
        is_first = True
        while True:
            # A full task first processes some of the records that it has buffered.
            arrived = {} if task.is_full else self._arrivals()
            if not (is_first or arrived or self._results):
                break
            self._process(arrived)
            self._forget_taken()
            is_first = False
            yield
        self._tell_cuts()
        while task.has_waiting:
            self._handle(task.emit())
        # An input that was cut ends at its first record beyond `until_ms`, others at their ends:
        # live workers continue from there.
        cuts = task.cuts
        task.start_at({at: cuts.get(at, self._ends[at]) for at in self._starts})
        self._commit()
        yield

    def pending(self) -> dict[PartitionKey, tuple[int, list[RecordColumns]]]:
        """Return the staged records that were not processed, each with its first position."""
        found: dict[PartitionKey, tuple[int, list[RecordColumns]]] = {}
        self._drain()
        positions = self._task.positions
        for partition, pieces in self._waiting.items():
            position = positions.get(partition, 0)
            left = [piece for piece in pieces if piece.offsets[-1] >= position]
            if left:
                # The first piece may begin before the position.
                left[0] = left[0][max(position - left[0].offsets[0], 0) :]
                found[partition] = position, left
        return found

    def _drain(self) -> None:
        """Read the staged records that are left: earlier ones still wait for another input."""
        staged = (feed.arrivals for feed in self._left if feed.is_staged)
        for partition, arrival in chain.from_iterable(each.items() for each in chain(*staged)):
            if len(arrival.records):
                self._waiting[partition].append(arrival.records)

    def close(self) -> None:
        """Close the readers."""
        for feed in self._left:
            feed.arrivals.close()

    def _arrivals(self) -> dict[PartitionKey, Arrival]:
        """Read more of each input whose buffered records are used up."""
        found: dict[PartitionKey, Arrival] = {}
        buffered, cuts = self._task.buffered, self._task.cuts
        # An input that was cut needs no more records; once all of a reader's are cut, it is closed.
        for feed in [*self._left]:
            open_partitions = [partition for partition in feed.bounds if partition not in cuts]
            if open_partitions and all(buffered[partition] for partition in open_partitions):
                continue
            arrivals = next(feed.arrivals, None) if open_partitions else None
            if arrivals is None:
                feed.arrivals.close()
                self._left.remove(feed)
                found |= {partition: self._at_end(feed, partition) for partition in open_partitions}
                continue
            for partition, arrival in arrivals.items():
                found[partition] = arrival
                self._read(feed, partition, arrival)
        return found

    def _at_end(self, feed: InputReader, partition: PartitionKey) -> Arrival:
        """Move a partition to its end, past the markers that may follow the last record."""
        if not feed.is_staged:
            self._task.start_at({partition: self._ends[partition]})
        # An empty arrival, so that `steps` runs the task once more with the new position.
        return Arrival(RecordColumns())

    def _read(self, feed: InputReader, partition: PartitionKey, arrival: Arrival) -> None:
        start, end = feed.bounds[partition]
        if arrival.passed is not None:
            self._handle(arrival.passed)
        records = arrival.records
        if len(records):
            self.figures.records += len(records)
            self._on_read(Read(partition, len(records), (end or 0) - start, feed.is_staged))
            if feed.is_staged:
                self._waiting[partition].append(records)
                self._fed[partition] = records.offsets[-1] + 1
        if arrival.is_last:
            self._ends[partition] = self._fed.get(partition, start)

    def _forget_taken(self) -> None:
        positions = self._task.positions
        for partition, pieces in self._waiting.items():
            while pieces and pieces[0].offsets[-1] < positions.get(partition, 0):
                pieces.popleft()

    def _process(self, arrived: Mapping[PartitionKey, Arrival]) -> None:
        results, self._results = self._results, []
        outbox = self._task.process(
            {partition: each.records for partition, each in arrived.items()},
            self._now_ms,
            ends=self._ends,
            results=results,
            marks={partition: each.marks for partition, each in arrived.items() if each.marks},
        )
        self._handle(outbox)
        # As in a worker, rows that wait for a commit are written before it.
        if self._task.state_bytes > COMMIT_BYTES:
            while self._task.has_waiting:
                self._handle(self._task.emit())
            self._commit()

    def _handle(self, outbox: Outbox) -> None:
        if outbox.writes:
            self._effects.write(outbox.writes)
        for batch in outbox.writes:
            self.figures.rows[batch.topic] += len(batch.keys)
        for drop in outbox.drops:
            self.figures.drops[drop.node, drop.reason] += drop.count
        if outbox.calls:
            self._results += self._effects.answers(outbox.calls)

    def _commit(self) -> None:
        changes = self._task.checkpoint()
        if changes:
            self._effects.commit(self._task, changes)

    def _tell_cuts(self) -> None:
        """Tell downstream tasks that no record of a cut input comes before the end of the history.

        The mark advances the merge order, by its merge key, but not the input's time. A timer due
        at T must not fire here: the record beyond the cut is at T or later, but a node upstream may
        drop it, and then it moves no time (docs/decisions/012, rule 8).
        """
        mark = ProvenanceMark(self._until_ms, UNKNOWN_MS, BUSY_MS)
        for partition in sorted(self._task.cuts):
            self._effects.tell(partition, mark)
