"""Real brokers with faulty disks and clocks: no acknowledgement before its sync."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from chaos.broker import BrokerProcess, build_shim
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.record import TopicPartition

PARTITION = TopicPartition("t", 0)
SYNC_MS = 300

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim needs gcc")


@asynccontextmanager
async def broker(directory: Path) -> AsyncIterator[tuple[BrokerProcess, Log]]:
    process = BrokerProcess(directory, build_shim(directory))
    await process.start()
    try:
        async with Log.open(f"kafka://{process.address}") as log:
            await log.admin().create_topics([NewTopic("t", 1)])
            yield process, log
    finally:
        await process.kill()


async def write(log: Log, value: bytes) -> int:
    async with log.producer(linger_ms=0, request_timeout_ms=2_000, delivery_timeout_ms=3_000) as p:
        return (await (await p.send("t", value, partition=0))).offset


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
    return int(kib) * 1_024


async def values(log: Log) -> list[bytes | None]:
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([PARTITION])
        end, found = (await consumer.end_offsets([PARTITION]))[PARTITION], list[bytes | None]()
        while await consumer.position(PARTITION) < end:
            polled = await consumer.poll(timeout_ms=10_000)
            found += [record.value for record in polled.get(PARTITION, [])]
        return found


def test_used_bytes_excludes_memory_that_the_allocator_keeps(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as (process, log):
            idle_bytes = await process.used_bytes()
            await write(log, b"x" * 100_000)
            assert abs(await process.used_bytes() - idle_bytes) < 1_000_000
            assert 1_000_000 < idle_bytes < resident_bytes(process.pid)

    asyncio.run(main())


def test_an_acknowledgement_waits_for_its_sync(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as (process, log), log.producer(linger_ms=0) as producer:
            await (await producer.send("t", b"warm", partition=0))
            process.turn({"sync_ms": SYNC_MS})
            await asyncio.sleep(0.05)  # The shim reads its knobs every 5 ms.
            began_s = monotonic()
            await (await producer.send("t", b"slow", partition=0))
            assert monotonic() - began_s >= SYNC_MS / 1000

    asyncio.run(main())


def test_a_broker_with_a_failed_sync_refuses_writes_and_its_successor_has_all(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker(tmp_path) as (process, log):
            assert await write(log, b"kept") == 0
            process.turn({"sync_eio": 1})
            await asyncio.sleep(0.05)
            with pytest.raises(StreamlogError):
                await write(log, b"refused")
            process.turn({})
            await process.kill()
            await process.start()
            await write(log, b"after")
            found = await values(log)
            assert found[0] == b"kept"
            assert found[-1] == b"after"

    asyncio.run(main())
