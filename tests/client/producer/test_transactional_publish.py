"""A job that is published in a producer's transaction, for brokers without publications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from crc32c import crc32c

from streamlog.client.admin import NewTopic
from streamlog.client.producer.transactional_publish import Published, publish_in_transaction
from streamlog.errors import CorruptData, UsageError
from streamlog.log import Log
from streamlog.protocol.messages.cluster_metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from streamlog.record import TopicPartition
from streamlog.records.batch import encode_batch
from streamlog.records.staged_segment import StagedSegment
from tests.broker.three_brokers import Cluster, call, run_cluster
from tests.client.admin.test_topic_admin import T0, committed

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
DATA = b"".join(encode_batch([(1, b"k", b"%d" % n, (("h", None),))]) for n in range(9))
SEGMENT = StagedSegment("t", 0, "a", len(DATA), 9, crc32c(DATA))
OTHER = StagedSegment("u", 0, "b", len(DATA), 9, crc32c(DATA))


async def publish(log: Log, *segments: StagedSegment) -> Published:
    async with log.producer(transactional_id="job") as producer:
        return await publish_in_transaction(log.admin(), producer, "job", segments, lambda _: DATA)


async def publish_thrice(open_log: OpenLog) -> None:
    async with open_log(t=1) as log:
        with pytest.raises(CorruptData, match="a of job job differs in size or checksum"):
            await publish(log, SEGMENT._replace(crc32c=1))
        assert await publish(log, SEGMENT) == Published(False, {T0: 9})
        assert await publish(log, SEGMENT) == Published(True, {T0: 9})
        assert await committed(log, T0, 9) == [b"%d" % n for n in range(9)]


def test_a_job_is_published_once(open_log: OpenLog) -> None:
    asyncio.run(publish_thrice(open_log))


async def publish_in_another_order(open_log: OpenLog) -> None:
    async with open_log(t=1, u=1) as log:
        assert not (await publish(log, SEGMENT, OTHER)).is_repeated
        assert (await publish(log, OTHER, SEGMENT)).is_repeated
        assert len(await committed(log, T0, 9)) == 9


def test_a_repeated_job_is_recognized_in_any_segment_order(open_log: OpenLog) -> None:
    asyncio.run(publish_in_another_order(open_log))


async def publish_as_a_consumer(open_log: OpenLog) -> None:
    async with open_log(t=1) as log:
        await log.admin().alter_group_offsets("job", {T0: 1})
        with pytest.raises(UsageError, match="'job' has the name of a consumer group"):
            await publish(log, SEGMENT)


def test_offsets_committed_by_consumers_are_not_a_receipt(open_log: OpenLog) -> None:
    asyncio.run(publish_as_a_consumer(open_log))


def test_a_job_is_published_in_a_transaction_while_one_broker_is_down() -> None:
    segments = [SEGMENT._replace(partition=n) for n in range(3)]
    partitions = [TopicPartition("t", n) for n in range(3)]

    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        servers = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())
        async with Log.open(f"kafka://{servers}") as log:
            await log.admin().create_topics([NewTopic("t", 3, replication_factor=3)])
            assert await log.admin().is_streamlog()
            first = await log.publish("job", segments, read=lambda _: DATA)
            assert first == Published(False, dict.fromkeys(partitions, 9))
            stopped = await cluster.controller()
            await stopped.kill()
            again = await log.publish("job", segments, read=lambda _: DATA)
            assert again == Published(True, first.ends)
            await cluster.ready(*({*cluster.nodes} - {stopped.node_id}))
            # A cluster with a stopped broker still counts as several brokers.
            request = DescribeClusterRequest(include_fenced_brokers=True)
            answer = await call(cluster.brokers[0], request, DescribeClusterResponse)
            fenced = {each.broker_id: each.is_fenced for each in answer.brokers}
            assert fenced == {number: number == stopped.node_id for number in cluster.nodes}
            assert not await log.admin().can_publish()
            with pytest.raises(UsageError, match="pass `read`, so that a producer writes"):
                await log.publish("other", segments)
            # Only the end of the transaction follows the rows of the first job.
            other = await log.publish("other", segments, read=lambda _: DATA)
            assert other == Published(False, dict.fromkeys(partitions, 19))
            for topic_partition in partitions:
                assert await committed(log, topic_partition, 18) == 2 * [
                    b"%d" % n for n in range(9)
                ]

    run_cluster(Cluster, story)
