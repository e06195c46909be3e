"""Controller election: who decides is killed while partitions are written to with acks=all."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from chaos.cluster import Cluster
from chaos.experiments.story import Story, perform
from chaos.writing import Writing, create, values, verdict
from streamlog.client.admin.topic_admin import NewTopic

TOPICS: Final = ("a", "b", "c")
WITHIN_MS: Final = 3_000


async def controller_election(cluster: Cluster, story: Story) -> None:
    """Kill it, see who decides, and have that one decide something."""
    writings = {topic: Writing(cluster.log, topic) for topic in TOPICS}
    for topic in TOPICS:
        await create(cluster, topic, replicas=3, least=2)
    any_of = writings["a"]
    async with asyncio.TaskGroup() as tasks:
        for each in writings.values():
            tasks.create_task(each.run())
        for each in writings.values():
            await each.gets_on(each.now_ms())
        before = await _controller(cluster)
        leaders = {each.topic: each.leader for each in await cluster.partitions()}
        story.tell(f"broker {before} decides; leaders are {leaders}")
        await cluster.brokers[before].kill()
        killed_ms = any_of.now_ms()
        times = {topic: each.now_ms() for topic, each in writings.items()}
        story.tell(f"broker {before} is killed")
        for topic, each in writings.items():
            gap_ms = await each.gets_on(times[topic])
            led = "which it led, " if leaders.get(topic) == before else ""
            story.must(gap_ms <= WITHIN_MS, f"writes to {topic}, {led}go on after {gap_ms} ms")
        await cluster.log.admin().create_topics([NewTopic("decided", 1, 2)])
        took_ms = any_of.now_ms() - killed_ms
        after = await _controller(cluster)
        story.must(after != before, f"broker {after} decides, a topic is there after {took_ms} ms")
        await cluster.brokers[before].start()
        left = await cluster.all_in_sync(60)
        story.must(not left, f"broker {before} is back and in sync {left or ''}")
        for each in writings.values():
            each.stop()
    for topic, each in writings.items():
        wrong = verdict(each.acknowledged, await values(cluster.log, topic))
        story.must(not wrong, f"{topic}: {len(each.acknowledged)} acknowledged, all there, once")
        story.must(not each.refused, f"{topic}: nothing was refused {each.refused[:1]}")


async def _controller(cluster: Cluster) -> int:
    while True:
        found = await cluster.controller()
        if found is not None and cluster.brokers[found].is_running:
            return found
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(perform(controller_election))
