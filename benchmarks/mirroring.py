"""Mirrors beside a consumer of librdkafka and beside MirrorMaker 2, and their lag.

One broker has a topic of one partition with records of 200 bytes. In each run librdkafka's program
reads all of them, a link of ours copies them into a second broker, and MirrorMaker 2 (from Maven)
produces them anew in a third one, by turns; a mirror `--to` a fourth one does what MirrorMaker 2
does. The copies are timed from their first records to their
last, since topics that appear are looked for every few seconds only. The CPU time of a copy is
that of all processes that make it: the brokers of both sides, and the JVM, which has copied another
topic before. Then 1,000 records a second are sent to the source: measured is how long each of them
takes until a consumer has it from the mirror.

`python -m benchmarks --only mirroring --records 2000000` needs no network, if librdkafka's program
was built before; without Java or Maven, MirrorMaker 2 is left out, and that is said.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from time import perf_counter

from benchmarks.copies import TIMEOUT_S, Copied, copied, fill, until_has
from benchmarks.harness import Process, Reading, broker
from benchmarks.librdkafka import Unavailable as NoProgram
from benchmarks.librdkafka import performance_program
from benchmarks.librdkafka import run as run_program
from benchmarks.mirroring_to_kafka import rates
from conformance.kafka import MEMORY, Unavailable, fetched
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.log import Log
from streamlog.record import TopicPartition

VERSION = "4.3.1"
"""The newest MirrorMaker 2 that Maven Central has."""
LOG4J = "2.25.3"
TOPIC = "orders"
WARM = "warm"
LIVE = "live"
VALUE_BYTES = 200
WARM_RECORDS = 200_000
RATE = 1_000
"""Records a second whose lag is measured."""
SECONDS = 20
SETTLING_S = 2
READER_SHARE = 0.8
MIRROR_MAKER_TIMES = 5.0
WORKER_TIMES = 5.0
LAG_MS = 50.0
GIB = 1024**3


async def figures(directory: Path, records: int) -> AsyncIterator[Reading]:
    """The consumer of librdkafka, our mirror, MirrorMaker 2; then the lag of the mirror.

    Args:
        directory: an empty directory for the brokers.
        records: how many records are copied.
    """
    with (
        broker(directory / "source", flush="os") as (source, source_url),
        broker(directory / "target", flush="os") as (target, target_url),
    ):
        await fill(source_url, TOPIC, records)
        await fill(source_url, WARM, WARM_RECORDS)
        async for reading in _rates(directory, (source, source_url), (target, target_url), records):
            yield reading
        lags_ms = await _lags_ms(source_url, target_url)
        for name, percent, bar in (("p50", 50, None), ("p99", 99, LAG_MS)):
            value = quantiles(lags_ms, n=100, method="inclusive")[percent - 1]
            lag = f"lag of a mirror at {RATE:,} records/s, {name}"
            yield Reading(lag, value, "ms", bar=bar, digits=2)


async def _rates(
    directory: Path, source: tuple[Process, str], target: tuple[Process, str], records: int
) -> AsyncIterator[Reading]:
    reader = await _read_all(source[1], records)
    if reader is not None:
        yield Reading("librdkafka's consumer", reader, "records/s", digits=0)
    await _link(source[1], target[1], f"{TOPIC}|{LIVE}")
    processes = [source[0], target[0]]
    ours = await copied(target[1], f"a.{TOPIC}", records, processes)
    yield Reading("mirror", ours.records_per_s, "records/s", digits=0)
    yield Reading("mirror: CPU of both brokers", ours.cpu_s, "s/M", digits=2)
    yield Reading(
        "mirror: CPU of both brokers, a GiB",
        ours.cpu_s * GIB / (1_000_000 * VALUE_BYTES),
        "s",
        digits=2,
    )
    if reader is not None:
        share = ours.records_per_s / reader
        name = "mirror, in rates of librdkafka's consumer"
        yield Reading(name, share, "times", least=READER_SHARE, digits=2)
    to_kafka = await rates(directory, source, (WARM, WARM_RECORDS), (TOPIC, records))
    yield Reading("mirror to Kafka", to_kafka.records_per_s, "records/s", digits=0)
    yield Reading("mirror to Kafka: CPU of all", to_kafka.cpu_s, "s/M", digits=2)
    yield Reading("mirror to Kafka: CPU of the worker", to_kafka.own_cpu_s, "s/M", digits=2)
    try:
        theirs = await _mirror_maker(directory, source, records)
    except Unavailable as reason:
        print(f"MirrorMaker 2 is left out: {reason}")
        return
    yield Reading("MirrorMaker 2", theirs.records_per_s, "records/s", digits=0)
    yield Reading("MirrorMaker 2: CPU of all", theirs.cpu_s, "s/M", digits=2)
    yield Reading("MirrorMaker 2: CPU of the JVM", theirs.own_cpu_s, "s/M", digits=2)
    yield Reading("MirrorMaker 2: memory of the JVM", theirs.most_mib, "MiB", digits=0)
    name = "MirrorMaker 2's CPU, in ours"
    yield Reading(name, theirs.cpu_s / ours.cpu_s, "times", least=MIRROR_MAKER_TIMES, digits=1)
    name = "MirrorMaker 2's own CPU, in that of a worker that mirrors to Kafka"
    yield Reading(
        name, theirs.own_cpu_s / to_kafka.own_cpu_s, "times", least=WORKER_TIMES, digits=1
    )


async def _read_all(url: str, records: int) -> float | None:
    """Return the records a second that librdkafka's program reads; None if there is none."""
    try:
        program = await asyncio.to_thread(performance_program)
    except NoProgram as reason:
        print(f"librdkafka's consumer is left out: {reason}")
        return None
    where = ("-b", url.removeprefix("kafka://"), "-t", TOPIC, "-p", "0")
    options = ("-C", "-o", "beginning", "-q", "-c", str(records))
    done = await asyncio.to_thread(run_program, program, *where, *options)
    return done.records / done.wall_s


