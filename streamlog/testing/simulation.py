"""Simulation: runs an app's topology many times under faults, and expects equal rows every time.

A test writes records. At the end of the block, the test driver computes the expected rows. Then
`Turmoil` runs the app again and again, each time with other batches, workers, moves and kills.
Every run has to write the expected records to every topic: partition, key, value, timestamp and
headers, equally often. Rows whose number depends on commits (`Emit.COMMIT`, `Emit.early` by the
wall clock) are compared by the last row of each key.

Rule: the report of a difference has the seed that reproduces it. Not done here: agents, services,
timers and crontabs, which are not part of the topology.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

from streamlog.dsl.topic import Topic, refuse_other
from streamlog.errors import RunsDiffer, StreamlogError, UsageError, quantity
from streamlog.nodes.stream_nodes import Entry
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.outbox import Drop
from streamlog.record import Headers
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.records.partitioners import DEFAULT
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.testing.driver import Rehearsal, TestDriver
from streamlog.testing.driver_agents import DriverAgents
from streamlog.testing.driver_topics import MemoryTopic, TestTopicIn, TestTopicOut
from streamlog.testing.turmoil import Turmoil
from streamlog.topology import Topology
from streamlog.windows.emit import Emit

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""

SHOWN_MAX = 3
"""The most missing rows, and the most superfluous ones, that an error shows."""
STORY_MAX = 30
"""The most lines of a run's story that an error shows."""

HINT = (
    "the result of an operator must depend only on its records: look for clocks, random numbers, "
    "globals, and values that are changed in place"
)

