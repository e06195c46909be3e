"""check_source: the conformance suite of sources, over the calls that a worker makes.

While the test writes rows outside, the source is read in many lives: kills while it reads, before
and behind a transaction and before it hears of it; transactions that are undone; parts that move to
another task; zombies that read on although nothing of theirs counts. The records that count have to
be those outside, as often as the source's guarantee says.

Rule: the log is in memory, the connector and what it reads are real.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamlog.connect.declared_connectors import SourceConnector
from streamlog.connect.parts import encode_offset, part_id
from streamlog.connect.source import Read, Source, SourceOffset, SourcePartition
from streamlog.connect.source_progress import HeldRead
from streamlog.connect_tasks.carried import CarriedRead, SourceCarrier
from streamlog.connect_tasks.contexts import ConnectorContext
from streamlog.connect_tasks.part_reader import HeldBudget, PartReader, ReaderDeps
from streamlog.connect_tasks.source_task import SourceTask
from streamlog.durations import Dur, duration_ms, when_ms
from streamlog.errors import ProcessingError
from streamlog.nodes.policies import on_error
from streamlog.processing.outbox import SinkBatch
from streamlog.random_source import Random
from streamlog.testing.connector_lives import (
    LifeClock,
    Outside,
    Steps,
    describe_rows,
    form_of,
)

NAME = "checked"
ROWS_MAX = 20
"""The most rows that are put outside at once."""
STEPS_MAX = 8
"""The most transactions of one life."""
WAIT_S = 0.02
"""How long a step waits for the source, in seconds of real time."""
BUDGETS_BYTES = (0, 40, 1_000_000)
"""The bytes that a life may hold between transactions: those of one step, of a few, or of all."""
RARELY = 0.15
"""How likely a choice falls on what has to happen now and then."""
HALF = 0.5

AnySource = Source[Any, Any]


async def check_source(
    make: Callable[[], AnySource],
    outside: Outside,
    *,
    lives: int = 20,
    seed: int = 0,
    patience: Dur = "5s",
) -> None:
    """Read a source in many lives while rows are put outside, and compare in the end.

    Args:
        make: returns the source, with the same settings each time.
        outside: the other side; its `put` writes rows, and its `rows` returns the values that the
            source has to read.
        lives: the number of lives.
        seed: the seed of chance. Threads and other processes have times of their own, so equal
            seeds give equal lives only for a source that has none.
        patience: how long the end waits for a record that is missing, in real time.

    Raises:
        CheckFailed: records are missing or too many, by the source's guarantee, or an offset is not
            JSON, or the source failed.
    """
    world = _World(Random(seed), make, outside, Steps(seed))
    for _ in range(lives):
        await world.live_once()
    await world.read_to_the_end(duration_ms(patience) / 1000)
    world.compare(await outside.rows())


class _Carrier(SourceCarrier):
    """Makes texts of the records, which can be compared with the rows outside."""

    def carry(self, read: Read[Any, Any], now: datetime, *, may_retry: bool = False) -> CarriedRead:
        del may_retry
        records = read.records(now)
        times = [when_ms(record.timestamp) for record in records]
        values = [form_of(record.value).encode() for record in records]
        batch = SinkBatch(NAME, None, times, [None] * len(values), values)
        return CarriedRead([batch] if values else [])


@dataclass(slots=True)
class _Life:
    """One task of the source at work."""

    number: int
    task: SourceTask
    work: asyncio.Task[None]


class _World:
    """The log with its offsets, and the tasks of all lives."""

    def __init__(
        self, random: Random, make: Callable[[], AnySource], outside: Outside, steps: Steps
    ) -> None:
        self._random, self._make = random, make
        self._outside, self._steps = outside, steps
        self._clock = LifeClock()
        self._log: Counter[str] = Counter()
        self._offsets: dict[str, SourceOffset] = {}
        self._put = self._count = 0
        self._stirred = asyncio.Event()
        self._zombies: list[_Life] = []

    async def live_once(self) -> None:
        """Let one or two tasks share the parts for some transactions; then they end somehow.

        Raises:
            CheckFailed: the source failed.
        """
        lives = await self._begin()
        for _ in range(self._random.randrange(1, STEPS_MAX)):
            if self._random.random() < HALF:
                await self._put_rows()
            await self._wait(WAIT_S)
            for life in lives:
                self._check_runs(life)
            if await self._commit(lives):
                break
        # 1. A zombie holds Reads that were never committed. 2. Its successor reads them again.
        # 3. The zombie's `committed` must not run, or it would acknowledge outside what its
        # successor has not committed yet.
        for life in lives:
            if self._random.random() < RARELY:
                self._steps.note(f"task {life.number} becomes a zombie")
                self._zombies.append(life)
            else:
                await self._end(life)
        # A zombie reads on beside one or two of its successors.
        while len(self._zombies) > 1:
            await self._end(self._zombies.pop(0))

    async def read_to_the_end(self, patience_s: float) -> None:
        """Read until everything that is outside is in the log, or nothing has come for a while.

        Raises:
            CheckFailed: the source failed.
        """
        await self._put_rows()
        wanted = Counter(map(form_of, await self._outside.rows()))
        lives = await self._begin()
        # Real time: the source may wait for a server, or for a thread of its own.
        waited_s = 0.0
        while waited_s < patience_s and wanted - self._log:
            before = self._log.total()
            await self._wait(WAIT_S)
            for life in lives:
                self._check_runs(life)
                self._write(life)
                life.task.count()
            waited_s = 0.0 if self._log.total() > before else waited_s + WAIT_S
        # What a source reads twice may come behind what it has to read.
        await self._wait(WAIT_S)
        for life in (*lives, *self._zombies):
            if life in lives:
                self._write(life)
                life.task.count()
            await self._end(life)
        self._zombies = []

    def compare(self, rows: object) -> None:
        """Compare the records that count with the rows outside.

        Raises:
            CheckFailed: there are too few or too many of a row, by the source's guarantee.
        """
        wanted = Counter(map(form_of, rows if isinstance(rows, list | tuple) else []))
        missing, extra = wanted - self._log, self._log - wanted
        guarantee = self._make().guarantee
        if guarantee == "at_least_once":
            # Twice is allowed, but not a row that is nowhere outside.
            extra = Counter({row: number for row, number in extra.items() if row not in wanted})
        elif guarantee == "at_most_once":
            missing = Counter()
        found = [describe_rows("missing", missing), describe_rows("too many", extra)]
        if missing or extra:
            raise self._steps.failure(
                f"the source promises {guarantee}; {'; '.join(filter(None, found))}"
            )

    async def _put_rows(self) -> None:
        count = self._random.randrange(1, ROWS_MAX)
        rows = [*range(self._put + 1, self._put + 1 + count)]
        self._put += count
        self._steps.note(f"{count} rows are put outside")
        await self._outside.put(rows)

    async def _begin(self) -> list[_Life]:
        """Start one task with all parts, or two that share them."""
        source = self._make()
        context = ConnectorContext(NAME, 0, self._clock)
        # A source of its own for the question, as in a worker the leader asks and others read.
        parts = [*await source.partitions(context)]
        context.close()
        # In another order each time, so that a part moves from task to task.
        self._random.shuffle(parts)
        middle = self._random.randrange(len(parts) + 1) if self._random.random() < HALF else 0
        return [self._start(share) for share in (parts[:middle], parts[middle:]) if share]

    def _start(self, parts: list[SourcePartition]) -> _Life:
        self._count += 1
        source = self._make()
        connector = SourceConnector(name=NAME, source=source, topics={}, policy=on_error.FAIL)
        deps = ReaderDeps(
            name=NAME,
            source=source,
            context=ConnectorContext(NAME, self._count, self._clock),
            carrier=_Carrier(connector),
            clock=self._clock,
            chance=self._random.random,
            budget=HeldBudget(self._random.choice(BUDGETS_BYTES)),
            on_read=self._stirred.set,
        )
        placed = [(part, self._offsets.get(part_id(part))) for part in parts]
        self._steps.note(f"task {self._count} begins with {placed}")
        task = SourceTask(deps, self._count, placed)
        work = asyncio.get_running_loop().create_task(task.run())
        return _Life(self._count, task, work)

    async def _wait(self, time_s: float) -> None:
        """Let the source read for a moment."""
        self._stirred.clear()
        try:
            async with asyncio.timeout(time_s):
                await self._stirred.wait()
        except TimeoutError:
            return
        for _ in range(self._random.randrange(3)):
            await asyncio.sleep(0)

    def _check_runs(self, life: _Life) -> None:
        if not life.work.done() or life.work.cancelled():
            return
        error = life.work.exception()
        if isinstance(error, ProcessingError):
            raise self._steps.failure(f"task {life.number} failed: {error}") from error
        if error is not None:
            raise error

    async def _commit(self, lives: list[_Life]) -> bool:
        """Run one transaction of all tasks; returns whether their process ends in it."""
        chance = self._random.random()
        if chance < RARELY:
            self._steps.note("killed before the transaction")
            return True
        if chance < 2 * RARELY:
            for life in lives:
                life.task.take()
            # Undone, or its process was killed in it: what was taken counts nowhere.
            self._steps.note("the transaction is undone")
            return True
        for life in lives:
            self._write(life)
        if chance < 3 * RARELY:
            self._steps.note("killed behind the transaction, before the source hears of it")
            return True
        for life in lives:
            life.task.count()
        return False

    def _write(self, life: _Life) -> None:
        for reader, reads in life.task.take():
            for read in reads:
                self._count_read(reader, read)

    def _count_read(self, reader: PartReader, read: HeldRead[CarriedRead]) -> None:
        for batch in read.records.batches:
            self._log.update((value or b"").decode() for value in batch.values)
        try:
            encode_offset(read.offset)
        except TypeError as error:
            raise self._steps.failure(f"the offset {read.offset} is not JSON: {error}") from error
        if read.offset is not None:
            self._offsets[part_id(reader.part)] = read.offset
        self._steps.note(f"{read.count} records count, with the offset {read.offset}")

    async def _end(self, life: _Life) -> None:
        life.work.cancel()
        await asyncio.wait([life.work])
        life.task.drop()
