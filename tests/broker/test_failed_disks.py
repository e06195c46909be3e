"""A disk of several fails: only its partitions go offline, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.admin import NewTopic
from streamlog.clock import ManualClock
from streamlog.errors import LogDirectoryFailed, StreamlogError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from streamlog.record import TopicPartition
from tests.broker.failing_disk import FailingDisks
from tests.broker.node import ask, at, batch, create, delete, fetch, produce, values
from tests.broker.three_brokers import Cluster, Node, run_cluster, until

DIRS = ("data", "b", "c")


class Disks:
    """A broker on three disks."""

    def __init__(self) -> None:
        self.memory = MemoryFiles()
        self.clock = ManualClock(wall_ms=1_700_000_000_000)
        self.disks = FailingDisks(self.memory)

    def open(self) -> Broker:
        return Broker.open(DIRS[0], others=DIRS[1:], files=self.disks, clock=self.clock)

    def pass_time(self, broker: Broker) -> None:
        for _ in range(3):
            self.clock.advance(5_000)
            broker.tick()


async def codes(broker: Broker, count: int) -> list[int]:
    return [(await produce(broker, batch(b"v"), index=n)).error_code for n in range(count)]


def test_a_failed_disk_takes_only_its_partitions_and_gives_them_back() -> None:
    node = Disks()

    async def fails() -> None:
        async with node.open() as broker:
            create(broker, partitions=6)
            assert await codes(broker, 6) == [0] * 6
            node.disks.failed.add("b")
            lost = ErrorCode.KAFKA_STORAGE_ERROR
            assert await codes(broker, 6) == [0, lost, 0, 0, lost, 0]
            node.pass_time(broker)
            # In the metadata, these partitions have no leader now.
            partitions = broker._member.metadata.topic("t").partitions  # type: ignore[union-attr]
            assert [each.leader for each in partitions.values()] == [1, -1, 1, 1, -1, 1]
            assert [each.isr for each in partitions.values()] == [(1,)] * 6
            assert await codes(broker, 6) == [0, lost, 0, 0, lost, 0]
            (found,) = await fetch(broker, at(0, partition=1))
            assert found.error_code == lost
            response = await ask(
                broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
            )
            described = {each.log_dir: each.error_code for each in response.results}
            assert described == {"data": 0, "b": lost, "c": 0}
            # New partitions go to the other disks; old ones can be deleted.
            create(broker, "u", partitions=4)
            places = [broker.directory.volume_of("u", n).path for n in range(4)]
            assert places == ["data", "c", "data", "c"]
            broker.directory.check()

    async def returns() -> None:
        async with node.open() as broker:
            node.pass_time(broker)
            assert await codes(broker, 6) == [0] * 6
            for number, count in enumerate([4, 2, 4, 4, 2, 4]):
                (found,) = await fetch(broker, at(0, partition=number))
                assert values(found) == [b"v"] * count

    asyncio.run(fails())
    node.memory.crash()
    node.disks = FailingDisks(node.memory)
    asyncio.run(returns())


def test_a_topic_is_deleted_from_a_failed_disk_once_it_works_again() -> None:
    node = Disks()

    async def fails() -> None:
        async with node.open() as broker:
            create(broker, partitions=3)
            assert await codes(broker, 3) == [0, 0, 0]
            node.disks.failed.add("b")
            assert (await codes(broker, 3))[1] == ErrorCode.KAFKA_STORAGE_ERROR
            node.pass_time(broker)
            delete(broker)
            create(broker, "u", partitions=2)
            assert any(each.startswith("p-") for each in node.memory.list("b"))

    async def returns() -> None:
        async with node.open():
            assert not any(each.startswith("p-") for each in node.memory.list("b"))

    asyncio.run(fails())
    node.disks = FailingDisks(node.memory)
    asyncio.run(returns())


def test_without_its_first_disk_a_broker_ends() -> None:
    node = Disks()

    async def story() -> None:
        with suppress(StreamlogError):
            async with node.open() as broker:
                create(broker, partitions=3)
                log = broker.directory.log("t", 0)
                assert broker.directory.volume_of("t", 0) is broker.directory.volumes.first
                log.append(batch(b"v"), now_ms=0)
                node.memory.fail_next_sync()
                await produce(broker, batch(b"w"), index=0)
                with pytest.raises(LogDirectoryFailed):
                    broker.directory.check()

    asyncio.run(story())


def test_other_brokers_lead_the_partitions_of_a_failed_disk() -> None:
    count, records = 6, 40

    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        address = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())
        victim: Node = cluster.nodes[1]
        async with Log.open(f"kafka://{address}") as log, log.producer() as producer:
            await log.admin().create_topics(
                [NewTopic("t", count, replication_factor=3, configs={"min.insync.replicas": "2"})]
            )
            acknowledged: list[tuple[int, bytes]] = []
            for number in range(records):
                if number == records // 2:
                    assert isinstance(victim.view, FailingDisks)
                    victim.view.failed.add("b")
                for partition in range(count):
                    value = b"%d" % number
                    await (await producer.send("t", value, partition=partition))
                    acknowledged.append((partition, value))
            assert victim.broker is not None
            directory = victim.broker.directory
            (failed,) = [each for each in directory.volumes if each.failure is not None]
            offline = {number for name, number in directory.partitions_in(failed) if name == "t"}
            assert offline

            def is_settled() -> bool:
                topic = cluster.brokers[1]._member.metadata.topic("t")
                if topic is None:
                    return False
                return all(
                    (1 not in each.isr) if number in offline else (1 in each.isr)
                    for number, each in topic.partitions.items()
                )

            await until(is_settled)
            topic = cluster.brokers[1]._member.metadata.topic("t")
            assert topic is not None
            assert all(topic.partitions[number].leader in (2, 3) for number in offline)
            # On its other disks, the broker is in sync (`is_settled`): it serves on.
            for partition in range(count):
                found = await log.read_range(TopicPartition("t", partition))
                wanted = [value for at_, value in acknowledged if at_ == partition]
                assert [each for each in found.values if each in wanted] == wanted

    def cluster() -> Cluster:
        made = Cluster()
        for node in made.nodes.values():
            node.others, node.view = DIRS[1:], FailingDisks(node.files)
        return made

    run_cluster(cluster, story)
