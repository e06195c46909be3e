"""Real processes for the tests, whose output is read by the line."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic
from typing import TypeVar

from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord

T = TypeVar("T")
ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 120
STREAMLOG = (sys.executable, "-m", "streamlog")


class Process:
    """A process whose output (both streams together) is read as it arrives."""

    def __init__(self, *command: str, cwd: Path, **environment: str) -> None:
        paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Everything that the process has printed."""
        with self._changed:
            return "\n".join(self._lines)

    def line(self, pattern: str, *, count: int = 1) -> re.Match[str]:
        """Wait for the `count`-th line that matches."""
        deadline = monotonic() + DEADLINE_S
        with self._changed:
            while True:
                found = [m for text in self._lines if (m := re.search(pattern, text))]
                if len(found) >= count:
                    return found[count - 1]
                left = deadline - monotonic()
                assert not self._ended, f"it ended without {pattern!r}:\n" + "\n".join(self._lines)
                assert left > 0, f"no {pattern!r} in time:\n" + "\n".join(self._lines)
                self._changed.wait(left)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""
        code = self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def stop(self) -> int:
        """Send SIGINT, and wait until the process ends."""
        self.signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process ends."""
        self._process.kill()
        self.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        for text in self._process.stdout or ():
            with self._changed:
                self._lines.append(text.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


@contextmanager
def running(*command: str, cwd: Path, **environment: str) -> Iterator[Process]:
    """Run a process that does not outlive the block."""
    process = Process(*command, cwd=cwd, **environment)
    try:
        yield process
    finally:
        process.kill()


def streamlog(*arguments: str, cwd: Path, **environment: str) -> tuple[int, str]:
    """Run a command to its end, and return its exit code and output."""
    with running(*STREAMLOG, *arguments, cwd=cwd, **environment) as process:
        return process.wait(), process.output


def attached(url: str, story: Callable[[Log], Coroutine[object, object, T]]) -> T:
    """Run a coroutine function on a log that another process serves."""

    async def main() -> T:
        async with Log.attach(url, timeout_ms=DEADLINE_S * 1000) as log:
            return await story(log)

    return asyncio.run(main())


async def still(log: Log) -> dict[str, str]:
    """Return topic settings with which time stands still in a quiet log, as in the test driver.

    Kafka's brokers write no time marks and do not know this setting.
    """
    return {"mark.quiet.ms": "-1"} if await log.admin().is_streamlog() else {}


async def read_until(
    log: Log, topic: str, enough: Callable[[list[tuple[int, LogRecord]]], bool]
) -> list[tuple[int, LogRecord]]:
    """Read the committed records of a topic from its start, until `enough` accepts them.

    Returns a partition and a record each.
    """
    found: list[tuple[int, LogRecord]] = []
    async with asyncio.timeout(DEADLINE_S), _reading(log, topic) as consumer:
        while not enough(found):
            found += await _polled(consumer)
    return found


async def read_whole(log: Log, topic: str) -> list[tuple[int, LogRecord]]:
    """Read all committed records of a topic up to its end, as a partition and a record each."""
    found: list[tuple[int, LogRecord]] = []
    async with asyncio.timeout(DEADLINE_S), _reading(log, topic) as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        while [part for part, end in ends.items() if await consumer.position(part) < end]:
            found += await _polled(consumer)
    return found


@asynccontextmanager
async def _reading(log: Log, topic: str) -> AsyncIterator[Consumer]:
    (described,) = await log.admin().describe_topics([topic])
    reading = log.consumer(auto_offset_reset="earliest", isolation_level="read_committed")
    async with reading as consumer:
        consumer.assign([TopicPartition(topic, n) for n in range(described.partitions)])
        yield consumer


async def _polled(consumer: Consumer) -> list[tuple[int, LogRecord]]:
    polled = await consumer.poll(timeout_ms=200)
    return [(part.partition, record) for part, records in polled.items() for record in records]
