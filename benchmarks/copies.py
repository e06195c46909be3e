"""Copies between brokers: a topic that is filled, and what its copying takes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from time import perf_counter
from typing import Final, NamedTuple

from benchmarks.harness import Process
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition

LOOK_S: Final = 0.02
TIMEOUT_S: Final = 600
CHUNK: Final = 1_000


class Copied(NamedTuple):
    """What a copy took."""

    records_per_s: float
    cpu_s: float
    """CPU seconds of all processes that make the copy, per million records."""
    own_cpu_s: float
    """That of the program that is none of the brokers."""
    most_mib: float
    """The most memory of that program."""


async def fill(url: str, topic: str, records: int) -> None:
    """Create a topic with that many records of 200 bytes."""
    chunk = [(1_700_000_000_000 + i, None, b"%0200d" % i, ()) for i in range(CHUNK)]
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic(topic, 1)])
        async with log.producer(acks="all", linger_ms=5) as producer:
            for _ in range(records // CHUNK):
                await producer.send_batch(topic, 0, chunk)
            await producer.flush()


async def copied(
    url: str,
    topic: str,
    records: int,
    brokers: Collection[Process],
    program: Process | None = None,
) -> Copied:
    """Wait until a topic has all records, and return what their copying took.

    Raises:
        TimeoutError: they don't come.
    """
    processes = [*brokers, *filter(None, [program])]

    def cpu_s() -> float:
        return sum(each.cpu_s() for each in processes)

    def own_s() -> float:
        return 0.0 if program is None else program.cpu_s()

    async with Log.open(url) as log:
        begun = await until_has(log, topic, 1)
        began_s, before_s, own_before_s = perf_counter(), cpu_s(), own_s()
        await until_has(log, topic, records)
        took_s = perf_counter() - began_s
    counted = records - begun
    per_million = 1_000_000 / counted
    return Copied(
        counted / took_s,
        (cpu_s() - before_s) * per_million,
        (own_s() - own_before_s) * per_million,
        0.0 if program is None else program.most_mib(),
    )


async def until_has(log: Log, topic: str, least: int) -> int:
    """Return the end of a topic's partition once it has so many records.

    Raises:
        TimeoutError: they don't come.
    """
    at = TopicPartition(topic, 0)
    async with asyncio.timeout(TIMEOUT_S):
        # Looked for again and again: no broker tells a client what appears.
        while not await log.admin().find_topics([topic]):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        async with log.consumer() as consumer:
            while (end := (await consumer.end_offsets([at]))[at]) < least:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
    return end