WrittenRow: TypeAlias = tuple[int, bytes | None, bytes | None, int, Headers]
"""Partition, key, value, timestamp in milliseconds, and headers of a record."""
Rows: TypeAlias = Counter[WrittenRow]


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The runs of a simulation, all of which wrote the same rows."""

    seeds: range
    """The seeds of the runs."""
    records: int
    """The number of input records."""
    rows: Mapping[str, int]
    """The number of rows that each run wrote, by topic."""
    troubles: Mapping[str, int] = field(default_factory=dict)
    """The number of faults in all runs, by kind: "kill", "move", "join", "leave"."""

    def __str__(self) -> str:
        rows = ", ".join(f"{count} to {topic}" for topic, count in self.rows.items()) or "none"
        troubles = ", ".join(quantity(n, kind) for kind, n in sorted(self.troubles.items()))
        return (
            f"{quantity(len(self.seeds), 'run')} over {quantity(self.records, 'record')} wrote the "
            f"same rows ({rows}), through {troubles or 'no faults'}; seeds {self.seeds.start} to "
            f"{self.seeds.stop - 1}"
        )


class Simulation:
    """Records for an app, and runs of the app over them; a context manager."""

    def __init__(self, rehearsal: Rehearsal, *, seed: int, runs: int) -> None:
        if runs < 1:
            raise UsageError(f"a simulation has 1 run or more, not {runs}")
        self.now_ms = rehearsal.start_ms
        """The time of the simulation in milliseconds since 1970; it does not move."""
        self._rehearsal = rehearsal
        self._topology = rehearsal.topology
        self._counts = self._topology.partition_counts(rehearsal.partitions)
        self._seeds = range(seed, seed + runs)
        # Inputs only: each run, and the test driver, gets its own copy of them.
        self._given = self._topics()
        self._driver = TestDriver(rehearsal)
        self._is_open = False
        self._report: SimulationReport | None = None

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Run the app with each seed, unless the block has failed.

        Raises:
            RunsDiffer: a run has written other rows than the test driver.
            ProcessingError: the app failed on a record.
        """
        self._is_open = False
        if kind is None:
            self._report = self._compare_runs()

    @property
    def report(self) -> SimulationReport:
        """The report of all runs, after the block.

        Raises:
            UsageError: the block has not ended.
        """
        if self._report is None:
            raise UsageError(
                "the simulation runs at the end of its block: read the report after the block"
            )
        return self._report

    def input(self, t: Topic[K, V]) -> TestTopicIn[K, V]:
        """Return the object that writes to this topic; the app runs when the block ends."""
        refuse_other(t)
        self.topic(t.name)
        return TestTopicIn(self, t)

    def output(self, t: Topic[K, V]) -> TestTopicOut[K, V]:
        """Return the object that reads the expected records of this topic, after the block."""
        refuse_other(t)
        self._driver.topic(t.name)
        return TestTopicOut(self._driver, t)

    def topic(self, name: str) -> MemoryTopic:
        """Return a topic of the app with the input records.

        Raises:
            UsageError: the app has no topic of this name.
        """
        found = self._given.get(name)
        if found is None:
            raise UsageError(f"the app has no topic {name!r}; it has {sorted(self._given)}")
        return found

    def check_runs(self) -> None:
        """Raise UsageError outside of the block."""
        if not self._is_open:
            raise UsageError("records can be sent only inside `with app.simulate() as s:`")

    def settle(self) -> None:
        """Do nothing: each run cuts the records into batches of its own."""

    def count_drop(self, drop: Drop) -> None:
        """Do nothing: the test driver counts the drops."""

    def _topics(self) -> dict[str, MemoryTopic]:
        changelogs = self._topology.changelog_partitions(self._counts)
        return {
            name: MemoryTopic(count, self._rehearsal.partitioners.get(name, DEFAULT))
            for name, count in {**self._counts, **changelogs}.items()
        }

    def _fill(self, topic_of: Callable[[str], MemoryTopic]) -> int:
        filled = 0
        for name, given in self._given.items():
            for partition, record in given.arrivals:
                topic_of(name).append(
                    record.value,
                    key=record.key,
                    timestamp_ms=record.timestamp_ms,
                    headers=record.headers,
                    partition=partition,
                )
                filled += 1
        return filled

    def _compare_runs(self) -> SimulationReport:
        # Before the driver starts, so that it sees all records at once.
        records = self._fill(self._driver.topic)
        with self._driver:
            expected = self._rows_of(self._driver.topic)
        troubles: Counter[str] = Counter()
        for seed in self._seeds:
            troubles += self._run(seed, expected)
        rows = {name: found.total() for name, found in expected.items()}
        return SimulationReport(self._seeds, records, rows, troubles)

    def _run(self, seed: int, expected: Mapping[str, Rows]) -> Counter[str]:
        topics = self._topics()
        self._fill(topics.__getitem__)
        agents = DriverAgents((), (), topics, self)
        turmoil = Turmoil(
            self._topology,
            self._counts,
            topics,
            seed=seed,
            now_ms=self.now_ms,
            results=agents.results,
        )
        try:
            turmoil.run()
        except StreamlogError as error:
            error.add_note(f"{_again(seed)}\n{_faults(turmoil.story)}")
            raise
        finally:
            agents.close()
        found = self._rows_of(topics.__getitem__)
        for name, rows in expected.items():
            if found[name] != rows:
                raise RunsDiffer(self._difference(seed, name, rows, found[name], turmoil.story))
        return turmoil.troubles

    def _rows_of(self, topic_of: Callable[[str], MemoryTopic]) -> dict[str, Rows]:
        """Return how often each record is in each topic that the app writes."""
        by_commits = _topics_by_commits(self._topology)
        found: dict[str, Rows] = {}
        for name in sorted({**_written(self._topology), **self._topology.dead_letters}):
            arrivals = topic_of(name).arrivals
            rows = [(at, r.key, r.value, r.timestamp_ms, r.headers) for at, r in arrivals]
            if name in by_commits:
                # How many rows of a key there are depends on commits, but not the last one.
                rows = list({row[:2]: row for row in rows}.values())
            # Counts, because the order in which tasks write differs from run to run.
            found[name] = Counter(rows)
        return found

    def _difference(
        self, seed: int, name: str, expected: Rows, found: Rows, story: Sequence[str]
    ) -> str:
        missing, more = expected - found, found - expected
        counts = f"{quantity(missing.total(), 'record')} missing and {more.total()} too many"
        return "\n".join(
            [
                f"the run of seed {seed} wrote other rows to {name!r}: {counts}",
                *(f"  missing:  {self._shown(name, row)}" for row in islice(missing, SHOWN_MAX)),
                *(f"  too many: {self._shown(name, row)}" for row in islice(more, SHOWN_MAX)),
                HINT,
                _again(seed),
                _faults(story),
            ]
        )

    def _shown(self, name: str, row: WrittenRow) -> str:
        partition, key, value, timestamp_ms, headers = row
        spec = _written(self._topology).get(name)
        record = RawRecord(-1, timestamp_ms, key, value, headers)
        if spec is None:
            return f"partition {partition}: {record}"
        shown = Topic[UserKey, UserValue](spec, self._rehearsal.runtime).decoded(record, partition)
        return f"partition {partition}: {shown.key!r} = {shown.value!r} at {shown.timestamp}"


def _again(seed: int) -> str:
    return f"to repeat it: app.simulate(seed={seed}, runs=1)"


def _faults(story: Sequence[str]) -> str:
    left = len(story) - STORY_MAX
    more = [f"  and {left} more"] if left > 0 else []
    return "\n".join(
        ["the faults of this run:", *(f"  {each}" for each in story[:STORY_MAX]), *more]
    )


def _written(topology: Topology) -> dict[str, TopicSpec]:
    """Return the topics that nodes write to, except repartition topics."""
    return {
        topic.name: topic for node in topology.nodes for topic in node.writes if not topic.internal
    }


def _topics_by_commits(topology: Topology) -> set[str]:
    """Return the topics whose number of rows depends on the times of commits."""
    reached: set[str] = set()
    topics: set[str] = set()
    before = -1
    # A node above may be declared later (a topic that the app writes and reads), so repeat until
    # nothing is added.
    while len(reached) + len(topics) > before:
        before = len(reached) + len(topics)
        for node in topology.nodes:
            emit = getattr(node, "emit", Emit.UPDATE)
            behind = {*node.parents, *node.lookup_nodes} & reached
            is_fed = isinstance(node, Entry) and node.topic.name in topics
            if emit not in {Emit.UPDATE, Emit.CLOSE} or behind or is_fed:
                reached.add(node.name)
                topics |= {topic.name for topic in node.writes}
    return topics
