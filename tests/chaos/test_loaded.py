"""Brokers of a soak test: one that can't write and read each kind of message does not start."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from chaos.cluster import running
from chaos.writing import create

TOPIC = "t"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim needs gcc")
def test_a_broker_that_checks_its_messages_starts_and_serves(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, brokers=1, module="chaos.loaded") as cluster:
            await create(cluster, TOPIC, replicas=1, least=1)
            async with cluster.log.producer() as producer:
                assert (await (await producer.send(TOPIC, b"1", partition=0))).offset == 0

    asyncio.run(main())
