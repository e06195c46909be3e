"""Each connector that promises exactly once, over kills at each step of a commit and of a flush.

A worker runs one source and one sink, so each kill is one of both. `make chaos-connect` sets how
often each step is tried, and prints the counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any

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
ENDS_S = 60.0
"""The longest life."""
CATCHES_UP_S = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "log", flush="os") as process:
        yield f"kafka://{process.address}"


@pytest.mark.parametrize(("source", "sink"), [*PAIRS])
def test_each_row_arrives_once_wherever_the_worker_is_killed(
    broker: str, tmp_path: Path, source: str, sink: str
) -> None:
    killed: Counter[str] = Counter()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            outside = await PAIRS[source, sink](tmp_path, stack)
            name = f"{source}-{sink}".replace(" ", "-").lower()
            pair = (name, source.partition(" ")[0], sink.partition(" ")[0])
            lives = Lives(tmp_path, broker, pair, outside)
            if source == "PostgresCdc":
                # It has changes from its first commit on.
                await lives.live("callback", 0, feeds=False)
            for life in range(LIVES):
                for step in steps_of(pair[2]):
                    await lives.live(step, life % TIMES)
                    killed[step] += 1
            await lives.finish()

    try:
        asyncio.run(main())
    finally:
        if REPORT is not None:
            with Path(REPORT).open("a") as file:
                file.write(f"{json.dumps([source, sink, killed])}\n")


def steps_of(sink: str) -> list[str]:
    """Return the steps that a worker of this sink comes to."""
    found = [step for step in SINK_STEPS if step != "range" or sink in REPEATABLE]
    return [*SOURCE_STEPS, *(f"sink: {step}" for step in found)]


class Lives:
    """The lives of a pair, one after the other, on one broker."""

    def __init__(self, path: Path, url: str, pair: tuple[str, str, str], outside: Outside) -> None:
        self._path, self._url, self._pair, self._outside = path, url, pair, outside
        self._at = warm_worker.context()
        self._fed = 0

    async def live(self, step: str, times: int, *, feeds: bool = True) -> None:
        """Start a worker, and feed its source until it is killed at a step."""
        process = self._start(step, times)
        try:
            deadline = monotonic() + ENDS_S
            while process.is_alive():
                assert monotonic() < deadline, f"never {step}:\n{self._output}"
                if feeds:
                    await self._feed()
                await asyncio.to_thread(process.join, 0.05)
            assert process.exitcode == -signal.SIGKILL, f"{step}:\n{self._output}"
        finally:
            process.kill()
            process.join()

    async def finish(self) -> None:
        """Let a last worker come to the end of everything, and compare."""
        process = self._start("none", 0)
        try:
            await self._until_complete()
            assert process.is_alive(), self._output
            os.kill(process.pid or 0, signal.SIGINT)
            await asyncio.to_thread(process.join, ENDS_S)
            assert process.exitcode == 0, self._output
        finally:
            process.kill()
            process.join()
        expected = Counter(range(self._fed))
        async with Log.attach(self._url, timeout_ms=60_000) as log:
            records = await read_whole(log, f"{self._pair[0]}-rows")
        topic = numbers_of((record.value or b"").decode() for _, record in records)
        assert topic == expected, differences("the topic", topic, expected)
        found = await self._outside.target.found()
        assert found == expected, differences("the target", found, expected)

    async def _until_complete(self) -> None:
        deadline = monotonic() + CATCHES_UP_S
        while len(found := await self._outside.target.found()) < self._fed:
            assert monotonic() < deadline, f"{len(found)} of {self._fed}:\n{self._output}"
            await asyncio.sleep(0.1)

    async def _feed(self) -> None:
        await self._outside.origin.feed(range(self._fed, self._fed + 4))
        self._fed += 4

    def _start(self, step: str, times: int) -> Any:
        life = Life(
            self._path, self._url, self._pair, self._outside.settings, step=step, times=times
        )
        return warm_worker.start(self._at, life)

    @property
    def _output(self) -> str:
        return warm_worker.output_of(self._path)


def differences(where: str, found: Counter[int], expected: Counter[int]) -> str:
    """Say what is missing and what is there too often."""
    lost, twice = expected - found, found - expected
    return f"{where} lacks {sorted(lost)[:9]} and has {twice.most_common(9)} too often"
