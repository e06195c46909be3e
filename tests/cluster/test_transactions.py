"""Groups and transactions on three brokers, while their coordinators are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.broker.coordinator.led_shards import shard_index
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.errors import StreamlogError
from streamlog.log import Log
from tests.cluster.cluster import Cluster

PARTITIONS = 6
KEYS = 12
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


async def coordinator(cluster: Cluster, topic: str, key: str) -> int:
    """Return the leader of the partition that a key belongs to."""
    partitions = await cluster.partitions(topic)
    return partitions[topic, shard_index(key, len(partitions))].leader_id


async def make(log: Log, *topics: str) -> None:
    async with log.admin() as admin:
        await admin.create_topics(
            [NewTopic(name, PARTITIONS, replication_factor=3) for name in topics]
        )


class Writing:
    """Runs transactions in sequence; each writes its number to many partitions."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.count = 0
        self.is_enough = self.is_over = False

    async def run(self) -> None:
        async with self._log.producer(transactional_id="tx") as producer:
            while not self.is_enough:
                try:
                    async with producer.transaction():
                        for key in range(KEYS):
                            await producer.send("a", b"%d" % self.count, key=b"%d" % key)
                except StreamlogError as error:
                    if error.fatal:
                        raise
                else:
                    self.count += 1
        self.is_over = True

    async def more(self, count: int = 3) -> None:
        """Wait until `count` more are committed."""
        wanted = self.count + count
        while self.count < wanted:  # noqa: ASYNC110 - another task counts them
            await asyncio.sleep(0.01)


async def read(log: Log, writing: Writing) -> dict[bytes, list[int]]:
    """Return the transactions' numbers by key, read in a group that commits."""
    found: dict[bytes, list[int]] = {b"%d" % key: [] for key in range(KEYS)}
    async with log.consumer(
        group_id="g", isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        await consumer.subscribe(["a"])
        while not writing.is_over or any(
            writing.count - 1 not in numbers for numbers in found.values()
        ):
            for records in (await consumer.poll(timeout_ms=500)).values():
                for record in records:
                    found[record.key or b""].append(int(record.value or b""))
            await consumer.commit()
    return found


def test_transactions_continue_when_their_coordinators_are_killed(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log, asyncio.timeout(100):
            await make(log, "a")
            writing = Writing(log)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(writing.run())
                reading = tasks.create_task(read(log, writing))
                await writing.more()
                for topic, key in ((TRANSACTIONS, "tx"), (GROUPS, "g")):
                    victim = await coordinator(cluster, topic, key)
                    cluster.kill(victim)
                    await writing.more()
                    assert await coordinator(cluster, topic, key) != victim
                    cluster.start(victim)
                    await cluster.ready()
                    await cluster.in_sync()
                    await writing.more()
                writing.is_enough = True
            found = reading.result()
        # Each transaction is there completely and in order, with every key; one whose end was not
        # acknowledged may occur twice.
        assert all(numbers == sorted(numbers) for numbers in found.values()), found
        assert all({*numbers} == {*range(writing.count)} for numbers in found.values())
        assert len({tuple(numbers) for numbers in found.values()}) == 1

    with Cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))
