"""Disks that are replaced, put back from a copy, or emptied in part: what counts of them."""

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
from tests.broker.three_brokers import CLUSTER_ID, Cluster, Node, Unstarted, lived, until

PLACE = TopicPartition("t", 0)
WELL_S = 30


def log_of(cluster: Cluster) -> Log:
    return Log.open("kafka://" + ",".join(f"127.0.0.1:{n.port}" for n in cluster.nodes.values()))


async def write(log: Log, *values: bytes) -> None:
    async with log.producer(linger_ms=0) as producer:
        for value in values:
            await (await producer.send("t", value, partition=0))


async def values(log: Log) -> list[bytes | None]:
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([PLACE])
        end, found = (await consumer.end_offsets([PLACE]))[PLACE], list[bytes | None]()
        while await consumer.position(PLACE) < end:
            polled = await consumer.poll(timeout_ms=10_000)
            found += [record.value for record in polled.get(PLACE, [])]
        return found


def empty(node: Node) -> None:
    """Its disk is another one, made as `streamlog cluster init --rejoin` makes it."""
    node.files = MemoryFiles()
    format_directory(
        "data", node_id=node.node_id, cluster_id=CLUSTER_ID, rejoins=True, files=node.files
    )


def leader(cluster: Cluster) -> int:
    """Of the partition, as the controller has it."""
    broker = cluster.active()
    topic = None if broker is None else broker._member.metadata.topic("t")
    return -2 if topic is None else topic.partitions[0].leader


def test_one_disk_after_the_other_is_replaced() -> None:
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
                assert (await read_status_until(log.admin(), WELL_S)).is_healthy
                # At its first look the registration of the old disk may still count.
                assert node.broker is not None
                assert node.broker.directory.log("t", 0).log_end_offset == 30
            assert await values(log) == written

    lived(Cluster, story)


def test_voters_that_lose_power_in_their_first_start_elect_a_leader() -> None:
    """None of them was in an epoch, and none of them has lost a vote."""

    async def story(cluster: Cluster) -> None:
        for node in cluster.nodes.values():
            broker = await node.start()
            assert broker.directory.directory_ids.has_earlier_start
            await node.kill()
        for node in cluster.nodes.values():
            await node.start()
        await cluster.ready()

    lived(Unstarted, story)


def test_the_only_complete_replica_is_replaced_and_nothing_empty_leads_in_silence() -> None:
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
            (doubt,) = [
                each for each in (await read_status(log.admin())).doubts if "no leader" in each
            ]
            assert "put that disk back" in doubt
            # The old disk is put back: it has everything, and leads once somebody says so.
            await node.kill()
            node.files = kept
            await node.start()

            async def is_told_of_itself() -> bool:
                status = await read_status(log.admin())
                own = [each for each in status.doubts if each.startswith(f"broker {node.node_id} ")]
                return not own and node.node_id not in status.missing

            async with asyncio.timeout(WELL_S):
                while not await is_told_of_itself():  # noqa: ASYNC110 - as an operator looks
                    await asyncio.sleep(0.1)
            elected = await log.admin().elect_leaders([PLACE], unclean=True)
            assert elected[PLACE] is None
            assert await values(log) == [b"one"]
            assert (await read_status_until(log.admin(), WELL_S)).is_healthy

    lived(Cluster, story)


def test_a_copy_of_a_disk_that_is_put_back_does_not_count_as_the_disk() -> None:
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
            assert (await log.admin().elect_leaders([PLACE], unclean=True))[PLACE] is None
            assert await values(log) == [b"one"], "what was lost is what an operator accepted"

    lived(Cluster, story)


def test_a_voter_whose_metadata_log_is_gone_does_not_vote_before_it_is_let_in(
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

    lived(Cluster, story)
