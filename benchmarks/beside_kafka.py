"""One broker beside Apache Kafka: the rows that `make bench-kafka` compares, by turns.

Both brokers run on this machine for the whole benchmark, with topics of one partition and each with
its own defaults; neither waits for the disk, except for topics with `flush.messages=1`. The JVM is
warmed up with `WARM` records first. Then each round asks ours and Kafka for each row in turn:
A B A B. The clients are librdkafka's performance program and Java's. In the end both brokers must
hold as many records as were sent to them; the CPU time, and the most memory, is that of the broker
alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.harness import Figure, Reading, broker, cpu_of, most_mib_of
from benchmarks.librdkafka import Unavailable as NoProgram
from benchmarks.librdkafka import performance_program
from benchmarks.wire import (
    CONSUME,
    LATENCY_RECORDS,
    PRODUCE,
    SMALL_BATCHES_CPU_S,
    SMALL_FETCHES,
    THROUGH_BAR_MS,
    Work,
    cost,
    through,
)
from conformance.kafka import NEWEST, ApacheKafka, Unavailable, free_ports, java, release
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.replace import replace

RUNS: Final = int(os.environ.get("RUNS", "5"))
WARM: Final = int(os.environ.get("WARM", "10000000"))
SINGLE_SHARE: Final = 10
"""One in so many records is sent by a request of its own."""
JAVA_BYTES: Final = 1_000
JAVA_TIMEOUT_S: Final = 600
HEAP: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""What `kafka-server-start.sh` gives a broker."""
BATCHES_16K: Final = ("-X", "linger.ms=5", "-X", "batch.size=16384")
WORKS: Final = (
    Work("produce, big batches", "big", (*PRODUCE, "-X", "linger.ms=5")),
    Work(
        "produce, 1 message a request",
        "single",
        (*PRODUCE, "-X", "linger.ms=0", "-X", "batch.num.messages=1"),
        share=SINGLE_SHARE,
    ),
)
FETCH: Final = Work("consume, 16 KB fetches, 16 KB batches", "small", (*CONSUME, *SMALL_FETCHES))
FILL: Final = Work("16 KB batches", "small", (*PRODUCE, *BATCHES_16K))
SYNCED_BAR_MS: Final = {"p50": 0.65, "p99": 2.5}
THROUGH: Final = {
    "through": ("through to a consumer", THROUGH_BAR_MS, 200.0),
    "synced": ("through to a consumer, each message synced", SYNCED_BAR_MS, 300.0),
}
"""By topic: what is measured, how long it may take ours, and the CPU seconds of a million."""
JAVA: Final = "Java's producer performance test"
JAVA_TIMES: Final = 1.2
"""How many times Kafka's rate ours should reach with it."""
TOPICS: Final = ("warm", "big", "single", "small", "java", *THROUGH)
_SENT: Final = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)


@dataclass(slots=True)
class Side:
    """One of the two brokers."""

    name: str
    address: str
    pid: int
    sent: Counter[str] = field(default_factory=Counter)
    """How many records each topic has been sent."""

    def cpu_s(self) -> float:
        """User and system time so far."""
        return cpu_of(self.pid)


