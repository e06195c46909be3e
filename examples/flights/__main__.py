"""Runs the example: a worker with an embedded log, a feed into it, and the check at the end.

This process is the feed and the viewer; the worker, with the log in it, is a child that
`--chaos` kills three times with SIGKILL. With `--workers N` the child is a supervisor with the log
in it and N worker processes, and `--chaos` kills one of these. The viewer finds the log through its
directory, as any second process does.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import msgspec
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, TaskID

from examples.flights import check, data, report
from examples.flights.app import (
    PARTITIONS,
    HourlyDelays,
    airlines,
    airports,
    app,
    departures,
    hourly_delays,
    too_late,
)
from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord

DIRECTORY = Path(".streamlog/flights")
KILLS_AT = (0.25, 0.5, 0.75)
"""Shares of the final rows after which `--chaos` kills the worker."""
STALLED_S = 60
"""Without a new row for so long the demo gives up and shows what is missing."""
WORKER_START_S = 60
WATCH_S = 0.1
DRAW_S = 0.25

encode = msgspec.json.encode
"""Values are JSON, as topics of dataclasses are by default."""
decode = msgspec.json.Decoder(HourlyDelays).decode
Rows = dict[tuple[str, str], HourlyDelays]


@dataclass
class Run:
    """What the parts of one run share."""

    console: Console
    directory: Path
    expected: list[check.Row]
    limit: int | None
    chaos: bool
    workers: int
    rows: Rows = field(default_factory=dict)
    kills: int = 0
    worker: Process | None = None
    may_end: bool = False
    """Whether the worker is being ended by us."""


class WorkerEnded(Exception):
    """The worker has ended by itself: its last words are the message."""


async def start_worker(run: Run) -> None:
    """A worker process, or a supervisor of some; what it says goes to `worker.log`."""
    several = ("-w", str(run.workers)) if run.workers > 1 else ()
    with (run.directory / "worker.log").open("ab") as output:
        run.worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "streamlog", "-A", "examples.flights.app", "worker", *several),
            stdout=output,
            stderr=output,
            # Ctrl-C at the terminal is for this process, which stops its child itself.
            start_new_session=True,
        )


async def watch_worker(run: Run) -> None:
    """Ends with an error when the worker ends and nobody has asked it to."""
    while run.worker is not None:
        worker = run.worker
        code = await worker.wait()
        if not run.may_end and worker is run.worker:
            words = (run.directory / "worker.log").read_text().strip().splitlines()[-10:]
            message = "\n".join([f"the worker ended with code {code}; its last words:", *words])
            raise WorkerEnded(message)
        await asyncio.sleep(WATCH_S)


async def stop_worker(run: Run) -> None:
    """Let it commit and leave."""
    run.may_end = True
    if run.worker is not None and run.worker.returncode is None:
        run.worker.send_signal(signal.SIGTERM)
        await run.worker.wait()


async def kill_worker(run: Run) -> None:
    """SIGKILL, and a new worker in its place."""
    if run.workers > 1:
        words = (run.directory / "worker.log").read_text()
        # The last process of each number: the supervisor replaces it.
        running = dict(re.findall(r"worker (\d+) runs as process (\d+)", words))
        run.kills += 1
        os.kill(int(running[str(1 + run.kills % run.workers)]), signal.SIGKILL)
        return
    run.may_end = True
    if run.worker is not None and run.worker.returncode is None:
        run.worker.kill()
        await run.worker.wait()
    run.kills += 1
    await start_worker(run)
    run.may_end = False


async def feed(run: Run, log: Log, bars: Progress, bar: TaskID) -> None:
    """Names first, then every flight in the order in which it left, then the heartbeat."""
    async with log.producer(linger_ms=20) as producer:
        # Tables and streams meet in the order of event time: the names are older than any flight.
        names = [(airlines.name, *row) for row in data.airlines()]
        names += [(airports.name, *row) for row in data.airports()]
        for topic, code, name in names:
            before = data.BEFORE_THE_YEAR_MS
            await producer.send(topic, encode(name), key=code.encode(), timestamp_ms=before)
        await producer.flush()
        for number, event in enumerate(data.events(run.limit), 1):
            await producer.send(departures.name, encode(event), key=event.tail.encode())
            if number % 1_000 == 0:
                bars.update(bar, completed=number)
        for partition in range(PARTITIONS):
            last = encode(data.end_of_feed())
            await producer.send(departures.name, last, partition=partition)
        await producer.flush()
        bars.update(bar, completed=bars.tasks[bar].total)


def keep(rows: Rows, records: list[LogRecord]) -> None:
    """The last row per airport and hour counts."""
    for record in records:
        row = decode(record.value or b"")
        rows[(record.key or b"").decode(), row.hour.isoformat()] = row


async def follow(run: Run, log: Log, bars: Progress, bar: TaskID) -> None:
    """Show rows as they come, kill the worker on the way if told to, end with the last row."""
    partitions = [TopicPartition(hourly_delays.name, n) for n in range(PARTITIONS)]
    newest = perf_counter()
    async with committed(log) as consumer:
        consumer.assign(partitions)
        while len(run.rows) < len(run.expected) and perf_counter() - newest < STALLED_S:
            # In small steps, or a fast worker would be through before it is killed.
            most = max(1, len(run.expected) // 20) if run.chaos else None
            for polled in (await consumer.poll(timeout_ms=200, max_records=most)).values():
                keep(run.rows, polled)
                newest = perf_counter()
            share = len(run.rows) / len(run.expected)
            if run.chaos and run.kills < len(KILLS_AT) and share >= KILLS_AT[run.kills]:
                await kill_worker(run)
                newest = perf_counter()
            note = f"killed {run.kills} x" if run.kills else ""
            bars.update(bar, completed=len(run.rows), note=note)


async def draw(view: Live) -> None:
    """Bring the screen up to date until cancelled."""
    while True:
        view.refresh()
        await asyncio.sleep(DRAW_S)


async def work(run: Run) -> None:
    """Worker, feed and viewer side by side."""
    bars = report.progress_bars()
    flights = len(data.flights()) if run.limit is None else run.limit
    fed = bars.add_task("flights in", total=flights, note="")
    seen = bars.add_task("final rows out", total=len(run.expected), note="")
    # Drawn from this loop, not from a thread of its own: the rows change while it draws.
    view = Live(
        get_renderable=lambda: report.live_view(bars, run.rows),
        console=run.console,
        auto_refresh=False,
    )
    await start_worker(run)
    try:
        with view:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(watch_worker(run)), group.create_task(draw(view))]
                async with Log.attach(app.log, timeout_ms=WORKER_START_S * 1_000) as log:
                    await asyncio.gather(feed(run, log, bars, fed), follow(run, log, bars, seen))
                for task in beside:
                    task.cancel()
    finally:
        await stop_worker(run)


async def read_again() -> tuple[Rows, int, int]:
    """All rows from the log's own files, rows repeated after a kill, and late flights."""
    rows: Rows = {}
    read = late = 0
    reading = Log.open(app.log)
    async with reading as log, committed(log) as consumer:
        partitions = [
            TopicPartition(topic.name, n)
            for topic in (hourly_delays, too_late)
            for n in range(PARTITIONS)
        ]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        # The last thing in a partition is what ends a transaction.
        while any([await consumer.position(part) < ends[part] for part in partitions]):
            for partition, polled in (await consumer.poll(timeout_ms=1_000)).items():
                if partition.topic == too_late.name:
                    late += len(polled)
                    continue
                keep(rows, polled)
                read += len(polled)
    return rows, read - len(rows), late


