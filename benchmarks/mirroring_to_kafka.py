"""A mirror by MirrorMaker's conventions beside MirrorMaker 2: its rate, CPU and memory.

`mirror create --to` runs in a worker of a Connect service. It copies a first topic, then the one
that counts, as MirrorMaker 2 does in `benchmarks.mirroring`. Both are measured by what the program
itself takes, and by what all processes take; the brokers of both sides are ours, as what they cost
depends on what is asked of them. Then a worker mirrors 1,000 topics, and one mirrors records of
1 MB: measured is the most memory that it has had.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

from benchmarks.copies import Copied, copied, until_has
from benchmarks.harness import Process, Reading, broker, running
from streamlog.client.admin import NewTopic
from streamlog.log import Log

MIRROR: Final = "a"
TOPICS: Final = 1_000
TOPICS_AT_ONCE: Final = 50
LARGE: Final = 200
"""Records of `LARGE_BYTES`."""
LARGE_BYTES: Final = 1_000_000
GROWTH_MIB: Final = 96.0
"""What a worker may grow by with one partition of such records: four flushes of 8 MiB, and 64 MiB
for everything else."""
MIB: Final = 1024 * 1024


async def rates(
    directory: Path, source: tuple[Process, str], warm: tuple[str, int], counted: tuple[str, int]
) -> Copied:
    """Let our mirror copy a first topic, then the one that counts, into a broker of its own."""
    (directory / "to").mkdir()
    with (
        broker(directory / "to" / "data", flush="os") as (target, target_url),
        _worker(source[1]) as (worker, service),
    ):
        await _create(source[1], target_url, service, f"{warm[0]}|{counted[0]}")
        processes = [source[0], target]
        await copied(target_url, f"{MIRROR}.{warm[0]}", warm[1], processes, worker)
        return await copied(target_url, f"{MIRROR}.{counted[0]}", counted[1], processes, worker)


async def memory(directory: Path, _records: int) -> AsyncIterator[Reading]:
    """Yield what workers have needed at most; how many records there are does not count here."""
    (directory / "topics").mkdir()
    many = await _of_many_topics(directory / "topics")
    for name, mib in zip(("idle", f"of {TOPICS:,} topics"), many, strict=True):
        yield Reading(f"mirror to Kafka: memory of the worker, {name}", mib, "MiB", digits=0)
    (directory / "large").mkdir()
    grown = await _of_large_records(directory / "large")
    name = "mirror to Kafka: growth of the worker by records of 1 MB"
    yield Reading(name, grown, "MiB", bar=GROWTH_MIB, digits=0)


async def _of_many_topics(directory: Path) -> tuple[float, float]:
    """Return a worker's memory without a mirror, and its most with one of many topics."""
    names = [f"t{number:04}" for number in range(TOPICS)]
    with (
        broker(directory / "source", flush="os") as (_, source_url),
        broker(directory / "target", flush="os") as (_, target_url),
    ):
        async with Log.open(source_url) as log:
            for some in range(0, TOPICS, TOPICS_AT_ONCE):
                created = names[some : some + TOPICS_AT_ONCE]
                await log.admin().create_topics([NewTopic(name, 1) for name in created])
            async with log.producer() as producer:
                for name in names:
                    await producer.send_batch(name, 0, [(1, None, b"%0200d" % 1, ())] * 100)
        with _worker(source_url) as (worker, service):
            idle_mib = worker.most_mib()
            await _create(source_url, target_url, service, "t.*")
            async with Log.open(target_url) as log:
                for name in names:
                    await until_has(log, f"{MIRROR}.{name}", 100)
            return idle_mib, worker.most_mib()


async def _of_large_records(directory: Path) -> float:
    """Return how much a worker's memory grows by large records."""
    large = {"max.message.bytes": str(2 * LARGE_BYTES)}
    with (
        broker(directory / "source", flush="os") as (_, source_url),
        broker(directory / "target", flush="os") as (_, target_url),
        _worker(source_url) as (worker, service),
    ):
        async with Log.open(source_url) as log:
            await log.admin().create_topics([NewTopic("large", 1, configs=large)])
            async with log.producer() as producer, Log.open(target_url) as there:
                await producer.send_batch("large", 0, [(1, None, b"x", ())])
                await producer.flush()
                await _create(source_url, target_url, service, "large")
                await until_has(there, f"{MIRROR}.large", 1)
                before_mib = worker.most_mib()
                for _ in range(LARGE):
                    await producer.send_batch("large", 0, [(1, None, bytes(LARGE_BYTES), ())])
                await producer.flush()
                await until_has(there, f"{MIRROR}.large", LARGE + 1)
        return worker.most_mib() - before_mib


@contextmanager
def _worker(log: str) -> Iterator[tuple[Process, str]]:
    """A worker of a Connect service, with its URL."""
    options = ("--rest", "127.0.0.1:0", "--log", log)
    with running("streamlog", "connect", *options) as process:
        said = []
        for line in process.popen.stdout or ():
            said.append(line)
            if found := re.search(r"REST API at (http://\S+)", line):
                Thread(target=deque, args=(process.popen.stdout, 0), daemon=True).start()
                yield process, found[1]
                return
        raise RuntimeError("the worker did not start:\n" + "".join(said))


async def _create(source: str, target: str, service: str, topics: str) -> None:
    command = [sys.executable, "-m", "streamlog", "mirror", "create", MIRROR, "--to", target]
    options = ["--topics", topics, "--connect", service, "--log", source]
    await asyncio.to_thread(subprocess.run, [*command, *options], check=True)
