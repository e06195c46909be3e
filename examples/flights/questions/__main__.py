"""Asks the questions of a real worker: feed a log, wait for the answers, hold them against frames.

The log is there before the worker, which is a child process and has the whole year to catch up
with; with `--workers N` it is a supervisor with N.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
from asyncio.subprocess import Process
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

from rich.console import Console

from examples.flights.app import PARTITIONS
from examples.flights.questions.answers import TOPICS, Answers
from examples.flights.questions.app import app
from examples.flights.questions.feed import events
from examples.flights.questions.frames import Expected
from streamlog.client.producer.accumulator import Fields
from streamlog.durations import when_ms
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.murmur2 import partition_of_key
from streamlog.worker.topics.app_topics import declare_topics

DIRECTORY = Path(".streamlog/questions")
STALLED_S = 60
"""Without a new row for so long the differences are shown."""
WORKER_START_S = 60
POLL_MS = 500
CHUNK = 1_000
"""Records of a partition that go to the log together."""


@asynccontextmanager
async def working(workers: int) -> AsyncIterator[Process]:
    """The worker, as long as the block lasts."""
    several = ("-w", str(workers)) if workers > 1 else ()
    module = "examples.flights.questions.app"
    with (DIRECTORY / "worker.log").open("wb") as output:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "streamlog", "-A", module, "worker", *several),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield worker
    finally:
        if worker.returncode is None:
            worker.send_signal(signal.SIGTERM)
            await worker.wait()


async def feed(log: Log, limit: int | None) -> int:
    """Everything that happened; how many records that were."""
    fed = 0
    waiting: defaultdict[tuple[str, int], list[Fields]] = defaultdict(list)
    async with log.producer() as producer:
        for event in events(limit):
            fed += 1
            key, value = event.topic.encoded(event.key, event.value)
            partition = event.partition
            if partition is None:
                partition = partition_of_key(key or b"", PARTITIONS)
            place = event.topic.name, partition
            waiting[place].append((when_ms(event.at), key, value, ()))
            if len(waiting[place]) == CHUNK:
                await producer.send_batch(*place, waiting.pop(place))
        for place, rest in waiting.items():
            await producer.send_batch(*place, rest)
        await producer.flush()
    return fed


async def collect(log: Log, worker: Process, expected: Expected) -> tuple[Answers, list[str]]:
    """The answers, and what is wrong with them when nothing more comes."""
    answers = Answers()
    topics = {topic.name: topic for topic in TOPICS}
    parts = [TopicPartition(name, number) for name in topics for number in range(PARTITIONS)]
    newest = perf_counter()
    async with log.consumer(
        auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign(parts)
        while True:
            polled = await consumer.poll(timeout_ms=POLL_MS)
            for part, records in polled.items():
                topic = topics[part.topic]
                for record in records:
                    answers.add(part.topic, topic.decoded(record, part.partition))
            if polled:
                newest = perf_counter()
                continue
            is_over = worker.returncode is not None or perf_counter() - newest > STALLED_S
            if answers.are_fewer(expected) and not is_over:
                continue
            wrong = answers.differences(expected)
            if worker.returncode is not None:
                return answers, [f"the worker ended with code {worker.returncode}", *wrong]
            if not wrong or is_over:
                return answers, wrong


async def run(limit: int | None, workers: int) -> int:
    """The whole run; the exit code."""
    console, started = Console(), perf_counter()
    # Before the worker reads: two days a second would be live to it, and the one topic that is
    # seen a moment later than the other would be days late for what they are joined by.
    async with Log.open(app.log) as log:
        await declare_topics(log, app.topics)
        fed = await feed(log, limit)
    console.print(f"{fed:,} records in the log after {perf_counter() - started:.0f} s")
    attached = Log.attach(app.log, timeout_ms=WORKER_START_S * 1_000)
    async with working(workers) as worker, attached as log:
        expected = await asyncio.to_thread(Expected.of, limit)
        console.print(f"data frames were asked after {perf_counter() - started:.0f} s")
        answers, wrong = await collect(log, worker, expected)
    for line in wrong:
        console.print(f"[red]{line}")
    if wrong:
        console.print(f"[red bold]the answers differ; see {DIRECTORY / 'worker.log'}")
        return 1
    for origin, (_, departures, mean) in sorted(answers.worst_hours.items()):
        console.print(
            f"worst three hours at {origin}: {departures} departures, {mean:.0f} min late"
        )
    for sky, (departures, mean) in sorted(answers.sky_delays.items()):
        console.print(f"{sky:<5}{departures:>9,} departures, {mean:5.1f} min late")
    console.print(
        f"{len(answers.carrier_delays):,} windows of carriers, {len(answers.plane_days):,} days "
        f"of planes, {len(answers.turnarounds):,} turned around"
    )
    took = perf_counter() - started
    console.print(f"[green bold]all answers equal the data frames', after {took:.0f} s")
    return 0


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.questions")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    parser.add_argument("--limit", type=int, help="only the first N flights")
    arguments = parser.parse_args()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    try:
        sys.exit(asyncio.run(run(arguments.limit, arguments.workers)))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
