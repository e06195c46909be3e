"""One of three nodes has a full disk: a follower, a leader, or the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.compare import held_against
from streamlog.client.producer import Producer
from streamlog.log import Log
from streamlog.protocol.messages.cluster_metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from streamlog.record import TopicPartition
from tests.broker.small_disk import SmallDisk, small_disk
from tests.cluster.cluster import Cluster

PARTITIONS = 1
BYTES = 2_000
RECORDS = 30
SETTINGS = {"replica.lag.time.max.ms": "2000"}
"""A full broker soon leaves the in-sync replicas."""
Disks = dict[int, SmallDisk]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    """Mount a small file system for each node's directory."""
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(small_disk(tmp_path / f"broker-{number}" / "data"))
            for number in (1, 2, 3)
        }


async def write(producer: Producer, first: int) -> list[bytes]:
    """Write records to every partition, and wait until all are acknowledged."""
    values = [b"%d " % number + b"v" * BYTES for number in range(first, first + RECORDS)]
    for number, value in enumerate(values):
        await (await producer.send("t", value, partition=number % PARTITIONS))
    return values


async def stored(log: Log) -> list[bytes]:
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    found: list[bytes] = []
    async with log.consumer() as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        await consumer.seek_to_beginning(*partitions)
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            polled = await consumer.poll(timeout_ms=1_000)
            found += [r.value or b"" for records in polled.values() for r in records]
    return found


async def create(cluster: Cluster) -> dict[str, int]:
    """Create a topic that the controller does not lead, and return the nodes by role."""
    described = await cluster.ask(1, DescribeClusterRequest(), DescribeClusterResponse)
    controller = described.controller_id
    leader, follower = (each for each in (1, 2, 3) if each != controller)
    topic = CreatableTopic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(broker_ids=[leader, follower, controller])],
        configs=[CreatableTopicConfig(name="min.insync.replicas", value="2")],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    answer = await cluster.ask(controller, request, CreateTopicsResponse)
    assert answer.topics[0].error_code == 0, answer
    await cluster.in_sync("t")
    return {"follower": follower, "leader": leader, "controller": controller}


@pytest.mark.parametrize("role", ["follower", "leader", "controller"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["running", "killed"])
def test_a_full_disk_loses_no_acknowledged_record(
    disks: Disks, tmp_path: Path, role: str, is_killed: bool
) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log, log.producer(linger_ms=0) as producer:
            victim = (await create(cluster))[role]
            values = await write(producer, 0)
            disks[victim].fill()
            values += await write(producer, 1_000)
            if is_killed:
                cluster.kill(victim)
                disks[victim].fill()
                cluster.start(victim)
            values += await write(producer, 2_000)
            assert {*values} <= {*(await stored(log))}
            assert "No space left on device" in cluster.log_text(victim)
            disks[victim].free()
            if not cluster.nodes[victim].is_running:
                cluster.start(victim)
            await cluster.ready()
            values += await write(producer, 3_000)
            await cluster.in_sync()
            assert {*values} <= {*(await stored(log))}
            for each in cluster.nodes:
                assert await cluster.stop(each) == 0

    with Cluster(tmp_path, settings=SETTINGS) as cluster:
        asyncio.run(story(cluster))
        assert not held_against({n: each.data for n, each in cluster.nodes.items()})
