"""TaskRun: one task over all of its inputs, from their beginning to their end.

The loop of a worker without a log: whatever input is out of records is given more, until there
are none, and what comes of it goes to `Effects`. Runs the same under every engine. Rule of the
file: nothing depends on how the inputs are cut into arrivals, nor on a clock. Not done here:
where the inputs come from (`readers`, `staging`), and where the state lies (`finish_snapshot`).
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
    """A task whose history is over."""

    entry: TaskEntry
    """Its state, as the snapshot has it."""
    pending: tuple[PendingRecords, ...]
    """Records of repartition topics whose turn had not come: a source, mostly a window that is
    open, may still send an earlier one."""
    staged: tuple[StagedRecords, ...]
    """Its rows for output topics, one file per partition."""
    records: int
    """Taken, of all inputs."""
    rows: tuple[Count, ...]
    """Written, by topic; to repartition topics with their time marks."""
    drops: tuple[Dropped, ...]
    """Left out, by operator and reason."""

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> FinishedTask:
        """What `encode` gave.

        Raises:
            CorruptData: it is not that.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"what a task of a history has left is not readable: {error}") from (
                error
            )


def sum_by_name(counts: Iterable[Count]) -> dict[str, int]:
    """Added up by name."""
    found: dict[str, int] = {}
    for name, count in counts:
        found[name] = found.get(name, 0) + count
    return found


COMMIT_BYTES = 8 * 1024 * 1024
"""Changes of state that wait in memory, at most about so many."""


class Arrival(NamedTuple):
    """Records of one partition in the order of their offsets, with the marks between them."""

    records: RecordColumns
    marks: Sequence[TimeMark] = ()
    is_last: bool = False
    """Nothing of this partition follows."""
    passed: Outbox | None = None
    """What comes of a batch that can't be read and was passed by `on_error`."""


Arrivals: TypeAlias = Generator[Mapping[PartitionKey, Arrival], None, None]


class PartitionReader(Protocol):
    """Port: reads partitions of a log, committed records and time marks."""

    def read(
        self, partition: TopicPartition, start: int, end: int, damaged: DamagedInputs | None = None
    ) -> Generator[Arrival, None, None]:
        """What the partition holds from one offset up to another.

        A batch that can't be read ends it, unless a policy of `damaged` passes the batch.
        """


@dataclass(slots=True)
class InputReader:
    """What gives a task the records of some of its inputs, in order."""

    bounds: Mapping[PartitionKey, tuple[int, int | None]]
    """By partition where it begins, and where it ends; None: an arrival will say so."""
    arrivals: Arrivals
    is_staged: bool = False
    """What comes was staged by an earlier stage, and is no log's."""


class Effects(Protocol):
    """Port: where what comes of a task goes."""

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Rows for topics, repartition topics included, in order."""

    def commit(self, task: Task, changes: Changes) -> None:
        """Changes of state."""

    def tell(self, source: Source, mark: ProvenanceMark) -> None:
        """A mark for those behind all repartition topics that hear of this source."""

    def answers(self, calls: Sequence[TaskCall]) -> list[CallResult]:
        """Await calls of async functions."""


@dataclass(frozen=True, slots=True)
class Read:
    """Records of a partition have been read."""

    place: PartitionKey
    records: int
    total: int
    """That there are in the partition, at most."""
    is_staged: bool
    """By an earlier stage; else in the log."""


OnRead = Callable[[Read], None]


def unheard(_read: Read) -> None:
    """An `OnRead` that does nothing."""


@dataclass(slots=True)
class TaskRunFigures:
    """What a task has done."""

    records: int = 0
    """Taken, of all inputs."""
    rows: Counter[str] = field(default_factory=Counter)
    """Written, by topic."""
    drops: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Left out, by operator and reason."""


