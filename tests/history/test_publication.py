"""Publication of a history's rows, all at once, over several brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.log import Log
from tests.broker.three_brokers import Cluster, run_cluster
from tests.history.test_job import END, Till, published

CUT_MS = 1_075_000
"""About the middle of the orders' times."""


def test_three_brokers_get_a_job_s_rows_once_and_workers_continue(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.ready()
        servers = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes.values())
        till = Till(tmp_path, url=f"kafka://{servers}")
        await till.fill()
        assert not await can_publish(till.url)
        job = till.app.backfill(until=CUT_MS, outputs="publish", job_id="till-2")
        snapshot = await asyncio.to_thread(job.run)
        assert snapshot.manifest.staged == ()
        assert {topic for topic, *_ in snapshot.manifest.outputs} == {"sums", "scaled"}
        # As if the result of the first run had been lost.
        job = till.app.backfill(until=CUT_MS, outputs="publish", job_id="till-2")
        again = await asyncio.to_thread(job.run)
        assert again.manifest.outputs == snapshot.manifest.outputs
        result = await asyncio.to_thread(till.app.hand_over, again)
        assert not result.is_repeated
        assert (await asyncio.to_thread(till.app.hand_over, again)).is_repeated
        await till.live()
        await published(till, till.driven())
        whole = till.app.backfill(until=END, outputs="stage")
        await asyncio.to_thread(whole.run)
        for topic in (till.scaled, till.sums):
            comparison = await asyncio.to_thread(whole.compare, topic)
            assert comparison, str(comparison)

    run_cluster(Cluster, scenario)


async def can_publish(url: str) -> bool:
    async with Log.open(url) as log:
        return await log.admin().can_publish()
