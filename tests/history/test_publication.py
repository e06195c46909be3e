"""Rows of a history begin to count at once where several brokers lead the topics, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.log import Log
from tests.broker.three_brokers import Cluster, run_cluster
from tests.history.test_job import END, Till, published

CUT_MS = 1_075_000
"""About the middle of the orders."""


def test_three_brokers_get_the_rows_of_a_job_once_and_workers_go_on_behind_them(
    tmp_path: Path,
) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.ready()
        servers = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())
        till = Till(tmp_path, url=f"kafka://{servers}")
        await till.fill()
        assert not await can_publish(till.url)
        job = till.app.backfill(until=CUT_MS, outputs="publish", job_id="till-2")
        snapshot = await asyncio.to_thread(job.run)
        assert snapshot.manifest.staged == ()
        assert {topic for topic, *_ in snapshot.manifest.outputs} == {"sums", "scaled"}
        # As if nobody had heard of its end.
        job = till.app.backfill(until=CUT_MS, outputs="publish", job_id="till-2")
        again = await asyncio.to_thread(job.run)
        assert again.manifest.outputs == snapshot.manifest.outputs
        handed = await asyncio.to_thread(till.app.hand_over, again)
        assert not handed.is_repeated
        assert (await asyncio.to_thread(till.app.hand_over, again)).is_repeated
        await till.live()
        await published(till, till.driven())
        whole = till.app.backfill(until=END, outputs="stage")
        await asyncio.to_thread(whole.run)
        for topic in (till.scaled, till.sums):
            comparison = await asyncio.to_thread(whole.compare, topic)
            assert comparison, str(comparison)

    run_cluster(Cluster, story)


async def can_publish(url: str) -> bool:
    async with Log.open(url) as log:
        return await log.admin().can_publish()
