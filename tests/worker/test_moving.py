"""Tasks on the move between workers on different disks: with warm-ups, standbys, and under load."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack
from pathlib import Path

from streamlog.log import Log
from tests.worker.processes import STREAMLOG, Process, attached, running
from tests.worker.test_worker import (
    COUNTING,
    Rows,
    close_windows,
    expected,
    feed,
    final_rows,
    stream_of_events,
    written,
)

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
EVENTS = 60_000 if THOROUGH else 9_000
MOVING = COUNTING.replace(
    "app = App(", "app = App(\n    standby_replicas=int(os.environ.get('STANDBYS', 0)),\n", 1
).replace('    "counting",', '    id="counting",', 1)
WORKER = (*STREAMLOG, "-A", "counting", "worker")


class Crew:
    """Workers on a broker of its own, each with a disk of its own."""

    def __init__(self, stack: ExitStack, path: Path, **settings: str) -> None:
        written(path, counting=MOVING)
        self._stack, self._path, self._settings = stack, path, settings
        broker = stack.enter_context(
            running(*STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=path)
        )
        self.url = "kafka://" + broker.line(r"listening on (\S+)").group(1)

    def worker(self, state: str) -> Process:
        where = {"LOG": self.url, "STATE": state, **self._settings}
        return self._stack.enter_context(running(*WORKER, cwd=self._path, **where))


async def says(worker: Process, pattern: str, *, count: int = 1) -> str:
    return (await asyncio.to_thread(worker.line, pattern, count=count)).group(0)


def test_who_comes_gets_ready_while_nothing_stops(tmp_path: Path) -> None:
    events = stream_of_events(EVENTS, seed=11)
    wanted = expected(events)
    with ExitStack() as stack:
        crew = Crew(stack, tmp_path)

        async def story(log: Log) -> Rows:
            old = crew.worker("a")
            await says(old, "this worker has 6 partitions")
            async with log.producer(linger_ms=1) as producer:
                await feed(producer, events[: EVENTS // 2])
                new = crew.worker("b")
                # The task without state moves at once, the other one when its state is there.
                await says(new, r"standby of task 1_\d is up to date: \d+ records read")
                await feed(producer, events[EVENTS // 2 :])
                await says(new, "this worker has 3 partitions")
                await close_windows(producer)
            found = await final_rows(log, wanted)
            # What it keeps it never closed: its tasks were opened once.
            assert old.output.count("restored") <= 2
            for each in (old, new):
                assert await asyncio.to_thread(each.stop) == 0
            return found

        assert attached(crew.url, story) == wanted


def test_a_standby_takes_over_and_output_is_exact_whatever_happens(tmp_path: Path) -> None:
    """Join, leave, kill and pause while records come."""
    events = stream_of_events(EVENTS, seed=12)
    wanted = expected(events)
    part = EVENTS // 6
    with ExitStack() as stack:
        crew = Crew(stack, tmp_path, STANDBYS="1")

        async def story(log: Log) -> Rows:
            one, two = crew.worker("a"), crew.worker("b")
            async with log.producer(linger_ms=1) as producer:
                for each in (one, two):
                    await says(each, "this worker has 3 partitions")
                    await says(each, r"standby of task 1_\d is up to date")
                await feed(producer, events[:part])
                one.kill()
                await feed(producer, events[part : 2 * part])
                await says(two, "this worker has 6 partitions")
                three = crew.worker("c")
                await feed(producer, events[2 * part : 3 * part])
                await says(three, "this worker has 3 partitions")
                two.signal(signal.SIGSTOP)
                await feed(producer, events[3 * part : 4 * part])
                await says(three, "this worker has 6 partitions")
                two.signal(signal.SIGCONT)
                await feed(producer, events[4 * part : 5 * part])
                await says(two, "the group has given 3 partitions to other workers")
                assert await asyncio.to_thread(three.stop) == 0
                await feed(producer, events[5 * part :])
                await close_windows(producer)
            found = await final_rows(log, wanted)
            assert await asyncio.to_thread(two.stop) == 0
            return found

        assert attached(crew.url, story) == wanted
