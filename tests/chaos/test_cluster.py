"""Three brokers as processes: what an acknowledgement waits for, and a life with many faults."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from chaos.cluster import running
from chaos.writing import create

SYNC_MS = 300
LOOK_S = 0.05
"""The shim reads its knobs every 5 ms."""
TOPIC = "t"

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim needs gcc")


@pytest.mark.parametrize("slow", ["leader", "follower"])
def test_acks_all_waits_for_the_sync_of_a_slow_replica(slow: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as cluster:
            await create(cluster, TOPIC, replicas=3, least=2)
            leader = await cluster.leader(TOPIC)
            followers = [each for each in cluster.brokers.values() if each is not leader]
            async with cluster.log.producer(linger_ms=0) as producer:
                await (await producer.send(TOPIC, b"warm", partition=0))
                (leader if slow == "leader" else followers[0]).turn({"sync_ms": SYNC_MS})
                await asyncio.sleep(LOOK_S)
                began_s = monotonic()
                await (await producer.send(TOPIC, b"slow", partition=0))
                assert monotonic() - began_s >= SYNC_MS / 1000

    asyncio.run(main())


@pytest.mark.timeout(900)
def test_power_cuts_lose_no_acknowledged_record(tmp_path: Path) -> None:
    """All brokers lose power at once, under the load of the simulation: no rule is violated."""
    report = tmp_path / "report.json"
    command = (sys.executable, "-m", "chaos", "power-cut-all", "--count", "2")
    done = subprocess.run(
        [*command, "--report", str(report)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (kind,) = json.loads(report.read_text())["kinds"]
    assert kind["violations"] == []
    assert kind["faults"] == 2
    assert kind["counts"]["acknowledged"] > 0