async def _link(source_url: str, target_url: str, topics: str) -> None:
    """Let the target mirror topics of the source, with the prefix `a.`."""
    command = [sys.executable, "-m", "streamlog", "mirror", "create", "a", "--source", source_url]
    options = ["--prefix", "a.", "--topics", topics, "--log", target_url]
    await asyncio.to_thread(subprocess.run, [*command, *options], check=True)


# ---- MirrorMaker 2 ----


async def _mirror_maker(directory: Path, source: tuple[Process, str], records: int) -> Copied:
    """Let MirrorMaker 2 copy a first topic, then the one that counts, into a third broker.

    Raises:
        Unavailable: there is no Java, no Maven, or no network.
    """
    path = await asyncio.to_thread(_libraries)
    with (
        broker(directory / "third", flush="os") as (third, third_url),
        _running_mirror_maker(directory, path, (source[1], third_url)) as process,
    ):
        brokers = [source[0], third]
        await copied(third_url, f"a.{WARM}", WARM_RECORDS, brokers, process)
        return await copied(third_url, f"a.{TOPIC}", records, brokers, process)


def _libraries() -> str:
    connect = fetched(f"mirror-{VERSION}", ("connect-mirror",), VERSION)
    logging = fetched(
        f"log4j-{LOG4J}",
        ("log4j-core", "log4j-slf4j-impl"),
        LOG4J,
        group="org.apache.logging.log4j",
    )
    return f"{connect}/*:{logging}/*"


@contextmanager
def _running_mirror_maker(directory: Path, path: str, urls: tuple[str, str]) -> Iterator[Process]:
    source, target = (each.removeprefix("kafka://") for each in urls)
    settings = {
        "clusters": "a, b",
        "a.bootstrap.servers": source,
        "b.bootstrap.servers": target,
        "a->b.enabled": "true",
        "b->a.enabled": "false",
        "a->b.topics": f"{WARM}, {TOPIC}",
        "replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "refresh.topics.interval.seconds": "5",
        "tasks.max": "1",
    }
    file = directory / "mm2.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = ["java", MEMORY, "-cp", path, "org.apache.kafka.connect.mirror.MirrorMaker"]
    with subprocess.Popen(
        [*command, str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        text=True,
    ) as popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


# ---- lag ----


async def _lags_ms(source_url: str, target_url: str) -> list[float]:
    """Return how long records took from the call of `send` to a consumer of the mirror, in ms."""
    at = TopicPartition(f"a.{LIVE}", 0)
    sent_s: list[float] = []
    lags_ms: list[float] = []
    async with Log.open(source_url) as source, Log.open(target_url) as target:
        await source.admin().create_topics([NewTopic(LIVE, 1)])
        async with asyncio.timeout(TIMEOUT_S):
            await until_has(target, at.topic, 0)
        async with source.producer(linger_ms=0) as producer, target.consumer() as consumer:
            consumer.assign([at])
            consumer.seek(at, 0)
            async with asyncio.TaskGroup() as group:
                group.create_task(_send(producer, sent_s))
                while len(lags_ms) < RATE * SECONDS:
                    polled = await consumer.poll(timeout_ms=1_000)
                    now_s = perf_counter()
                    lags_ms += [
                        1_000 * (now_s - sent_s[each.offset]) for each in polled.get(at, ())
                    ]
    return lags_ms[RATE * SETTLING_S :]


async def _send(producer: Producer, sent_s: list[float]) -> None:
    """Send records at their pace, and note when each was due, or sent if that was earlier."""
    began_s = perf_counter()
    for number in range(RATE * SECONDS):
        due_s = began_s + number / RATE
        if (early_s := due_s - perf_counter()) > 0:
            await asyncio.sleep(early_s)
        sent_s.append(min(due_s, perf_counter()))
        await producer.send(LIVE, b"%0200d" % number)
