"""State: how fast it comes back, and what it takes in memory.

A worker takes a million keys with values of 100 bytes into a table; then its changelog is there.
"alone" is the restoration by itself, in a process of its own (`benchmarks.restoring`): from the
changelog, from a snapshot, from the disk of a store that was closed, of one that was killed. The
workers are real ones, from the end of the rebalance until the task is open. Memory is what the
kernel says of the process; above idle means above the same process before it restores.

This module is the app of the worker as well: `streamlog -A benchmarks.state worker`.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread
from time import monotonic

from benchmarks.harness import Process, Reading, broker, running
from benchmarks.memory import resident_mib
from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition

KEYS = 1_000_000
VALUE_BYTES = 100
CHUNK = 10_000
CHANGELOG_BAR_S = 2.5
SNAPSHOT_BAR_S = 1.0
KEPT_BAR_S = 1.0
RESTORING_BAR_MIB = 200
WORKER_BAR_MIB = 300
DEADLINE_S = 300
READY = r"task 0_0: restored ([\d,]+) records"
REBALANCED = r"rebalance: this worker has"

app = App(
    "state",
    log=os.environ.get("BENCHMARK_LOG", "embedded:./.streamlog/benchmark"),
    state_dir=os.environ.get("BENCHMARK_STATE", "./.streamlog/benchmark-state"),
)
users = app.topic("users", key=str, value=str, partitions=1)
table = app.table(users, name="users-table")
visits = app.topic("visits", key=str, value=str, partitions=1)
greeted = app.topic("greeted", key=str, value=str, partitions=1)
app.stream(visits).join(table, lambda _, name: name[:1]).to(greeted)
CHANGELOG = TopicPartition("state-0-changelog", 0)


async def figures(directory: Path, _: int) -> AsyncIterator[Reading]:
    """All of it, on one broker."""
    state = directory / "state"
    with broker(directory / "log") as (_process, url):
        await _load(url)
        with _worker(url, state) as worker:
            worker.line(REBALANCED)
            await _taken_in(url, users.name)
            yield _worker_memory("after taking in all keys", worker)
            await _visit(url)
            await _taken_in(url, visits.name)
            yield _worker_memory("after reading all keys", worker)
            worker.process.popen.kill()
        for reading in _alone(url, directory):
            yield reading
        for how in ("kept", "lost"):
            if how == "lost":
                shutil.rmtree(state)
            with _worker(url, state) as worker:
                began_s, began_cpu_s = worker.line(REBALANCED), worker.process.cpu_s()
                took_s = worker.line(READY) - began_s
                took_cpu_s = worker.process.cpu_s() - began_cpu_s
                bar = KEPT_BAR_S if how == "kept" else CHANGELOG_BAR_S
                yield Reading(f"worker, disk {how}: until ready", took_s, "s", bar=bar)
                yield Reading(f"worker, disk {how}: CPU until ready", took_cpu_s, "s")
                yield _worker_memory(f"ready, disk {how}", worker)


def _alone(url: str, directory: Path) -> Iterator[Reading]:
    path = directory / "alone"
    found = _restored(url, path, "kill")
    yield Reading("alone, from the changelog", found["s"], "s", bar=CHANGELOG_BAR_S)
    yield Reading("alone, from the changelog, CPU", found["cpu_s"], "s")
    growth_mib = found["most_mib"] - found["idle_mib"]
    yield Reading("alone, memory above idle", growth_mib, "MiB", bar=RESTORING_BAR_MIB)
    found = _restored(url, path, "snapshot")
    yield Reading("alone, from a killed store", found["s"], "s", bar=KEPT_BAR_S)
    for epoch in path.iterdir():
        if epoch.name.isdecimal():
            shutil.rmtree(epoch)  # What stays are the snapshots.
    found = _restored(url, path, "close")
    yield Reading("alone, from a snapshot", found["s"], "s", bar=SNAPSHOT_BAR_S)
    found = _restored(url, path, "close")
    yield Reading("alone, from a closed store", found["s"], "s", bar=KEPT_BAR_S)


def _restored(url: str, path: Path, end: str) -> dict[str, float]:
    """One restoration in a process of its own, and how it is to end: see `restoring`."""
    command = (sys.executable, "-m", "benchmarks.restoring", url, str(path), end)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, float] = json.loads(done.stdout)
    if found["keys"] != KEYS:
        message = f"{found['keys']} keys were restored"
        raise RuntimeError(message)
    return found


def _worker_memory(when: str, worker: Worker) -> Reading:
    mib = resident_mib(worker.process)
    return Reading(f"worker, memory {when}", mib, "MiB", bar=WORKER_BAR_MIB)


async def _load(url: str) -> None:
    """Every key once, in no order."""
    chance = random.Random(5)  # noqa: S311 - the same each time
    numbers = chance.sample(range(KEYS), KEYS)
    async with Log.open(url) as log, log.admin() as admin, log.producer() as producer:
        names = [topic.name for topic in (users, visits, greeted)]
        await admin.create_topics([NewTopic(name, 1) for name in names])
        for first in range(0, KEYS, CHUNK):
            rows = [
                (1_000, b"user-%08d" % n, chance.randbytes(VALUE_BYTES // 2).hex().encode(), ())
                for n in numbers[first : first + CHUNK]
            ]
            await producer.send_batch(users.name, 0, rows)


async def _visit(url: str) -> None:
    """Every key once more, in another order."""
    numbers = random.Random(6).sample(range(KEYS), KEYS)  # noqa: S311 - as above
    async with Log.open(url) as log, log.producer() as producer:
        for first in range(0, KEYS, CHUNK):
            rows = [(2_000, b"user-%08d" % n, b"", ()) for n in numbers[first : first + CHUNK]]
            await producer.send_batch(visits.name, 0, rows)


async def _taken_in(url: str, topic: str) -> None:
    """Wait until the group has read it all; offsets are committed after the changelog."""
    place = TopicPartition(topic, 0)
    end_s = monotonic() + DEADLINE_S
    async with Log.open(url) as log, log.consumer(group_id=app.id) as consumer:
        while (await consumer.committed([place]))[place] != KEYS:
            if monotonic() > end_s:
                message = "the worker has not taken in all keys in time"
                raise RuntimeError(message)


class Worker:
    """A worker process, and when it said what."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._said: Queue[tuple[float, str | None]] = Queue()
        Thread(target=self._listen, daemon=True).start()

    def line(self, pattern: str) -> float:
        """Wait until it says this; when that was."""
        end_s = monotonic() + DEADLINE_S
        while True:
            at_s, text = self._said.get(timeout=end_s - monotonic())
            if text is None:
                message = f"it ended without {pattern!r}"
                raise RuntimeError(message)
            if re.search(pattern, text):
                return at_s

    def _listen(self) -> None:
        for text in self.process.popen.stdout or ():
            self._said.put((monotonic(), text))
        self._said.put((monotonic(), None))


@contextmanager
def _worker(url: str, state: Path) -> Iterator[Worker]:
    settings = {"BENCHMARK_LOG": url, "BENCHMARK_STATE": str(state)}
    with running("streamlog", "-v", "-A", "benchmarks.state", "worker", **settings) as process:
        yield Worker(process)
