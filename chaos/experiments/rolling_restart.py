"""Rolling restart: one broker after the other is stopped in order and started, under load."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from chaos.cluster import Cluster
from chaos.experiments.story import Story, perform
from chaos.writing import Writing, create, values, verdict

TOPICS: Final = ("a", "b", "c")
STOP_MS: Final = 30_000


async def rolling_restart(cluster: Cluster, story: Story) -> None:
    """Three of them, and what producers have noticed."""
    writings = {topic: Writing(cluster.log, topic) for topic in TOPICS}
    for topic in TOPICS:
        await create(cluster, topic, replicas=3, least=2)
    async with asyncio.TaskGroup() as tasks:
        for each in writings.values():
            tasks.create_task(each.run())
        for each in writings.values():
            await each.gets_on(each.now_ms())
        for number, broker in cluster.brokers.items():
            deciding = await cluster.controller() == number
            began_ms = writings["a"].now_ms()
            code = await broker.stop()
            took_ms = writings["a"].now_ms() - began_ms
            what = f"broker {number}{', who decides,' if deciding else ''}"
            in_order = code == 0 and took_ms <= STOP_MS
            story.must(in_order, f"{what} ends in order: with {code} after {took_ms} ms")
            await broker.start()
            left = await cluster.all_in_sync(60)
            story.must(not left, f"it is back, and all is in sync {left or ''}")
        for each in writings.values():
            await each.gets_on(each.now_ms())
            each.stop()
    for topic, each in writings.items():
        wrong = verdict(each.acknowledged, await values(cluster.log, topic))
        story.must(not wrong, f"{topic}: {len(each.acknowledged)} acknowledged, all there, once")
        story.must(not each.refused, f"{topic}: nothing was refused {each.refused[:1]}")
        story.tell(f"{topic}: the longest wait for an acknowledgement {each.longest_gap_ms()} ms")


if __name__ == "__main__":
    sys.exit(perform(rolling_restart))
