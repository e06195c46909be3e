"""An app at an Apache Kafka whose transactions have no epochs of their own: it can't be cut."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from chaos.app_kills import SmallApp
from chaos.ports import reserved_ports
from chaos.shop import until_whole
from conformance.kafka import ApacheKafka, Unavailable, java
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.cli.operate.app_promotion import plan_promotion
from streamlog.client.admin import MirrorStatus
from streamlog.errors import LogError
from streamlog.log import Log
from tests.broker.mirroring.test_mirrors import serving
from tests.cluster.cluster import AT_LENGTH

WITHIN_S = 60


def use_old_transactions(address: str) -> None:
    """Let a producer keep its epoch from one transaction to the next, as before Kafka 4."""
    tool = ("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", address)
    command = java(*tool, "downgrade", "--feature", "transaction.version=0")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def refused(address: str) -> None:
    app = SmallApp("old")
    async with (
        serving(MemoryFiles()) as (_, near),
        Log.open(f"kafka://{near}") as here,
        asyncio.timeout(WITHIN_S),
    ):
        async with Log.open(f"kafka://{address}") as there:
            await app.create(there)
            await app.work(there, 0, 5)
            settings = {
                "bootstrap.servers": address,
                "apps": app.id,
                "topics": f"{app.out},{app.input.topic}",
                "refresh.topics.interval.ms": "100",
            }
            cluster_id = there.cluster_id
            await here.admin().create_link(app.id, settings, source_cluster_id=cluster_id)
            await until_whole(here, app.id)
            await app.work(there, 5, 5)
        found = await here.admin().describe_mirrors()
        with pytest.raises(LogError, match=r"several transactions .* needs transaction.version 2"):
            await plan_promotion(here.admin(), found.links[0], app.id, found.mirrors)
        statuses = {each.status for each in (await here.admin().describe_mirrors()).mirrors}
        assert statuses <= {MirrorStatus.ACTIVE, MirrorStatus.LAGGING, MirrorStatus.INITIAL}


@AT_LENGTH
def test_an_app_of_an_old_kafka_is_refused_before_anything_changes(tmp_path: Path) -> None:
    try:
        with reserved_ports(2) as ports, ApacheKafka(tmp_path, ports) as kafka:
            use_old_transactions(kafka.address)
            asyncio.run(refused(kafka.address))
    except Unavailable as reason:
        pytest.skip(str(reason))
