"""Memory and starts: a broker process with 1,000 partitions, idle, under load, and started again.

Resident memory is the kernel's word about the process (VmRSS), so mapped files count as well. The
load is of several clients at once, librdkafka's and our own, paced so that it fits on any disk;
what it needs at its beginning it may keep, but two minutes of it must not need more and more. The
segments that a start reads are counted in a copy of the directory, by the layer that opens files.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import confluent_kafka

from benchmarks.harness import Process, Reading, broker
from streamlog.broker.storage.disk.os_file import OsFile
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.log.segment import LOG_SUFFIX
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.client.admin import NewTopic
from streamlog.client.producer.sender import RecordMetadata
from streamlog.log import Log

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

TOPICS = [f"load-{number}" for number in range(8)]
PARTITIONS = 12
QUIET, QUIET_PARTITIONS = "quiet", 904
"""A thousand partitions in all, as on most brokers: a tenth of them has all the traffic."""
CONFIGS = {"segment.bytes": "262144", "retention.bytes": "524288"}
"""Small: segments are rolled and deleted all the time, and the warm-up has made all there are."""
BROKER = {"log.retention.check.interval.ms": "5000"}
FOREIGN, OWN = (TOPICS[:3], TOPICS[3:6]), TOPICS[6:]
"""What the two pairs of librdkafka's clients write and read, and what ours do."""
IDLE_S = 5
"""How long a broker has to settle before it is called idle."""
WARM_UP_S = 45
LOAD_S = 120
SAMPLE_S = 1.0
VALUE_BYTES = 200
LINGER_MS = 20
BURST = 500
PAUSE_S = 0.05
"""Between two bursts of a producer: at most 10,000 records a second each."""
FETCHED_MAX = 10_000
IDLE_BAR_MIB = 150
GROWTH_BAR_PERCENT = 20
PROCESSES = multiprocessing.get_context("spawn")
Counter: TypeAlias = "Synchronized[int]"


async def figures(directory: Path, _: int) -> AsyncIterator[Reading]:
    """Idle, under load, and started again: after a stop, and after a kill."""
    data = directory / "data"
    with broker(data) as (process, url):
        await _set_up(url)
        await asyncio.sleep(IDLE_S)
        yield _idle("idle, 1,000 partitions", process)
        async for reading in _under_load(process, url):
            yield reading
    async for reading in _started("after a stop", data, directory / "copy"):
        yield reading
    with broker(data) as (process, url):
        async with _load(url):
            await asyncio.sleep(WARM_UP_S)
            process.popen.kill()
    async for reading in _started("after a kill", data, directory / "copy"):
        yield reading


async def _set_up(url: str) -> None:
    """All topics, and something in each of the quiet partitions."""
    async with Log.open(url) as log, log.admin() as admin, log.producer() as producer:
        await admin.alter_configs(BROKER)
        topics = [NewTopic(name, PARTITIONS, configs=CONFIGS) for name in TOPICS]
        await admin.create_topics([*topics, NewTopic(QUIET, QUIET_PARTITIONS)])
        for partition in range(QUIET_PARTITIONS):
            await producer.send(QUIET, os.urandom(VALUE_BYTES), partition=partition)


