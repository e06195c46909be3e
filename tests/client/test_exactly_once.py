"""SIGKILL of workers and of the broker during consume-transform-produce: exactly once."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Protocol

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess
from tests.client.transformer import GROUP, MARK, STEPS
from tests.worker.processes import DEADLINE_S, Process

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
KILLS = 20 if THOROUGH else 3
SEEDS = range(5) if THOROUGH else range(1)
PARTITIONS = 4
RECORDS_A_ROUND = 60
PACE_S = 0.25
"""The pause between two rounds: about half of the load that the workers can process."""
WORKERS = ("first", "second")
BROKER = "broker"
INPUTS = [TopicPartition("in", number) for number in range(PARTITIONS)]


class Victim(Protocol):
    """One or several brokers that the test kills."""

    @property
    def address(self) -> str:
        """The address of the broker."""
        ...

    def kill_and_restart(self) -> None:
        """Kill it with SIGKILL, and start it again."""
        ...


class Stage:
    """A broker and its workers."""

    def __init__(self, stack: ExitStack, broker: Victim, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.workers: dict[str, Process] = {}
        self.written = 0
        asyncio.run(self._make_topics())
        for name in WORKERS:
            self.start(name)
        stack.callback(lambda: [each.kill() for each in self.workers.values()])

    def start(self, name: str) -> None:
        command = (sys.executable, "-m", "tests.client.transformer", self.broker.address, name)
        self.workers[name] = Process(*command, cwd=self.folder)

    def kill(self, victim: str) -> None:
        """Kill the victim and start its replacement."""
        if victim == BROKER:
            self.broker.kill_and_restart()
        else:
            self.workers[victim].kill()
            self.start(victim)

    async def _make_topics(self) -> None:
        async with Log.open(f"kafka://{self.broker.address}") as log:
            topics = [NewTopic(name, PARTITIONS, replication_factor=-1) for name in ("in", "out")]
            await log.admin().create_topics(topics)

    def feed(self) -> None:
        """Write more input records."""

        async def write() -> None:
            async with (
                Log.open(f"kafka://{self.broker.address}") as log,
                log.producer() as producer,
            ):
                for number in range(self.written, self.written + RECORDS_A_ROUND):
                    await producer.send("in", b"%d" % number, partition=number % PARTITIONS)

        asyncio.run(write())
        self.written += RECORDS_A_ROUND

    def feed_until(self, worker: str, step: str, count: int) -> None:
        """Write input until the worker has taken this step `count` more times."""
        process, deadline_s = self.workers[worker], monotonic() + DEADLINE_S
        wanted = process.output.splitlines().count(step) + count
        while process.output.splitlines().count(step) < wanted:
            assert monotonic() < deadline_s, f"{worker} makes no progress:\n{process.output}"
            self.feed()
            sleep(PACE_S)

    def results(self) -> list[list[int]]:
        """Return the workers' output per partition, once they have read everything."""

        async def read() -> list[list[int]]:
            found: list[list[int]] = [[] for _ in range(PARTITIONS)]
            async with (
                asyncio.timeout(DEADLINE_S),
                Log.open(f"kafka://{self.broker.address}") as log,
                log.consumer(group_id=GROUP, isolation_level="read_committed") as consumer,
            ):
                ends = await consumer.end_offsets(INPUTS)
                while await consumer.committed(INPUTS) != ends:  # noqa: ASYNC110 - of other processes
                    await asyncio.sleep(0.1)
                outputs = [TopicPartition("out", number) for number in range(PARTITIONS)]
                consumer.assign(outputs)
                await consumer.seek_to_beginning(*outputs)
                ends = await consumer.end_offsets(outputs)
                while {each: await consumer.position(each) for each in outputs} != ends:
                    for topic_partition, records in (await consumer.poll(timeout_ms=500)).items():
                        values = [(each.value or b"").decode() for each in records]
                        found[topic_partition.partition] += [
                            int(v.removeprefix(MARK)) for v in values
                        ]
            return found

        try:
            return asyncio.run(read())
        except TimeoutError:
            printed = "\n".join(f"{name}: {each.output}" for name, each in self.workers.items())
            raise AssertionError(f"the workers do not reach the end:\n{printed}") from None


def is_exactly_once(broker: Victim, folder: Path, seed: int) -> None:
    """Check that the output equals the input, whatever is killed."""
    chance = Random(seed)
    victims = [(BROKER, *WORKERS)[number % 3] for number in range(KILLS)]
    chance.shuffle(victims)
    with ExitStack() as stack:
        stage = Stage(stack, broker, folder)
        for victim in victims:
            watched = chance.choice(WORKERS) if victim == BROKER else victim
            stage.feed_until(watched, chance.choice(STEPS), chance.randint(1, 3))
            stage.kill(victim)
        stage.feed()
        for number, found in enumerate(stage.results()):
            assert found == list(range(number, stage.written, PARTITIONS))


@pytest.mark.parametrize("seed", SEEDS)
def test_output_equals_input_exactly_once_despite_kills(tmp_path: Path, seed: int) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        is_exactly_once(broker, tmp_path, seed)
