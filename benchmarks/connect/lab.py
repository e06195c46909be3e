"""What all rows share: a broker, workers, programs by hand, and the clock of a trial.

A worker is started on an empty input and carries a few records first, so that imports, connections
and rebalances are over. It is stopped by SIGSTOP while its input is laid out, and the clock runs
from SIGCONT until the last record has arrived where it belongs. Its CPU time is read half a commit
interval later, so that the last commit counts. A program by hand says when it begins and ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from time import perf_counter

from benchmarks.harness import cpu_of
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.record import TopicPartition

COMMIT_MS = 500
"""The commit interval, our default."""
CHUNK = 10_000
LOOK_S = 0.02
STALL_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
SAID_CHARACTERS = 2_000


class TrialFailed(Exception):
    """A worker or a program did not do its job; the message has what it said."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one participant needed for so many records."""

    records: int
    wall_s: float
    cpu_s: float
    """Of its own process, servers left out."""

    @property
    def records_per_s(self) -> float:
        """Records a second of wall time."""
        return self.records / self.wall_s

    @property
    def cpu_ns(self) -> float:
        """CPU time a record."""
        return self.cpu_s * 1e9 / self.records


class LabWorker:
    """A worker process, which may be stopped and continued."""

    def __init__(self, popen: subprocess.Popen[bytes], said: Path, name: str) -> None:
        self._popen, self._said = popen, said
        self.name = name
        """The id of its app."""

    @property
    def pid(self) -> int:
        """The process."""
        return self._popen.pid

    def cpu_s(self) -> float:
        """Return its CPU time so far, with that of its children: some peers start processes."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(cpu_of(pid) for pid in (self.pid, *map(int, found)))

    def check(self, waited_s: float) -> None:
        """Raise TrialFailed if there is nothing more to wait for."""
        if self._popen.poll() is None and waited_s < STALL_TIMEOUT_S:
            return
        ended = self._popen.returncode
        what = f"no end after {waited_s:.0f} s" if ended is None else f"it ended with {ended}"
        said = self._said.read_text(errors="replace")[-SAID_CHARACTERS:].strip()
        raise TrialFailed(f"{what}; it said: {said or 'nothing'}")

    async def until(self, is_there: Callable[[], Awaitable[bool]]) -> None:
        """Wait until something has arrived."""
        began_s = perf_counter()
        while not await is_there():
            self.check(perf_counter() - began_s)
            await asyncio.sleep(LOOK_S)

    async def timed(
        self,
        records: int,
        lay_out: Callable[[], Awaitable[object]],
        is_there: Callable[[], Awaitable[bool]],
    ) -> Trial:
        """Return what it needs from when its input is laid out until everything has arrived."""
        self._popen.send_signal(signal.SIGSTOP)
        await lay_out()
        cpu_s, began_s = self.cpu_s(), perf_counter()
        self._popen.send_signal(signal.SIGCONT)
        await self.until(is_there)
        wall_s = perf_counter() - began_s
        await asyncio.sleep(1.5 * COMMIT_MS / 1_000)
        return Trial(records, wall_s, self.cpu_s() - cpu_s)

    async def timed_in_stream(
        self,
        records: int,
        more: int,
        lay_out: Callable[[], Awaitable[object]],
        arrived: Callable[[], Awaitable[int]],
    ) -> Trial:
        """Return what it needs for at least so many records, with more of them behind.

        For jobs that commit in units of `more` records: the last unit of an input is not full, and
        waits for a timer, which says nothing about the rate. So the clock stops at a full one.

        Args:
            records: the records whose arrival ends the time.
            more: the records behind them.
            lay_out: makes all of them.
            arrived: returns how many have arrived, the units that are committed.
        """
        self._popen.send_signal(signal.SIGSTOP)
        await lay_out()
        cpu_s, began_s = self.cpu_s(), perf_counter()
        self._popen.send_signal(signal.SIGCONT)
        while (count := await arrived()) < records:
            self.check(perf_counter() - began_s)
            await asyncio.sleep(LOOK_S)
        wall_s = perf_counter() - began_s

        async def is_there() -> bool:
            return await arrived() >= records + more

        await self.until(is_there)
        await asyncio.sleep(1.5 * COMMIT_MS / 1_000)
        spent_s = self.cpu_s() - cpu_s
        return Trial(count, wall_s, spent_s * count / (records + more))


class Lab:
    """A broker with what is measured on it.

    Args:
        log: the broker's log.
        looking: a consumer that says how far topics are. One for all looks: a new one each time
            costs the machine 3 ms fifty times a second, while ours is measured and no peer is.
        url: the log's URL.
        directory: for files.
    """

    def __init__(self, log: Log, looking: Consumer, url: str, directory: Path) -> None:
        self.log, self.url, self.directory = log, url, directory
        self._looking = looking
        self._names = count()

    def name(self, of: str) -> str:
        """Return a name that nothing else has, for a topic, a table or an app."""
        return f"{of}{next(self._names)}"

    async def create_topic(self, name: str) -> TopicPartition:
        """Create a topic of one partition."""
        await self.log.admin().create_topics([NewTopic(name, 1)])
        return TopicPartition(name, 0)

    async def load(self, part: TopicPartition, values: Iterable[bytes]) -> None:
        """Write records whose key is their number."""
        wall_ms = SystemClock().wall_ms()
        rows = ((wall_ms, b"%d" % at, value, ()) for at, value in enumerate(values))
        async with self.log.producer() as producer:
            while chunk := [*islice(rows, CHUNK)]:
                await producer.send_batch(*part, chunk)
            await producer.flush()

    async def end(self, part: TopicPartition) -> int:
        """Return the offset behind the committed records, markers of transactions included."""
        return (await self._looking.end_offsets([part]))[part]

    async def has(self, part: TopicPartition, records: int) -> bool:
        """Whether so many records are committed; the markers before the last one count as well."""
        return await self.end(part) >= records

    async def check(self, part: TopicPartition, records: int) -> None:
        """Raise TrialFailed unless a topic has exactly so many records."""
        if (found := await self.count(part)) != records:
            raise TrialFailed(f"{part.topic} has {found} records, not {records}")

    async def count(self, part: TopicPartition) -> int:
        """Return how many committed records there are."""
        found, end = 0, await self.end(part)
        async with self.log.consumer(
            auto_offset_reset="none", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([part])
            consumer.seek(part, 0)
            while await consumer.position(part) < end:
                polled = await consumer.poll_columns(timeout_ms=500, max_records=CHUNK)
                found += sum(map(len, polled.values()))
        return found

    def free_address(self) -> str:
        """Return an address of this machine that no program listens on just now."""
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{chosen.getsockname()[1]}"

    async def peer(
        self,
        command: Sequence[str],
        records: int,
        arrived: Callable[[], Awaitable[int]],
        **settings: str,
    ) -> Trial:
        """Return what a program needs from its first record to its last; it is ended then."""
        environment = {"PEER_BROKER": self.url.removeprefix("kafka://"), **settings}
        said = self.directory / f"{self.name('peer')}.log"
        with lab_process(command, environment, said) as process:
            began_s, first = perf_counter(), 0
            while not first:
                process.check(perf_counter() - began_s)
                await asyncio.sleep(LOOK_S)
                first = await arrived()
            cpu_s, began_s = process.cpu_s(), perf_counter()
            while await arrived() < records:
                process.check(perf_counter() - began_s)
                await asyncio.sleep(LOOK_S)
            wall_s = max(perf_counter() - began_s, LOOK_S)
            return Trial(max(records - first, 1), wall_s, process.cpu_s() - cpu_s)

    @asynccontextmanager
    async def worker(self, job: str, **settings: object) -> AsyncIterator[LabWorker]:
        """Run a worker of `benchmarks.connect.apps` with a job, until the end of the block."""
        name = self.name(f"bench-{job}-")
        said = self.directory / f"{name}.log"
        environment = {
            "CONNECT_JOB": job,
            "CONNECT_APP": name,
            "CONNECT_LOG": self.url,
            "CONNECT_STATE": str(self.directory / name),
            "CONNECT_COMMIT_MS": str(COMMIT_MS),
            "CONNECT_SETTINGS": json.dumps(settings),
        }
        command = (sys.executable, "-m", "streamlog", "-A", "benchmarks.connect.apps", "worker")
        with lab_process(command, environment, said) as process:
            yield process


@contextmanager
def lab_process(
    command: Sequence[str], environment: Mapping[str, str], said: Path
) -> Iterator[LabWorker]:
    """Run a program until the end of the block; what it says goes into a file."""
    with said.open("wb") as file:
        popen = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    try:
        yield LabWorker(popen, said, environment.get("CONNECT_APP", ""))
    finally:
        popen.send_signal(signal.SIGCONT)
        popen.terminate()
        try:
            popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()


def by_hand_command(job: str, **settings: object) -> tuple[str, ...]:
    """Return the command of a job of `benchmarks.connect.by_hand`."""
    return (sys.executable, "-m", "benchmarks.connect.by_hand", job, json.dumps(settings))


async def by_hand(job: str, **settings: object) -> Trial:
    """Run a job of `benchmarks.connect.by_hand` in a process of its own, which times itself."""
    command = by_hand_command(job, **settings)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(STALL_TIMEOUT_S):
        said, errors = await process.communicate()
    if process.returncode:
        text = errors.decode(errors="replace")[-SAID_CHARACTERS:]
        raise TrialFailed(f"{' '.join(command)} ended with {process.returncode}: {text}")
    found: Mapping[str, float] = json.loads(said.splitlines()[-1])
    return Trial(int(found["records"]), found["wall_s"], found["cpu_s"])
