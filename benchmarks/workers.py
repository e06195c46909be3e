"""Two worker processes against one on a machine with two cores: how much more they get done.

The job is J2 of the engine's, a row for every update, exactly once, on four partitions. One worker
process and two take turns, each on topics of its own: started by `worker -w N`, warmed up until
the group is stable, stopped by SIGSTOP while the input is loaded, and timed from SIGCONT until the
group has committed all of it. The broker runs on the same cores. Beside one worker it has a core of
its own, so that run's wall time stands; beside two it takes what it needs from both, so half of its
CPU time is subtracted from their wall time, as if it ran elsewhere:

    speed-up = wall(1) / (wall(2) - broker CPU(2) / 2)

The other reading knows only the workers' CPU times: that of the one by that of the busier of the
two. It tells how evenly the work is shared and what sharing costs, whatever else the machine does.
Every row is compared with plain Python's.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks.engine import events
from benchmarks.engine.events import Loaded, Row
from benchmarks.engine.participants import ours
from benchmarks.harness import Process, Reading, broker, cpu_of, running
from streamlog.assignors import TopicPartition
from streamlog.client.admin import NewTopic
from streamlog.log import Log

JOB = "j2"
PARTITIONS = 4
CORES = 2
BAR_TIMES = 1.7
TIMES = 2
"""As many records as others get: the wait for the last commit, up to half a second, is in both wall
times, and weighs more in that of two workers."""
CHUNK = 10_000
WARM_UP_EVERY_S = 0.5
LOOK_S = 0.02
STALL_TIMEOUT_S = 90


@dataclass(frozen=True, slots=True)
class Run:
    """What so many workers needed for the same work."""

    wall_s: float
    worker_cpu_s: list[float]
    broker_cpu_s: float

    def readings(self) -> list[Reading]:
        """As they were measured."""
        workers = len(self.worker_cpu_s)
        name = f"{workers} worker{'s' if workers > 1 else ''}"
        return [
            Reading(f"{name}, wall time", self.wall_s, "s", digits=2),
            *(
                Reading(f"{name}, CPU of worker {number}", cpu_s, "s", digits=2)
                for number, cpu_s in enumerate(self.worker_cpu_s, 1)
            ),
            Reading(f"{name}, CPU of the broker", self.broker_cpu_s, "s", digits=2),
        ]


async def figures(directory: Path, records: int) -> AsyncIterator[Reading]:
    """What was measured of one and of two, then what follows."""
    with broker(directory / "log", flush="os") as (process, url):
        async with Log.open(url) as log:
            one, two = [
                await Stage(log, url, process, workers).run(directory, TIMES * records)
                for workers in (1, 2)
            ]
    for reading in one.readings() + two.readings():
        yield reading
    times = {
        "wall(1) / wall(2), the broker in it": one.wall_s / two.wall_s,
        "CPU(1) / CPU of the busier of 2": one.worker_cpu_s[0] / max(two.worker_cpu_s),
    }
    for name, value in times.items():
        yield Reading(f"2 workers against 1, {name}", value, "times", digits=2)
    speed_up = one.wall_s / (two.wall_s - two.broker_cpu_s / CORES)
    name = f"2 workers against 1, wall(1) / (wall(2) - broker CPU(2) / {CORES})"
    yield Reading(name, speed_up, "times", least=BAR_TIMES, digits=2)


class Stage:
    """Topics, and so many workers."""

    def __init__(self, log: Log, url: str, process: Process, workers: int) -> None:
        self._log = log
        self._broker = process
        self._workers = workers
        self._app_id = f"workers-{workers}"
        self._entry = f"events-{workers}"
        self._output = f"output-{workers}"
        self._settings = {
            "ENGINE_BROKER": url.removeprefix("kafka://"),
            "ENGINE_ID": self._app_id,
            "ENGINE_JOB": f"{JOB} built-in",
            "ENGINE_INPUT": self._entry,
            "ENGINE_OUTPUT": self._output,
        }

    async def run(self, directory: Path, records: int) -> Run:
        """Let the workers do that many events."""
        topics = [NewTopic(each, PARTITIONS) for each in (self._entry, self._output)]
        await self._log.admin().create_topics(topics)
        settings = {**self._settings, "ENGINE_STATE": str(directory / self._app_id)}
        command = ("streamlog", "-A", "benchmarks.engine.jobs", "worker", "-w", str(self._workers))
        with running(*command, **settings) as supervisor:
            await self._warm_up()
            run = await self._timed(_children(supervisor.popen.pid), records)
        await self._check(records)
        return run

    async def _warm_up(self) -> None:
        """Events in windows of their own, until all of them are committed by all workers."""
        began_s = perf_counter()
        number = 0
        while not await self._is_settled():
            if perf_counter() - began_s > STALL_TIMEOUT_S:
                raise TimeoutError(f"{self._workers} workers did not settle")
            for partition in range(PARTITIONS):
                await self._load(partition, [events.warm_up_event(number)])
            number += 1
            await asyncio.sleep(WARM_UP_EVERY_S)
        await self._wait_until_done()

    async def _is_settled(self) -> bool:
        """Whether every partition has been worked on, and each worker has as many of them."""
        admin = self._log.admin()
        offsets = await admin.group_offsets(self._app_id, self._inputs())
        if len(offsets) < PARTITIONS or not all(offsets.values()):
            return False
        (group,) = await admin.describe_groups([self._app_id])
        shares = [
            sum(each.topic == self._entry for each in member.assignment) for member in group.members
        ]
        return shares == [PARTITIONS // self._workers] * self._workers

    async def _timed(self, pids: Sequence[int], records: int) -> Run:
        # Before the stop, which must not last as long as a session of the group.
        loaded = _events(records)
        _send(pids, signal.SIGSTOP)
        try:
            for partition, each in enumerate(loaded):
                await self._load(partition, each)
        finally:
            cpus_s, broker_cpu_s = [cpu_of(pid) for pid in pids], self._broker.cpu_s()
            began_s = perf_counter()
            _send(pids, signal.SIGCONT)
        await self._wait_until_done()
        return Run(
            wall_s=perf_counter() - began_s,
            worker_cpu_s=[cpu_of(pid) - cpu_s for pid, cpu_s in zip(pids, cpus_s, strict=True)],
            broker_cpu_s=self._broker.cpu_s() - broker_cpu_s,
        )

    async def _wait_until_done(self) -> None:
        """Until the group has committed what there is."""
        began_s = perf_counter()
        async with self._log.consumer(auto_offset_reset="none") as consumer:
            ends = await consumer.end_offsets(self._inputs())
        while await self._log.admin().group_offsets(self._app_id, self._inputs()) != ends:
            if perf_counter() - began_s > STALL_TIMEOUT_S:
                raise TimeoutError(f"{self._workers} workers did not commit all there is")
            await asyncio.sleep(LOOK_S)

    async def _check(self, records: int) -> None:
        """Compare the rows.

        Raises:
            AssertionError: one is wrong, missing, or there twice.
        """
        row = ours(JOB).row
        found: Counter[Row] = Counter()
        outputs = [TopicPartition(self._output, number) for number in range(PARTITIONS)]
        async with self._log.consumer(
            auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign(outputs)
            while polled := await consumer.poll(timeout_ms=1_000):
                found.update(each for some in polled.values() for each in map(row, some))
        counted = {each: n for each, n in found.items() if int(each[1]) >= events.START_MS}
        if counted != Counter(events.updates(records)):
            raise AssertionError(f"the rows of {self._workers} workers are not plain Python's")

    async def _load(self, partition: int, loaded: Sequence[Loaded]) -> None:
        async with self._log.producer() as producer:
            for start in range(0, len(loaded), CHUNK):
                await producer.send_many(self._entry, partition, loaded[start : start + CHUNK])
            await producer.flush()

    def _inputs(self) -> list[TopicPartition]:
        return [TopicPartition(self._entry, number) for number in range(PARTITIONS)]


def _events(records: int) -> list[list[Loaded]]:
    """By partition: a user belongs to one."""
    parted: list[list[Loaded]] = [[] for _ in range(PARTITIONS)]
    for number in range(records):
        parted[events.user_of(number) % PARTITIONS].append(events.event(number))
    return parted


def _children(pid: int) -> list[int]:
    """The worker processes of a supervisor."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)
