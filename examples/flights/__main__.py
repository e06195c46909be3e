"""Runs the example: a worker with an embedded log, a feed into it, and the check at the end.

This process is the feed and the viewer; the worker, with the log in it, is a child that
`--chaos` kills three times with SIGKILL. The viewer finds the worker's log through its
directory, as any second process does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

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
from streamlog.assignors import TopicPartition
from streamlog.log import Log
from streamlog.record import Record

DIRECTORY = Path(".streamlog/flights")
KILLS_AT = (0.25, 0.5, 0.75)
"""Shares of the final rows after which `--chaos` kills the worker."""
STALLED_S = 60
"""Without a new row for so long the demo gives up and shows what is missing."""
WORKER_START_S = 30

Rows = dict[tuple[str, str], HourlyDelays]


@dataclass
class Run:
    """What the parts of one run share."""

    console: Console
    directory: Path
    expected: list[check.Row]
    limit: int | None
    chaos: bool
    rows: Rows = field(default_factory=dict)
    kills: int = 0
    worker: Process | None = None


async def start_worker(run: Run) -> None:
    """A worker process that owns the embedded log; what it says goes to `worker.log`."""
    with (run.directory / "worker.log").open("ab") as output:
        run.worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "streamlog", "-A", "examples.flights.app", "worker"),
            stdout=output,
            stderr=output,
            # Ctrl-C at the terminal is for this process, which stops its child itself.
            start_new_session=True,
        )


async def stop_worker(run: Run) -> None:
    """Let it commit and leave."""
    if run.worker is not None and run.worker.returncode is None:
        run.worker.send_signal(signal.SIGTERM)
        await run.worker.wait()


async def kill_worker(run: Run) -> None:
    """SIGKILL, and a new worker in its place."""
    if run.worker is not None and run.worker.returncode is None:
        run.worker.kill()
        await run.worker.wait()
    run.kills += 1
    await start_worker(run)


async def feed(run: Run, log: Log, bars: Progress, bar: TaskID) -> None:
    """Names first, then every flight in the order in which it left, then the heartbeat."""
    async with log.producer(linger_ms=20) as producer:
        app.bind(producer)
        for code, airline in data.airlines():
            await airlines.send(airline, key=code)
        for code, airport in data.airports():
            await airports.send(airport, key=code)
        await producer.flush()
        for number, event in enumerate(data.events(run.limit), 1):
            await departures.send(event, key=event.tail)
            if number % 1_000 == 0:
                bars.update(bar, completed=number)
        for partition in range(PARTITIONS):
            await departures.send(data.end_of_feed(), partition=partition)
        await producer.flush()
        bars.update(bar, completed=bars.tasks[bar].total)


def keep(rows: Rows, records: list[Record[str, HourlyDelays]]) -> None:
    """The last row per airport and hour counts."""
    for record in records:
        rows[record.key, record.value.hour.isoformat()] = record.value


async def follow(run: Run, log: Log, bars: Progress, bar: TaskID) -> None:
    """Show rows as they come, kill the worker on the way if told to, end with the last row."""
    partitions = [TopicPartition(hourly_delays.name, n) for n in range(PARTITIONS)]
    newest = perf_counter()
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        while len(run.rows) < len(run.expected) and perf_counter() - newest < STALLED_S:
            for polled in (await consumer.poll(timeout_ms=200)).values():
                keep(run.rows, [hourly_delays.decode(record) for record in polled])
                newest = perf_counter()
            share = len(run.rows) / len(run.expected)
            if run.chaos and run.kills < len(KILLS_AT) and share >= KILLS_AT[run.kills]:
                await kill_worker(run)
                newest = perf_counter()
            note = f"killed {run.kills} x" if run.kills else ""
            bars.update(bar, completed=len(run.rows), note=note)


async def work(run: Run) -> None:
    """Worker, feed and viewer side by side."""
    bars = report.progress_bars()
    flights = len(data.flights()) if run.limit is None else run.limit
    fed = bars.add_task("flights in", total=flights, note="")
    seen = bars.add_task("final rows out", total=len(run.expected), note="")
    view = Live(
        get_renderable=lambda: report.live_view(bars, run.rows),
        console=run.console,
        refresh_per_second=4,
    )
    await start_worker(run)
    try:
        with view:
            async with Log.attach(app.log, timeout_ms=WORKER_START_S * 1_000) as log:
                async with asyncio.TaskGroup() as group:
                    group.create_task(feed(run, log, bars, fed))
                    group.create_task(follow(run, log, bars, seen))
    finally:
        await stop_worker(run)


async def read_again(run: Run) -> tuple[Rows, int, int]:
    """All rows from the log's own files, rows repeated after a kill, and late flights."""
    rows: Rows = {}
    read = 0
    async with Log.open(app.log) as log, log.consumer(auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(hourly_delays.name, n) for n in range(PARTITIONS)]
        late = [TopicPartition(too_late.name, n) for n in range(PARTITIONS)]
        ends = await consumer.end_offsets([*partitions, *late])
        consumer.assign(partitions)
        while read < sum(ends[partition] for partition in partitions):
            for polled in (await consumer.poll(timeout_ms=1_000)).values():
                keep(rows, [hourly_delays.decode(record) for record in polled])
                read += len(polled)
    return rows, read - len(rows), sum(ends[partition] for partition in late)


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
        console.print(f"the worker was killed {run.kills} times; {repeated} rows came out twice")
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
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    console.print(f"reading the flights of 2013; everything is kept in {DIRECTORY}")
    run = Run(
        console=console,
        directory=DIRECTORY,
        expected=check.expected_rows(arguments.limit),
        limit=arguments.limit,
        chaos=arguments.chaos,
    )
    await work(run)
    verdict = conclude(run, *await read_again(run))
    console.print(
        f"took {perf_counter() - started:.0f} s; the worker's words: {DIRECTORY / 'worker.log'}"
    )
    return verdict


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--chaos", action="store_true", help="SIGKILL the worker three times")
    parser.add_argument("--limit", type=int, help="only the first N flights")
    sys.exit(asyncio.run(run_demo(parser.parse_args())))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
