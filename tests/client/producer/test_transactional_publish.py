"""A job published by a producer's transaction, as on brokers that know no publications."""

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
from tests.client.admin.test_topic_admin import PLACE, committed

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
DATA = b"".join(encode_batch([(1, b"k", b"%d" % n, (("h", None),))]) for n in range(9))
SEGMENT = StagedSegment("t", 0, "a", len(DATA), 9, crc32c(DATA))
OTHER = StagedSegment("u", 0, "b", len(DATA), 9, crc32c(DATA))


async def publish(log: Log, *segments: StagedSegment) -> Published:
    async with log.producer(transactional_id="job") as producer:
        return await publish_in_transaction(log.admin(), producer, "job", segments, lambda _: DATA)


async def publish_thrice(open_log: OpenLog) -> None:
    async with open_log(t=1) as log:
        with pytest.raises(CorruptData, match="a of job job is not what was staged"):
            await publish(log, SEGMENT._replace(crc32c=1))
        assert await publish(log, SEGMENT) == Published(False, {PLACE: 9})
        assert await publish(log, SEGMENT) == Published(True, {PLACE: 9})
        assert await committed(log, PLACE, 9) == [b"%d" % n for n in range(9)]


def test_it_counts_once(open_log: OpenLog) -> None:
    asyncio.run(publish_thrice(open_log))


async def publish_in_another_order(open_log: OpenLog) -> None:
    async with open_log(t=1, u=1) as log:
        assert not (await publish(log, SEGMENT, OTHER)).is_repeated
        assert (await publish(log, OTHER, SEGMENT)).is_repeated
        assert len(await committed(log, PLACE, 9)) == 9


def test_it_is_known_again_whatever_comes_first(open_log: OpenLog) -> None:
    asyncio.run(publish_in_another_order(open_log))


async def publish_as_a_consumer(open_log: OpenLog) -> None:
    async with open_log(t=1) as log:
        await log.admin().alter_group_offsets("job", {PLACE: 1})
        with pytest.raises(UsageError, match="'job' has the name of a group of consumers"):
            await publish(log, SEGMENT)


def test_what_consumers_have_committed_is_no_receipt(open_log: OpenLog) -> None:
    asyncio.run(publish_as_a_consumer(open_log))


def test_several_brokers_get_a_job_in_a_transaction_also_while_one_is_away() -> None:
    segments = [SEGMENT._replace(partition=n) for n in range(3)]
    places = [TopicPartition("t", n) for n in range(3)]

    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        servers = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())
        async with Log.open(f"kafka://{servers}") as log:
            await log.admin().create_topics([NewTopic("t", 3, replication_factor=3)])
            assert await log.admin().is_streamlog()
            first = await log.publish("job", segments, read=lambda _: DATA)
            assert first == Published(False, dict.fromkeys(places, 9))
            gone = await cluster.controller()
            await gone.kill()
            again = await log.publish("job", segments, read=lambda _: DATA)
            assert again == Published(True, first.ends)
            await cluster.ready(*({*cluster.nodes} - {gone.node_id}))
            # One that is away is one of several.
            asking = DescribeClusterRequest(include_fenced_brokers=True)
            told = await call(cluster.brokers[0], asking, DescribeClusterResponse)
            fenced = {each.broker_id: each.is_fenced for each in told.brokers}
            assert fenced == {number: number == gone.node_id for number in cluster.nodes}
            assert not await log.admin().can_publish()
            with pytest.raises(UsageError, match="pass `read` so that the records can be written"):
                await log.publish("other", segments)
            # Behind the rows of the first job is the end of its transaction, and nothing else.
            other = await log.publish("other", segments, read=lambda _: DATA)
            assert other == Published(False, dict.fromkeys(places, 19))
            for place in places:
                assert await committed(log, place, 18) == 2 * [b"%d" % n for n in range(9)]

    run_cluster(Cluster, story)
