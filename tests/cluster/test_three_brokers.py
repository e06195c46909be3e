"""Three broker processes: they form a cluster, and clients hardly notice the loss of one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.client.admin.topic_admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.cluster.cluster import AT_LENGTH, Cluster

PARTITIONS = 6
EACH_S = 0.005


class Load:
    """Sends consecutive numbers to all partitions in turn until it is stopped."""

    def __init__(self, log: Log) -> None:
        self.acknowledged: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
        self.stop = asyncio.Event()
        self._log = log

    async def run(self) -> None:
        """Send until stopped. Raises the error of a send whose retries have failed."""
        number = 0
        async with self._log.producer() as producer, asyncio.TaskGroup() as group:
            while not self.stop.is_set():
                partition = number % PARTITIONS
                sent = await producer.send("orders", b"%d" % number, partition=partition)
                group.create_task(self._acknowledged(partition, number, sent))
                number += 1
                await asyncio.sleep(EACH_S)

    async def _acknowledged(
        self, partition: int, number: int, sent: asyncio.Future[object]
    ) -> None:
        await sent
        self.acknowledged[partition].append(number)

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))


async def all_of(log: Log) -> dict[int, list[int]]:
    """Return the records of the topic by partition."""
    parts = [TopicPartition("orders", n) for n in range(PARTITIONS)]
    found: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        while [part for part in parts if await consumer.position(part) < ends[part]]:
            for part, records in (await consumer.poll(timeout_ms=200)).items():
                found[part.partition] += [int(each.value or b"") for each in records]
    return found


async def create_topic(cluster: Cluster, log: Log) -> None:
    await log.admin().create_topics([NewTopic("orders", partitions=PARTITIONS)])
    await cluster.in_sync("orders")


def test_a_rolling_restart_under_load_loses_nothing(tmp_path: Path) -> None:
    """The procedure of docs/operations.md: a client that retries sees no error."""

    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await create_topic(cluster, log)
            partitions = (await cluster.partitions("orders")).values()
            assert {each.leader_id for each in partitions} == {1, 2, 3}
            assert {frozenset(each.isr_nodes) for each in partitions} == {frozenset({1, 2, 3})}
            load = Load(log)
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run())
                for number in cluster.nodes:
                    before = load.count

                    async def has_continued(before: int = before) -> bool:
                        return load.count > before + 50

                    await cluster.until(has_continued, "records are acknowledged")
                    assert await cluster.restart(number) == 0
                    await cluster.in_sync("orders")
                load.stop.set()
            assert await all_of(log) == load.acknowledged

    with Cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))


@AT_LENGTH
def test_clients_continue_soon_after_a_broker_is_killed(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await create_topic(cluster, log)
            load = Load(log)
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run())
                (leader,) = {
                    each.leader_id
                    for (_, n), each in (await cluster.partitions("orders")).items()
                    if n == 0
                }
                cluster.kill(leader)
                before = len(load.acknowledged[0])

                async def has_continued() -> bool:
                    return len(load.acknowledged[0]) > before + 20

                await cluster.until(has_continued, "another one leads, and takes records")
                cluster.start(leader)
                await cluster.ready()
                await cluster.in_sync("orders")
                load.stop.set()
            assert await all_of(log) == load.acknowledged

    with Cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))