async def figures(directory: Path, records: int) -> AsyncIterator[Figure | Reading]:
    """Every row of every round, ours and Kafka's by turns; nothing, with a word why, without them.

    Raises:
        RuntimeError: a broker does not hold what it was sent.
    """
    try:
        program = await asyncio.to_thread(performance_program)
        libraries = await asyncio.to_thread(release, NEWEST)
    except (NoProgram, Unavailable) as reason:
        print(f"the benchmark beside Kafka is left out: {reason}")
        return
    with _sides(directory, libraries) as sides:
        for side in sides:
            await _warm_up(program, libraries, side, records)
        times = []
        for _ in range(RUNS):
            async for figure in _round(program, sides, records):
                yield figure
            ours, theirs = [await _java(libraries, side, records // 2) for side in sides]
            yield ours
            yield theirs
            times.append(ours.records_per_s / theirs.records_per_s)
        yield Reading(
            f"{JAVA}, ours in Kafka's", median(times), "times", least=JAVA_TIMES, digits=2
        )
        for side in sides:
            await _check(side)
            name = f"{side.name}: most memory of the broker"
            yield Reading(name, most_mib_of(side.pid), "MiB", digits=0)


@contextmanager
def _sides(directory: Path, libraries: Path) -> Iterator[tuple[Side, Side]]:
    folder = directory / "kafka"
    folder.mkdir()
    with (
        broker(directory / "ours", flush="os") as (process, url),
        ApacheKafka(folder, free_ports(2), libraries=libraries, memory=HEAP) as kafka,
    ):
        ours = Side("ours", url.removeprefix("kafka://"), process.popen.pid)
        yield ours, Side(f"Kafka {NEWEST}", kafka.address, kafka.pid)


async def _warm_up(program: Path, libraries: Path, side: Side, records: int) -> None:
    """Create the topics, and run every path until the JVM has compiled it."""
    async with Log.open(f"kafka://{side.address}") as log:
        configs = {"synced": {"flush.messages": "1"}}
        topics = [NewTopic(name, 1, configs=configs.get(name, {})) for name in TOPICS]
        await log.admin().create_topics(topics)
    await _do(program, side, WORKS[0], WARM, topic="warm")
    await _do(program, side, WORKS[1], WARM // 100, topic="warm")
    await _do(program, side, FILL, records)
    await _do(program, side, FETCH, records)
    for topic in THROUGH:
        await _passed(program, side, topic)
    await _java(libraries, side, max(WARM // 50, 1))


async def _round(program: Path, sides: tuple[Side, Side], records: int) -> AsyncIterator[Figure]:
    for work in (*WORKS, FETCH):
        for side in sides:
            figure = await _do(program, side, work, records // work.share)
            has_bar = work is FETCH and side is sides[0]
            yield replace(figure, bar_cpu_s=SMALL_BATCHES_CPU_S if has_bar else None)
    for topic, (_, bar_ms, bar_cpu_s) in THROUGH.items():
        ours, theirs = [await _passed(program, side, topic) for side in sides]
        yield replace(ours, bar_ms=bar_ms, bar_cpu_s=bar_cpu_s)
        yield replace(theirs, bar_ms={})


async def _do(
    program: Path, side: Side, work: Work, records: int, *, topic: str | None = None
) -> Figure:
    """Run librdkafka's program for one row."""
    at = replace(work, name=f"{work.name}: {side.name}", topic=topic or work.topic)
    figure = await cost(program, side, side.address, at, records)
    if "-P" in work.options:
        side.sent[at.topic] += figure.records
    return figure


async def _passed(program: Path, side: Side, topic: str) -> Figure:
    """Send 1,000 messages a second to a consumer that waits for them."""
    figure = await through(program, side, side.address, topic)
    side.sent[topic] += LATENCY_RECORDS + 1
    return replace(figure, name=f"{THROUGH[topic][0]}: {side.name}")


async def _java(libraries: Path, side: Side, records: int) -> Figure:
    """Let Java's own program send records as fast as it can."""
    command = java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "java", "--num-records", str(records), "--record-size", str(JAVA_BYTES)),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={side.address}"),
        libraries=libraries,
    )
    before_s = side.cpu_s()
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
    )
    found = _SENT.findall(done.stdout)
    if done.returncode or not found or int(found[-1][0]) != records:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}")
    side.sent["java"] += records
    return Figure(
        name=f"{JAVA}: {side.name}",
        records=records,
        wall_s=records / float(found[-1][1]),
        client_cpu_s=0.0,
        broker_cpu_s=side.cpu_s() - before_s,
    )


async def _check(side: Side) -> None:
    """Compare the end of each topic's log with what was sent.

    Raises:
        RuntimeError: they differ.
    """
    partitions = [TopicPartition(topic, 0) for topic in side.sent]
    async with Log.open(f"kafka://{side.address}") as log, log.consumer() as consumer:
        ends = await consumer.end_offsets(partitions)
    held = Counter({partition.topic: end for partition, end in ends.items()})
    if held != side.sent:
        raise RuntimeError(f"{side.name} was sent {side.sent} and holds {held}")
