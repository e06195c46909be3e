"""Produce and consume: our client, over TCP, against a broker process of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.harness import Figure, Process, Stopwatch, broker
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition

VALUE_BYTES = 200
TOPIC = "benchmark"
PARTITIONS = 2
CHUNK = 1_000


async def produce(log: Log, process: Process, records: int) -> Figure:
    """`records` values of 200 bytes in batches, `acks=all`, until all are acknowledged."""
    chunk = [(1_700_000_000_000 + i, None, os.urandom(VALUE_BYTES), ()) for i in range(CHUNK)]
    async with log.producer(linger_ms=5) as producer:
        watch = Stopwatch(os.getpid(), process)
        for number in range(records // CHUNK):
            await producer.send_batch(TOPIC, number % PARTITIONS, chunk)
        await producer.flush()
        return watch.figure("produce, in batches", records)


async def produce_singly(log: Log, process: Process, records: int) -> Figure:
    """One `send` a record, partitioned by key."""
    value = os.urandom(VALUE_BYTES)
    keys = [b"key-%d" % i for i in range(1_000)]
    async with log.producer(linger_ms=5) as producer:
        watch = Stopwatch(os.getpid(), process)
        for number in range(records):
            await producer.send(TOPIC, value, key=keys[number % 1_000])
        await producer.flush()
        return watch.figure("produce, send by send", records)


async def consume(log: Log, process: Process, records: int) -> Figure:
    """The same records back, decoded, checksums checked."""
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        watch = Stopwatch(os.getpid(), process)
        seen = 0
        while seen < records:
            polled = await consumer.poll(timeout_ms=1_000)
            seen += sum(len(batch) for batch in polled.values())
        return watch.figure("consume", seen)


async def figures(directory: Path, records: int) -> AsyncIterator[Figure]:
    """Produce in batches, consume it, then produce send by send (a fifth as many)."""
    with broker(directory) as (process, url):
        async with Log.open(url) as log:
            await log.admin().create_topics([NewTopic(TOPIC, PARTITIONS)])
            yield await produce(log, process, records)
            yield await consume(log, process, records)
            yield await produce_singly(log, process, records // 5)
