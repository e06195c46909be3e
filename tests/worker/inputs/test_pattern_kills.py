"""Topics by pattern under `worker -w 2`: processes are killed while topics come and go.

The workers are static members of the group. The rule is that of `test_pattern_watch`: every record
of every topic that matches is in the output once, whatever was killed meanwhile. The expected rows
are computed here from what was sent.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Final

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.worker.processes import STREAMLOG, Process, running

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS: Final = range(12)
DEADLINE_S: Final = 120
STEPS: Final = 4
PARTITIONS: Final = 3
NAMES: Final = ("eu", "us", "asia", "africa", "north", "south")
KEYS: Final = ("a", "b", "c", "d", "e")
APP: Final = """
from streamlog import App

app = App(
    "patterns", log="{url}", state_dir="./state", commit_interval="50ms",
    consumer={{"metadata.max.age.ms": 500, "session.timeout.ms": 6000}},
)
orders = app.topic_pattern("orders", r"orders-[a-z]+", key=str, value=str)
out = app.topic("out", key=str, value=str, partitions=1)
counts = app.topic("counts", key=str, value=str, partitions=1)
stream = app.stream(orders)
stream.to(out)
counted = stream.group_by(lambda key, _: key * 2, name="by-double").count(name="n")
counted.changes().map(lambda key, n: (key, f"{{key}} {{n}}")).to(counts)
"""
RUNS: Final = re.compile(r"worker (\d) runs as process (\d+)")


class Case:
    """The log, what was sent to it, and the processes of the app."""

    def __init__(self, log: Log, chance: random.Random) -> None:
        self.log, self.chance = log, chance
        self.there: list[str] = []
        self.sent: list[tuple[str, str, str]] = []

    async def add(self, name: str) -> None:
        await self.log.admin().create_topics([NewTopic(f"orders-{name}", PARTITIONS)])
        self.there.append(f"orders-{name}")

    async def feed(self, count: int) -> None:
        async with self.log.producer() as producer:
            for _ in range(count):
                topic, key = self.chance.choice(self.there), self.chance.choice(KEYS)
                value = f"{topic}/{len(self.sent)}"
                self.sent.append((topic, key, value))
                await producer.send(topic, value.encode(), key=key.encode())

    async def rows(self, topic: str) -> Counter[str]:
        """Return the committed rows of an output, which is made by the app."""
        if not await self.log.admin().find_topics([topic]):
            return Counter()
        records = await self.log.read_range(TopicPartition(topic, 0))
        return Counter((record.value or b"").decode() for record in records)

    def expected(self) -> dict[str, Counter[str]]:
        seen = Counter(key for _, key, _ in self.sent)
        counted = Counter(
            f"{key * 2} {n}" for key, last in seen.items() for n in range(1, last + 1)
        )
        return {"out": Counter(value for _, _, value in self.sent), "counts": counted}

    async def settled(self, process: Process) -> None:
        """Wait until both outputs are what was sent, and never have more."""
        wanted, deadline = self.expected(), monotonic() + DEADLINE_S
        while True:
            found = {topic: await self.rows(topic) for topic in wanted}
            for topic, rows in found.items():
                extra = rows - wanted[topic]
                assert not extra, f"too many in {topic}: {extra}\n{process.output[-8000:]}"
            if found == wanted:
                return
            lacking = {topic: rows - found[topic] for topic, rows in wanted.items()}
            assert monotonic() < deadline, f"missing: {lacking}\n{process.output[-8000:]}"
            await asyncio.sleep(0.1)

    async def committed(self) -> None:
        """Wait until nothing of the topics is left to read."""
        parts = [TopicPartition(topic, n) for topic in self.there for n in range(PARTITIONS)]
        async with self.log.consumer() as consumer:
            ends = await consumer.end_offsets(parts)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                at = await self.log.admin().group_offsets("patterns")
                if all(at.get(part, 0) >= end for part, end in ends.items()):
                    return
                await asyncio.sleep(0.1)


def kill(process: Process, number: int) -> None:
    """Kill a worker as it runs now; one that is already being replaced is left alone."""
    pids = [int(pid) for at, pid in RUNS.findall(process.output) if int(at) == number]
    if pids:
        with suppress(ProcessLookupError):
            os.kill(pids[-1], signal.SIGKILL)


@asynccontextmanager
async def workers(path: Path) -> AsyncIterator[Process]:
    """Run the supervisor with two workers; the log is of this process, so nothing may block it."""
    with running(*STREAMLOG, "-A", "patterns", "worker", "-w", "2", cwd=path) as process:
        for number in (1, 2):
            await asyncio.to_thread(process.line, f"worker {number} runs as process")
        yield process


@pytest.mark.skipif(not IS_THOROUGH, reason="takes minutes; STREAMLOG_PROFILE=thorough")
@pytest.mark.parametrize("seed", SEEDS)
def test_killed_workers_lose_and_repeat_no_record(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    names = iter(chance.sample(NAMES, len(NAMES)))

    async def live(case: Case) -> None:
        """One life of the supervisor: topics come, are fed and go while workers are killed."""
        async with workers(tmp_path) as process:
            for _ in range(STEPS // 2):
                await case.add(next(names))
                await case.feed(200)
                victim = chance.choice([1, 2])
                # Anywhere: before it has found the topic, in a round, in a commit.
                await asyncio.sleep(chance.random() * 1.5)
                kill(process, victim)
                await case.feed(200)
                await case.settled(process)
                if len(case.there) > 1 and chance.random() < 0.5:
                    await case.committed()
                    gone = case.there.pop(0)
                    await case.log.admin().delete_topics([gone])
            await case.feed(100)
            await asyncio.sleep(chance.random())
            if chance.random() < 0.5:
                # The supervisor as well: its workers end by themselves, and the next one has their
                # numbers, so their places in the group.
                await asyncio.to_thread(process.kill)
            else:
                assert await asyncio.to_thread(process.stop) == 0

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}") as log:
            assert log.address is not None
            url = "kafka://{}:{}".format(*log.address)
            (tmp_path / "patterns.py").write_text(APP.format(url=url))
            case = Case(log, chance)
            await live(case)
            await live(case)
            async with workers(tmp_path) as process:
                await case.settled(process)
                assert await asyncio.to_thread(process.stop) == 0

    asyncio.run(main())
