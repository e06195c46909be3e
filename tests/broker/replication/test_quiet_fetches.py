"""Fetches for which the log is not read: reading would find nothing that a follower waits for."""

from __future__ import annotations

import asyncio
import random

import pytest

from streamlog.broker.apis import replica_fetch
from streamlog.broker.apis.replica_fetch import News, ReplicaFetches
from tests.broker.replication.cluster import Cluster, ReplicatingNode

STEPS = 25
MAX_BYTES = 1 << 20


def count_quiet(fetches: ReplicaFetches) -> int:
    """Return how many fetches are quiet; each of them is read for all the same."""
    quiet = 0
    for session in fetches._sessions:
        for asked in session.parts.values():
            if asked.is_quiet():
                data = replica_fetch._data(asked, MAX_BYTES, is_first=True, reads={})
                news = asked.news_in(data, replica_fetch._ends_of(data))
                assert news is not News.URGENT
                quiet += 1
    return quiet


async def changed(cluster: Cluster, leader: ReplicatingNode, draw: random.Random) -> None:
    """Change something that followers may have to learn, and give them some time or none."""
    match draw.randrange(6):
        case 0 | 1:
            leader.produce(b"value", acks=1)
        case 2:
            await leader.produce(b"value")
        case 3 if leader.partition.high_watermark:
            leader.partition.delete_before(draw.randrange(leader.partition.high_watermark + 1))
        case 4:
            cluster.elect(draw.randrange(3))
        case _:
            cluster.commit()
    for _ in range(draw.randrange(12)):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(4))
def test_a_quiet_fetch_has_no_urgent_news(seed: int) -> None:
    draw, quiet = random.Random(seed), 0

    async def main() -> None:
        nonlocal quiet
        async with Cluster() as cluster:
            for _ in range(STEPS):
                await changed(cluster, cluster.nodes[cluster.leader], draw)
                for node in cluster.nodes:
                    quiet += count_quiet(node.fetches)
            await cluster.nodes[cluster.leader].produce(b"last")

    asyncio.run(main())
    assert quiet, "the law was never tried"
