"""Each connector that promises exactly once, over kills at each step of a commit and of a flush.

A worker runs one source and one sink, so each kill is one of both. Then three workers share them,
are killed, suspended beyond their session and stopped, and so are both sides and the broker.
`make chaos-connect` sets how often, and writes the counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from time import monotonic

import pytest

from streamlog.log import Log
from tests.broker.process import BrokerProcess
from tests.worker.commit_steps import IS_THOROUGH
from tests.worker.connect import warm_worker
from tests.worker.connect.outsides import numbers_of
from tests.worker.connect.pair_outsides import PAIRS, Outside
from tests.worker.connect.warm_worker import Life
from tests.worker.processes import read_whole

pytestmark = pytest.mark.skipif(not IS_THOROUGH, reason="kills hundreds of workers")

LIVES = int(os.environ.get("STREAMLOG_CONNECT_LIVES", "1"))
"""How often each step of each pair is tried."""
REPORT = os.environ.get("STREAMLOG_CONNECT_REPORT")
"""A file that gets a line of JSON for each pair: how often each step was one that killed."""
SOURCE_STEPS = (
    *("read", "held", "checkpointed", "begun", "sinks written", "offsets sent"),
    *("committed", "stored", "callback"),
)
SINK_STEPS = ("begin", "write", "range", "target committed", "group committed")
REPEATABLE = ("Objects", "Search")
"""The sinks that write ranges of the log."""
TIMES = 3
"""A life ends when its step comes for the first time, the second, or the third."""
ENDS_S = 180.0
"""The longest life."""
CATCHES_UP_S = 600.0
EVENTS = 5
"""The kinds of events of a group of workers; each happens as often as a step is tried."""
SUSPENDED_S = 3.5
"""Longer than a session of these workers."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "log", flush="os") as process:
        yield process


@pytest.mark.parametrize(("source", "sink"), [*PAIRS])
def test_each_row_arrives_once_wherever_the_worker_is_killed(
    broker: BrokerProcess, tmp_path: Path, source: str, sink: str
) -> None:
    async def live(lives: Lives, killed: Counter[str]) -> None:
        for life in range(LIVES):
            for step in steps_of(sink.partition(" ")[0]):
                await lives.live(step, life % TIMES)
                killed[step] += 1
        await lives.compare([lives.start()])

    run(live, broker, tmp_path, source, sink)


@pytest.mark.parametrize(("source", "sink"), [*PAIRS])
def test_each_row_arrives_once_through_workers_that_come_and_go(
    broker: BrokerProcess, tmp_path: Path, source: str, sink: str
) -> None:
    async def live(lives: Lives, happened: Counter[str]) -> None:
        group = Group(lives, broker)
        try:
            for number in range(EVENTS * LIVES):
                happened[await group.suffer(number)] += 1
            await lives.compare(group.workers)
        finally:
            for each in group.workers:
                end(each)

    run(live, broker, tmp_path, source, sink)


def run(
    live: Callable[[Lives, Counter[str]], Awaitable[None]],
    broker: BrokerProcess,
    path: Path,
    source: str,
    sink: str,
) -> None:
    counts: Counter[str] = Counter()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            outside = await PAIRS[source, sink](path, stack)
            name = f"{path.name}-{source}-{sink}".replace(" ", "-").lower()
            pair = (name, source.partition(" ")[0], sink.partition(" ")[0])
            lives = Lives(path, f"kafka://{broker.address}", pair, outside)
            if source == "PostgresCdc":
                # It has changes from its first commit on.
                await lives.live("callback", 0, feeds=False)
            await live(lives, counts)

    try:
        asyncio.run(main())
    finally:
        if REPORT is not None:
            with Path(REPORT).open("a") as file:
                file.write(f"{json.dumps([source, sink, counts])}\n")


def steps_of(sink: str) -> list[str]:
    """Return the steps that a worker of this sink comes to."""
    found = [step for step in SINK_STEPS if step != "range" or sink in REPEATABLE]
    return [*SOURCE_STEPS, *(f"sink: {step}" for step in found)]


