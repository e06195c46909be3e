"""A broker that has missed an election still leads, without the records written since."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from streamlog.client.admin import NewTopic
from streamlog.client.cluster import Cluster
from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import TcpTransport
from tests.broker.three_brokers import Cluster as Brokers
from tests.broker.three_brokers import Node, run_cluster, until

connect = partial(TcpTransport.connect, client_id="test", timeout_ms=60_000)
RECORDS = 5


async def cut_off(node: Node) -> None:
    """Keep the broker reachable, but cut it off from the others: its metadata no longer changes."""
    assert node.broker is not None
    connections = node.broker._member._connections
    for peers in (
        connections.quorum,
        connections.controllers,
        connections.brokers,
        connections.coordinators,
    ):
        peers._address = lambda _: None
        await peers.close()


async def write(log: Log, partition: TopicPartition) -> None:
    async with log.producer() as producer:
        for number in range(RECORDS):
            await producer.send(partition.topic, b"%d" % number, partition=partition.partition)


async def read(consumer: Consumer, count: int) -> list[int]:
    offsets: list[int] = []
    async with asyncio.timeout(30):
        while len(offsets) < count:
            for records in (await consumer.poll(timeout_ms=1_000)).values():
                offsets += [record.offset for record in records]
    return offsets


@asynccontextmanager
async def elected_elsewhere(brokers: Brokers) -> AsyncIterator[tuple[Node, Log, TopicPartition]]:
    """Open a cluster whose old leader has missed an election.

    Yields the broker that leads a partition in epoch 0, a log that knows epoch 1, and the
    partition. Five records were written in each of the two epochs.
    """
    await brokers.ready()
    active = await brokers.controller()
    servers = ",".join(
        f"127.0.0.1:{node.port}" for node in brokers.nodes.values() if node is active
    )
    async with Log.open(f"kafka://{servers}") as log:
        await log.admin().create_topics([NewTopic("t", 3, replication_factor=3)])
        described = (await log.admin().describe_topics(["t"]))[0]
        number, leader = next(
            (number, leader)
            for number, leader in described.leaders.items()
            if leader != active.node_id
        )
        partition, old = TopicPartition("t", number), brokers.nodes[leader]
        await write(log, partition)
        await cut_off(old)
        new = active.broker
        assert new is not None
        await until(lambda: led_by(new, partition) != leader)
        await write(log, partition)
        assert old.broker is not None
        assert led_by(old.broker, partition) == leader
        yield old, log, partition


def led_by(broker: object, partition: TopicPartition) -> int:
    topic = broker._member.metadata.topic(partition.topic)  # type: ignore[attr-defined]
    leader: int = topic.partitions[partition.partition].leader
    return leader


def test_a_reader_at_a_newer_epoch_waits_and_gets_no_duplicates() -> None:
    """A second reader knows only the cut-off broker, and starts there without a position."""

    async def story(brokers: Brokers) -> None:
        async with (
            elected_elsewhere(brokers) as (old, log, partition),
            Log.open(f"kafka://127.0.0.1:{old.port}") as other,
            other.consumer(auto_offset_reset="earliest") as reader,
        ):
            reader.assign([partition])
            reader.seek(partition, OffsetAndMetadata(2 * RECORDS, leader_epoch=1))
            reading = asyncio.ensure_future(read(reader, RECORDS))
            await write(log, partition)
            assert await reading == [*range(2 * RECORDS, 3 * RECORDS)]

    run_cluster(Brokers, story)


def test_newer_metadata_is_kept_against_a_stale_leader() -> None:
    """Only the stale leader is left, and names itself: the client waits for the newer leader."""

    async def story(brokers: Brokers) -> None:
        async with elected_elsewhere(brokers) as (old, _, partition):
            addresses = [("127.0.0.1", node.port) for node in brokers.nodes.values()]
            addresses.sort(key=lambda address: address[1] == old.port)
            cluster = Cluster(lambda: addresses, connect, SystemClock())
            await cluster.topic("t")
            leader = cluster.leader(partition)
            assert (leader == old.node_id, cluster.leader_epoch(partition)) == (False, 1)
            for node in brokers.nodes.values():
                if node is not old:
                    await node.kill()
            answer = await cluster.retrying(lambda: cluster.describe(["t"]))
            assert (answer[0].leaders[partition.partition], leader) == (leader, leader)
            assert cluster.leader_epoch(partition) == 1
            await cluster.close()

    run_cluster(Brokers, story)
