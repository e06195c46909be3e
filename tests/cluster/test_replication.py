"""Three broker processes that replicate: acknowledged records survive any broker's death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

from streamlog.client.admin.topic_admin import NewTopic
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ProduceResponse,
)
from streamlog.protocol.schema import one_buffer
from streamlog.record import TopicPartition
from streamlog.records.batch import split_batches
from tests.broker.node import batch, produce_request
from tests.cluster.cluster import Cluster

TOPIC = "orders"
PARTITION = (TOPIC, 0)
SETTINGS = {"replica.lag.time.max.ms": "2000", "auto.leader.rebalance.enable": "false"}
Story = Callable[[Cluster], Coroutine[object, object, None]]


def run_story(story: Story, tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=3, settings=SETTINGS) as cluster:

        async def main() -> None:
            await cluster.ready()
            await story(cluster)

        asyncio.run(main())


async def create(log: Log, replicas: int = 3, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    await log.admin().create_topics(
        [NewTopic(TOPIC, partitions=1, replication_factor=replicas, configs=named)]
    )


async def leader(cluster: Cluster) -> int:
    found = -1

    async def known() -> bool:
        nonlocal found
        partition = (await cluster.partitions(TOPIC)).get(PARTITION)
        found = -1 if partition is None else partition.leader_id
        return found >= 0

    await cluster.until(known, "somebody leads, and it is known")
    return found


async def stored(cluster: Cluster) -> list[bytes | None]:
    """Return the values of all records that the leader shows."""
    found: list[bytes | None] = []
    number = await leader(cluster)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    metadata = await cluster.ask(number, request, MetadataResponse)
    offset, end = 0, 1
    while offset < end:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        fetch = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=[FetchTopic(topic_id=metadata.topics[0].topic_id, partitions=[partition])],
        )
        (topic,) = (await cluster.ask(number, fetch, FetchResponse)).responses
        assert topic.partitions[0].error_code == 0
        end = topic.partitions[0].high_watermark
        for one in split_batches(one_buffer(topic.partitions[0].records or b"")):
            found += [record.value for record in one.records()]
            offset = one.next_offset
    return found


async def write_records(log: Log, count: int, begin: int = 0) -> list[bytes]:
    """Write records, and return their values once they are acknowledged."""
    values = [b"%d" % number for number in range(begin, begin + count)]
    async with log.producer() as producer:
        for value in values:
            await (await producer.send(TOPIC, value, partition=0))
    return values


def test_acknowledged_records_survive_their_leader(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async with Log.open(cluster.url) as log:
            await create(log)
            await cluster.in_sync(TOPIC)
            acknowledged: list[bytes] = []
            stop = asyncio.Event()

            async def write() -> None:
                async with log.producer() as producer:
                    number = 0
                    while not stop.is_set():
                        value = b"%d" % number
                        await (await producer.send(TOPIC, value, partition=0))
                        acknowledged.append(value)
                        number += 1

            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                for _ in range(3):
                    first = await leader(cluster)
                    await cluster.until(more_than(acknowledged), "records are written")
                    cluster.kill(first)
                    await cluster.until(more_than(acknowledged), "writing goes on")
                    assert await leader(cluster) != first
                    cluster.start(first)
                    await cluster.in_sync(TOPIC)
                stop.set()
            assert await stored(cluster) == acknowledged

    run_story(story, tmp_path)


async def in_sync(cluster: Cluster) -> list[int]:
    """Return the in-sync replicas; all nodes while they are unknown."""
    partition = (await cluster.partitions(TOPIC)).get(PARTITION)
    return [*cluster.nodes] if partition is None else partition.isr_nodes


def more_than(acknowledged: list[bytes]) -> Callable[[], Coroutine[object, object, bool]]:
    """Return a check for further acknowledgements."""
    known = len(acknowledged)

    async def has_continued() -> bool:
        return len(acknowledged) > known + 20

    return has_continued


def test_a_dead_broker_is_out_of_sync_until_it_has_caught_up(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async with Log.open(cluster.url) as log:
            await create(log)
            await cluster.in_sync(TOPIC)
            values = await write_records(log, 5)
            first = await leader(cluster)
            dead = next(number for number in cluster.nodes if number != first)
            cluster.kill(dead)

            async def shrunk() -> bool:
                return dead not in await in_sync(cluster)

            await cluster.until(shrunk, f"broker {dead} is out of sync")
            values += await write_records(log, 5, 5)
            cluster.start(dead)
            await cluster.in_sync(TOPIC)
            assert await stored(cluster) == values

    run_story(story, tmp_path)


def test_the_preferred_leader_takes_over_on_request(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async with Log.open(cluster.url) as log:
            await create(log)
            await cluster.in_sync(TOPIC)
            values = await write_records(log, 3)
            preferred = (await cluster.partitions(TOPIC))[PARTITION].replica_nodes[0]
            cluster.kill(preferred)

            async def moved() -> bool:
                return await leader(cluster) not in (preferred, -1)

            await cluster.until(moved, "another one leads")
            cluster.start(preferred)
            await cluster.in_sync(TOPIC)
            await log.admin().elect_leaders([TopicPartition(*PARTITION)])

            async def back() -> bool:
                return await leader(cluster) == preferred

            await cluster.until(back, "the preferred leader leads")
            values += await write_records(log, 3, 3)
            assert await stored(cluster) == values

    run_story(story, tmp_path)


def test_a_reassigned_partition_keeps_its_records(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async with Log.open(cluster.url) as log:
            await create(log, replicas=2)
            await cluster.in_sync(TOPIC)
            values = await write_records(log, 10)
            before = (await cluster.partitions(TOPIC))[PARTITION].replica_nodes
            (free,) = {*cluster.nodes} - {*before}
            stays, leaves = before[1], before[0]
            await log.admin().alter_partition_reassignments(
                {TopicPartition(*PARTITION): [free, stays]}
            )

            async def moved() -> bool:
                found = (await cluster.partitions(TOPIC))[PARTITION]
                return (
                    found.replica_nodes
                    == [free, stays]
                    == sorted(found.isr_nodes, key=[free, stays].index)
                )

            await cluster.until(moved, f"the partition is on {free} and {stays}")
            values += await write_records(log, 5, 10)
            assert await stored(cluster) == values

            async def left() -> bool:
                return not any((cluster.nodes[leaves].data).glob("p-*-0"))

            await cluster.until(left, f"broker {leaves} has none of it")

    run_story(story, tmp_path)


def test_acks_all_is_refused_without_enough_in_sync_replicas(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async with Log.open(cluster.url) as log:
            await create(log, min_insync_replicas="3")
            await cluster.in_sync(TOPIC)
            values = await write_records(log, 3)
            first = await leader(cluster)
            dead = next(number for number in cluster.nodes if number != first)
            cluster.kill(dead)

            async def shrunk() -> bool:
                return dead not in await in_sync(cluster)

            await cluster.until(shrunk, f"broker {dead} is out of sync")
            request = produce_request(batch(b"refused"), topic=TOPIC)
            response = await cluster.ask(first, request, ProduceResponse)
            code = response.responses[0].partition_responses[0].error_code
            assert code == ErrorCode.NOT_ENOUGH_REPLICAS
            cluster.start(dead)
            await cluster.in_sync(TOPIC)
            values += await write_records(log, 3, 3)
            assert await stored(cluster) == values

    run_story(story, tmp_path)
