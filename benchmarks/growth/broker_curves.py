"""What a broker's work costs by partitions, topics, connections, record sizes, members, history."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Final, TypeAlias

from benchmarks.growth.curve import Curve
from benchmarks.harness import Process, broker
from benchmarks.instructions import BATCH, PRODUCE_VERSION, frame_of
from benchmarks.memory import resident_mib
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.record import TopicPartition

Measure: TypeAlias = Callable[[Path, int], AsyncIterator[Curve]]
"""Measures at one amount, in a directory; yields curves with one point each."""
VALUE: Final = b"v" * 200
MICRO: Final = 1_000_000
PARTITIONS_MAX: Final = 10_000
"""Of one topic."""
RECORDS: Final = 200_000
REQUESTS: Final = 20_000
BYTES: Final = 200_000_000
"""Sent at each record size, and not more records than RECORDS."""
LARGEST: Final = 11_000_000
SPARE_CONNECTIONS: Final = 100
LOOKS: Final = 1_000
FILL_BYTES: Final = 100_000
"""Of one record, where much has to be written."""
GIB: Final = 1 << 30
WATCH_S: Final = 10
DEADLINE_S: Final = 300


def point(curve: Curve, amount: int, cost: float) -> Curve:
    """Return the curve with one point."""
    curve.add(amount, cost)
    return curve


async def partitions(directory: Path, count: int) -> AsyncIterator[Curve]:
    """Records one by one over all partitions, written and read by one client; and memory."""
    by = "partitions"
    with broker(directory, flush="os") as (process, url):
        async with Log.open(url) as log:
            spread = [
                NewTopic(f"t{number}", min(PARTITIONS_MAX, count - number * PARTITIONS_MAX))
                for number in range(-(-count // PARTITIONS_MAX))
            ]
            await log.admin().create_topics(spread)
            where = [TopicPartition(e.name, n) for e in spread for n in range(e.partitions)]
            async with log.producer(linger_ms=5) as producer:
                # Of each partition the first record costs its files.
                await _send_over(producer.send, where, len(where))
                await producer.flush()
                before_s = process.cpu_s()
                await _send_over(producer.send, where, RECORDS)
                await producer.flush()
            cost = (process.cpu_s() - before_s) * MICRO / RECORDS
            title = "a record written, CPU of the broker"
            yield point(Curve("partitions-written", title, by, "us"), count, cost)
            before_s = process.cpu_s()
            async with log.consumer(auto_offset_reset="earliest") as consumer:
                consumer.assign(where)
                await _read(consumer, RECORDS + len(where))
            cost = (process.cpu_s() - before_s) * MICRO / (RECORDS + len(where))
            title = "a record read, CPU of the broker"
            yield point(Curve("partitions-read", title, by, "us"), count, cost)
        mib = resident_mib(process)
        title = "memory of the broker"
        yield point(Curve("partitions-memory", title, by, "MiB", is_total=True), count, mib)


async def _send_over(
    send: Callable[..., object], where: list[TopicPartition], records: int
) -> None:
    for number in range(records):
        topic, partition = where[number % len(where)]
        await send(topic, VALUE, partition=partition)  # type: ignore[misc]


async def _read(consumer: Consumer, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while count > 0:
            count -= sum(map(len, (await consumer.poll(timeout_ms=1_000)).values()))


async def topics(directory: Path, count: int) -> AsyncIterator[Curve]:
    """Topics of one partition: what creating one costs, and naming one in the list of all."""
    with broker(directory, flush="os") as (process, url):
        async with Log.open(url) as log:
            admin = log.admin()
            before_s = process.cpu_s()
            await admin.create_topics([NewTopic(f"t{number}", 1) for number in range(count)])
            cost = (process.cpu_s() - before_s) * MICRO / count
            title = "a topic created, CPU of the broker"
            yield point(Curve("topics-created", title, "topics", "us"), count, cost)
            times = max(1, PARTITIONS_MAX // count)
            before_s = process.cpu_s()
            for _ in range(times):
                await admin.list_topics()
            cost = (process.cpu_s() - before_s) * MICRO / count / times
            title = "a topic listed, CPU of the broker"
            yield point(Curve("topics-listed", title, "topics", "us"), count, cost)


async def connections(directory: Path, count: int) -> AsyncIterator[Curve]:
    """Connections that take turns, a message a request; and memory."""
    # By default, fewer are allowed from one address.
    most = count + SPARE_CONNECTIONS
    settings = {"max.connections": most, "max.connections.per.ip": most}
    with broker(directory, flush="os", settings=settings) as (process, url):
        async with Log.open(url) as log, AsyncExitStack() as stack:
            await log.admin().create_topics([NewTopic("t", 1)])
            host, _, port = url.removeprefix("kafka://").rpartition(":")
            opened = []
            for _ in range(count):
                reader, writer = await asyncio.open_connection(host, int(port))
                stack.callback(writer.close)
                opened.append((reader, writer))
            data = PartitionProduceData(index=0, records=memoryview(BATCH))
            asked = ProduceRequest(
                acks=-1,
                timeout_ms=10_000,
                topic_data=[TopicProduceData(name="t", partition_data=[data])],
            )
            frame = frame_of(asked, PRODUCE_VERSION)
            # Each once, so that what a connection costs once is left out.
            for reader, writer in opened:
                await _exchange(reader, writer, frame)
            before_s = process.cpu_s()
            for number in range(REQUESTS):
                await _exchange(*opened[number % count], frame)
            cost = (process.cpu_s() - before_s) * MICRO / REQUESTS
            title = "a message in a request of its own, CPU of the broker"
            yield point(Curve("connections-written", title, "connections", "us"), count, cost)
            mib = resident_mib(process)
            title = "memory of the broker"
            curve = Curve("connections-memory", title, "connections", "MiB", is_total=True)
            yield point(curve, count, mib)


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes
) -> None:
    writer.write(frame)
    size = int.from_bytes(await reader.readexactly(4), "big")
    await reader.readexactly(size)


async def sizes(directory: Path, size_bytes: int) -> AsyncIterator[Curve]:
    """Records of one size, written and read: what a kilobyte costs."""
    count = max(20, min(RECORDS, BYTES // size_bytes))
    with broker(directory, flush="os") as (process, url):
        async with Log.open(url) as log:
            limits = {"max.message.bytes": str(LARGEST)}
            await log.admin().create_topics([NewTopic("t", 1, configs=limits)])
            value = random.Random(0).randbytes(size_bytes)  # noqa: S311 - no secret
            before_s = process.cpu_s()
            async with log.producer(linger_ms=5) as producer:
                for _ in range(count):
                    await producer.send("t", value)
                await producer.flush()
            written_s = process.cpu_s() - before_s
            before_s = process.cpu_s()
            async with log.consumer(
                auto_offset_reset="earliest", max_partition_fetch_bytes=LARGEST
            ) as consumer:
                consumer.assign([TopicPartition("t", 0)])
                await _read(consumer, count)
            read_s = process.cpu_s() - before_s
    by = "bytes of a record"
    for name, done, cpu_s in (
        ("sizes-written", "written", written_s),
        ("sizes-read", "read", read_s),
    ):
        title = f"a record {done}, CPU of the broker"
        curve = Curve(name, title, by, "us", is_total=True)
        yield point(curve, size_bytes, cpu_s * MICRO / count)


async def members(directory: Path, count: int) -> AsyncIterator[Curve]:
    """A group that all members join at once; then nothing happens but heartbeats."""
    by = "members of a group"
    with broker(directory, flush="os") as (process, url):
        async with Log.open(url) as log, AsyncExitStack() as stack:
            await log.admin().create_topics([NewTopic("t", count)])
            before_s = process.cpu_s()
            joined = [
                await stack.enter_async_context(log.consumer(group_id="g")) for _ in range(count)
            ]
            for each in joined:
                await each.subscribe(["t"])
            has_one = asyncio.Event()

            async def poll(consumer: Consumer) -> None:
                while True:
                    await consumer.poll(timeout_ms=1_000)
                    if all(len(each.assignment()) == 1 for each in joined):
                        has_one.set()

            polling = [asyncio.create_task(poll(each)) for each in joined]
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await has_one.wait()
                cost = (process.cpu_s() - before_s) * 1_000 / count
                title = "a member until each has a partition, CPU of the broker"
                yield point(Curve("members-joined", title, by, "ms"), count, cost)
                before_s, began_s = process.cpu_s(), perf_counter()
                await asyncio.sleep(WATCH_S)
                waited_s = perf_counter() - began_s
                cost = (process.cpu_s() - before_s) * 1_000 / count / waited_s
                title = "a member that waits, CPU of the broker in a second"
                yield point(Curve("members-waiting", title, by, "ms"), count, cost)
            finally:
                for task in polling:
                    task.cancel()
                await asyncio.wait(polling)


async def history(directory: Path, gib: int) -> AsyncIterator[Curve]:
    """Gibibytes kept on disk: the start after kill -9, memory, and looks for a time."""
    by = "GiB on disk"
    try:
        with broker(directory, flush="os") as (process, url):
            await _fill(url, gib)
            process.popen.send_signal(signal.SIGKILL)
            process.popen.wait()
        with broker(directory, flush="os") as (process, url):
            curve = Curve("history-started", "a start after kill -9, CPU of the broker", by, "ms")
            yield point(curve, gib, process.cpu_s() * 1_000)
            cost = await _look(process, url)
            title = "a look for the record of a time, CPU of the broker"
            yield point(Curve("history-looked", title, by, "us"), gib, cost)
            mib = resident_mib(process)
            yield point(Curve("history-memory", "memory of the broker", by, "MiB"), gib, mib)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _fill(url: str, gib: int) -> None:
    value = os.urandom(FILL_BYTES)
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("t", 1)])
        async with log.producer(linger_ms=0) as producer:
            for number in range(gib * GIB // FILL_BYTES):
                await producer.send("t", value, timestamp_ms=1 + number)
            await producer.flush()


async def _look(process: Process, url: str) -> float:
    partition, draw = TopicPartition("t", 0), random.Random(0)  # noqa: S311 - no secret
    async with Log.open(url) as log, log.consumer() as consumer:
        end = (await consumer.end_offsets([partition]))[partition]
        before_s = process.cpu_s()
        for _ in range(LOOKS):
            await consumer.offsets_for_times({partition: draw.randrange(1, end)})
        return (process.cpu_s() - before_s) * MICRO / LOOKS