class Lives:
    """The lives of a pair, one after the other, on one broker."""

    def __init__(self, path: Path, url: str, pair: tuple[str, str, str], outside: Outside) -> None:
        self._path, self._url, self._pair, self.outside = path, url, pair, outside
        self._at = warm_worker.context()
        self._fed = 0

    async def live(self, step: str, times: int, *, feeds: bool = True) -> None:
        """Start a worker, and feed its source until it is killed at a step."""
        process = self.start(step, times)
        try:
            deadline = monotonic() + ENDS_S
            while process.is_alive():
                assert monotonic() < deadline, f"never {step}:\n{self.output}"
                if feeds:
                    await self.feed()
                await asyncio.to_thread(process.join, 0.05)
            assert process.exitcode == -signal.SIGKILL, f"{step}:\n{self.output}"
        finally:
            end(process)

    async def compare(self, workers: Sequence[ForkServerProcess]) -> None:
        """Let workers come to the end of everything and stop; compare."""
        try:
            await self._until_complete(workers)
            for each in workers:
                await self.stop(each)
        finally:
            for each in workers:
                end(each)
        expected = Counter(range(self._fed))
        async with Log.attach(self._url, timeout_ms=60_000) as log:
            records = await read_whole(log, f"{self._pair[0]}-rows")
        topic = numbers_of((record.value or b"").decode() for _, record in records)
        assert topic == expected, differences("the topic", topic, expected)
        found = await self.outside.target.found()
        assert found == expected, differences("the target", found, expected)

    async def stop(self, worker: ForkServerProcess) -> None:
        """Let a worker commit and end."""
        os.kill(worker.pid or 0, signal.SIGINT)
        await asyncio.to_thread(worker.join, ENDS_S)
        assert worker.exitcode == 0, self.output

    async def feed(self) -> None:
        """Give the source some rows more."""
        await self.outside.origin.feed(range(self._fed, self._fed + 4))
        self._fed += 4

    def start(
        self, step: str = "none", times: int = 0, instance_id: str | None = "one"
    ) -> ForkServerProcess:
        """Start a worker."""
        settings = self.outside.settings
        life = Life(self._path, self._url, self._pair, settings, step, times, instance_id)
        return warm_worker.start(self._at, life)

    async def _until_complete(self, workers: Sequence[ForkServerProcess]) -> None:
        deadline = monotonic() + CATCHES_UP_S
        while len(found := await self.outside.target.found()) < self._fed:
            assert monotonic() < deadline, f"{len(found)} of {self._fed}:\n{self.output}"
            assert all(each.is_alive() for each in workers), self.output
            await asyncio.sleep(0.3)

    @property
    def output(self) -> str:
        """The end of what all workers have written."""
        return warm_worker.output_of(self._path)


class Group:
    """Three workers that share the tasks of a pair, and what happens to them."""

    def __init__(self, lives: Lives, broker: BrokerProcess) -> None:
        self._lives, self._broker = lives, broker
        self.workers = [self._start() for _ in range(3)]

    async def suffer(self, number: int) -> str:
        """Let the event of a number happen between rows; returns its name."""
        await self._feed_for(1.0)
        for each in self.workers:
            assert each.is_alive(), self._lives.output
        worker = self.workers.pop(0)
        events = (self.kill, self.suspend, self.leave, self.restart_outside, self.restart_broker)
        event = events[number % EVENTS]
        await event(worker)
        await self._feed_for(0.5)
        return event.__name__.replace("_", " ")

    async def kill(self, worker: ForkServerProcess) -> None:
        """SIGKILL; another worker comes before the session has ended."""
        end(worker)
        self.workers.append(self._start())

    async def suspend(self, worker: ForkServerProcess) -> None:
        """SIGSTOP beyond the session: others have its tasks when it goes on."""
        self.workers.append(worker)
        os.kill(worker.pid or 0, signal.SIGSTOP)
        await self._feed_for(SUSPENDED_S)
        os.kill(worker.pid or 0, signal.SIGCONT)

    async def leave(self, worker: ForkServerProcess) -> None:
        """SIGINT, and a new worker."""
        await self._lives.stop(worker)
        self.workers.append(self._start())

    async def restart_outside(self, worker: ForkServerProcess) -> None:
        """The server of both sides is killed."""
        self.workers.append(worker)
        await asyncio.to_thread(self._lives.outside.restart)

    async def restart_broker(self, worker: ForkServerProcess) -> None:
        """The broker that leads everything is killed."""
        self.workers.append(worker)
        await asyncio.to_thread(self._broker.kill_and_restart)

    async def _feed_for(self, seconds: float) -> None:
        until = monotonic() + seconds
        while monotonic() < until:
            await self._lives.feed()
            await asyncio.sleep(0.05)

    def _start(self) -> ForkServerProcess:
        return self._lives.start(instance_id=None)


def end(worker: ForkServerProcess) -> None:
    """Kill a worker, and wait until it has ended."""
    worker.kill()
    worker.join()


def differences(where: str, found: Counter[int], expected: Counter[int]) -> str:
    """Say what is missing and what is there too often."""
    lost, twice = expected - found, found - expected
    return f"{where} lacks {sorted(lost)[:9]} and has {twice.most_common(9)} too often"
