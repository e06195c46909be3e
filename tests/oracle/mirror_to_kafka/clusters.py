"""A random history in a broker of ours, and the two programs that mirror it to Apache Kafka."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

from conformance.kafka import MEMORY, fetched
from streamlog.client.admin import NewTopic
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from tests.worker.processes import Process, running

VERSION: Final = "4.3.1"
TOPICS: Final = {"orders": 2, "users.eu": 1, "quiet": 1}
OURS, THEIRS = "eu", "mm"
PARTITIONS: Final = [TopicPartition(name, at) for name, n in TOPICS.items() for at in range(n)]
GROUPS: Final = tuple(f"readers-{number}" for number in range(12))
RECENT: Final = GROUPS[::2]
"""Groups that have read what was there before the last start of our worker."""
BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
QUICK: Final = """
import runpy, sys
from streamlog.worker.connect import sink_group
sink_group.SESSION_TIMEOUT_MS, sink_group.HEARTBEAT_INTERVAL_MS = 2_000, 300
sys.argv = ["streamlog", *sys.argv[1:]]
runpy.run_module("streamlog", run_name="__main__")
"""
"""A worker whose group gives up a killed member after 2 s."""


class GaveUp(StreamlogError):
    """Ends a transaction that is to be aborted."""


class History:
    """Transactions of random records, one in four of which is aborted."""

    def __init__(self, log: Log, seed: int) -> None:
        self._log, self._chance = log, Random(seed)

    async def create(self) -> None:
        """Create the topics."""
        configs = {"retention.ms": "-1", "max.message.bytes": "2000000"}
        await self._log.admin().create_topics(
            [NewTopic(name, count, configs=configs) for name, count in TOPICS.items()]
        )

    async def write(self, transactions: int, pause_s: float = 0.0) -> None:
        """Write some transactions."""
        async with self._log.producer(transactional_id="history") as producer:
            for _ in range(transactions):
                is_aborted = self._chance.random() < 1 / 4
                # Left by an error, the transaction is aborted; its records stay in the log.
                with suppress(GaveUp):
                    async with producer.transaction():
                        for _ in range(self._chance.randrange(1, 30)):
                            at = self._chance.choice(PARTITIONS[:-1])
                            await producer.send_batch(*at, [self._record()])
                        if is_aborted:
                            raise GaveUp
                await asyncio.sleep(pause_s)

    def _record(
        self,
    ) -> tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
        chance = self._chance

        def data() -> bytes | None:
            return None if chance.random() < 1 / 8 else chance.randbytes(chance.choice((0, 5, 200)))

        names = chance.sample(("a", "ä", "trace"), chance.randrange(3))
        headers = tuple((name, data()) for name in names)
        return 1_700_000_000_000 + chance.randrange(10**9), data(), data(), headers

    async def ends(self) -> dict[TopicPartition, int]:
        """Return the ends of all partitions that have records."""
        async with self._log.consumer() as consumer:
            ends = await consumer.end_offsets(PARTITIONS)
        return {at: end for at, end in ends.items() if end}

    async def commit_groups(
        self, begins: Mapping[TopicPartition, int]
    ) -> dict[str, dict[TopicPartition, int]]:
        """Let each group stand at a random offset of each partition, and return these.

        Those of `RECENT` stand behind `begins`.
        """
        ends, found = await self.ends(), {}
        for group in GROUPS:
            least = begins if group in RECENT else dict.fromkeys(ends, 0)
            found[group] = {at: self._chance.randint(least[at], end) for at, end in ends.items()}
            await self._log.admin().alter_group_offsets(group, found[group])
        return found


async def read(log: Log, alias: str = "") -> dict[TopicPartition, Sequence[LogRecord]]:
    """Return the committed records of all partitions, by the names that they have in the source."""
    found = {}
    for name, number in PARTITIONS:
        there = TopicPartition(f"{alias}.{name}" if alias else name, number)
        found[TopicPartition(name, number)] = [*await log.read_range(there)]
    return found


@contextmanager
def our_worker(folder: Path, log: str) -> Iterator[Process]:
    """Run a worker of a Connect service."""
    settings = folder / "worker.properties"
    settings.write_text("session.timeout.ms=2000\nheartbeat.interval.ms=300\n")
    command = ("connect", str(settings), "--log", log, "--rest", "127.0.0.1:0")
    with running(sys.executable, "-c", QUICK, *command, cwd=folder) as process:
        process.line(r"REST API at")
        yield process


def our_mirror(target: str) -> dict[str, str]:
    """Return the configuration of our mirror."""
    return {
        "connector.class": "KafkaMirror", "topics.regex": "|".join(TOPICS), "tasks.max": "2",
        "key.converter": BYTES, "value.converter": BYTES, "bootstrap.servers": target,
        "source.cluster.alias": OURS, "emit.checkpoints.interval": "500ms",
        "transaction.timeout": "10s", "flush.every": "100ms",
    }  # fmt: skip


def libraries() -> Path:
    """Return the folder of MirrorMaker 2 and all that it needs.

    Raises:
        Unavailable: there is no Java, no Maven, or no network.
    """
    return fetched(f"mirror-{VERSION}", ("connect-mirror",), VERSION)


@contextmanager
def mirror_maker(folder: Path, source: str, target: str) -> Iterator[None]:
    """Run MirrorMaker 2."""
    one = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "config.storage",
           "offset.storage", "status.storage")  # fmt: skip
    settings = {
        "clusters": f"{THEIRS}, kafka",
        f"{THEIRS}.bootstrap.servers": source,
        "kafka.bootstrap.servers": target,
        f"{THEIRS}->kafka.enabled": "true",
        f"kafka->{THEIRS}.enabled": "false",
        f"{THEIRS}->kafka.topics": ", ".join(TOPICS),
        f"{THEIRS}->kafka.groups": "readers-.*",
        f"{THEIRS}.consumer.isolation.level": "read_committed",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "5",
        "offset-syncs.topic.location": "target",
        "replication.factor": "1",
        **{f"{each}.replication.factor": "1" for each in one},
    }
    file = folder / "mm2.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = ["java", MEMORY, "-cp", f"{libraries()}/*"]
    program = "org.apache.kafka.connect.mirror.MirrorMaker"
    with subprocess.Popen(
        [*command, program, str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    ) as process:
        try:
            yield
        finally:
            process.kill()
