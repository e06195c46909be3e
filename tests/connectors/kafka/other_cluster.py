"""The other cluster of the tests: a broker of ours, or Apache's with STREAMLOG_KAFKA=HOST:PORT."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from streamlog.client.admin import NewTopic
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from tests.client.clusters import emptied_kafka

KAFKA = os.environ.get("STREAMLOG_KAFKA")
THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"


@dataclass(frozen=True)
class OtherCluster:
    """A cluster, by the log that a test looks at it with, and its address."""

    log: Log
    address: str

    async def write(self, topic: str, partition: int, *values: bytes | None) -> None:
        async with self.log.producer() as producer:
            await producer.send_batch(topic, partition, [(1, b"k", value, ()) for value in values])

    async def read(self, topic: str, partition: int = 0) -> Sequence[LogRecord]:
        """Return the committed records of a partition."""
        at = TopicPartition(topic, partition)
        columns = await self.log.read_range(at)
        return [*columns]

    async def recreate(self, topic: str) -> None:
        admin = self.log.admin()
        await admin.delete_topics([topic])
        await admin.create_topics([NewTopic(topic, 1)])


@asynccontextmanager
async def other_cluster(data: Path, **topics: int) -> AsyncIterator[OtherCluster]:
    """Start a cluster that has some topics, by name and number of partitions."""
    if KAFKA:
        async with emptied_kafka(KAFKA, topics) as log:
            yield OtherCluster(log, KAFKA)
        return
    async with Log.open(f"embedded:{data}") as log:
        await log.admin().create_topics([NewTopic(*each) for each in topics.items()])
        assert log.address is not None
        host, port = log.address
        yield OtherCluster(log, f"{host}:{port}")


class GaveUp(StreamlogError):
    """Ends a transaction that is to be aborted."""


class Topics:
    """Topics that get records by transactions, one in three of which is aborted."""

    def __init__(self, cluster: OtherCluster, topics: Sequence[str], seed: int) -> None:
        self.cluster, self.topics, self.chance = cluster, topics, Random(seed)
        self.values: list[bytes] = []

    async def put(self, rows: Sequence[object]) -> None:
        values = [str(row).encode() for row in rows]
        is_aborted = self.chance.random() < 1 / 3
        async with self.cluster.log.producer(transactional_id="other") as producer:
            # Left by an error, the transaction is aborted; its records stay in the log.
            with suppress(GaveUp):
                async with producer.transaction():
                    for each in values:
                        topic = self.chance.choice(self.topics)
                        await producer.send(topic, each, partition=self.chance.randrange(2))
                    await producer.flush()
                    if is_aborted:
                        raise GaveUp
        if not is_aborted:
            self.values += values
        else:
            # The rows of a transaction that counts follow it.
            await self.cluster.write(self.topics[0], 0, *values)
            self.values += values

    async def rows(self) -> Sequence[object]:
        return self.values
