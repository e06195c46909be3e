"""One participant, one job, log to log: what a record costs its process in CPU time.

The participant is started on an empty input and given events for warming up until rows come out,
so that imports, connections and rebalances are over. Then it is stopped by SIGSTOP, the input is
loaded, its CPU time is read, and it goes on; the last reading is a commit interval after the last
row has come out, so that the last commit counts. Every row is compared with the oracle's.

A machine that is shared changes its speed by a third from one second to the next, and by more for
what does not fit into a cache. Where two costs are divided by each other, both processes are there
at the same time and work in turns, a commit interval long: each commits once in a turn, as it would
at that time by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, count, cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.engine import events
from benchmarks.engine.events import PLAIN, START_MS, Loaded, Row, Size
from benchmarks.harness import cpu_of, most_mib_of
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.replace import replace

COMMIT_MS = 500
"""For everybody; our own default."""
STALL_TIMEOUT_S = 60
"""No row for this long is a failure, at the start and later."""
STOP_TIMEOUT_S = 20
CHUNK = 10_000
WARM_UP_EVERY_S = 0.5
WARM_CHUNK = 500_000
WARM_UP_EVENTS = 3
"""At a time, in windows of their own: the first of them are closed by the last."""
QUIET_S = 1.0
LOOK_S = 0.05
NEWEST = {"j2-commit"}
"""Jobs of which only the last row of each key is known."""
TABLE = TopicPartition("users", 0)
SAID_CHARACTERS = 800


class Failed(Exception):
    """The participant did not do the job; the message says what happened."""


@dataclass(frozen=True, slots=True)
class Participant:
    """Who does jobs, and how it is started."""

    name: str
    command: tuple[str, ...]
    """"{state}" in it stands for the state directory."""
    row: Callable[[LogRecord], Row]
    """A record of the output as the oracle writes it."""
    share: int = 1
    """It gets one in so many of the events: slow ones would take minutes."""
    prepare: Callable[[Path], None] = lambda _: None
    """Told the state directory before the start."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one participant needed for one job."""

    job: str
    variant: str
    """Typed values or dicts, built-in columns or the user's functions; empty for peers."""
    participant: str
    records: int
    before: int = 0
    """Events that come first, in turns as well, and do not count: by then there is as much in
    memory as will ever be, and all of that has been touched once."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    most_mib: float = 0.0
    """The most resident memory that its process has had."""

    @property
    def name(self) -> str:
        """Job, participant and variant."""
        return " ".join(filter(None, (self.job, self.participant, self.variant)))

    @property
    def cpu_ns(self) -> float:
        """Of the process, per record."""
        return self.cpu_s * 1e9 / self.records

    @property
    def parts(self) -> list[range]:
        """The numbers of the events: those that come first, if any, and those that count."""
        first, counted = range(self.before), range(self.before, self.before + self.records)
        return [first, counted] if first else [counted]


@dataclass(frozen=True, slots=True)
class Topics:
    """Those of one run."""

    entry: str
    output: str
    partitions: int

    @property
    def entries(self) -> list[TopicPartition]:
        """What is read."""
        return [TopicPartition(self.entry, number) for number in range(self.partitions)]

    @property
    def outputs(self) -> list[TopicPartition]:
        """What is written."""
        return [TopicPartition(self.output, number) for number in range(self.partitions)]


class Contest:
    """A log with the table of users, on which one participant after the other does its jobs."""

    def __init__(self, log: Log, address: str, directory: Path) -> None:
        self._log = log
        self._address = address
        self._directory = directory
        self._numbers = count()

    async def prepare(self) -> None:
        """Load the table."""
        await self._log.admin().create_topics([NewTopic(TABLE.topic, 1)])
        await self._load(TABLE, events.users())

    async def run(self, participant: Participant, cost: Cost, size: Size = PLAIN) -> Cost:
        """Let it do the job on that many events; the cost, filled in.

        Raises:
            Failed: nothing came out, it ended, or rows are wrong.
        """
        (cost,) = await self.run_by_turns(participant, cost, [size])
        return cost

    async def run_by_turns(
        self, participant: Participant, cost: Cost, sizes: Sequence[Size]
    ) -> list[Cost]:
        """Let a process for each of these sizes do the job, in turns; their costs.

        Raises:
            Failed: nothing came out of one, it ended, or rows are wrong.
        """
        async with AsyncExitStack() as stack:
            jobs = [
                await stack.enter_async_context(self._warmed(participant, cost, size))
                for size in sizes
            ]
            # Made before: who stands still for longer than a session is not in its group any more.
            parts = [
                [_part(cost.job, size, cost.parts[: number + 1], closes=is_last) for size in sizes]
                for number, is_last in _with_last(len(cost.parts))
            ]
            for each in parts:
                costs = await self._worked_off(jobs, each)
            for job in jobs:
                await self._check(job)
            return costs

    async def run_rounds(
        self, entrants: Sequence[tuple[Participant, Cost]], rounds: int, warm: int
    ) -> list[list[Cost]]:
        """Let different participants do one job in turns, for some rounds; the costs of each round.

        Each process is given `warm` events first, which don't count, and stays for all rounds: that
        is what a virtual machine needs that compiles what it has often run.

        Raises:
            Failed: nothing came out of one, it ended, or rows are wrong.
        """
        async with AsyncExitStack() as stack:
            jobs = [
                await stack.enter_async_context(self._warmed(participant, cost, PLAIN))
                for participant, cost in entrants
            ]
            for job in jobs:
                await self._warm_further(job, warm)
            ((job_name, records),) = {(cost.job, cost.records) for _, cost in entrants}
            costs, numbers = list[list[Cost]](), events.rounds_of(records, rounds)
            for done in range(1, rounds + 1):
                part = _part(job_name, PLAIN, numbers[:done], closes=True)
                costs.append(await self._worked_off(jobs, [part] * len(jobs)))
            for job in jobs:
                await self._check(job)
            return costs

    async def _warm_further(self, job: _Job, records: int) -> None:
        """Let it work off so many events from before the start, and commit them."""
        first = -events.rounds_of(records, 2)[1].start
        (entry,) = job.topics.entries
        for begin in range(first, first + records, WARM_CHUNK):
            end = min(begin + WARM_CHUNK, first + records)
            await self._load(entry, map(events.event, range(begin, end)))
        await self._load(entry, [events.closing_event(first + records)])
        (end_offset,) = (await self._ends([entry])).values()
        committed, moved_s = 0, perf_counter()
        while committed < end_offset:
            await asyncio.sleep(LOOK_S)
            before, found = committed, await self._log.admin().group_offsets(job.group)
            committed = found.get(entry, 0)
            moved_s = perf_counter() if committed > before else moved_s
            job.process.check(perf_counter() - moved_s)
        job.begin = await self._ends(job.topics.outputs)

    async def _worked_off(self, jobs: Sequence[_Job], parts: Sequence[_Part]) -> list[Cost]:
        """Let each job do its part, in turns."""
        for job in jobs:
            job.process.send(signal.SIGSTOP)
        for job, part in zip(jobs, parts, strict=True):
            await self._load_up(job, part)
        async with asyncio.TaskGroup() as tasks:
            works = [tasks.create_task(self._worked(job, len(jobs))) for job in jobs]
            await _take_turns(jobs, works)
        return [work.result() for work in works]

    @asynccontextmanager
    async def _warmed(
        self, participant: Participant, cost: Cost, size: Size
    ) -> AsyncIterator[_Job]:
        """A process that has given rows already, until the end."""
        name = f"{cost.job}-{next(self._numbers)}"
        topics = Topics(f"events-{name}", f"output-{name}", size.partitions)
        created = [NewTopic(topic, size.partitions) for topic in (topics.entry, topics.output)]
        await self._log.admin().create_topics(created)
        directory = self._directory / name
        (directory / "state").mkdir(parents=True)
        participant.prepare(directory / "state")
        settings = {
            "ENGINE_BROKER": self._address,
            "ENGINE_ID": f"engine-{name}",
            "ENGINE_JOB": f"{cost.job} {cost.variant}".strip(),
            "ENGINE_INPUT": topics.entry,
            "ENGINE_OUTPUT": topics.output,
            "ENGINE_TABLE": TABLE.topic,
            "ENGINE_STATE": str(directory / "state"),
            "ENGINE_COMMIT_MS": str(COMMIT_MS),
            "ENGINE_WINDOW_MS": str(events.WINDOW_MS),
            "ENGINE_GRACE_MS": str(size.grace_ms),
        }
        try:
            with _running(participant, settings, directory / "said") as process:
                await self._warm_up(process, topics)
                begin = await self._ends(topics.outputs)
                group = settings["ENGINE_ID"]
                yield _Job(process, participant.row, cost, topics, group, begin)
        finally:
            await self._log.admin().delete_topics([topics.entry, topics.output])

    async def _load_up(self, job: _Job, part: _Part) -> None:
        job.wanted = part.expected.total() - job.expected.total()
        job.expected = part.expected
        job.since = await self._ends(job.topics.outputs)
        for entry, share in zip(job.topics.entries, part.shares, strict=True):
            await self._load(entry, share)
        job.cpu_s = job.process.cpu_s()

    async def _worked(self, job: _Job, jobs: int) -> Cost:
        """Its cost, once everything has come out of it; it is one of so many that take turns."""
        process, cost = job.process, job.cost
        began_s = perf_counter()
        if cost.job in NEWEST:
            job.rows = await self._newest(process, job.begin, job.row, job.expected)
        else:
            await self._written(process, job.since, job.wanted)
        wall_s = perf_counter() - began_s
        await asyncio.sleep(jobs * 1.5 * COMMIT_MS / 1000)
        cpu_s = process.cpu_s() - job.cpu_s
        return replace(cost, cpu_s=cpu_s, wall_s=wall_s, most_mib=process.most_mib())

    async def _check(self, job: _Job) -> None:
        """Compare what has come out; to read it takes a processor, so nobody is measured now."""
        if job.cost.job not in NEWEST:
            job.process.send(signal.SIGCONT)
            job.rows = await self._rows(job.process, job.begin, job.row, job.expected.total())
        if job.rows != job.expected:
            raise Failed(_difference(job.rows, job.expected))

    async def _warm_up(self, process: _Process, topics: Topics) -> None:
        """Events until rows come out, and then until no more do."""
        began_s = perf_counter()
        numbers = count()
        ends: dict[TopicPartition, int] = {}
        while not any(ends.values()):
            process.check(perf_counter() - began_s)
            warming = [events.warm_up_event(number) for number in islice(numbers, WARM_UP_EVENTS)]
            for entry in topics.entries:
                await self._load(entry, warming)
            await asyncio.sleep(WARM_UP_EVERY_S)
            ends = await self._ends(topics.outputs)
        before: dict[TopicPartition, int] = {}
        while (ends := await self._ends(topics.outputs)) != before:
            before = ends
            await asyncio.sleep(QUIET_S)

    async def _written(
        self, process: _Process, begin: dict[TopicPartition, int], wanted: int
    ) -> None:
        """Wait until so many rows are in the output; only its end is asked for meanwhile.

        The markers of transactions count as well: some rows are written a moment later.
        """
        moved_s = perf_counter()
        end = sum(begin.values())
        enough = end + wanted
        while (now := sum((await self._ends(list(begin))).values())) < enough:
            moved_s = perf_counter() if now > end else moved_s
            end = now
            process.check(perf_counter() - moved_s)
            await asyncio.sleep(LOOK_S)

    async def _rows(
        self,
        process: _Process,
        begin: dict[TopicPartition, int],
        row: Callable[[LogRecord], Row],
        wanted: int,
    ) -> Counter[Row]:
        """The rows that belong to events behind the start; those of warming up are left out."""
        moved_s = perf_counter()
        found: Counter[Row] = Counter()
        async with self._reading(begin) as consumer:
            while found.total() < wanted:
                polled = await consumer.poll(timeout_ms=1_000)
                rows = map(row, chain.from_iterable(polled.values()))
                found.update(each for each in rows if _is_counted(each))
                moved_s = perf_counter() if polled else moved_s
                process.check(perf_counter() - moved_s)
        return found

    async def _newest(
        self,
        process: _Process,
        begin: dict[TopicPartition, int],
        row: Callable[[LogRecord], Row],
        expected: Counter[Row],
    ) -> Counter[Row]:
        """The last row of each key, as soon as all are there: how many come is left open."""
        moved_s = perf_counter()
        newest: dict[Row, Row] = {}
        async with self._reading(begin) as consumer:
            while Counter(newest.values()) != expected:
                polled = await consumer.poll(timeout_ms=1_000)
                rows = map(row, chain.from_iterable(polled.values()))
                newest.update((each[:2], each) for each in rows if _is_counted(each))
                moved_s = perf_counter() if polled else moved_s
                process.check(perf_counter() - moved_s)
                await asyncio.sleep(COMMIT_MS / 1000)
        return Counter(newest.values())

    @asynccontextmanager
    async def _reading(self, begin: dict[TopicPartition, int]) -> AsyncIterator[Consumer]:
        async with self._log.consumer(auto_offset_reset="none") as consumer:
            consumer.assign(list(begin))
            for place, offset in begin.items():
                consumer.seek(place, offset)
            yield consumer

    async def _ends(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        async with self._log.consumer(auto_offset_reset="none") as consumer:
            return dict(await consumer.end_offsets(places))

    async def _load(self, topic: TopicPartition, records: Iterable[Loaded]) -> None:
        remaining = iter(records)
        async with self._log.producer() as producer:
            while chunk := list(islice(remaining, CHUNK)):
                await producer.send_batch(*topic, chunk)
            await producer.flush()


@dataclass(slots=True)
class _Job:
    """A participant that is ready for its job."""

    process: _Process
    row: Callable[[LogRecord], Row]
    cost: Cost
    topics: Topics
    group: str
    """The one whose committed offsets are its own."""
    begin: dict[TopicPartition, int]
    """Of the output, before there was any input to be counted."""
    since: dict[TopicPartition, int] = field(default_factory=dict)
    """Of the output, before the part that it works at."""
    wanted: int = 0
    """How many rows come of that part."""
    cpu_s: float = 0.0
    """What it had needed by then."""
    expected: Counter[Row] = field(default_factory=Counter)
    rows: Counter[Row] = field(default_factory=Counter)
    """Those that have come out of it."""


async def _take_turns(jobs: Sequence[_Job], works: Sequence[asyncio.Task[Cost]]) -> None:
    """Let one after the other go on for a commit interval, until there is nothing left to do."""
    for job, work in cycle(zip(jobs, works, strict=True)):
        working = [each for each in works if not each.done()]
        if not working:
            return
        if work in working:
            is_alone = len(working) == 1
            job.process.send(signal.SIGCONT)
            turn_s = None if is_alone else COMMIT_MS / 1000
            await asyncio.wait(working, timeout=turn_s, return_when=asyncio.FIRST_COMPLETED)
            if not is_alone:
                job.process.send(signal.SIGSTOP)


class _Process:
    """A participant at work."""

    def __init__(self, popen: subprocess.Popen[bytes], said: Path) -> None:
        self._popen = popen
        self._said = said

    def cpu_s(self) -> float:
        """User and system time so far."""
        return cpu_of(self._popen.pid)

    def most_mib(self) -> float:
        """The most resident memory that it has had."""
        return most_mib_of(self._popen.pid)

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        self._popen.send_signal(number)

    def check(self, waited_s: float) -> None:
        """Raise if there is nothing more to be waited for."""
        if self._popen.poll() is None and waited_s < STALL_TIMEOUT_S:
            return
        ended = self._popen.returncode
        what = f"gave no row for {waited_s:.0f} s" if ended is None else f"ended with {ended}"
        said = self._said.read_text(errors="replace")[-SAID_CHARACTERS:].strip()
        raise Failed(f"{what}; it said: {said or 'nothing'}")


@contextmanager
def _running(participant: Participant, settings: dict[str, str], said: Path) -> Iterator[_Process]:
    with said.open("wb") as file:
        popen = subprocess.Popen(
            [part.replace("{state}", settings["ENGINE_STATE"]) for part in participant.command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
        )
    try:
        yield _Process(popen, said)
    finally:
        popen.send_signal(signal.SIGCONT)
        popen.terminate()
        try:
            popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


@dataclass(frozen=True, slots=True)
class _Part:
    """Events that are loaded at once."""

    shares: list[list[Loaded]]
    """By partition."""
    expected: Counter[Row]
    """Of these and of those before."""


def _with_last(count: int) -> Iterator[tuple[int, bool]]:
    """Number things, and mark the last one."""
    return ((number, number == count - 1) for number in range(count))


def _part(job: str, size: Size, done: Sequence[range], *, closes: bool) -> _Part:
    """The last of these ranges of events, perhaps with what closes its last window."""
    shares: list[list[Loaded]] = [[] for _ in range(size.partitions)]
    for number in done[-1]:
        shares[events.partition_of(number, size)].append(events.event(number, size))
    if closes:
        for share in shares:
            share.append(events.closing_event(done[-1].stop))
    return _Part(shares, _expected(job, tuple(done), size))


@lru_cache(maxsize=16)
def _expected(job: str, done: tuple[range, ...], size: Size) -> Counter[Row]:
    numbers = chain.from_iterable(done)
    if size != PLAIN:
        return Counter(events.updates(numbers, size))
    return Counter(events.EXPECTED[job](numbers))


def _is_counted(row: Row) -> bool:
    """Neither of warming up nor of the event that closes the last window."""
    return row[0] != events.NOBODY and any(
        isinstance(part, int) and part >= START_MS for part in row
    )


def _difference(rows: Counter[Row], expected: Counter[Row]) -> str:
    missing: Any = next(iter(expected - rows), None)
    more: Any = next(iter(rows - expected), None)
    return (
        f"wrong rows: {(expected - rows).total():,} of {expected.total():,} are missing, such as "
        f"{missing}, and {(rows - expected).total():,} should not be there, such as {more}"
    )
