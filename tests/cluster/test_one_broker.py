"""A cluster of one broker process, controlled from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.ports import reserved_ports
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.errors import ConnectionLost, RequestTimedOut
from streamlog.log import Log
from streamlog.protocol.messages.cluster_metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tests.cluster.cluster import AT_LENGTH, Cluster


def test_a_broker_stops_and_starts_again(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await log.admin().create_topics([NewTopic("orders", partitions=3)])
        await cluster.in_sync("orders")
        assert await cluster.restart(1) == 0
        assert len(await cluster.partitions("orders")) == 3

    with Cluster(tmp_path, brokers=1) as cluster:
        asyncio.run(story(cluster))
    assert "stopped: the log is closed" in cluster.log_text(1)


@AT_LENGTH
def test_a_broker_can_be_suspended_and_killed(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        async def ask() -> None:
            await cluster.ask(1, DescribeClusterRequest(), DescribeClusterResponse)

        await cluster.ready()
        cluster.pause(1)
        with pytest.raises(RequestTimedOut):
            await ask()
        cluster.resume(1)
        await ask()
        cluster.kill(1)
        with pytest.raises(ConnectionLost):
            await ask()
        cluster.start(1)
        await cluster.ready()

    with Cluster(tmp_path, brokers=1) as cluster:
        asyncio.run(story(cluster))


def test_a_broker_that_cannot_start_is_reported(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        with pytest.raises(AssertionError, match=r"error: unknown broker setting 'no\.such'"):
            await cluster.ready()

    with Cluster(tmp_path, brokers=1, settings={"no.such": "1"}) as cluster:
        asyncio.run(story(cluster))


def test_reserved_ports_are_unique() -> None:
    with reserved_ports(3) as ports, reserved_ports(3) as others:
        assert len({*ports, *others}) == 6
