"""`python -m chaos.failover`: how long writes stand still when a leader, or who decides, is killed.

Three brokers with the session time-outs of the tests (1.5 s), a partition for each, written to with
acks=all. What is measured is the time from the kill to the first acknowledgement of something that
was sent later; for a controller, until every partition has one, be it led by who was killed or not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaos.cluster import TEST_SETTINGS, Cluster, running
from chaos.writing import Writing, create, values, verdict
from simulation.report import conditions

TOPICS: Final = ("a", "b", "c")
WHOLE_S: Final = 60.0
MEDIAN_MS_MAX: Final = 3_000


class Measurement:
    """The kills of one kind, and what they have cost."""

    def __init__(self, cluster: Cluster, writings: dict[str, Writing]) -> None:
        self.times_ms: dict[str, list[int]] = {"leader": [], "controller": []}
        self._cluster = cluster
        self._writings = writings

    async def once(self, which: str) -> None:
        """Kill one, wait until writes go on, start it again, and wait until it is whole.

        Raises:
            RuntimeError: it does not get whole again.
        """
        await self._whole()
        deciding = await self._cluster.controller()
        leaders = {each.topic: each.leader for each in await self._cluster.partitions()}
        led = {topic: leaders[topic] for topic in TOPICS}
        if which == "leader":
            topic = next((t for t, leader in led.items() if leader != deciding), TOPICS[0])
            victim, topics = self._cluster.brokers[led[topic]], [topic]
        elif deciding is None:
            return
        else:
            victim, topics = self._cluster.brokers[deciding], list(TOPICS)
        await victim.kill()
        writings = [self._writings[topic] for topic in topics]
        took = await asyncio.gather(*(each.gets_on(each.now_ms()) for each in writings))
        self.times_ms[which].append(max(took))
        print(f"{which} {victim.node_id}: {max(took)} ms", flush=True)
        await victim.start()

    async def _whole(self) -> None:
        left = await self._cluster.all_in_sync(WHOLE_S)
        if left:
            raise RuntimeError(f"after {WHOLE_S} s: {left}")
        await self._cluster.log.admin().elect_leaders()
        await self._cluster.all_in_sync(WHOLE_S)


async def _measure(directory: Path, times: int) -> tuple[dict[str, list[int]], list[str]]:
    async with running(directory) as cluster:
        writings = {topic: Writing(cluster.log, topic) for topic in TOPICS}
        for topic in TOPICS:
            await create(cluster, topic, replicas=3, least=2)
        measurement = Measurement(cluster, writings)
        async with asyncio.TaskGroup() as tasks:
            for each in writings.values():
                tasks.create_task(each.run())
            for which in measurement.times_ms:
                for _ in range(times):
                    await measurement.once(which)
            for each in writings.values():
                each.stop()
        wrong = []
        for topic, each in writings.items():
            wrong += verdict(each.acknowledged, await values(cluster.log, topic))
            wrong += each.refused
            print(f"{topic}: {len(each.acknowledged)} acknowledged")
    return measurement.times_ms, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, tell, and return 1 if a median is above the bar or a record is lost."""
    parser = argparse.ArgumentParser(prog="chaos.failover", description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--report", type=Path, help="where to write the JSON report")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="streamlog-failover-") as directory:
        times_ms, wrong = asyncio.run(_measure(Path(directory), given.times))
    late = False
    for which, each in times_ms.items():
        median = statistics.median(each)
        late = late or median > MEDIAN_MS_MAX
        high = sorted(each)[math.ceil(0.99 * len(each)) - 1]
        print(f"{which} killed {len(each)} times: median {median:.0f} ms, p99 {high} ms")
    print(*wrong, sep="\n")
    if given.report is not None:
        told = {"settings": dict(TEST_SETTINGS), "times_ms": times_ms, "violations": wrong}
        given.report.write_text(json.dumps({**conditions({}), **told}, indent=2) + "\n")
    return int(bool(wrong) or late)


if __name__ == "__main__":
    sys.exit(main())
