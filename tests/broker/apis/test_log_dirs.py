"""CreatePartitions and DescribeLogDirs."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from streamlog.broker.broker import OFFSETS_TOPIC, Broker
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.client.admin import NewTopic
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import MetadataRequest, MetadataResponse
from streamlog.protocol.messages.partitions_and_replicas import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from streamlog.record import TopicPartition
from tests.broker.node import Node, ask, at, batch, create, fetch, produce, values


async def grow(
    broker: Broker, *topics: CreatePartitionsTopic, dry: bool = False
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(topics=[*topics], validate_only=dry)
    return (await ask(broker, request, CreatePartitionsResponse)).results


def wanted(
    count: int, name: str = "t", brokers: list[list[int]] | None = None
) -> CreatePartitionsTopic:
    assignments = (
        None
        if brokers is None
        else [CreatePartitionsAssignment(broker_ids=each) for each in brokers]
    )
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


async def log_dir(broker: Broker, *topics: DescribableLogDirTopic) -> DescribeLogDirsResult:
    request = DescribeLogDirsRequest(topics=[*topics] if topics else None)
    (result,) = (await ask(broker, request, DescribeLogDirsResponse)).results
    return result


def test_adding_partitions_keeps_records_and_settings(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, partitions=2, retention_ms="77")
        await produce(broker, batch(b"a"), index=1)
        (dry,) = await grow(broker, wanted(5), dry=True)
        assert dry.error_code == 0
        assert len(broker.directory.topics["t"].partitions) == 2
        topic_id = broker.directory.topics["t"].topic_id
        (result,) = await grow(broker, wanted(4))
        assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
        (result,) = await grow(broker, wanted(6, brokers=[[1], [1]]))
        assert result.error_code == 0
        metadata = await ask(broker, MetadataRequest(topics=None), MetadataResponse)
        (topic,) = metadata.topics
        assert (topic.topic_id, len(topic.partitions)) == (topic_id, 6)
        assert (await produce(broker, batch(b"b"), index=5)).error_code == 0

    async def again(broker: Broker) -> None:
        state = broker.directory.topics["t"]
        assert [log.log_end_offset for log in state.partitions.values()] == [0, 1, 0, 0, 0, 1]
        assert state.partitions[5].config.retention_ms == 77
        (old, new) = await fetch(broker, at(0, partition=1), at(0, partition=5))
        assert (values(old), values(new)) == ([b"a"], [b"b"])

    node.run(story)
    node.run(again)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (wanted(2), ErrorCode.INVALID_PARTITIONS),
        (wanted(1), ErrorCode.INVALID_PARTITIONS),
        (wanted(-1), ErrorCode.INVALID_PARTITIONS),
        (wanted(10_001), ErrorCode.INVALID_PARTITIONS),
        (wanted(3, "absent"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (wanted(9, OFFSETS_TOPIC), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted(3, brokers=[]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted(3, brokers=[[2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted(3, brokers=[[1, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_an_invalid_partition_count_or_topic_is_refused(
    node: Node, topic: CreatePartitionsTopic, code: ErrorCode
) -> None:
    async def story(broker: Broker) -> None:
        create(broker, partitions=2)
        create(broker, OFFSETS_TOPIC, partitions=1)
        create(broker, "other")
        (result, done) = await grow(broker, topic, wanted(2, "other"))
        assert result.error_code == code
        assert result.error_message
        assert done.error_code == 0
        assert len(broker.directory.topics["t"].partitions) == 2

    node.run(story)


def test_a_topic_listed_twice_is_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        results = await grow(broker, wanted(2), wanted(3))
        assert [each.error_code for each in results] == [ErrorCode.INVALID_REQUEST] * 2

    node.run(story)


def test_a_disk_error_leaves_the_partition_count_unchanged(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        node.files.fail_next_write(errno.EIO)
        (result,) = await grow(broker, wanted(3))
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(broker.directory.topics["t"].partitions) == 1

    async def again(broker: Broker) -> None:
        assert len(broker.directory.topics["t"].partitions) == 1
        (result,) = await grow(broker, wanted(3))
        assert result.error_code == 0
        assert (await produce(broker, batch(b"b"), index=2)).error_code == 0

    node.run(story)
    node.run(again)


def test_partitions_are_added_despite_a_briefly_full_disk(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        node.files.fail_next_write(errno.ENOSPC)
        (result,) = await grow(broker, wanted(3))
        assert result.error_code == 0
        assert (await produce(broker, batch(b"b"), index=2)).error_code == 0

    async def again(broker: Broker) -> None:
        logs = broker.directory.topics["t"].partitions.values()
        ends = [log.log_end_offset for log in logs]
        assert ends == [0, 0, 1]

    node.run(story)
    node.run(again)


def test_log_dirs_report_the_sizes_of_partitions(node: Node) -> None:
    node_sizes: list[int] = []

    async def story(broker: Broker) -> None:
        create(broker, partitions=2, segment_bytes="1024")
        create(broker, "other")
        for _ in range(5):
            await produce(broker, batch(b"x" * 500), index=1)
        sizes = {
            topic.name: [(each.partition_index, each.partition_size) for each in topic.partitions]
            for topic in (await log_dir(broker)).topics
        }
        folder = partition_folder(broker.directory.topics["t"].topic_id, 1)
        # As the files are, and not as the log believes.
        expected = broker.directory.volume_of("t", 1).folders.size_bytes(folder)
        assert expected > 2500
        assert sizes == {"t": [(0, 0), (1, expected)], "other": [(0, 0)]}
        node_sizes.append(expected)

    async def again(broker: Broker) -> None:
        one = await log_dir(
            broker,
            DescribableLogDirTopic(topic="t", partitions=[1, 9, -1]),
            DescribableLogDirTopic(topic="absent", partitions=[0]),
        )
        assert (one.error_code, one.log_dir, one.total_bytes) == (0, "data", -1)
        (topic,) = one.topics
        ((partition),) = topic.partitions
        assert (partition.partition_index, partition.partition_size) == (1, node_sizes[0])

    node.run(story)
    node.run(again)


def test_the_client_writes_to_new_partitions_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Log.open(f"embedded:{tmp_path / 'data'}") as log,
            log.admin() as admin,
            log.producer() as producer,
        ):
            await admin.create_topics([NewTopic("t", 1)])
            await (await producer.send("t", b"a", partition=0))
            await admin.create_partitions("t", 3)
            sent = await (await producer.send("t", b"b", partition=2))
            assert (sent.partition, sent.offset) == (2, 0)
            async with log.consumer() as consumer:
                ends = await consumer.end_offsets([TopicPartition("t", n) for n in range(3)])
            assert [*ends.values()] == [1, 0, 1]
            with pytest.raises(LogError, match="it can only grow"):
                await admin.create_partitions("t", 3)

    asyncio.run(main())


def test_describe_log_dirs_includes_a_broker_report_on_request(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, partitions=2)
        await produce(broker, batch(b"a", b"b"), index=1)
        request = DescribeLogDirsRequest(topics=None, include_report=True)
        answer = await ask(broker, request, DescribeLogDirsResponse)
        report = answer.report
        assert report is not None
        assert (report.broker_id, report.quorum_leader) == (1, 1)
        (registered,) = report.registrations
        assert (registered.broker_epoch, registered.is_fenced) == (report.broker_epoch, False)
        assert registered.log_dirs == [report.directory_id]
        (topic,) = answer.results[0].topics
        replicas = {each.partition_index: each.report for each in topic.partitions}
        assert replicas[1] is not None
        assert (replicas[1].isr, replicas[1].high_watermark, replicas[1].log_end_offset) == (
            [1],
            2,
            2,
        )
        plain = await ask(broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
        assert plain.report is None
        assert plain.results[0].topics[0].partitions[0].report is None

    node.run(story)
