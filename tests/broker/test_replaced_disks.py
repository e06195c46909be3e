"""Disks that are replaced, restored from a copy, or partly emptied, and what still counts."""

from __future__ import annotations

import asyncio
import copy
import logging

import pytest

from streamlog.broker.quorum.raft.quorum_files import FOLDER
from streamlog.broker.storage.data_directory import format_directory
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.cli.cluster_command import read_status, read_status_until
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.three_brokers import CLUSTER_ID, Cluster, Node, Unstarted, run_cluster, until

T0 = TopicPartition("t", 0)
HEALTHY_S = 30


def log_of(cluster: Cluster) -> Log:
    return Log.open("kafka://" + ",".join(f"127.0.0.1:{n.port}" for n in cluster.nodes.values()))


async def write(log: Log, *values: bytes) -> None:
    async with log.producer(linger_ms=0) as producer:
        for value in values:
            await (await producer.send("t", value, partition=0))


async def values(log: Log) -> list[bytes | None]:
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        end, found = (await consumer.end_offsets([T0]))[T0], list[bytes | None]()
        while await consumer.position(T0) < end:
            polled = await consumer.poll(timeout_ms=10_000)
            found += [record.value for record in polled.get(T0, [])]
        return found


def empty(node: Node) -> None:
    """Give the node a new disk, prepared as by `streamlog cluster init --rejoin`."""
    node.files = MemoryFiles()
    format_directory(
        "data", node_id=node.node_id, cluster_id=CLUSTER_ID, rejoins=True, files=node.files
    )


def leader(cluster: Cluster) -> int:
    """Return the partition's leader as the controller knows it."""
    broker = cluster.active()
    topic = None if broker is None else broker._member.metadata.topic("t")
    return -2 if topic is None else topic.partitions[0].leader


def test_disks_can_be_replaced_one_after_another() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with log_of(cluster) as log:
            await log.admin().create_topics([NewTopic("t", 1, 3, {"min.insync.replicas": "2"})])
            written = [b"%d" % number for number in range(30)]
            await write(log, *written)
            for node in cluster.nodes.values():
                await node.kill()
                empty(node)
                await node.start()
                assert (await read_status_until(log.admin(), HEALTHY_S)).is_healthy
                # The first status may still count the registration of the old disk.
                assert node.broker is not None
                assert node.broker.directory.log("t", 0).log_end_offset == 30
            assert await values(log) == written

    run_cluster(Cluster, story)


def test_voters_that_lose_power_in_their_first_start_elect_a_leader() -> None:
    """No voter was in an epoch, so none has lost a vote."""

    async def story(cluster: Cluster) -> None:
        for node in cluster.nodes.values():
            broker = await node.start()
            assert broker.directory.directory_ids.has_earlier_start
            await node.kill()
        for node in cluster.nodes.values():
            await node.start()
        await cluster.ready()

    run_cluster(Unstarted, story)


def test_replacing_the_only_replica_leaves_the_partition_without_a_leader() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with log_of(cluster) as log:
            await log.admin().create_topics([NewTopic("t", 1, 1)])
            await write(log, b"one")
            node = cluster.nodes[leader(cluster)]
            kept = node.files
            await node.kill()
            empty(node)
            await node.start()
            await until(lambda: leader(cluster) == -1)
            await cluster.ready()
            (warning,) = [
                each for each in (await read_status(log.admin())).problems if "no leader" in each
            ]
            assert "put that disk back" in warning
            # The old disk is put back: it has all records, and leads after an unclean election.
            await node.kill()
            node.files = kept
            await node.start()

            async def is_trusted() -> bool:
                status = await read_status(log.admin())
                own = [
                    each for each in status.problems if each.startswith(f"broker {node.node_id} ")
                ]
                return not own and node.node_id not in status.missing

            async with asyncio.timeout(HEALTHY_S):
                while not await is_trusted():  # noqa: ASYNC110 - polls as an operator does
                    await asyncio.sleep(0.1)
            elected = await log.admin().elect_leaders([T0], unclean=True)
            assert elected[T0] is None
            assert await values(log) == [b"one"]
            assert (await read_status_until(log.admin(), HEALTHY_S)).is_healthy

    run_cluster(Cluster, story)


def test_a_restored_copy_of_a_disk_does_not_count_as_the_disk() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with log_of(cluster) as log:
            await log.admin().create_topics([NewTopic("t", 1, 1)])
            await write(log, b"one")
            node = cluster.nodes[leader(cluster)]
            await node.stop()
            backup = copy.deepcopy(node.files)
            await node.start()
            await cluster.ready()
            await until(lambda: leader(cluster) == node.node_id)
            await write(log, b"two")
            await node.kill()
            node.files = backup
            await node.start()
            await until(lambda: leader(cluster) == -1)
            await cluster.ready()
            assert not (await read_status(log.admin())).is_healthy
            assert (await log.admin().elect_leaders([T0], unclean=True))[T0] is None
            assert await values(log) == [b"one"], "the operator has accepted the loss"

    run_cluster(Cluster, story)


def test_a_voter_without_its_metadata_log_rejoins_the_quorum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        node = cluster.nodes[2]
        await node.stop()
        for name in node.files.list(f"data/{FOLDER}"):
            node.files.remove(f"data/{FOLDER}/{name}")
        with caplog.at_level(logging.WARNING):
            broker = await node.start()
        assert "node 2 rejoins the quorum" in caplog.text
        await until(lambda: not broker._member.quorum.is_rejoining)
        await cluster.ready()

    run_cluster(Cluster, story)
