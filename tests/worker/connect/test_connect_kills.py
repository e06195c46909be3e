"""Sources and sinks over kills at every step of a commit and of a flush, compared as multisets."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import monotonic

import pytest

from streamlog.log import Log
from tests.worker.commit_steps import IS_THOROUGH, write_program
from tests.worker.connect.outside import PARTS, PROGRAM
from tests.worker.processes import DEADLINE_S, STREAMLOG, Process, attached, read_whole, running

COUNT = 150
"""The numbers of each part for each life; a commit takes some tens of them."""
COMMIT_STEPS = ("checkpointed", "begun", "sinks written", "offsets sent", "committed", "stored")
FLUSH_STEPS = tuple(
    f"sink: {step}" for step in ("begin", "write", "range", "target committed", "group committed")
)
STEPS = (*COMMIT_STEPS, *FLUSH_STEPS) if IS_THOROUGH else ("offsets sent", "sink: target committed")
LIVES = int(os.environ.get("STREAMLOG_CONNECT_LIVES", "1"))
"""How often each step is tried; `make chaos-connect` sets more."""


class Site:
    """A broker, and a directory with the program and what it writes outside."""

    def __init__(self, path: Path, url: str, count: int) -> None:
        self.path, self.url, self.count = path, url, count
        self.factor = 2
        """What the app multiplies the numbers by on their way."""

    @contextmanager
    def worker(
        self, step: str = "none", times: int = 0, instance: str | None = "one", **more: str
    ) -> Iterator[Process]:
        named = () if instance is None else (instance,)
        command = (sys.executable, "outside.py", self.url, step, str(times), *named)
        with running(*command, cwd=self.path, COUNT=str(self.count), **more) as process:
            yield process

    @property
    def expected(self) -> Counter[int]:
        return Counter(
            self.factor * (part * 1_000_000 + number)
            for part in range(PARTS)
            for number in range(self.count)
        )

    @property
    def rows(self) -> Counter[int]:
        if not (self.path / "out.db").exists():
            return Counter()
        with closing(sqlite3.connect(self.path / "out.db", timeout=30)) as db:
            try:
                return Counter(n for (n,) in db.execute("select n from numbers"))
            except sqlite3.OperationalError:
                return Counter()  # No task has made the table yet.

    @property
    def file_lines(self) -> Counter[int]:
        files = [*(self.path / "files").glob("*.txt")]
        return Counter(int(line) for file in files for line in file.read_text().split())

    @property
    def lines(self) -> Counter[int]:
        file = self.path / "lines.txt"
        return Counter(map(int, file.read_text().split())) if file.exists() else Counter()

    async def until_complete(self, process: Process) -> None:
        """Wait until everything has come out."""
        deadline = monotonic() + DEADLINE_S
        total = PARTS * self.count
        while monotonic() < deadline:
            found = (self.rows, self.file_lines, self.lines)
            if all(len(each) >= total for each in found):
                return
            await asyncio.sleep(0.1)
        counts = [len(each) for each in (self.rows, self.file_lines, self.lines)]
        raise AssertionError(f"{counts} of {total} came out:\n{process.output[-3000:]}")

    async def until_killed(self, process: Process) -> None:
        """Wait until the process has killed itself; end it if it has nothing left to do."""
        waiting = asyncio.create_task(asyncio.to_thread(process.wait))
        while not (await asyncio.wait([waiting], timeout=1))[0]:
            if len(self.rows) == len(self.lines) == PARTS * self.count:
                process.kill()
        assert await waiting == -9, process.output

    async def until_rows(self, count: int) -> None:
        """Wait until the database has `count` rows."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if len(self.rows) >= count:
                    return
                await asyncio.sleep(0.05)

    async def topic(self, log: Log, name: str = "doubled") -> Counter[int]:
        records = await read_whole(log, name)
        return Counter(int.from_bytes(r.value or b"", "big", signed=True) for _, r in records)


@contextmanager
def site(path: Path, count: int = COUNT) -> Iterator[Site]:
    write_program(path, "outside.py", PROGRAM)
    listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
    with running(*STREAMLOG, *listen, cwd=path) as broker:
        yield Site(path, "kafka://" + broker.line(r"listening on (\S+)").group(1), count)


def test_every_row_arrives_once_wherever_the_worker_is_killed(tmp_path: Path) -> None:
    with site(tmp_path, COUNT * len(STEPS) * LIVES) as here:

        async def story(log: Log) -> Counter[int]:
            for number, step in enumerate([*STEPS] * LIVES):
                with here.worker(step, number % 3) as doomed:
                    await here.until_killed(doomed)
            with here.worker() as last:
                await here.until_complete(last)
                assert await asyncio.to_thread(last.stop) == 0, last.output
            return await here.topic(log)

        topic = attached(here.url, story)
        assert topic == here.expected
        assert here.rows == here.expected
        assert here.file_lines == here.expected
        assert here.lines.keys() == here.expected.keys()


@pytest.mark.skipif(not IS_THOROUGH, reason="waits for the sessions of three workers")
def test_tasks_move_between_workers_and_a_zombie_counts_no_more(tmp_path: Path) -> None:
    """An app of connectors alone: a worker is suspended beyond its session, one comes, one goes."""
    with site(tmp_path, 600) as here, ExitStack() as stack:
        here.factor = 1

        def worker(number: int) -> Process:
            more = {"ONLY_CONNECTORS": "1", "STATE": f"state-{number}"}
            return stack.enter_context(here.worker(instance=None, **more))

        async def story(log: Log) -> Counter[int]:
            first, second = worker(1), worker(2)
            for each in (first, second):
                await asyncio.to_thread(each.line, "^up$")
            await here.until_rows(300)
            first.signal(signal.SIGSTOP)
            third = worker(3)
            await asyncio.to_thread(third.line, "^up$")
            await here.until_rows(1_200)
            first.signal(signal.SIGCONT)
            assert await asyncio.to_thread(second.stop) == 0, second.output
            await here.until_complete(third)
            assert await asyncio.to_thread(third.stop) == 0, third.output
            assert await asyncio.to_thread(first.stop) == 0, first.output
            return await here.topic(log, "numbers")

        assert attached(here.url, story) == here.expected
        assert here.rows == here.expected
        assert here.file_lines == here.expected
        assert here.lines.keys() == here.expected.keys()
