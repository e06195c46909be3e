"""Feeding: an app's tasks get records as a log does, in this process.

It is a live run without processes: a task takes the records that came so far, in batches of any
size, and tasks run in any order. Partitions become quiet, and time marks report it. A hundred
programs take as long as one with workers. All randomness comes from one seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any, TypeAlias

from streamlog.history.fed import Flow, Provided
from streamlog.history.task_run import Arrival
from streamlog.processing.provenance import MARK, unpack_mark, unpack_record
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.records.control_batches import TimeMark
from streamlog.records.murmur2 import partition_of_key
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.testing.driver_topics import MemoryTopic
from streamlog.topology import Topology
from tests.equality.programs import LONG_MS, Fed, Program
from tests.equality.runs import text, whole

STEPS = 0.6
"""The probability that a task runs; otherwise, a record or a mark is appended."""
MARKS = 0.04
QUIET_MS = 60_000
ROUNDS_MAX = 10_000
Row: TypeAlias = tuple[Any, ...]
"""Key, value, timestamp and headers."""
Sequences: TypeAlias = dict[int, list[Row]]
"""Rows by partition, in offset order."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """A time mark for a quiet partition."""

    topic: str
    partition: int
    elapsed_ms: int


def with_marks(rng: Random, fed: list[Fed], program: Program) -> list[Fed | Quiet]:
    """Insert time marks for partitions that are quiet at random."""
    tps = [(each.topic, each.partition) for each in quiet_everywhere(program)]
    found: list[Fed | Quiet] = []
    for each in fed:
        found.append(each)
        if tps and rng.random() < MARKS:
            found.append(Quiet(*rng.choice(tps), rng.choice([20, 100, 500])))
    return found


def quiet_everywhere(program: Program) -> list[Fed | Quiet]:
    """Return a time mark for each partition, except those of tables, which take none."""
    counts = {name: n for name, n in program.inputs.items() if name not in program.tables}
    return [Quiet(name, n, QUIET_MS) for name, count in counts.items() for n in range(count)]


class Feeding:
    """One run of an app's tasks."""

    def __init__(self, topology: Topology, partitions: Mapping[str, int]) -> None:
        """Create the tasks; `partitions` are the counts of the declared topics."""
        self._internal = [name for name, spec in topology.topics.items() if spec.internal]
        self._counts = topology.partition_counts(partitions)
        self.topics = {
            name: MemoryTopic(count, partition_of_key) for name, count in self._counts.items()
        }
        self._tasks = {
            TaskId(sub.number, partition): Task(
                sub,
                TaskId(sub.number, partition),
                partitions=self._counts,
                store=None if sub.changelog_topic is None else MemoryStore(),
            )
            for sub in topology.subtopologies
            for partition in range(sub.tasks(self._counts))
        }
        self._taken = dict.fromkeys(self._places(), 0)

    def _places(self) -> Iterator[tuple[TaskId, str, int]]:
        for number, task in self._tasks.items():
            for topic, partition in task.inputs:
                task.start_at({(topic, partition): 0})
                yield number, topic, partition

    def append(self, each: Fed | Quiet) -> None:
        """Append a record or a time mark to the log."""
        topic = self.topics[each.topic]
        if isinstance(each, Quiet):
            topic.mark(each.partition, each.elapsed_ms)
            return
        topic.append(
            None if each.value is None else whole.dumps(each.value),
            key=None if each.key is None else text.dumps(each.key),
            timestamp_ms=each.timestamp_ms,
            partition=each.partition,
        )

    def append_arrivals(self, topic: str, partition: int, arrivals: Iterable[Arrival]) -> None:
        """Append what a log holds of a partition: its records and the marks between them."""
        entries: list[LogRecord | TimeMark] = []
        for each in arrivals:
            entries += [*each.records, *each.marks]
        for entry in sorted(entries, key=lambda entry: entry.offset):
            if isinstance(entry, TimeMark):
                self.topics[topic].mark(partition, entry.elapsed_ms, entry.clock_times)
                continue
            self.topics[topic].append(
                entry.value,
                key=entry.key,
                timestamp_ms=entry.timestamp_ms,
                headers=entry.headers,
                partition=partition,
            )

    def run(self, rng: Random, *parts: list[Fed] | list[Fed | Quiet]) -> None:
        """Append the parts while tasks run; each part once the last one is processed."""
        for fed in parts:
            self._feed(rng, fed)
            self._rest()

    def _feed(self, rng: Random, fed: list[Fed] | list[Fed | Quiet]) -> None:
        left = iter(fed)
        tasks = [*self._tasks]
        each = next(left, None)
        while each is not None:
            if rng.random() < STEPS:
                self._work(rng.choice(tasks), rng.choice([1, 3, None]))
            else:
                self.append(each)
                each = next(left, None)

    def history(self, *parts: list[Fed] | list[Fed | Quiet]) -> None:
        """Append all parts before the first task runs."""
        for each in chain(*parts):
            self.append(each)
        self._rest()

    def _rest(self) -> None:
        """Run all tasks, upstream ones first, until no records are left."""
        for _ in range(ROUNDS_MAX):
            moved = [self._work(task, None) for task in self._tasks]
            if not any(moved):
                return
        raise AssertionError("the app does not come to rest")

    def is_provided(self, flow: Flow) -> bool:
        """Whether this run meets the conditions of a flow's equality."""
        return all(self._is_so(each) for each in flow.provided)

    def _is_so(self, each: Provided) -> bool:
        if each.late_ms >= LONG_MS:
            return True
        if each.of == "all":
            return False
        stamps = [*self._stamps()]
        if each.of == "left out" and all(turn_ms == time_ms for _, turn_ms, time_ms in stamps):
            return True
        return all(turn_ms - at_ms <= each.late_ms for at_ms, turn_ms, _ in stamps)

    def _stamps(self) -> Iterator[tuple[int, int, int]]:
        """Yield time, source turn and source time of all records in repartition topics."""
        for records in (part for name in self._internal for part in self.topics[name].partitions):
            for record in records:
                name, found = record.headers[-1]
                data = found or b""
                if name == MARK:
                    turn_ms, time_ms, _ = unpack_mark(data)[0]
                    yield time_ms, turn_ms, time_ms
                else:
                    yield (record.timestamp_ms, *unpack_record(data)[:2])

    def rows(self, topic: str) -> Sequences:
        """Return a topic's rows by partition."""
        return {
            partition: [(r.key, r.value, r.timestamp_ms, tuple(r.headers)) for r in records]
            for partition, records in enumerate(self.topics[topic].partitions)
        }

    def _work(self, number: TaskId, records_max: int | None) -> bool:
        """Feed a task its new records; return whether it did anything."""
        task = self._tasks[number]
        records, marks, ends = {}, {}, {}
        for tp in task.inputs:
            topic, partition = self.topics[tp[0]], tp[1]
            taken, end = self._taken[number, *tp], topic.end(partition)
            ends[tp] = end
            if taken == end:
                continue
            found, time_marks = topic.since(partition, taken)
            if records_max is not None and found[records_max:]:
                end = found[records_max].offset
            records[tp] = [each for each in found if each.offset < end]
            marks[tp] = [each for each in time_marks if each.offset < end]
            self._taken[number, *tp] = end
        outbox = task.process(records, 0, ends=ends, marks=marks)
        for sink in outbox.sinks:
            partition = sink.partition
            if partition is None:
                partition = partition_of_key(sink.route, self._counts[sink.topic])
            self.topics[sink.topic].append(
                sink.value,
                key=sink.key,
                timestamp_ms=sink.timestamp_ms,
                headers=sink.headers,
                partition=partition,
            )
        return bool(records or outbox.writes)