class TaskRun:
    """One task over all of its inputs."""

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
        """A run that has not begun.

        Args:
            task: to be run; its `history` says what it takes of its inputs.
            feeds: that give it all of its inputs.
            effects: where what comes of it goes.
            until_ms: where its history ends.
            now_ms: the time on the wall, which stands still: nothing of a history is idle.
            on_read: told what was read.
        """
        self.figures = TaskRunFigures()
        self._task = task
        self._left = list(feeds)
        """Of which there may be more to read."""
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
        """What was staged and may not have been taken."""
        self._fed: dict[PartitionKey, int] = {}
        """Of what was staged, the offset behind what has come."""
        self._results: list[CallResult] = []

    def run(self) -> None:
        """All of it; raises what `steps` raises."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """All of it, a little with each step, so that its effects may be looked after in between.

        Raises:
            ProcessingError: a record can't be read, or a function failed on it.
            StreamlogError: an input can't be read.
        """
        task = self._task
        task.start_at(self._starts)
        is_first = True
        while True:
            arrived = {} if task.is_full else self._arrivals()
            if not (is_first or arrived or self._results):
                break
            self._process(arrived)
            self._forget_taken()
            is_first = False
            yield
        self._tell_cuts()
        while task.has_waiting:
            self._took(task.emit())
        cuts = task.cuts
        task.start_at({at: cuts.get(at, self._ends[at]) for at in self._starts})
        self._commit()
        yield

    def pending(self) -> dict[PartitionKey, tuple[int, list[RecordColumns]]]:
        """Of what was staged, what was not taken: from which position on, and the records."""
        found: dict[PartitionKey, tuple[int, list[RecordColumns]]] = {}
        self._drain()
        positions = self._task.positions
        for place, pieces in self._waiting.items():
            position = positions.get(place, 0)
            left = [piece for piece in pieces if piece.offsets[-1] >= position]
            if left:
                left[0] = left[0][max(position - left[0].offsets[0], 0) :]
                found[place] = position, left
        return found

    def _drain(self) -> None:
        """Read what has not been read, as those before it wait for another input."""
        staged = (feed.arrivals for feed in self._left if feed.is_staged)
        for place, arrival in chain.from_iterable(each.items() for each in chain(*staged)):
            if len(arrival.records):
                self._waiting[place].append(arrival.records)

    def close(self) -> None:
        """Nothing more is read."""
        for feed in self._left:
            feed.arrivals.close()

    def _arrivals(self) -> dict[PartitionKey, Arrival]:
        """More of each input of which nothing is left to take."""
        found: dict[PartitionKey, Arrival] = {}
        buffered, cuts = self._task.buffered, self._task.cuts
        for feed in [*self._left]:
            open_places = [place for place in feed.bounds if place not in cuts]
            if open_places and all(buffered[place] for place in open_places):
                continue
            arrivals = next(feed.arrivals, None) if open_places else None
            if arrivals is None:
                feed.arrivals.close()
                self._left.remove(feed)
                found |= {place: self._at_end(feed, place) for place in open_places}
                continue
            for place, arrival in arrivals.items():
                found[place] = arrival
                self._read(feed, place, arrival)
        return found

    def _at_end(self, feed: InputReader, place: PartitionKey) -> Arrival:
        """There is no more of it; behind the last record may be what ends transactions."""
        if not feed.is_staged:
            self._task.start_at({place: self._ends[place]})
        return Arrival(RecordColumns())

    def _read(self, feed: InputReader, place: PartitionKey, arrival: Arrival) -> None:
        start, end = feed.bounds[place]
        if arrival.passed is not None:
            self._took(arrival.passed)
        records = arrival.records
        if len(records):
            self.figures.records += len(records)
            self._on_read(Read(place, len(records), (end or 0) - start, feed.is_staged))
            if feed.is_staged:
                self._waiting[place].append(records)
                self._fed[place] = records.offsets[-1] + 1
        if arrival.is_last:
            self._ends[place] = self._fed.get(place, start)

    def _forget_taken(self) -> None:
        positions = self._task.positions
        for place, pieces in self._waiting.items():
            while pieces and pieces[0].offsets[-1] < positions.get(place, 0):
                pieces.popleft()

    def _process(self, arrived: Mapping[PartitionKey, Arrival]) -> None:
        results, self._results = self._results, []
        outbox = self._task.process(
            {place: each.records for place, each in arrived.items()},
            self._now_ms,
            ends=self._ends,
            results=results,
            marks={place: each.marks for place, each in arrived.items() if each.marks},
        )
        self._took(outbox)
        if self._task.state_bytes > COMMIT_BYTES:
            while self._task.has_waiting:
                self._took(self._task.emit())
            self._commit()

    def _took(self, outbox: Outbox) -> None:
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

        The mark says so of the order, by its merge key, and leaves the input's time as it is. A
        timer due at T must not fire here: the record beyond the cut is at T or later, but a node
        upstream may drop it, and then it moves no time (docs/decisions/012, rule 8).
        """
        mark = ProvenanceMark(self._until_ms, UNKNOWN_MS, BUSY_MS)
        for place in sorted(self._task.cuts):
            self._effects.tell(place, mark)
