"""Compaction: how long the broker's loop is held up by it, and who notices.

Once inside this process, where each slice of the cleaner is timed (CPU of the loop's thread and
wall time) while somebody ticks to see how late the loop is, with what compresses well and what
does not, in batches of about 1 MB; then a broker process that compacts while single records are
written, synced and fetched back.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from benchmarks.harness import Figure, Process, Stopwatch, broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.compaction.cleaner import Cleaner
from streamlog.broker.storage.disk.offload import Offload
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.client.admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import encode_batch
from streamlog.records.compression import Compression
from streamlog.replace import replace

RECORD_BYTES = 100
BATCH_RECORDS = 9_000
"""In a batch of nearly 1 MB."""
SMALL_BATCH_RECORDS = 10
KEYS = 50_000
CODECS = (Compression.NONE, Compression.LZ4, Compression.ZSTD, Compression.GZIP)
BAR_CPU_MS = 10.0
BAR_CPU_P99_MS = 4.0
TICK_S = 0.001
"""Between two looks of the one who measures how late the loop is."""
BACKOFF_MS = 100
IDLE_TRIPS = 2_000
PAUSE_S = 0.002
"""Between two round trips."""
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.01",
}

Row = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]


def rows(count: int, chance: random.Random) -> list[Row]:
    """Records of 100 bytes, half of which compress."""
    return [
        (
            1_700_000_000_000 + number,
            b"key-%012d" % chance.randrange(KEYS),
            chance.randbytes(RECORD_BYTES // 2 - 8).hex().encode(),
            (),
        )
        for number in range(count)
    ]


def percentiles(times_ms: list[float], prefix: str = "") -> dict[str, float]:
    """The median, the 99th percentile and the greatest."""
    ordered = sorted(times_ms)
    return {
        f"{prefix}p50": ordered[len(ordered) // 2],
        f"{prefix}p99": ordered[int(len(ordered) * 0.99)],
        f"{prefix}max": ordered[-1],
    }


def fill(directory: LogDirectory, records: int, batch_records: int, codec: Compression) -> None:
    """A topic of that many records in sealed segments."""
    directory.create_topic("t", 1, CONFIG)
    log, chance = directory.log("t", 0), random.Random(1)  # noqa: S311 - the same each time
    for _ in range(records // batch_records):
        log.append(encode_batch(rows(batch_records, chance), codec=codec), now_ms=0)
    log.flush()


async def tick(late_ms: list[float], end: asyncio.Event) -> None:
    """Note how late the loop comes back to one who wants to be called again and again."""
    while not end.is_set():
        begun_s = time.perf_counter()
        await asyncio.sleep(TICK_S)
        late_ms.append((time.perf_counter() - begun_s - TICK_S) * 1000)


async def slices(path: Path, records: int, batch_records: int, codec: Compression) -> Figure:
    """Compact a log once; latencies are those of the slices, CPU and wall, and of ticks."""
    config = replace(BrokerConfig(), log_cleaner_backoff_ms=BACKOFF_MS)
    directory = LogDirectory.open(str(path), config=config, wall_ms=0)
    thread, clock = Offload(), SystemClock()
    try:
        fill(directory, records, batch_records, codec)
        cpu_ms: list[float] = []
        wall_ms: list[float] = []
        job_done = asyncio.Event()
        gc.collect()
        gc.freeze()  # A look at all that this process has imported is no part of a slice.
        cleaner = Cleaner(
            directory,
            clock=clock,
            stable_offset=lambda topic, number: directory.log(topic, number).log_end_offset,
            on_replaced=lambda *_: None,
            thread=thread,
            on_job_done=job_done.set,
        )
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        late_ms: list[float] = []
        end = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(tick(late_ms, end))
            while not directory.log("t", 0).cleaned.read():
                due_ms = cleaner.next_due_ms
                if due_ms is None:
                    await job_done.wait()
                    job_done.clear()
                    continue
                await asyncio.sleep(max(due_ms - clock.now_ms(), 0) / 1000)
                cpu, wall = time.thread_time(), time.perf_counter()
                cleaner.run()
                cpu_ms.append((time.thread_time() - cpu) * 1000)
                wall_ms.append((time.perf_counter() - wall) * 1000)
            end.set()
        cleaner.close()
        return Figure(
            name=f"compaction slices, {batch_records} records a batch, {codec.name.lower()}",
            records=records,
            wall_s=time.perf_counter() - begun_s,
            client_cpu_s=0.0,
            broker_cpu_s=time.process_time() - begun_cpu_s,
            latency_ms={
                **percentiles(cpu_ms, "cpu "),
                **percentiles(wall_ms, "wall "),
                **percentiles(late_ms, "tick "),
            },
            bar_ms={"cpu p99": BAR_CPU_P99_MS, "cpu max": BAR_CPU_MS},
        )
    finally:
        thread.close()
        directory.close()


def is_clean(data: Path) -> bool:
    """Whether a compaction has come to its end."""
    return any(data.glob("p-*/cleaned-offset"))


async def round_trips(log: Log, process: Process, data: Path, *, compacting: bool) -> Figure:
    """Write a record, synced, and fetch it, over and over, while a topic is compacted or not."""
    place = TopicPartition("latency", 0)
    value = os.urandom(RECORD_BYTES)
    times_ms: list[float] = []
    async with (
        log.producer(linger_ms=0) as producer,
        log.consumer(fetch_max_wait_ms=500) as consumer,
    ):
        consumer.assign([place])
        consumer.seek(place, (await consumer.end_offsets([place]))[place])
        watch = Stopwatch(os.getpid(), process)
        while not compacting or not is_clean(data):
            begun_s = time.perf_counter()
            await (await producer.send(place.topic, value, partition=place.partition))
            while not await consumer.poll(timeout_ms=500):
                pass
            times_ms.append((time.perf_counter() - begun_s) * 1000)
            if not compacting and len(times_ms) == IDLE_TRIPS:
                break
            await asyncio.sleep(PAUSE_S)
        figure = watch.figure(
            f"produce and fetch of one record, {'compacting' if compacting else 'idle'}",
            len(times_ms),
        )
        return replace(figure, latency_ms=percentiles(times_ms))


async def dirty(log: Log, records: int) -> None:
    """A topic of that many records, in zstd batches of about 1 MB."""
    chance = random.Random(2)  # noqa: S311 - the same each time
    async with log.producer(compression="zstd", batch_bytes=1_000_000) as producer:
        for _ in range(records // BATCH_RECORDS):
            await producer.send_batch("dirty", 0, rows(BATCH_RECORDS, chance))
        await producer.flush()


async def figures(directory: Path, records: int) -> AsyncIterator[Figure]:
    """Slices of all kinds, then round trips without and with a compaction beside them."""
    for codec in CODECS:
        path = directory / codec.name
        yield await slices(path, records, BATCH_RECORDS, codec)
    for codec in CODECS[:2]:
        path = directory / f"small-{codec.name}"
        yield await slices(path, records, SMALL_BATCH_RECORDS, codec)
    data = directory / "broker"
    with broker(data) as (process, url):
        async with Log.open(url) as log:
            admin = log.admin()
            settings = {"log.cleaner.enable": "false", "log.cleaner.backoff.ms": str(BACKOFF_MS)}
            await admin.alter_configs(settings)
            topics = [NewTopic("latency", 1), NewTopic("dirty", 1, configs=CONFIG)]
            await admin.create_topics(topics)
            await dirty(log, 4 * records)
            yield await round_trips(log, process, data, compacting=False)
            await admin.alter_configs({"log.cleaner.enable": "true"})
            yield await round_trips(log, process, data, compacting=True)
