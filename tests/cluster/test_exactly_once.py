"""SIGKILL of workers and of their transaction coordinator: exactly once on three brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.broker.coordinator.led_shards import shard_index
from tests.client.test_exactly_once import WORKERS, is_exactly_once
from tests.cluster.cluster import Cluster

STATE = "__transaction_state"


class Coordinators:
    """Kills the broker that coordinates the first worker's transactions."""

    def __init__(self, cluster: Cluster) -> None:
        self.address = cluster.bootstrap
        self._cluster = cluster

    def kill_and_restart(self) -> None:
        asyncio.run(self._kill_and_restart())

    async def _kill_and_restart(self) -> None:
        cluster = self._cluster
        partitions = await cluster.partitions(STATE)
        number = shard_index(WORKERS[0], len(partitions))
        victim = partitions[STATE, number].leader_id
        cluster.kill(victim)
        cluster.start(victim)
        await cluster.ready()


def test_output_equals_input_exactly_once_on_three_brokers(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        asyncio.run(cluster.ready())
        is_exactly_once(Coordinators(cluster), tmp_path, 0)
