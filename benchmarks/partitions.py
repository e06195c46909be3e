"""Many partitions: what it takes to create, fill and read them, and to start again after a kill.

The records go over all partitions in turn, so a batch has a few of them at most: what is measured
is what a partition costs in a request, not what a record does. The start is measured with four
times as many partitions as well. With `--flush os`, as in Kafka.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

from benchmarks.harness import Figure, Process, Reading, Stopwatch, broker
from benchmarks.memory import resident_mib
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.replace import replace

PARTITIONS: Final = int(os.environ.get("STREAMLOG_BENCH_PARTITIONS", "5000"))
MANY: Final = 4 * PARTITIONS
CREATE_BAR_S: Final = 0.3
PRODUCE_BAR_CPU_S: Final = 2.0
CONSUME_BAR_PER_S: Final = 400_000
RESTART_BARS_S: Final = {PARTITIONS: 3.0, MANY: 10.0}
RESTART_BARS_MIB: Final = {MANY: 350.0}
"""By partitions."""
PARTITIONS_MAX: Final = 10_000
"""Of one topic."""
VALUE: Final = b"v" * 100
LINGER_MS: Final = 50
GROUP: Final = "readers"


async def figures(directory: Path, records: int) -> AsyncIterator[Figure | Reading]:
    """The figures of PARTITIONS partitions and `records` records."""
    data = directory / "data"
    with broker(data, flush="os") as (process, url):
        async with Log.open(url) as log:
            where = spread(PARTITIONS)
            before_s, began_s = process.cpu_s(), perf_counter()
            await log.admin().create_topics(where)
            took_s, cpu_s = perf_counter() - began_s, process.cpu_s() - before_s
            name = f"create {PARTITIONS:,} partitions"
            yield Reading(name, took_s, "s", bar=CREATE_BAR_S, digits=3)
            yield Reading(f"{name}: broker CPU", cpu_s, "s", digits=3)
            partitions = all_of(where)
            count = len(partitions)
            yield await produced("first record of each partition", log, process, partitions, count)
            figure = await produced(
                "produce over all partitions", log, process, partitions, records
            )
            yield replace(figure, bar_cpu_s=PRODUCE_BAR_CPU_S)
            figure = await consumed(log, process, where, count + records)
            yield replace(figure, bar_records_per_s=CONSUME_BAR_PER_S)
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
    for reading in started_again(data, PARTITIONS):
        yield reading
    many = directory / "many"
    with broker(many, flush="os") as (process, url):
        async with Log.open(url) as log:
            where = spread(MANY)
            await log.admin().create_topics(where)
            name = f"first record of each of {MANY:,} partitions"
            yield await produced(name, log, process, all_of(where), MANY)
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
    for reading in started_again(many, MANY):
        yield reading


def started_again(data: Path, partitions: int) -> Iterator[Reading]:
    """Start a broker after a kill, with a record in each partition."""
    began_s = perf_counter()
    with broker(data, flush="os") as (process, _):
        name = f"restart after a kill, {partitions:,} filled partitions"
        took_s = perf_counter() - began_s
        yield Reading(name, took_s, "s", bar=RESTART_BARS_S.get(partitions), digits=2)
        yield Reading(f"{name}: broker CPU", process.cpu_s(), "s", digits=2)
        bar_mib = RESTART_BARS_MIB.get(partitions)
        yield Reading(f"{name}: resident", resident_mib(process), "MiB", bar=bar_mib)


def all_of(topics: list[NewTopic]) -> list[TopicPartition]:
    """Return the partitions of these topics."""
    return [TopicPartition(each.name, n) for each in topics for n in range(each.partitions)]


def spread(count: int) -> list[NewTopic]:
    """Return as few topics as can have so many partitions."""
    return [
        NewTopic(f"t{begin // PARTITIONS_MAX}", min(PARTITIONS_MAX, count - begin))
        for begin in range(0, count, PARTITIONS_MAX)
    ]


async def produced(
    name: str, log: Log, process: Process, partitions: list[TopicPartition], records: int
) -> Figure:
    """Return what it takes to write records to the partitions in turn."""
    async with log.producer(linger_ms=LINGER_MS) as producer:
        watch = Stopwatch(os.getpid(), process)
        for number in range(records):
            topic, partition = partitions[number % len(partitions)]
            await producer.send(topic, VALUE, partition=partition)
        await producer.flush()
        return watch.figure(name, records)


async def consumed(log: Log, process: Process, topics: list[NewTopic], records: int) -> Figure:
    """Return what it takes to read them as the only member of a group."""
    watch = Stopwatch(os.getpid(), process)
    async with log.consumer(group_id=GROUP, auto_offset_reset="earliest") as consumer:
        await consumer.subscribe([each.name for each in topics])
        left = records
        while left > 0:
            found = await consumer.poll(timeout_ms=1_000)
            left -= sum(map(len, found.values()))
    return watch.figure("consume all partitions as a group", records)
