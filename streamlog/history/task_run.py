"""TaskRun: one task over all of its inputs, from their beginning to their end.

The loop of a worker without a log: whatever input is out of records is given more, until there
are none, and what comes of it goes to `Effects`. Runs the same under every engine. Rule of the
file: nothing depends on how the inputs are cut into arrivals, nor on a clock. Not done here:
where the inputs come from (`readers`, `staging`), and where the state lies (`finished`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from streamlog.processing.calls import Call, CallResult
from streamlog.processing.outbox import Outbox, SinkBatch
from streamlog.processing.provenance import BUSY_MS, Mark
from streamlog.processing.record_queue import TopicPartition
from streamlog.processing.task import Task
from streamlog.records.columns import RecordColumns
from streamlog.records.control import TimeMark
from streamlog.tables.store import Change
from streamlog.windows.emit import Source

COMMIT_BYTES = 8 * 1024 * 1024
"""Changes of state that wait in memory, at most about so many."""


class Arrival(NamedTuple):
    """Records of one partition in the order of their offsets, with the marks between them."""

    records: RecordColumns
    marks: Sequence[TimeMark] = ()


@dataclass(slots=True)
class Share:
    """What a task is to read of one partition."""

    start: int
    end: int
    arrivals: Generator[Arrival, None, None]


class Effects(Protocol):
    """Port: where what comes of a task goes."""

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Rows for topics, repartition topics included, in order."""

    def commit(self, task: Task, changes: Sequence[Change]) -> None:
        """Changes of state."""

    def tell(self, source: Source, mark: Mark) -> None:
        """A mark for those behind all repartition topics that hear of this source."""

    def answers(self, calls: Sequence[Call]) -> list[CallResult]:
        """Await calls of async functions."""


@dataclass(frozen=True, slots=True)
class Read:
    """Records of a partition have been read."""

    place: TopicPartition
    records: int
    total: int
    """That there are in the partition, at most."""
    is_staged: bool
    """By an earlier stage; else in the log."""


OnRead = Callable[[Read], None]


def unheard(_read: Read) -> None:
    """An `OnRead` that does nothing."""


@dataclass(slots=True)
class TaskFigures:
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
        shares: Mapping[TopicPartition, Share],
        effects: Effects,
        *,
        until_ms: int,
        now_ms: int,
        on_read: OnRead = unheard,
    ) -> None:
        """A run that has not begun.

        Args:
            task: to be run; its `history` says what it takes of its inputs.
            shares: by input, repartition topics included.
            effects: where what comes of it goes.
            until_ms: where its history ends.
            now_ms: the time on the wall, which stands still: nothing of a history is idle.
            on_read: told what was read.
        """
        self.figures = TaskFigures()
        self._task = task
        self._shares = dict(shares)
        self._effects = effects
        self._until_ms = until_ms
        self._now_ms = now_ms
        self._on_read = on_read
        self._ends = {place: share.end for place, share in shares.items()}
        self._left = dict(shares)
        """Of which there may be more to read."""
        self._results: list[CallResult] = []

    def run(self) -> None:
        """All of it.

        Raises:
            ProcessingError: a record can't be read, or a function failed on it.
            StreamlogError: an input can't be read.
        """
        task = self._task
        task.start_at({at: s.start for at, s in self._shares.items() if not self._is_staged(at)})
        is_first = True
        while True:
            arrived = {} if task.is_full else self._arrivals()
            if not (is_first or arrived or self._results):
                break
            self._process(arrived)
            is_first = False
        self._tell_cuts()
        while task.has_waiting:
            self._took(task.emit())
        self._settle_positions()
        self._commit()

    def _arrivals(self) -> dict[TopicPartition, Arrival]:
        """More of each input of which nothing is left to take."""
        found: dict[TopicPartition, Arrival] = {}
        buffered, cuts = self._task.buffered, self._task.cuts
        for place, share in [*self._left.items()]:
            if buffered[place] and place not in cuts:
                continue
            arrival = None if place in cuts else next(share.arrivals, None)
            if arrival is None:
                del self._left[place]
                if place not in cuts:
                    # Behind the last record there may be what ends transactions.
                    self._task.start_at({place: share.end})
                    found[place] = Arrival(RecordColumns())
                continue
            found[place] = arrival
            total, is_staged = share.end - share.start, self._is_staged(place)
            self._on_read(Read(place, len(arrival.records), total, is_staged))
            self.figures.records += len(arrival.records)
        return found

    def _process(self, arrived: Mapping[TopicPartition, Arrival]) -> None:
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
        """To those behind: nothing of an input that was cut comes before that time.

        A live task would hear it from the first record beyond the cut, or from a mark.
        """
        times = self._task.stream_times
        for place in sorted(self._task.cuts):
            self._effects.tell(place, Mark(self._until_ms, times[place], BUSY_MS))

    def _settle_positions(self) -> None:
        """Where it goes on: at the cuts, else at the ends."""
        cuts = self._task.cuts
        places = [place for place in self._shares if not self._is_staged(place)]
        self._task.start_at({at: cuts.get(at, self._ends[at]) for at in places})

    def _is_staged(self, place: TopicPartition) -> bool:
        return self._task.subtopology.topics[place[0]].internal
