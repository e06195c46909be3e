"""Tasks move between workers with separate disks: with warm-ups, with standbys, and under load."""

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


class WorkerGroup:
    """Workers on one broker, each with its own disk."""

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


async def wait_for_line(worker: Process, pattern: str, *, count: int = 1) -> str:
    return (await asyncio.to_thread(worker.line, pattern, count=count)).group(0)


def test_a_new_worker_warms_up_while_tasks_keep_running(tmp_path: Path) -> None:
    events = stream_of_events(EVENTS, seed=11)
    wanted = expected(events)
    with ExitStack() as stack:
        workers = WorkerGroup(stack, tmp_path)

        async def story(log: Log) -> Rows:
            old = workers.worker("a")
            await wait_for_line(old, "this worker has 6 partitions")
            async with log.producer(linger_ms=1) as producer:
                await feed(producer, events[: EVENTS // 2])
                new = workers.worker("b")
                # The task without state moves at once, the other one when its state has been
                # restored.
                await wait_for_line(new, r"standby of task 1_\d is up to date: \d+ records? read")
                await feed(producer, events[EVENTS // 2 :])
                await wait_for_line(new, "this worker has 3 partitions")
                await close_windows(producer)
            found = await final_rows(log, wanted)
            # The worker never closed the tasks that it keeps: they were opened once.
            assert old.output.count("restored") <= 2
            for each in (old, new):
                assert await asyncio.to_thread(each.stop) == 0
            return found

        assert attached(workers.url, story) == wanted


def test_a_standby_takes_over_and_the_output_stays_exact(tmp_path: Path) -> None:
    """Workers join, leave, are killed and are suspended while records arrive."""
    events = stream_of_events(EVENTS, seed=12)
    wanted = expected(events)
    part = EVENTS // 6
    with ExitStack() as stack:
        workers = WorkerGroup(stack, tmp_path, STANDBYS="1")

        async def story(log: Log) -> Rows:
            one, two = workers.worker("a"), workers.worker("b")
            async with log.producer(linger_ms=1) as producer:
                for each in (one, two):
                    await wait_for_line(each, "this worker has 3 partitions")
                    await wait_for_line(each, r"standby of task 1_\d is up to date")
                await feed(producer, events[:part])
                one.kill()
                await feed(producer, events[part : 2 * part])
                await wait_for_line(two, "this worker has 6 partitions")
                three = workers.worker("c")
                await feed(producer, events[2 * part : 3 * part])
                await wait_for_line(three, "this worker has 3 partitions")
                two.signal(signal.SIGSTOP)
                await feed(producer, events[3 * part : 4 * part])
                await wait_for_line(three, "this worker has 6 partitions")
                two.signal(signal.SIGCONT)
                await feed(producer, events[4 * part : 5 * part])
                await wait_for_line(two, "the group has given 3 partitions to other workers")
                assert await asyncio.to_thread(three.stop) == 0
                await feed(producer, events[5 * part :])
                await close_windows(producer)
            found = await final_rows(log, wanted)
            assert await asyncio.to_thread(two.stop) == 0
            return found

        assert attached(workers.url, story) == wanted
