"""What a record costs a task whose rows are on disk, because they are too many for its memory.

Counts and sums per key in one window, a row for every update. The rows of all keys are taken in as
a sorted file, like those of a snapshot; then records of random keys come, with a commit after as
many as a worker takes in between two, until RocksDB has merged what it wrote several times. The
cost is that of the task's thread and of RocksDB's, up to the end of the last merge. The task runs
here, without a log: its batches become record batches, and its checkpoints go to RocksDB, with the
memory that a worker has by default. Every result is compared with plain Python. `commits` has the
costs of rows in memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from benchmarks.harness import Reading
from streamlog import App, Emit, Windowed, agg, tumbling
from streamlog.cli.session import collect_rarely
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.records.record_columns import RecordColumns
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore, write_sorted
from streamlog.tables.state.store_transaction import DeferredStore
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.tables.stores.store import Change, StoreSpec, window_key
from streamlog.topology import Subtopology

KEYS = 5_000_000
START_MS = 1_700_000_040_000
WINDOW_MS = 60_000
POLL_RECORDS = 2_000
COMMIT_RECORDS = 60_000
ROUNDS = 32
BAR_US = 8.0
QUIET_S = 0.2
"""RocksDB's threads are at rest if they take next to no CPU for so long."""
_SOURCE = ("events", 0)
_pack = msgspec.msgpack.Encoder().encode


class Event(msgspec.Struct):
    """What comes in."""

    amount: int


class Total(msgspec.Struct):
    """What there is of a key."""

    events: int
    amount: int


class Sums:
    """What there has to be of each key.

    In numbers, not in objects that the garbage collector walks in the time of the task.
    """

    def __init__(self) -> None:
        self._events: dict[int, int] = {}
        self._amounts: dict[int, int] = {}

    def after(self, key: int) -> Total:
        """What there has to be after one more record of the key."""
        events = self._events[key] = self._events.get(key, 1) + 1
        amount = self._amounts[key] = self._amounts.get(key, 100) + key % 100
        return Total(events, amount)


async def figures(directory: Path, _: int) -> AsyncIterator[Reading]:
    """What a record costs with KEYS rows on disk, and how much of that RocksDB's threads take."""
    name = f"a record of a task with {KEYS:,} rows on disk"
    own_us, others_us = costs_us(directory, KEYS)
    yield Reading(name, own_us + others_us, "us", bar=BAR_US, digits=2)
    yield Reading(f"{name}: RocksDB's threads", others_us, "us", digits=2)


def cost_us(directory: Path, count: int) -> float:
    """The CPU of a record of a task that has rows of `count` keys on disk, in microseconds."""
    return sum(costs_us(directory, count))


def costs_us(directory: Path, count: int) -> tuple[float, float]:
    """As `cost_us`, for the thread of the task and for all others: means over all rounds."""
    collect_rarely()
    app = App("beyond-memory")
    events = app.topic("events", key=str, value=Event)
    out = app.topic("out", key=Windowed[str], value=Total)
    windowed = app.stream(events).group_by_key().windowed(tumbling(f"{WINDOW_MS}ms"))
    totals = windowed.emit(Emit.UPDATE).agg(
        Total, name="totals", events=agg.count(), amount=agg.sum("amount")
    )
    totals.changes().to(out)
    sub, budget = app.topology().subtopologies[0], RocksBudget()
    front = DeferredStore(_filled(directory, count, _progress(sub), budget), budget.waiting)
    task = Task(sub, TaskId(0, 0), partitions={"events": 1}, store=front, caches=budget.caches)
    chance, sums = random.Random(7), Sums()  # noqa: S311 - no secret
    before_s = _others_s()
    own_s = sum(
        _round(task, number, [chance.randrange(count) for _ in range(COMMIT_RECORDS)], sums)
        for number in range(ROUNDS)
    )
    others_s = _settled_s() - before_s
    task.close()
    times = 1e6 / ROUNDS / COMMIT_RECORDS
    return own_s * times, others_s * times


def _others_s() -> float:
    """CPU of all threads but this one."""
    return time.process_time() - time.thread_time()


def _settled_s() -> float:
    """CPU of all threads but this one, once they are at rest."""
    while True:
        before_s = _others_s()
        time.sleep(QUIET_S)
        if (now_s := _others_s()) - before_s < QUIET_S / 20:
            return now_s


def _progress(sub: Subtopology) -> Change:
    """The progress of a task that has taken a record of the window."""
    task = Task(sub, TaskId(0, 0), partitions={"events": 1}, store=MemoryStore())
    task.start_at({_SOURCE: 0})
    task.process({_SOURCE: RecordColumns.of(_records([0], 0))}, START_MS, ends={_SOURCE: 1})
    *_, progress = task.checkpoint()
    return progress


def _filled(directory: Path, count: int, progress: Change, budget: RocksBudget) -> RocksStore:
    """A store with a row of each key."""
    head = StoreSpec("totals").prefix + window_key(START_MS + WINDOW_MS, START_MS, b"")
    row = START_MS.to_bytes(8) + _pack((1, 100))
    rows = ((head + b"%08d" % number, row) for number in range(count))
    directory.mkdir(exist_ok=True)
    path = str(directory / "rows.sst")
    write_sorted(next(rows), rows, path, file_bytes=1 << 40)
    store = RocksStore.open(str(directory / "state"), budget=budget)
    store.replace([path], [progress])
    return store


def _round(task: Task, number: int, keys: list[int], sums: Sums) -> float:
    """CPU of this thread for the records of a commit, and for the commit.

    Raises:
        RuntimeError: a result is wrong.
    """
    first = 1 + number * COMMIT_RECORDS
    polls = [
        RecordColumns.of(_records(keys[at : at + POLL_RECORDS], first + at))
        for at in range(0, COMMIT_RECORDS, POLL_RECORDS)
    ]
    began_s = time.thread_time()
    outboxes = [
        task.process({_SOURCE: poll}, START_MS, ends={_SOURCE: first + COMMIT_RECORDS})
        for poll in polls
    ]
    task.committed(task.checkpoint(), next_offset=(number + 1) * 10 * COMMIT_RECORDS)
    took_s = time.thread_time() - began_s
    results = [value for outbox in outboxes for batch in outbox.writes for value in batch.values]
    for key, result in zip(keys, results, strict=True):
        expected = sums.after(key)
        if msgspec.json.decode(result or b"", type=Total) != expected:
            message = f"key {key} has {result!r}, and not {expected}"
            raise RuntimeError(message)
    return took_s


def _records(keys: list[int], first: int) -> Iterator[LogRecord]:
    for offset, key in enumerate(keys, first):
        yield LogRecord(offset, START_MS + 1, b"%08d" % key, b'{"amount":%d}' % (key % 100))
