"""Unclean election: only a replica that lacks records is left; it leads if one asks for that."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final

from chaos.broker import BrokerProcess
from chaos.cluster import LOOK_S, Cluster
from chaos.experiments.story import Story, perform
from chaos.writing import create, values
from streamlog.client.admin.cluster_descriptions import PartitionDescription
from streamlog.record import TopicPartition

TOPIC: Final = "orders"
PLACE: Final = TopicPartition(TOPIC, 0)
QUIET_S: Final = 5.0
RECORDS: Final = 100


async def unclean_election(cluster: Cluster, story: Story) -> None:
    """Two replicas, one of them stale; first without, then with the permission to lose."""
    await create(cluster, TOPIC, replicas=2, least=1)
    leader, stale = await _leader_and_follower(cluster)
    await _write(cluster, "both")
    story.tell(f"{RECORDS} records are on brokers {leader.node_id} and {stale.node_id}")
    await _leave_stale(cluster, leader, stale, "one")
    story.tell(f"broker {stale.node_id} was killed, {RECORDS} more came, {leader.node_id} was")
    story.tell(f"killed and {stale.node_id} started: it lives, and lacks what was acknowledged")
    await asyncio.sleep(QUIET_S)
    alone = await _described(cluster)
    story.must(alone.leader == -1, f"after {QUIET_S} s nobody leads: {alone}")
    await leader.start()
    await cluster.all_in_sync(60)
    found = list((await values(cluster.log, TOPIC)).values())
    story.must(
        found == _batch("both") + _batch("one"), f"{leader.node_id} is back: nothing is lost"
    )
    leader, stale = await _leader_and_follower(cluster)
    await _leave_stale(cluster, leader, stale, "lost")
    await _until(cluster, lambda each: each.leader == -1)
    story.tell("the same again, and now somebody asks for an unclean election")
    await cluster.log.admin().elect_leaders([PLACE], unclean=True)
    chosen = await _until(cluster, lambda each: each.leader == stale.node_id)
    story.must(chosen.leader == stale.node_id, f"broker {stale.node_id} leads: {chosen}")
    await _write(cluster, "later")
    await leader.start()
    left = await cluster.all_in_sync(60)
    story.must(
        not left, f"broker {leader.node_id} follows, and cuts what it alone had {left or ''}"
    )
    found = list((await values(cluster.log, TOPIC)).values())
    kept = _batch("both") + _batch("one") + _batch("later")
    story.must(found == kept, f"the {RECORDS} it lacked are lost, as was asked for, and no others")
    await stale.stop()
    found = list((await values(cluster.log, TOPIC)).values())
    story.must(found == kept, f"broker {leader.node_id} leads, and has the same")


async def _leave_stale(
    cluster: Cluster, leader: BrokerProcess, stale: BrokerProcess, name: str
) -> None:
    """Acknowledged on the leader alone, which dies then; the other one lives."""
    await stale.kill()
    await _until(cluster, lambda each: each.in_sync == (leader.node_id,))
    await _write(cluster, name)
    await leader.kill()
    await stale.start()


def _batch(name: str) -> list[bytes]:
    return [f"{name}-{number}".encode() for number in range(RECORDS)]


async def _write(cluster: Cluster, name: str) -> None:
    async with cluster.log.producer(linger_ms=0) as producer:
        for told in [await producer.send(TOPIC, each, partition=0) for each in _batch(name)]:
            await told


async def _leader_and_follower(cluster: Cluster) -> tuple[BrokerProcess, BrokerProcess]:
    found = await _until(cluster, lambda each: each.leader > 0)
    (follower,) = (each for each in found.replicas if each != found.leader)
    return cluster.brokers[found.leader], cluster.brokers[follower]


async def _until(
    cluster: Cluster, holds: Callable[[PartitionDescription], bool]
) -> PartitionDescription:
    while True:
        found = await _described(cluster)
        if holds(found):
            return found
        await asyncio.sleep(LOOK_S)


async def _described(cluster: Cluster) -> PartitionDescription:
    while True:
        for each in await cluster.partitions():
            if each.topic == TOPIC:
                return each
        await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(perform(unclean_election))
