"""The same question asked of the log as it is: the flights of 2013 as a history, here or in Spark.

No worker runs: the feed writes the year into an embedded log, a job runs the app's topology over
it, and its staged rows are held against the data frame, as those of the live demo are.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import shutil
import sys
from pathlib import Path
from time import perf_counter
from typing import Literal

import msgspec
from rich.console import Console

from examples.flights import check, data
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
from streamlog import Snapshot
from streamlog.history.comparison import staged_rows
from streamlog.log import Log
from streamlog.worker.topics.app_topics import declare_topics

DIRECTORY = Path(".streamlog/flights-history")
encode = msgspec.json.encode
decode = msgspec.json.Decoder(HourlyDelays).decode
Engine = Literal["local", "spark"]


async def feed(url: str, limit: int | None) -> int:
    """The names, every flight in the order in which it left, and the heartbeat; how many."""
    count = 0
    async with Log.open(url) as log, log.producer(linger_ms=20) as producer:
        await declare_topics(log, app.topics)
        names = [(airlines.name, *row) for row in data.airlines()]
        names += [(airports.name, *row) for row in data.airports()]
        for topic, code, name in names:
            before = data.BEFORE_THE_YEAR_MS
            await producer.send(topic, encode(name), key=code.encode(), timestamp_ms=before)
        for event in data.events(limit):
            await producer.send(departures.name, encode(event), key=event.tail.encode())
            count += 1
        for partition in range(PARTITIONS):
            last = encode(data.end_of_feed())
            await producer.send(departures.name, last, partition=partition)
        await producer.flush()
    return count


def rows_of(snapshot: Snapshot) -> dict[tuple[str, str], HourlyDelays]:
    """What was staged, by airport and hour."""
    rows: dict[tuple[str, str], HourlyDelays] = {}
    for partition in range(PARTITIONS):
        for record in staged_rows(snapshot, hourly_delays.name, partition):
            row = decode(record.value or b"")
            rows[(record.key or b"").decode(), row.hour.isoformat()] = row
    return rows


def run(engine: Engine, limit: int | None, directory: Path, console: Console) -> int:
    """The whole of it; the exit code."""
    app.log, app.state_dir = f"embedded:{directory / 'log'}", str(directory / "state")
    started = perf_counter()
    flights = asyncio.run(feed(app.log, limit))
    console.print(f"{flights:,} flights are in the log after {perf_counter() - started:.0f} s")
    job = app.backfill(engine=engine, until="2100-01-01", outputs="stage", job_id="flights")
    console.print(job.explain(), highlight=False, markup=False)
    started = perf_counter()
    snapshot = job.run()
    took_s = perf_counter() - started
    rate = flights / took_s
    console.print(f"{engine}: the history took {took_s:.1f} s, {rate:,.0f} flights a second")
    rows = rows_of(snapshot)
    console.print(f"late flights set aside: {job.rows.get(too_late.name, 0)}; {snapshot}")
    wrong = check.differences(check.expected_rows(limit), check.stream_rows(rows))
    for line in wrong:
        console.print(f"[red]{line}")
    if wrong:
        console.print("[red bold]the rows differ from the data frame's")
        return 1
    console.print(f"[green bold]all {len(rows):,} rows equal the data frame's")
    return 0


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights.history", description=__doc__)
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    parser.add_argument("--limit", type=int, help="only the first N flights")
    arguments = parser.parse_args()
    if arguments.engine == "spark" and importlib.util.find_spec("pyspark") is None:
        sys.exit("Spark is not installed: pip install 'streamlog-py[spark]'")
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    sys.exit(run(arguments.engine, arguments.limit, DIRECTORY, Console()))


if __name__ == "__main__":
    main()
