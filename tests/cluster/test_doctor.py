"""What the adviser finds on three brokers: nothing, until they are frozen."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.adviser import advise
from streamlog.adviser.log_look import LogLook
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.log import Log
from tests.cluster.cluster import AT_LENGTH, Cluster

OF_THIS_MACHINE = {"disk-full", "interpreted-modules", "few-descriptors"}


async def find(cluster: Cluster) -> set[str]:
    async with Log.open(cluster.url) as log:
        view = await LogLook(log, url=cluster.url).view(0)
    return {each.code for each in advise(view)} - OF_THIS_MACHINE


@AT_LENGTH
def test_a_frozen_broker_and_a_lost_majority_are_found(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        async with Log.open(cluster.url) as log:
            await log.admin().create_topics([NewTopic("orders", 6)])
        await cluster.in_sync("orders")
        assert await find(cluster) == set()
        cluster.pause(3)

        async def is_found() -> bool:
            return {"broker-down", "under-replicated"} <= await find(cluster)

        await cluster.until(is_found, "the adviser finds the frozen broker")
        cluster.pause(2)

        async def is_leaderless() -> bool:
            return "no-controller" in await find(cluster)

        await cluster.until(is_leaderless, "the adviser misses the controller")
        cluster.resume(2)
        cluster.resume(3)
        await cluster.ready()
        await cluster.in_sync("orders")

    with Cluster(tmp_path) as cluster:
        asyncio.run(story(cluster))
