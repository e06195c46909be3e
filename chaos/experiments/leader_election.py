"""Leader election: the leader of a partition is killed while it is written to with acks=all."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from chaos.cluster import Cluster
from chaos.experiments.story import Story, perform
from chaos.writing import Writing, create, values, verdict
from streamlog.client.admin.cluster_descriptions import PartitionDescription
from streamlog.record import TopicPartition

TOPIC: Final = "orders"
WITHIN_MS: Final = 3_000


async def leader_election(cluster: Cluster, story: Story) -> None:
    """Kill it, see who leads, start it again, and have it lead again."""
    await create(cluster, TOPIC, replicas=3, least=2)
    writing = Writing(cluster.log, TOPIC)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writing.run())
        await writing.gets_on(writing.now_ms())
        before = await _described(cluster)
        story.tell(f"broker {before.leader} leads in epoch {before.leader_epoch}: {before}")
        await cluster.brokers[before.leader].kill()
        killed_ms = writing.now_ms()
        story.tell(f"broker {before.leader} is killed")
        gap_ms = await writing.gets_on(killed_ms)
        after = await _described(cluster)
        story.tell(f"broker {after.leader} leads in epoch {after.leader_epoch}: {after}")
        story.must(gap_ms <= WITHIN_MS, f"writes go on within {WITHIN_MS} ms: after {gap_ms} ms")
        story.must(after.leader in before.in_sync, "the new leader was in sync")
        story.must(after.leader_epoch > before.leader_epoch, "its epoch is a new one")
        await cluster.brokers[before.leader].start()
        story.tell(f"broker {before.leader} is started again")
        left = await cluster.all_in_sync(60)
        story.must(not left, f"it is in sync again {left or ''}")
        await cluster.log.admin().elect_leaders([TopicPartition(TOPIC, 0)])
        again = await _described(cluster)
        story.must(again.leader == again.replicas[0], f"the preferred replica leads: {again}")
        await writing.gets_on(writing.now_ms())
        writing.stop()
    wrong = verdict(writing.acknowledged, await values(cluster.log, TOPIC))
    story.must(not wrong, f"{len(writing.acknowledged)} acknowledged, all there, once, in order")
    story.must(not writing.refused, f"the producer was refused nothing {writing.refused[:1]}")


async def _described(cluster: Cluster) -> PartitionDescription:
    while True:
        for each in await cluster.partitions():
            if each.topic == TOPIC and each.leader > 0:
                return each


if __name__ == "__main__":
    sys.exit(perform(leader_election))
