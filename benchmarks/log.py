"""Produce and consume: our client, over TCP, against a broker process of its own.

Records are also sent one by one, by ours and by confluent-kafka in turn, each with its defaults.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import confluent_kafka

from benchmarks.harness import Figure, Process, Stopwatch, broker
from streamlog.client.admin import NewTopic
from streamlog.client.producer.sender import RecordMetadata
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.replace import replace

VALUE_BYTES = 200
TOPIC = "benchmark"
SINGLES = "singles"
PARTITIONS = 2
CHUNK = 1_000
VALUE = os.urandom(VALUE_BYTES)
KEYS = [b"key-%d" % number for number in range(CHUNK)]
BEHIND = 10_000
"""A record's future is awaited after this many further records were sent."""
FLUSH_S = 60
BULK_PER_S = 500_000
FUTURES_PER_S = 300_000
"""The least rates of `send`."""
IN_BULK = "send by send, awaited in bulk"
A_FUTURE_EACH = "send by send, a future each"
PEER_IN_BULK = "confluent-kafka: send by send, awaited in bulk"
PEER_A_CALLBACK_EACH = "confluent-kafka: send by send, a callback each"


async def produce(log: Log, process: Process, records: int) -> Figure:
    """`records` values of 200 bytes in batches, `acks=all`, until all are acknowledged."""
    chunk = [(1_700_000_000_000 + i, None, os.urandom(VALUE_BYTES), ()) for i in range(CHUNK)]
    async with log.producer(linger_ms=5) as producer:
        watch = Stopwatch(os.getpid(), process)
        for number in range(records // CHUNK):
            await producer.send_batch(TOPIC, number % PARTITIONS, chunk)
        await producer.flush()
        return watch.figure("produce, in batches", records)


async def send_in_bulk(log: Log, process: Process, records: int) -> Figure:
    """One `send` a record, partitioned by key; `flush` waits for all of them."""
    async with log.producer() as producer:
        watch = Stopwatch(os.getpid(), process)
        for number in range(records):
            await producer.send(SINGLES, VALUE, key=KEYS[number % CHUNK])
        await producer.flush()
        return replace(watch.figure(IN_BULK, records), bar_records_per_s=BULK_PER_S)


async def send_with_futures(log: Log, process: Process, records: int) -> Figure:
    """One `send` a record, partitioned by key, and each record's future is awaited."""
    waiting: deque[asyncio.Future[RecordMetadata]] = deque()
    async with log.producer() as producer:
        watch = Stopwatch(os.getpid(), process)
        for number in range(records):
            waiting.append(await producer.send(SINGLES, VALUE, key=KEYS[number % CHUNK]))
            if len(waiting) > BEHIND:
                await waiting.popleft()
        while waiting:
            await waiting.popleft()
        return replace(watch.figure(A_FUTURE_EACH, records), bar_records_per_s=FUTURES_PER_S)


def send_by_peer(address: str, process: Process, records: int, *, calls_back: bool) -> Figure:
    """One `produce` a record by confluent-kafka, with a callback each or without.

    Raises:
        RuntimeError: a record was not written.
    """
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "log_level": 0})
    written = 0

    def on_delivery(error: object, _: object) -> None:
        nonlocal written
        written += error is None

    callback = on_delivery if calls_back else None
    watch = Stopwatch(os.getpid(), process)
    for number in range(records):
        key = KEYS[number % CHUNK]
        while True:
            try:
                producer.produce(SINGLES, VALUE, key, on_delivery=callback)
            except BufferError:  # Its queue is full.
                producer.poll(0.01)
            else:
                break
        if number % CHUNK == 0:
            producer.poll(0)
    left = producer.flush(FLUSH_S)
    figure = watch.figure(PEER_A_CALLBACK_EACH if calls_back else PEER_IN_BULK, records)
    if left or (calls_back and written != records):
        raise RuntimeError(f"confluent-kafka wrote {written} of {records} records, {left} wait")
    return figure


async def sends(log: Log, address: str, process: Process, records: int) -> AsyncIterator[Figure]:
    """Send record by record, ours and the peer in turn.

    Raises:
        RuntimeError: the broker does not hold what was sent.
    """
    yield await send_in_bulk(log, process, records)
    yield send_by_peer(address, process, records, calls_back=False)
    yield await send_with_futures(log, process, records)
    yield send_by_peer(address, process, records, calls_back=True)
    partitions = [TopicPartition(SINGLES, number) for number in range(PARTITIONS)]
    async with log.consumer() as consumer:
        held = sum((await consumer.end_offsets(partitions)).values())
    if held != 4 * records:
        raise RuntimeError(f"the broker holds {held} of {4 * records} records")


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
    """Produce in batches, consume it, then send record by record."""
    with broker(directory) as (process, url):
        async with Log.open(url) as log:
            topics = [NewTopic(TOPIC, PARTITIONS), NewTopic(SINGLES, PARTITIONS)]
            await log.admin().create_topics(topics)
            yield await produce(log, process, records)
            yield await consume(log, process, records)
            async for figure in sends(log, url.removeprefix("kafka://"), process, records):
                yield figure
