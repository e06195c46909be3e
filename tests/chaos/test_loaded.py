"""Brokers of a soak: they have compiled all messages before, and are what is shipped."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from chaos.cluster import running
from chaos.loaded import load
from chaos.writing import create
from streamlog.protocol.codec import _reader, _writer

TOPIC = "t"


def test_every_message_is_compiled() -> None:
    kinds = load()
    assert _reader.cache_info().currsize >= kinds
    assert _writer.cache_info().currsize >= kinds
    compiled = _reader.cache_info().misses, _writer.cache_info().misses
    load()
    assert (_reader.cache_info().misses, _writer.cache_info().misses) == compiled


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim needs gcc")
def test_such_brokers_serve(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, brokers=1, module="chaos.loaded") as cluster:
            await create(cluster, TOPIC, replicas=1, least=1)
            async with cluster.log.producer() as producer:
                assert (await (await producer.send(TOPIC, b"1", partition=0))).offset == 0

    asyncio.run(main())
