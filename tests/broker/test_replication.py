"""Partitions with replicas on three brokers of one process: power cuts, bad disks, absences."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.repair.partition_repair import repair_partition
from streamlog.errors import ConnectionLost, CorruptData, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from streamlog.protocol.messages.produce_and_fetch import FetchResponse, ProduceResponse
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from streamlog.records.batch import split_batches
from tests.broker.node import at, batch, context, fetch_request, produce_request
from tests.broker.storage.batches import overwrite
from tests.broker.three_brokers import Cluster, Node, call, run_cluster, until
from tests.cluster.cluster import AT_LENGTH

TOPIC_RESOURCE = 2
LAG_MS = "1000"


def three() -> Cluster:
    return Cluster(**{"replica.lag.time.max.ms": LAG_MS})


async def create(cluster: Cluster, *, replicas: int = 3, name: str = "t") -> None:
    await cluster.ready()
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=replicas)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
    made = await call(cluster.brokers[0], request, CreateTopicsResponse)
    assert not made.topics[0].error_code, made.topics[0].error_message
    await until(lambda: all(each._partitions.partitions(name) for each in cluster.brokers))


def isr(cluster: Cluster, name: str = "t") -> set[int]:
    """Return the ISR on which all running brokers agree, empty while they differ."""
    found = [each._member.metadata.topic(name) for each in cluster.brokers]
    sets = {frozenset() if topic is None else frozenset(topic.partitions[0].isr) for topic in found}
    return set(sets.pop()) if len(sets) == 1 else set()


def leader(cluster: Cluster) -> Node:
    topic = cluster.brokers[0]._member.metadata.topic("t")
    assert topic is not None
    return cluster.nodes[topic.partitions[0].leader]


async def produced(cluster: Cluster, *values: bytes) -> int:
    """Produce to the current leader; return the first offset."""
    while True:
        for broker in cluster.brokers:
            request = produce_request(batch(*values))
            with suppress(ConnectionLost):
                answer = await broker.handle(request, context(request))
                assert isinstance(answer, ProduceResponse)
                found = answer.responses[0].partition_responses[0]
                if not found.error_code:
                    return found.base_offset
        await asyncio.sleep(0.02)  # no event announces an election


def log(node: Node) -> PartitionLog:
    assert node.broker is not None
    return node.broker.directory.log("t", 0)


def content(node: Node) -> bytes:
    return bytes(log(node).read(0, max_bytes=1 << 20))


def folders(node: Node) -> list[str]:
    return [name for name in node.files.list("data") if name.startswith("p-")]


def damage(node: Node, topic_id: bytes, position: int) -> None:
    path = f"data/{partition_folder(topic_id, 0)}/{'0' * 20}.log"
    content = bytearray(read_file(node.files, path))
    content[position] ^= 1
    overwrite(node.files, path, bytes(content))


async def power_cut(node: Node) -> None:
    node.files.crash()
    with suppress(StreamlogError, OSError):
        await node.kill()


@AT_LENGTH
def test_acknowledged_records_survive_successive_power_cuts() -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster)
        kept: dict[int, bytes] = {}
        for turn in range(2):
            for number in (1, 2, 3):
                for value in (b"%d before %d" % (turn, number), b"%d after %d" % (turn, number)):
                    kept[await produced(cluster, value)] = value
                    if value.find(b"before") >= 0:
                        await power_cut(cluster.nodes[number])
                await cluster.nodes[number].start()
                await until(lambda: isr(cluster) == {1, 2, 3})
        # A request that was retried after a lost response may be there twice.
        await until(lambda: len({log(node).log_end_offset for node in cluster.nodes.values()}) == 1)
        found = {
            each.base_offset: each.records()[0].value
            for each in split_batches(content(cluster.nodes[1]))
        }
        assert {offset: found.get(offset) for offset in kept} == kept
        assert len({content(node) for node in cluster.nodes.values()}) == 1

    run_cluster(three, story)


def test_a_replica_with_a_damaged_batch_fetches_its_records_again() -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster)
        for number in range(5):
            await produced(cluster, b"%d" % number)
        await until(lambda: isr(cluster) == {1, 2, 3})
        first = leader(cluster)
        topic_id = log_id(first)
        assert first.broker is not None
        first.broker.directory.write_checkpoints()
        await power_cut(first)
        damage(first, topic_id, 100)
        await first.start()
        await until(lambda: isr(cluster) == {1, 2, 3} and not log(first).damage)
        assert len({content(node) for node in cluster.nodes.values()}) == 1

    run_cluster(three, story)


@pytest.mark.parametrize("leads", [False, True])
def test_a_repaired_replica_fetches_its_lost_records(leads: bool) -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster)
        for number in range(5):
            await produced(cluster, b"%d" % number)
        await until(lambda: isr(cluster) == {1, 2, 3})
        first = leader(cluster)
        node = next(each for each in cluster.nodes.values() if (each is first) == leads)
        whole, topic_id = content(node), log_id(node)
        await power_cut(node)
        await produced(cluster, b"meanwhile")
        damage(node, topic_id, 100)
        with Inspection.open("data", files=node.files) as inspection:
            done = repair_partition(inspection, inspection.verify())
        assert any("are lost" in each.what or "is lost" in each.what for each in done)
        await node.start()
        await until(lambda: isr(cluster) == {1, 2, 3} and not log(node).lacks_records)
        assert content(node)[: len(whole)] == whole
        assert len({content(node) for node in cluster.nodes.values()}) == 1

    run_cluster(three, story)


def test_repaired_replicas_are_served_as_they_are_if_none_has_more() -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster)
        await produced(cluster, b"lost")
        await produced(cluster, b"kept")
        await until(lambda: isr(cluster) == {1, 2, 3})
        topic_id = log_id(leader(cluster))
        for node in cluster.nodes.values():
            await power_cut(node)
        for node in cluster.nodes.values():
            damage(node, topic_id, 30)
            with Inspection.open("data", files=node.files) as inspection:
                repair_partition(inspection, inspection.verify())
        for node in cluster.nodes.values():
            await node.start()
        await until(lambda: len(isr(cluster)) == 3)
        assert await produced(cluster, b"more") == 2
        await until(lambda: len({content(node) for node in cluster.nodes.values()}) == 1)
        found = [each.record_count for each in split_batches(content(cluster.nodes[1]))]
        assert found == [0, 1, 1]

    run_cluster(three, story)


@pytest.mark.parametrize("leads", [False, True])
def test_damage_found_at_run_time_is_filled_from_other_replicas(leads: bool) -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster)
        for number in range(5):
            await produced(cluster, b"%d" % number)
        await until(lambda: isr(cluster) == {1, 2, 3})
        first = leader(cluster)
        node = next(each for each in cluster.nodes.values() if (each is first) == leads)
        whole = content(node)
        damage(node, log_id(node), 16)  # the magic byte of the first batch, which readers check
        with suppress(CorruptData):
            log(node).read(0, max_bytes=1 << 20)
        assert log(node).damage
        await until(lambda: isr(cluster) == {1, 2, 3} and not log(node).damage)
        assert content(node)[: len(whole)] == whole

    run_cluster(three, story)


def log_id(node: Node) -> bytes:
    assert node.broker is not None
    return node.broker.directory.topics["t"].topic_id


def test_a_topic_deleted_during_an_absence_is_deleted_on_return() -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster)
        await produced(cluster, b"a")
        away = cluster.nodes[3]
        await away.stop()
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=20_000)
        gone = await call(cluster.brokers[0], request, DeleteTopicsResponse)
        assert not gone.responses[0].error_code
        assert len(folders(away)) == 1
        await away.start()
        await until(lambda: not folders(away))

    run_cluster(three, story)


def test_a_topic_unknown_to_the_cluster_is_kept_as_stray() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        away = cluster.nodes[3]
        assert away.broker is not None
        made = away.broker.directory.create_topic("stranger", 1)
        made.partitions[0].append(batch(b"a"), now_ms=0)
        await away.stop()
        await away.start()
        await until(lambda: [name[-6:] for name in folders(away)] == ["-stray"])
        assert "stranger" not in broker_of(away).directory.topics

    run_cluster(three, story)


def broker_of(node: Node) -> Broker:
    assert node.broker is not None
    return node.broker


def test_a_partition_moved_during_an_absence_is_deleted_on_return() -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster, replicas=2)
        await produced(cluster, b"a", b"b")
        await until(lambda: len(isr(cluster)) == 2)
        stays = leader(cluster).node_id
        (away,) = (cluster.nodes[number] for number in isr(cluster) - {stays})
        (free,) = {1, 2, 3} - {stays, away.node_id}
        await away.stop()
        moved = ReassignablePartition(partition_index=0, replicas=[stays, free])
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=20_000, topics=[ReassignableTopic(name="t", partitions=[moved])]
        )
        answer = await call(cluster.brokers[0], request, AlterPartitionReassignmentsResponse)
        assert not answer.error_code
        await until(lambda: isr(cluster) == {stays, free})
        await away.start()
        await until(lambda: not folders(away))
        assert content(cluster.nodes[free]) == content(cluster.nodes[stays])

    run_cluster(three, story)


def test_a_follower_answers_with_the_current_leader_and_its_endpoint() -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster)
        await produced(cluster, b"a")
        first = leader(cluster)
        other = next(node for node in cluster.nodes.values() if node is not first)
        await until(lambda: log(other).log_end_offset == 1)
        refused = await call(broker_of(other), produce_request(batch(b"b")), ProduceResponse)
        found = refused.responses[0].partition_responses[0]
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found.current_leader is not None
        assert found.current_leader.leader_id == first.node_id
        (endpoint,) = refused.node_endpoints
        assert (endpoint.node_id, endpoint.port) == (first.node_id, first.port)
        fetched = await call(broker_of(other), fetch_request(at(0)), FetchResponse)
        redirected = fetched.responses[0].partitions[0]
        assert redirected.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert redirected.current_leader is not None
        assert redirected.current_leader.leader_id == first.node_id

    run_cluster(three, story)


def test_raising_min_insync_replicas_above_the_isr_refuses_produces() -> None:
    async def story(cluster: Cluster) -> None:
        await create(cluster)
        await until(lambda: isr(cluster) == {1, 2, 3})
        first = leader(cluster)
        await next(node for node in cluster.nodes.values() if node is not first).stop()
        await until(lambda: len(isr(cluster)) == 2)
        await produced(cluster, b"a")
        config = AlterableConfig(name="min.insync.replicas", config_operation=0, value="3")
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=TOPIC_RESOURCE, resource_name="t", configs=[config]
                )
            ]
        )
        await call(broker_of(first), request, IncrementalAlterConfigsResponse)
        await until(lambda: log(first).config.min_insync(3) == 3)
        answer = await call(broker_of(first), produce_request(batch(b"b")), ProduceResponse)
        code = answer.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.NOT_ENOUGH_REPLICAS

    run_cluster(three, story)
