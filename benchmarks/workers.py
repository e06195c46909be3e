"""Two worker processes against one on a machine with two cores: how much more they get done.

The job is J2 of the engine's, a row for every update, exactly once, on four partitions. One worker
process and two take turns, each on topics of its own: started by `worker -w N`, warmed up until
the group is stable, stopped by SIGSTOP while the input is loaded, and let go by SIGCONT. The clock
runs from commit to commit: of each worker from the first one to the last before the end, so that
neither the start nor the wait for the last commit, up to half a second, is in it; the rates of the
workers are added. The broker runs on the same cores. Beside one worker it has a core of its own,
so that run's time stands; beside two it takes what it needs from both, so half of its CPU time is
subtracted from theirs, as if it ran elsewhere. Per record:

    speed-up = time(1) / (time(2) - broker CPU(2) / 2)

The other reading knows only the workers' CPU times: that of the one by that of the busier of the
two. It tells how evenly the work is shared and what sharing costs, whatever else the machine does.
Every row is compared with plain Python's.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

from benchmarks.engine import events
from benchmarks.engine.events import Loaded, Row
from benchmarks.engine.participants import ours
from benchmarks.harness import Process, Reading, broker, cpu_of, running
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition

JOB = "j2"
PARTITIONS = 4
CORES = 2
BAR_TIMES = 1.7
TIMES = 4
"""As many records as others get, so that there are several commits to be timed."""
CHUNK = 10_000
WARM_UP_EVERY_S = 0.5
LOOK_S = 0.01
STALL_TIMEOUT_S = 90


Look: TypeAlias = tuple[float, Mapping[TopicPartition, int]]
"""When, in seconds, and what was committed by then."""


@dataclass(frozen=True, slots=True)
class Run:
    """What so many workers needed for the same work."""

    records: int
    wall_s: float
    rate: float
    """Records per second, from commit to commit."""
    worker_cpu_s: list[float]
    broker_cpu_s: float

    @property
    def time_ns(self) -> float:
        """Per record, from commit to commit."""
        return 1e9 / self.rate

    @property
    def broker_ns(self) -> float:
        """The broker's CPU time per record."""
        return 1e9 * self.broker_cpu_s / self.records

    def readings(self) -> list[Reading]:
        """As they were measured."""
        workers = len(self.worker_cpu_s)
        name = f"{workers} worker{'s' if workers > 1 else ''}"
        return [
            Reading(f"{name}, wall time until the last commit", self.wall_s, "s", digits=2),
            Reading(f"{name}, from commit to commit", self.rate, "records/s"),
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
        "time(1) / time(2), the broker in it": one.time_ns / two.time_ns,
        "CPU(1) / CPU of the busier of 2": one.worker_cpu_s[0] / max(two.worker_cpu_s),
    }
    for name, value in times.items():
        yield Reading(f"2 workers against 1, {name}", value, "times", digits=2)
    speed_up = one.time_ns / (two.time_ns - two.broker_ns / CORES)
    name = f"2 workers against 1, time(1) / (time(2) - broker CPU(2) / {CORES})"
    yield Reading(name, speed_up, "times", least=BAR_TIMES, digits=2)


def rate_of(looks: Sequence[Look], parts: Sequence[TopicPartition]) -> float:
    """Records per second of one worker, from its first commit to the last before its end.

    With too few commits for that it is the whole time.
    """
    totals = [(when_s, sum(offsets[part] for part in parts)) for when_s, offsets in looks]
    end = totals[-1][1]
    commits = totals[:1]
    for when_s, total in totals:
        if total > commits[-1][1]:
            commits.append((when_s, total))
    within = [(when_s, total) for when_s, total in commits[1:] if total < end]
    timed = within if len(within) > 1 else commits
    (first_s, first), (last_s, last) = timed[0], timed[-1]
    return (last - first) / (last_s - first_s)


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
        shares = await self._shares()
        return [len(share) for share in shares] == [PARTITIONS // self._workers] * self._workers

    async def _shares(self) -> list[list[TopicPartition]]:
        """What each worker reads."""
        (group,) = await self._log.admin().describe_groups([self._app_id])
        return [
            [TopicPartition(*each) for each in member.assignment if each.topic == self._entry]
            for member in group.members
        ]

    async def _timed(self, pids: Sequence[int], records: int) -> Run:
        shares = await self._shares()
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
        looks = await self._wait_until_done()
        return Run(
            records=records,
            wall_s=perf_counter() - began_s,
            rate=sum(rate_of(looks, parts) for parts in shares),
            worker_cpu_s=[cpu_of(pid) - cpu_s for pid, cpu_s in zip(pids, cpus_s, strict=True)],
            broker_cpu_s=self._broker.cpu_s() - broker_cpu_s,
        )

    async def _wait_until_done(self) -> list[Look]:
        """Until the group has committed what there is; how it came to that."""
        began_s = perf_counter()
        async with self._log.consumer(auto_offset_reset="none") as consumer:
            ends = await consumer.end_offsets(self._inputs())
        looks: list[Look] = []
        while True:
            committed = await self._log.admin().group_offsets(self._app_id, self._inputs())
            looks.append((perf_counter(), committed))
            if committed == ends:
                return looks
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
        if counted != Counter(events.updates(range(records))):
            raise AssertionError(f"the rows of {self._workers} workers are not plain Python's")

    async def _load(self, partition: int, loaded: Sequence[Loaded]) -> None:
        async with self._log.producer() as producer:
            for start in range(0, len(loaded), CHUNK):
                await producer.send_batch(self._entry, partition, loaded[start : start + CHUNK])
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
