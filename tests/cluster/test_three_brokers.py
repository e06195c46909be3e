"""Three brokers as processes: they find each other, and clients hardly notice what befalls one."""

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
    """Numbers, sent one after the other to all partitions in turn, until it is told to stop."""

    def __init__(self, log: Log) -> None:
        self.acknowledged: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
        self.stop = asyncio.Event()
        self._log = log

    async def run(self) -> None:
        """Raises what a send raises that was tried again in vain."""
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
    """What is in the topic, by partition."""
    parts = [TopicPartition("orders", n) for n in range(PARTITIONS)]
    found: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        while [part for part in parts if await consumer.position(part) < ends[part]]:
            for part, records in (await consumer.poll(timeout_ms=200)).items():
                found[part.partition] += [int(each.value or b"") for each in records]
    return found


async def created(cluster: Cluster, log: Log) -> None:
    await log.admin().create_topics([NewTopic("orders", partitions=PARTITIONS)])
    await cluster.in_sync("orders")


def test_one_after_the_other_is_restarted_under_load(tmp_path: Path) -> None:
    """The procedure of docs/operations.md: a client that tries again sees no error."""

    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await created(cluster, log)
            partitions = (await cluster.partitions("orders")).values()
            assert {each.leader_id for each in partitions} == {1, 2, 3}
            assert {frozenset(each.isr_nodes) for each in partitions} == {frozenset({1, 2, 3})}
            load = Load(log)
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run())
                for number in cluster.nodes:
                    before = load.count

                    async def goes_on(before: int = before) -> bool:
                        return load.count > before + 50

                    await cluster.until(goes_on, "records are acknowledged")
                    assert await cluster.restart(number) == 0
                    await cluster.in_sync("orders")
                load.stop.set()
            assert await all_of(log) == load.acknowledged

    with Cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))


@AT_LENGTH
def test_a_broker_that_is_killed_is_missed_by_nobody_for_long(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await created(cluster, log)
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

                async def goes_on() -> bool:
                    return len(load.acknowledged[0]) > before + 20

                await cluster.until(goes_on, "another one leads, and takes records")
                cluster.start(leader)
                await cluster.ready()
                await cluster.in_sync("orders")
                load.stop.set()
            assert await all_of(log) == load.acknowledged

    with Cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))
