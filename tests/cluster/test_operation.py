"""Operators' tasks: a lost disk, brokers that authenticate, a missing broker."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from streamlog.broker.storage.data_directory import format_directory
from streamlog.cli.cluster_command import read_status, read_status_until
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.log import Log
from tests.broker.certificates import certificates
from tests.cluster.cluster import AT_LENGTH, Cluster


@AT_LENGTH
def test_a_lost_disk_is_replaced(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await log.admin().create_topics([NewTopic("orders", partitions=3)])
            await cluster.in_sync("orders")
            cluster.kill(3)
            shutil.rmtree(cluster.nodes[3].data)
            format_directory(
                str(cluster.nodes[3].data),
                node_id=3,
                cluster_id=cluster.cluster_id,
                rejoins=True,
            )
            cluster.start(3)
            await cluster.ready()
            await cluster.in_sync("orders")
            assert (await read_status_until(log.admin(), 60)).is_healthy

    with Cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))
    assert "rejoins the quorum" in cluster.log_text(3)


@AT_LENGTH
def test_the_status_names_a_missing_broker(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await log.admin().create_topics([NewTopic("orders", partitions=3)])
            await cluster.in_sync("orders")
            cluster.kill(2)
            await cluster.ready()

            async def is_reported() -> bool:
                status = await read_status(log.admin())
                return status.missing == [2] and len(status.lacking) >= 3 and not status.offline

            await cluster.until(is_reported, "broker 2 is missed")
            assert not (await read_status(log.admin())).under_min_isr

    with Cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))


def test_brokers_can_authenticate_with_tls_and_passwords(tmp_path: Path) -> None:
    """Clients use a listener without either."""
    files = certificates()
    inner = {
        "ssl.keystore.location": files.broker,
        "ssl.truststore.location": files.authority,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:SASL_SSL",
        "inter.broker.listener.name": "INNER",
        "controller.listener.names": "INNER",
        "sasl.inter.broker.username": "broker",
        "sasl.inter.broker.password": "secret",
    }

    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await log.admin().create_topics([NewTopic("orders", partitions=3)])
            await cluster.in_sync("orders")
            async with log.producer() as producer:
                await (await producer.send("orders", b"one"))

    with Cluster(tmp_path, settings=inner, inner="INNER") as cluster:
        asyncio.run(story(cluster))
