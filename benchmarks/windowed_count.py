"""Windowed count: a worker process reads JSON events, counts per key and minute, writes final rows.

This module is both the app that the worker runs (`streamlog -A benchmarks.windowed_count`)
and the benchmark around it. The clock stops when the worker has emitted every window.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.harness import Figure, Stopwatch, broker, running
from streamlog import App, Windowed, agg, tumbling
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition

PARTITIONS = 2
USERS = 1_000
START_MS = 1_700_000_040_000
EVENT_SPACING_MS = 10
MINUTE_MS = 60_000
CHUNK = 1_000


@dataclass
class Event:
    """A purchase; `note` fills it up to about 200 bytes of JSON."""

    user: str
    item: int
    amount: float
    note: str


@dataclass
class Total:
    """What a user bought in one minute."""

    events: int
    amount: float


app = App(
    "windowed-count",
    log=os.environ.get("BENCHMARK_LOG", "embedded:./.streamlog/benchmark"),
    state_dir=os.environ.get("BENCHMARK_STATE", "./.streamlog/benchmark-state"),
)
events = app.topic("events", key=str, value=Event, partitions=PARTITIONS)
totals = app.topic("totals", key=Windowed[str], value=Total, partitions=PARTITIONS)
(
    app.stream(events)
    .group_by_key()
    .windowed(tumbling("1m", grace="10s"))
    .agg(Total, name="per-minute", events=agg.count(), amount=agg.sum(lambda e: e.amount))
    .changes()
    .to(totals)
)


def _chunk(first: int, partition: int) -> list[tuple[int, bytes, bytes, tuple[()]]]:
    records = []
    for number in range(first, first + CHUNK):
        user = f"user-{partition}-{number % USERS}"
        event = Event(user, number % 97, 1.5, "x" * 130)
        when = START_MS + number * EVENT_SPACING_MS
        records.append((when, user.encode(), msgspec.json.encode(event), ()))
    return records


def _windows(per_partition: int) -> int:
    """Rows that must come out: every (user, minute) with an event, in all partitions."""
    rows = {
        (number % USERS, (START_MS + number * EVENT_SPACING_MS) // MINUTE_MS)
        for number in range(per_partition)
    }
    return len(rows) * PARTITIONS


async def figures(directory: Path, records: int) -> AsyncIterator[Figure]:
    """Load the events, start a worker, stop the clock at its last row."""
    per_partition = records // PARTITIONS // CHUNK * CHUNK
    with broker(directory / "log") as (process, url):
        async with Log.open(url) as log:
            names = [NewTopic(events.name, PARTITIONS), NewTopic(totals.name, PARTITIONS)]
            await log.admin().create_topics(names)
            async with log.producer() as producer:
                for partition in range(PARTITIONS):
                    for first in range(0, per_partition, CHUNK):
                        await producer.send_batch(events.name, partition, _chunk(first, partition))
                    # Stream time passes the last window's end and grace.
                    closing = START_MS + per_partition * EVENT_SPACING_MS + 2 * MINUTE_MS
                    value = msgspec.json.encode(Event("nobody", 0, 0.0, ""))
                    await producer.send_batch(
                        events.name, partition, [(closing, b"nobody", value, ())]
                    )
                await producer.flush()
            settings = {"BENCHMARK_LOG": url, "BENCHMARK_STATE": str(directory / "state")}
            command = ("streamlog", "-A", "benchmarks.windowed_count", "worker")
            with running(*command, **settings) as worker:
                watch = Stopwatch(worker.popen.pid, process)
                await _wait_for_rows(log, _windows(per_partition))
                yield watch.figure("windowed count", per_partition * PARTITIONS)


async def _wait_for_rows(log: Log, rows: int) -> None:
    seen: set[tuple[int, bytes | None]] = set()
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(totals.name, number) for number in range(PARTITIONS)])
        while len(seen) < rows:
            polled = await consumer.poll(timeout_ms=1_000)
            for partition, batch in polled.items():
                seen.update((partition.partition, record.key) for record in batch)
