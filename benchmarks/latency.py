"""How long a record takes from log to log through a task: 1,000 events a second, a row for each.

The job is J2 of the engine's, on state with a changelog, with a commit every 100 ms. The clock of
an event starts when it is due to be sent, whether the sender keeps up or not, and stops when a
`read_committed` consumer hands out its row. Exactly once, that is when the transaction of a commit
has ended; at least once a row is written as soon as it is made. Sender and reader share a process;
the broker leaves flushing to the operating system. Every row is compared with plain Python's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from benchmarks.engine import events
from benchmarks.engine.events import START_MS, Loaded, Row
from benchmarks.engine.participants import ours
from benchmarks.harness import Figure, Process, Stopwatch, broker, running
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.replace import replace

JOB = "j2"
EVENTS_PER_S = 1_000
SECONDS = 20
COMMIT_MS = 100
BARS_MS = {
    "exactly_once": {"p50": 120.0, "p99": 250.0},
    "at_least_once": {"p99": 20.0},
}
"""By guarantee."""
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
WARM_UP_EVERY_S = 0.5
SETTLING_EVENTS = 500
"""At full pace, in windows of their own, before those that count."""
STALL_TIMEOUT_S = 60


@dataclass(slots=True)
class Readings:
    """What a reader was given, and when."""

    rows: list[Row] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    warm: int = 0
    """Rows of warming up."""
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, *, rows: int = 0, warm: int = 0) -> None:
        """Until there are so many.

        Raises:
            TimeoutError: nothing came for a minute.
        """
        while len(self.rows) < rows or self.warm < warm:
            self.came.clear()
            async with asyncio.timeout(STALL_TIMEOUT_S):
                await self.came.wait()


async def figures(directory: Path, _: int) -> AsyncIterator[Figure]:
    """Exactly once, then at least once, each with topics and a worker of its own."""
    with broker(directory / "log", flush="os") as (process, url):
        async with Log.open(url) as log:
            for guarantee in BARS_MS:
                yield await _measured(log, url, process, guarantee, directory / guarantee)


async def _measured(
    log: Log, url: str, process: Process, guarantee: str, directory: Path
) -> Figure:
    entry, output = (TopicPartition(f"{name}-{guarantee}", 0) for name in ("events", "output"))
    await log.admin().create_topics([NewTopic(each.topic, 1) for each in (entry, output)])
    settings = {
        "ENGINE_BROKER": url.removeprefix("kafka://"),
        "ENGINE_ID": f"latency-{guarantee}",
        "ENGINE_JOB": f"{JOB} built-in",
        "ENGINE_INPUT": entry.topic,
        "ENGINE_OUTPUT": output.topic,
        "ENGINE_STATE": str(directory),
        "ENGINE_COMMIT_MS": str(COMMIT_MS),
        "ENGINE_GUARANTEE": guarantee,
    }
    readings = Readings()
    with running("streamlog", "-A", "benchmarks.engine.jobs", "worker", **settings) as worker:
        reading = asyncio.create_task(_read(log, output, readings))
        try:
            async with log.producer(linger_ms=0) as producer:
                await _warm_up(producer, entry, readings)
                watch = Stopwatch(worker.popen.pid, process)
                loaded = [events.event(number) for number in range(EVENTS_PER_S * SECONDS)]
                starts_s = await _send(producer, entry, loaded)
                await readings.wait(rows=len(loaded))
                name = f"log to log, {guarantee.replace('_', ' ')}, commit {COMMIT_MS} ms"
                figure = watch.figure(name, len(loaded))
        finally:
            reading.cancel()
            await asyncio.wait([reading])
    latencies_ms = _latencies_ms(readings, starts_s)
    return replace(figure, latency_ms=latencies_ms, bar_ms=BARS_MS[guarantee])


async def _read(log: Log, output: TopicPartition, readings: Readings) -> None:
    """Note all rows, until cancelled."""
    row = ours(JOB).row
    async with log.consumer(
        auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([output])
        while True:
            polled = await consumer.poll(timeout_ms=1_000)
            now_s = perf_counter()
            for found in map(row, polled.get(output, ())):
                if isinstance(found[1], int) and found[1] < START_MS:
                    readings.warm += 1
                else:
                    readings.rows.append(found)
                    readings.read_s.append(now_s)
            readings.came.set()


async def _warm_up(producer: Producer, entry: TopicPartition, readings: Readings) -> None:
    """Single events until rows come out, then some at full pace."""
    began_s = perf_counter()
    sent = 0
    while not readings.warm:
        if perf_counter() - began_s > STALL_TIMEOUT_S:
            raise TimeoutError("the worker gave no row")
        await _send(producer, entry, [events.warm_up_event(sent)])
        sent += 1
        await asyncio.sleep(WARM_UP_EVERY_S)
    settling = [events.warm_up_event(sent + number) for number in range(SETTLING_EVENTS)]
    await _send(producer, entry, settling)
    await readings.wait(warm=sent + SETTLING_EVENTS)


async def _send(producer: Producer, entry: TopicPartition, loaded: list[Loaded]) -> list[float]:
    """One by one, at their pace; returns when each was due, or sent if that was earlier."""
    began_s = perf_counter()
    starts_s = []
    for number, (when, key, value, _) in enumerate(loaded):
        due_s = began_s + number / EVENTS_PER_S
        if (early_s := due_s - perf_counter()) > 0:
            await asyncio.sleep(early_s)
        starts_s.append(min(due_s, perf_counter()))
        topic, partition = entry
        await producer.send(topic, value, key=key, timestamp_ms=when, partition=partition)
    await producer.flush()
    return starts_s


def _latencies_ms(readings: Readings, starts_s: list[float]) -> dict[str, float]:
    """By percentile.

    Raises:
        AssertionError: a row is wrong, missing, or there twice.
    """
    expected = events.updates(range(len(starts_s)))
    if Counter(readings.rows) != Counter(expected):
        raise AssertionError("the rows are not those that plain Python counts and sums")
    start_s = dict(zip(expected, starts_s, strict=True))
    waits = zip(readings.rows, readings.read_s, strict=True)
    took_ms = sorted(1_000 * (read_s - start_s[row]) for row, read_s in waits)
    return {name: took_ms[int(len(took_ms) * share)] for name, share in SHARES.items()}
