"""Three brokers against one, and how soon one is there.

The same records by the same producer, `acks=all`: to one broker, whose records are on one disk, and
to a cluster of three with replication factor 3, where a record counts once all three have it. All
are processes on this machine and share its cores and its disk, so three do three times the work
of one: on machines of their own they would not. Each round asks one after the other; the ratio of
a round is what is held against the bar. Where other programs compete for the cores, three processes
get more of them than one does, so the CPU time of a million records is told as well. A round in
which a replica was not in sync before and after is no figure but an error. Then single records come
at a steady pace: the clock of each runs from when it is due to its acknowledgement, before which
all brokers have synced it. Start-up is from the begin of the process to the acknowledgement of a
first record, its topic being made on the way.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import tempfile
from asyncio import Future
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter
from typing import NamedTuple

from benchmarks.harness import Figure, Reading, broker, cpu_of, running, tree_cpu_watch
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.log import Log

BROKERS = 3
LEAST_SHARE = 1 / 3
START_BAR_MS = 1_000
VALUE_BYTES = 200
CHUNK = 1_000
ROUNDS = 3
STARTS = 3
PARTITIONS = 3
"""As many leaders as brokers."""
SHARE = 5
"""One in so many of the records, per round."""
PACED = "paced"
"""The topic of single records."""
PACED_PER_S = 1_000
PACED_RECORDS = 5_000
PACED_WARM_RECORDS = 1_000
PACED_BARS_MS = {"p50": 2.5, "p99": 7.0}
"""For three brokers on two cores."""
SHARES = {"p50": 0.5, "p99": 0.99}


class Produced(NamedTuple):
    """What producing has come to."""

    rate: float
    """Records a second of wall time."""
    cpu_s: float
    """CPU seconds of all brokers, per million records."""


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """`streamlog dev` with three brokers; yields their URL once all are there."""
    options = ("--brokers", str(BROKERS), "--listen", f"127.0.0.1:{_free_port()}")
    with running("streamlog", "dev", "--data", str(directory), *options) as process:
        said = []
        for line in process.popen.stdout or ():
            said.append(line)
            if found := re.search(r"bootstrap\.servers=(\S+)", line):
                # What they say from now on is read, or they would wait for that in the end.
                Thread(target=deque, args=(process.popen.stdout, 0), daemon=True).start()
                yield f"kafka://{found[1]}"
                return
        message = "the cluster did not start:\n" + "".join(said)
        raise RuntimeError(message)


async def figures(directory: Path, records: int) -> AsyncIterator[Figure | Reading]:
    """Rates first, then single records, then starts."""
    wanted = max(records // SHARE, CHUNK)
    with ExitStack() as stack:
        _, one = stack.enter_context(broker(directory / "one"))
        three = stack.enter_context(cluster(directory / "three"))
        produced: dict[str, list[Produced]] = {one: [], three: []}
        for number in range(ROUNDS):
            for url, brokers in ((one, 1), (three, BROKERS)):
                produced[url].append(await _produced(url, f"round-{number}", brokers, wanted))
        yield await _paced(one, 1, "one broker", {})
        yield await _paced(three, BROKERS, "three, a replica on each", PACED_BARS_MS)
    alone, together = produced[one], produced[three]
    for who, rounds in (("one broker", alone), ("three, a replica on each", together)):
        rate, cpu_s = (median(each) for each in zip(*rounds, strict=True))
        yield Reading(f"produce, acks=all, to {who}", rate, "records/s", digits=0)
        yield Reading(f"produce, acks=all, to {who}: CPU of brokers", cpu_s, "s/M", digits=2)
    share = median(few.rate / many.rate for few, many in zip(together, alone, strict=True))
    name = "the rate of three, in rates of one"
    yield Reading(name, share, "times", least=LEAST_SHARE, digits=2)
    starts_ms = [await _start_ms(directory) for _ in range(STARTS)]
    name = "start of one broker, to its first record"
    yield Reading(name, median(starts_ms), "ms", bar=START_BAR_MS, digits=0)


async def _produced(url: str, topic: str, brokers: int, records: int) -> Produced:
    """That many records, until all are acknowledged.

    Raises:
        RuntimeError: a replica was not in sync.
    """
    chunk = [(1_700_000_000_000 + i, None, os.urandom(VALUE_BYTES), ()) for i in range(CHUNK)]
    async with Log.open(url) as log:
        new = NewTopic(topic, PARTITIONS, replication_factor=brokers)
        await log.admin().create_topics([new])
        async with log.producer(acks="all", linger_ms=5) as producer:
            # Leaders are known, and followers follow.
            for partition in range(PARTITIONS):
                await producer.send_batch(topic, partition, chunk)
            await producer.flush()
            await _check_in_sync(log, topic, brokers)
            cpu_s, own_s, began_s = tree_cpu_watch(), cpu_of(os.getpid()), perf_counter()
            for number in range(records // CHUNK):
                await producer.send_batch(topic, number % PARTITIONS, chunk)
            await producer.flush()
            took_s = perf_counter() - began_s
            brokers_s = cpu_s() - (cpu_of(os.getpid()) - own_s)
            await _check_in_sync(log, topic, brokers)
            return Produced(records / took_s, brokers_s * 1_000_000 / records)


async def _paced(url: str, brokers: int, who: str, bars_ms: dict[str, float]) -> Figure:
    """Single records, each with a request of its own, until all are acknowledged.

    Raises:
        RuntimeError: a replica was not in sync.
    """
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic(PACED, 1, replication_factor=brokers)])
        async with log.producer(acks="all", linger_ms=0) as producer:
            await _send_paced(producer, PACED_WARM_RECORDS)
            await _check_in_sync(log, PACED, brokers)
            cpu_s, own_s, began_s = tree_cpu_watch(), cpu_of(os.getpid()), perf_counter()
            took_ms = sorted(await _send_paced(producer, PACED_RECORDS))
            took_s, client_s = perf_counter() - began_s, cpu_of(os.getpid()) - own_s
            brokers_s = cpu_s() - client_s
            await _check_in_sync(log, PACED, brokers)
    return Figure(
        name=f"acks=all, {PACED_PER_S:,} a second, to {who}",
        records=PACED_RECORDS,
        wall_s=took_s,
        client_cpu_s=client_s,
        broker_cpu_s=brokers_s,
        latency_ms={name: took_ms[int(len(took_ms) * share)] for name, share in SHARES.items()},
        bar_ms=bars_ms,
    )


async def _send_paced(producer: Producer, records: int) -> list[float]:
    """Send at the pace; return how long after it was due each was acknowledged, in ms."""
    value, took_ms, sent = os.urandom(VALUE_BYTES), list[float](), list[Future[RecordMetadata]]()
    began_s = perf_counter()
    for number in range(records):
        due_s = began_s + number / PACED_PER_S
        if (early_s := due_s - perf_counter()) > 0:
            await asyncio.sleep(early_s)
        # From when it was due, or from its hand-over if a timer went off early.
        start_s = min(due_s, perf_counter())
        sent.append(await producer.send(PACED, value))

        def note(_: object, start_s: float = start_s) -> None:
            took_ms.append(1_000 * (perf_counter() - start_s))

        sent[-1].add_done_callback(note)
    await asyncio.gather(*sent)
    return took_ms


async def _check_in_sync(log: Log, topic: str, brokers: int) -> None:
    for each in await log.admin().describe_partitions():
        if each.topic == topic and len(each.in_sync) < brokers:
            raise RuntimeError(f"{topic}-{each.partition}: of {each.replicas} only {each.in_sync}")


async def _start_ms(directory: Path) -> float:
    """From nothing to the first record that is acknowledged."""
    with tempfile.TemporaryDirectory(dir=directory) as data:
        began_s = perf_counter()
        with broker(Path(data)) as (_, url):
            async with Log.open(url) as log:
                await log.admin().create_topics([NewTopic("first", 1)])
                async with log.producer(linger_ms=0) as producer:
                    await producer.send("first", b"record", key=b"key")
                    await producer.flush()
                    return 1_000 * (perf_counter() - began_s)


def _free_port() -> int:
    """The first of as many as there are brokers that nobody listens at."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for number in range(1, BROKERS):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + number))
            except (OSError, OverflowError):
                continue  # Somebody has one of them.
            return port