def committed(log: Log) -> Consumer:
    """Reads what counts."""
    return log.consumer(auto_offset_reset="earliest", isolation_level="read_committed")


def conclude(run: Run, rows: Rows, repeated: int, late: int) -> int:
    """Summary, pictures, verdict; the exit code."""
    console = run.console
    report.summary(console, rows)
    by_hour = check.by_hour_of_day(rows)
    report.draw_terminal(by_hour)
    picture = run.directory / "delays-by-hour.png"
    report.draw_png(by_hour, picture)
    console.print(f"\npicture: {picture}")
    if run.kills:
        killed = "the worker was" if run.workers == 1 else "workers were"
        console.print(f"{killed} killed {run.kills} times; {repeated} rows came out twice")
    console.print(f"late flights set aside: {late}")
    wrong = check.differences(run.expected, check.stream_rows(rows))
    for line in wrong:
        console.print(f"[red]{line}")
    if wrong:
        console.print("[red bold]the rows differ from the data frame's")
        return 1
    console.print(f"[green bold]all {len(rows):,} rows equal the data frame's")
    return 0


async def run_demo(arguments: argparse.Namespace) -> int:
    """The whole demo; the exit code."""
    console = Console()
    started = perf_counter()
    console.print(f"reading the flights of 2013; everything is kept in {DIRECTORY}")
    run = Run(
        console=console,
        directory=DIRECTORY,
        expected=check.expected_rows(arguments.limit),
        limit=arguments.limit,
        chaos=arguments.chaos,
        workers=arguments.workers,
    )
    await work(run)
    verdict = conclude(run, *await read_again())
    console.print(
        f"took {perf_counter() - started:.0f} s; the worker's words: {DIRECTORY / 'worker.log'}"
    )
    return verdict


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--chaos", action="store_true", help="SIGKILL the worker three times")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    parser.add_argument("--limit", type=int, help="only the first N flights")
    arguments = parser.parse_args()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    # What the client has to say of a broker that is killed goes beside the worker's words.
    logging.basicConfig(filename=DIRECTORY / "viewer.log", level=logging.INFO)
    try:
        sys.exit(asyncio.run(run_demo(arguments)))
    except* WorkerEnded as group:
        sys.exit("\n".join(map(str, group.exceptions)))
    except* KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