def resident_mib(process: Process) -> float:
    """What it holds in memory now."""
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    (kib,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
    return int(kib) / 1024


def _idle(name: str, process: Process) -> Reading:
    return Reading(name, resident_mib(process), "MiB", bar=IDLE_BAR_MIB)


async def _under_load(process: Process, url: str) -> AsyncIterator[Reading]:
    async with _load(url) as counts:
        await asyncio.sleep(WARM_UP_S)
        warm_mib, written, read = resident_mib(process), counts.written.value, counts.read.value
        most_mib, end_s = warm_mib, time.monotonic() + LOAD_S
        while time.monotonic() < end_s:
            await asyncio.sleep(SAMPLE_S)
            most_mib = max(most_mib, resident_mib(process))
        written, read = counts.written.value - written, counts.read.value - read
    yield Reading("load, records written", written / LOAD_S, "a second")
    yield Reading("load, records read", read / LOAD_S, "a second")
    yield Reading("load, memory after the warm-up", warm_mib, "MiB")
    growth_percent = 100 * (most_mib / warm_mib - 1)
    yield Reading("load, growth in two minutes", growth_percent, "%", bar=GROWTH_BAR_PERCENT)


async def _started(how: str, data: Path, copy: Path) -> AsyncIterator[Reading]:
    """What the first start reads, how long it takes, and what it leaves in memory."""
    shutil.copytree(data, copy)
    read, there = await asyncio.to_thread(_segments_read, copy)
    shutil.rmtree(copy)
    began_s = time.monotonic()
    with broker(data) as (process, _):
        yield Reading(f"start {how}", time.monotonic() - began_s, "s")
        yield Reading(f"start {how}, CPU", process.cpu_s(), "s")
        yield Reading(f"start {how}, read of {there:,} segments", read, "segments")
        await asyncio.sleep(IDLE_S)
        yield _idle(f"idle, started {how}", process)


def _segments_read(data: Path) -> tuple[int, int]:
    """Of how many segments a start reads anything, and how many there are."""
    there = sum(1 for _ in data.glob(f"p-*/*{LOG_SUFFIX}"))
    files = _Watching()
    LogDirectory.open(str(data), files=files).close()
    return len(files.read), there


class _Watching(OsFiles):
    """The disk, and which logs were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def open(self, path: str, *, writable: bool = False) -> OsFile:
        file = super().open(path, writable=writable)
        if not path.endswith(LOG_SUFFIX):
            return file
        return cast("OsFile", _Watched(file, path, self.read))


class _Watched:
    """A file that tells when it is read."""

    def __init__(self, file: OsFile, path: str, read: set[str]) -> None:
        self._file = file
        self._path = path
        self._read = read

    def read(self, size_bytes: int, position: int) -> bytes:
        self._read.add(self._path)
        return self._file.read(size_bytes, position)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a file has
        return getattr(self._file, name)


class Counts:
    """Records that were acknowledged, and that were read, by all clients together."""

    def __init__(self) -> None:
        self.written, self.read = PROCESSES.Value("q"), PROCESSES.Value("q")


def _add(count: Counter, more: int) -> None:
    with count.get_lock():
        count.value += more


@asynccontextmanager
async def _load(url: str) -> AsyncIterator[Counts]:
    """Clients at work: two pairs of librdkafka's, each a process, and one of our own."""
    counts, address = Counts(), url.removeprefix("kafka://")
    foreign = [
        PROCESSES.Process(target=work, args=(address, topics, count))
        for topics in FOREIGN
        for work, count in ((_write, counts.written), (_read, counts.read))
    ]
    for process in foreign:
        process.start()
    try:
        async with asyncio.TaskGroup() as group:
            own = [group.create_task(work(url, counts)) for work in (_write_own, _read_own)]
            yield counts
            for task in own:
                task.cancel()
    finally:
        for process in foreign:
            process.kill()  # Closing a consumer whose broker is gone does not end.
            process.join()


async def _write_own(url: str, counts: Counts) -> None:
    value = os.urandom(VALUE_BYTES)

    def on_receipt(receipt: asyncio.Future[RecordMetadata]) -> None:
        if not receipt.cancelled() and receipt.exception() is None:
            _add(counts.written, 1)

    async with Log.open(url) as log, log.producer(linger_ms=LINGER_MS) as producer:
        for topic in cycle(OWN):
            for _ in range(BURST):
                receipt = await producer.send(topic, value)
                receipt.add_done_callback(on_receipt)
            await asyncio.sleep(PAUSE_S)


async def _read_own(url: str, counts: Counts) -> None:
    async with (
        Log.open(url) as log,
        log.consumer(group_id="own", auto_offset_reset="earliest") as consumer,
    ):
        await consumer.subscribe(OWN)
        while True:
            polled = await consumer.poll(timeout_ms=1_000, max_records=FETCHED_MAX)
            _add(counts.read, sum(map(len, polled.values())))


def _write(address: str, topics: list[str], written: Counter) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "linger.ms": LINGER_MS, "log_level": 0}
    )

    def on_delivery(error: object, _: object) -> None:
        _add(written, error is None)

    value = os.urandom(VALUE_BYTES)
    for topic in cycle(topics):
        for _ in range(BURST):
            with suppress(BufferError):  # The broker does not keep up, or is gone.
                producer.produce(topic, value, on_delivery=on_delivery)
        producer.poll(0)
        time.sleep(PAUSE_S)


def _read(address: str, topics: list[str], read: Counter) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": topics[0],
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(topics)
    while True:
        messages = consumer.consume(FETCHED_MAX, PAUSE_S)
        _add(read, sum(message.error() is None for message in messages))
