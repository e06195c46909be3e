"""A log and a state directory with most of their features, and their later expected contents.

`python -m tests.compatibility.story ARCHIVE` runs the first half of the story with the streamlog
that is imported, and archives the directories. The archives in `samples/` were made by earlier
commits; `test_samples.py` opens them with this commit and runs the second half. Make a new sample
before a change of a format, and with each release.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.json import decode, encode

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.worker import shop
from tests.worker.processes import STREAMLOG, read_whole, running, still

APP = "shop"
ORDERS = 150
"""The number of orders in each half."""
PAUSE_MS = 600_000
"""Between the halves, so that no record of the second is late after the first."""
WORKER = (*STREAMLOG, "-A", "tests.worker.shop", "worker")
LEDGER = ["opened", "a", "b", "c"]
"""The committed records; an aborted transaction lies between them."""
LATEST = {f"k{at}": f"v{180 + at}" for at in range(20)}
COMMITTED = 2
OUTPUTS = ("settled", "totals")


class Abandoned(Exception):
    """Raised to abort a transaction."""


def half(number: int) -> list[shop.Fed]:
    """Return the records of the first (0) or second (1) half."""
    records = shop.history(APP, ORDERS, seed=number)
    if not number:
        return records
    found: list[shop.Fed] = []
    for topic, partition, key, value, at_ms in records:
        if topic.endswith("customers"):
            continue  # Customers do not change.
        fields: dict[str, Any] = decode(value)
        fields |= {"order": f"2-{fields['order']}", "at_ms": fields["at_ms"] + PAUSE_MS}
        own_key = f"2-{key}" if topic.endswith("payments") else key
        found.append((topic, partition, own_key, encode(fields), at_ms + PAUSE_MS))
    return found


async def feed(log: Log, records: list[shop.Fed]) -> None:
    """Send records of a half."""
    async with log.producer() as producer:
        for topic, partition, key, value, at_ms in records:
            chosen = None if partition < 0 else partition
            await producer.send(
                topic, value, key=key.encode(), partition=chosen, timestamp_ms=at_ms
            )
        await producer.flush()


async def write_first_half(log: Log) -> None:
    """Write the first half, with the records that the checks expect."""
    inputs = [f"{APP}-{name}" for name in ("orders", "payments", "customers")]
    marks = await still(log)
    topics = [NewTopic(name, shop.PARTITIONS, configs=marks) for name in inputs]
    topics += [NewTopic(f"{APP}-{name}", 2) for name in OUTPUTS]
    compacted = {"cleanup.policy": "compact", "segment.bytes": "16384"}
    topics += [NewTopic("ledger", 1), NewTopic("latest", 1, configs=compacted)]
    await log.admin().create_topics(topics)
    await feed(log, half(0))
    async with log.producer() as producer:
        await producer.send("ledger", LEDGER[0].encode())
        for at in range(200):
            await producer.send("latest", f"v{at}".encode(), key=f"k{at % 20}".encode())
    async with log.producer(transactional_id="clerk") as producer:
        async with producer.transaction():
            await producer.send("ledger", b"a")
            await producer.send("ledger", b"b")
        with suppress(Abandoned):
            async with producer.transaction():
                await producer.send("ledger", b"never")
                raise Abandoned
        async with producer.transaction():
            await producer.send("ledger", b"c")
    async with log.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("ledger", 0)])
        await consumer.commit({TopicPartition("ledger", 0): COMMITTED})


async def rows_of(log: Log) -> dict[str, list[list[Any]]]:
    """Return all records of the output topics: partition, key, value and time of each."""
    return {
        name: sorted(
            [partition, repr(r.key), repr(r.value), r.timestamp_ms]
            for partition, r in await read_whole(log, f"{APP}-{name}")
        )
        for name in OUTPUTS
    }


def work(directory: Path, settled: int) -> None:
    """Run a worker on the log and state in a directory until this many rows are settled."""
    settings = {"LOG": f"embedded:{directory / 'log'}", "APP": APP, "STATE": "state"}

    async def settle() -> None:
        async with asyncio.timeout(120), Log.open(settings["LOG"]) as log:
            while len((await rows_of(log))["settled"]) < settled:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)

    with running(*WORKER, cwd=directory, **settings) as worker:
        worker.line("rebalance: this worker has")
        asyncio.run(settle())
        if worker.stop():
            raise RuntimeError(f"the worker failed:\n{worker.output}")


def main() -> int:
    """Make an archive of the first half."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        url = f"embedded:{directory / 'log'}"

        async def write() -> None:
            async with Log.open(url) as log:
                await write_first_half(log)

        async def read() -> dict[str, list[list[Any]]]:
            async with Log.open(url) as log:
                return await rows_of(log)

        asyncio.run(write())
        work(directory, settled=int(os.environ.get("SETTLED", "140")))
        rows = json.dumps(asyncio.run(read())).encode()
        with tarfile.open(sys.argv[1], "w:xz") as archive:
            archive.add(directory / "log", "log")
            archive.add(directory / "state", "state")
            entry = tarfile.TarInfo("rows.json")
            entry.size = len(rows)
            archive.addfile(entry, io.BytesIO(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
