"""What a cluster of three costs while nobody uses it.

Brokers that wait still talk: followers ask leaders, controllers ask the active one, and every
broker tells that it is alive. None of it may grow with the partitions, of which most are idle most
of the time. The figure is the CPU time of a broker, the mean of the three, in percent of one core.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter

from benchmarks.harness import Reading, cpu_of, tree_cpu_watch
from benchmarks.replicated import BROKERS, cluster
from streamlog.client.admin import NewTopic
from streamlog.log import Log

TOPIC = "idle"
PARTITIONS = (0, 100, 1_000)
"""The partitions of the cluster, each with a replica on every broker."""
BAR_PERCENT = 0.5
SETTLE_S = 5
"""The followers have caught up by then, and what was made is on disk."""
SPAN_S = 30
LOOK_S = 0.5


async def figures(directory: Path, _records: int) -> AsyncIterator[Reading]:
    """A fresh cluster for each number of partitions."""
    for partitions in PARTITIONS:
        with cluster(directory / str(partitions)) as url:
            await _create(url, partitions)
            await asyncio.sleep(SETTLE_S)
            name = f"idle cluster, {partitions:,} partitions: CPU of a broker"
            yield Reading(name, await _percent(), "% of a core", bar=BAR_PERCENT, digits=2)


async def _create(url: str, partitions: int) -> None:
    """Make the topic, and wait until all its replicas are in sync."""
    if not partitions:
        return
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic(TOPIC, partitions, replication_factor=BROKERS)])
        async with log.producer(acks="all", linger_ms=0) as producer:
            await producer.send(TOPIC, b"record", key=b"key")
            await producer.flush()
        while True:
            found = [
                each for each in await log.admin().describe_partitions() if each.topic == TOPIC
            ]
            in_sync = [each for each in found if len(each.in_sync) == BROKERS]
            if len(in_sync) == partitions:
                return
            await asyncio.sleep(LOOK_S)


async def _percent() -> float:
    cpu_s, own_s, began_s = tree_cpu_watch(), cpu_of(os.getpid()), perf_counter()
    await asyncio.sleep(SPAN_S)
    brokers_s = cpu_s() - (cpu_of(os.getpid()) - own_s)
    return 100 * brokers_s / BROKERS / (perf_counter() - began_s)
