"""What commits of a task's state cost, and what a record costs where there is ten times as much.

The task is run here, without a log: records in, windowed counts and sums, checkpoints that become
record batches as they would for the changelog, and a store on RocksDB. 100,000 events a second over
100,000 keys, a commit every second of event time: CPU seconds per such second are shares of a core.
A write into the store holds the interpreter's lock as long as it takes, in CPU time. The cost of a
record at 10 times the keys, windows or partitions is compared with the plain one's, both the
smallest of several rounds; what comes out is compared with plain Python. With 10 times the keys or
windows a commit writes 10 times the rows: of a job, log to log, that is the smaller part (`sizes`,
which the bar is for). The garbage collector is set as a worker sets it: with Python's own
thresholds half of a plain record's cost is collections.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import msgspec

from benchmarks.harness import Reading
from streamlog import App, Emit, Windowed, agg, tumbling
from streamlog.cli.session import collect_rarely
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord, encode_columns
from streamlog.records.record_columns import FieldColumns, RecordColumns
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.state.store_transaction import DeferredStore
from streamlog.tables.stores.store import Change

START_MS = 1_700_000_000_000
SECONDS = 12
EVENTS_PER_S = 100_000
KEYS = 100_000
POLL_RECORDS = 5_000
"""As many as a worker hands over at a time."""
SHARE_BAR_PERCENT = 20
HOLD_BAR_MS = 5
ROUNDS = 3
FEW_KEYS = 10_000


class Event(msgspec.Struct):
    """What comes in."""

    amount: int


class Total(msgspec.Struct):
    """What there is of a key in one window."""

    events: int
    amount: int


Arrival: TypeAlias = tuple[int, RecordColumns]
"""Partition and records."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything."""

    keys: int = FEW_KEYS
    windows: int = 1
    """That are open at a time."""
    partitions: int = 1
    events: int = 200_000


class TimedStore(RocksStore):
    """Remembers its longest write."""

    longest_s = 0.0

    def write(self, changes: Iterable[Change]) -> None:
        """As without a clock."""
        began_s = time.thread_time()
        super().write(changes)
        self.longest_s = max(self.longest_s, time.thread_time() - began_s)


class Bench:
    """Tasks on stores in a directory; each has a share of the keys."""

    def __init__(self, directory: Path, size: Size) -> None:
        app = App("commits")
        topic = app.topic("events", key=str, value=Event)
        windows = tumbling("1h", grace=f"{size.windows}h")
        stream = app.stream(topic).group_by_key().windowed(windows).emit(Emit.CLOSE)
        stream.agg(Total, name="totals", events=agg.count(), amount=agg.sum("amount"))
        self.size = size
        self.commit_s = 0.0
        self.totals: dict[tuple[int, int], int] = {}
        budget = RocksBudget()
        self.stores: list[TimedStore] = []
        self.tasks: list[Task] = []
        counts = {"events": size.partitions}
        for number in range(size.partitions):
            store = cast("TimedStore", TimedStore.open(str(directory / str(number)), budget=budget))
            front = DeferredStore(store, budget.waiting)
            sub = app.topology().subtopologies[0]
            task = Task(sub, TaskId(0, number), partitions=counts, store=front)
            task.start_at({("events", number): 0})
            self.stores.append(store)
            self.tasks.append(task)

    def made(self, number: int) -> list[Arrival]:
        """What comes in one second, in turns of the partitions."""
        share = self.size.events // self.size.partitions
        step = POLL_RECORDS // self.size.partitions
        return [
            (partition, RecordColumns.of(self._records(partition, start, start + step)))
            for start in range(number * share, (number + 1) * share, step)
            for partition in range(self.size.partitions)
        ]

    def take(self, arrivals: Iterable[Arrival], number: int) -> None:
        """Take that in, then commit."""
        for partition, columns in arrivals:
            self.tasks[partition].process(
                {("events", partition): columns},
                START_MS + number * 1_000,
                ends={("events", partition): columns.offsets[-1] + 1},
            )
        began_s = time.process_time()
        for task in self.tasks:
            _commit(task, number)
        self.commit_s += time.process_time() - began_s

    def check(self) -> None:
        """Compare the rows with what they should be.

        Raises:
            AssertionError: a row is wrong.
        """
        found = {
            (int(windowed.key), int(windowed.start.timestamp() * 1_000)): total.events
            for task in self.tasks
            for windowed, total in _rows(task)
        }
        if found != self.totals:
            raise AssertionError("the rows are not those that a dictionary has")

    def close(self) -> None:
        """Close all tasks."""
        for task in self.tasks:
            task.close()

    def _records(self, partition: int, start: int, stop: int) -> Iterator[LogRecord]:
        keys = self.size.keys // self.size.partitions
        for offset in range(start, stop):
            key = partition * keys + offset * 7_919 % keys
            window_ms = START_MS // 3_600_000 * 3_600_000 + offset % self.size.windows * 3_600_000
            self.totals[key, window_ms] = self.totals.get((key, window_ms), 0) + 1
            yield LogRecord(offset, window_ms + 1, b"%d" % key, b'{"amount":%d}' % (offset % 100))


def _rows(task: Task) -> Iterator[tuple[Windowed[str], Total]]:
    return task.table("totals")


def _commit(task: Task, number: int) -> None:
    changes = task.checkpoint()
    keys, values = changes.row_keys, changes.row_values
    encode_columns(FieldColumns.alike(START_MS, keys, values, (("epoch", b"12345678"),)))
    task.committed(changes, next_offset=(number + 1) * 1_000_000)


async def figures(directory: Path, _: int) -> AsyncIterator[Reading]:
    """Commits first, then sizes."""
    collect_rarely()
    bench = Bench(directory / "commits", Size(KEYS, events=EVENTS_PER_S))
    for number in range(SECONDS + 1):
        if number == 1:  # All rows were new once.
            bench.commit_s = 0
        bench.take(bench.made(number), number)
    bench.check()
    share_percent = 100 * bench.commit_s / SECONDS
    name = "commit of 100,000 keys every second"
    yield Reading(f"{name}, share of a core", share_percent, "%", bar=SHARE_BAR_PERCENT)
    longest_ms = 1_000 * max(store.longest_s for store in bench.stores)
    yield Reading(f"{name}, longest hold of the lock", longest_ms, "ms", bar=HOLD_BAR_MS)
    bench.close()
    sizes = {
        "plain": Size(),
        "10 x the keys": Size(keys=10 * FEW_KEYS),
        "10 x the windows": Size(windows=10),
        "10 x the partitions": Size(partitions=10),
    }
    costs: dict[str, list[float]] = {name: [] for name in sizes}
    for round_number in range(ROUNDS):
        for name, size in sizes.items():
            costs[name].append(_cost_ns(directory / f"{name} {round_number}", size))
    plain_ns = min(costs.pop("plain"))
    yield Reading("a record in a task, at once with its commit", plain_ns, "ns")
    for name, all_ns in costs.items():
        yield Reading(f"a record at {name}", min(all_ns) / plain_ns, "times")


def _cost_ns(directory: Path, size: Size) -> float:
    """CPU of a record, its share of the commit included."""
    bench = Bench(directory, size)
    bench.take(bench.made(0), 0)
    arrivals = bench.made(1)
    began_s = time.process_time()
    bench.take(arrivals, 1)
    took_s = time.process_time() - began_s
    bench.check()
    bench.close()
    return took_s * 1e9 / size.events
