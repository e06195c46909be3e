"""The engine beside Kafka Streams: what a record costs a worker, both exactly once, by turns.

Jobs as in `benchmarks.engine`, each on one partition of one broker of ours, with a commit every
half second: J1 filters and maps, J2 counts and sums per key and window (a row for every update, or
final rows), J3 joins a stream with a table. A worker of ours and a JVM are there at the same time
and work in turns; the JVM has been given `WARM` events before. Every row of both is compared with
what plain Python counts and joins. The CPU time is that of the whole process: compiler threads and
collections of garbage included.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from benchmarks.engine.contest import Contest, Cost, Participant
from benchmarks.engine.participants import OURS, PEERS, STREAMS, VARIANTS, ours, rows_of
from benchmarks.harness import Reading, broker
from conformance.kafka import NEWEST, Unavailable, fetched
from streamlog.log import Log
from tests.oracle.java import compile_java

RUNS: Final = int(os.environ.get("RUNS", "5"))
WARM: Final = int(os.environ.get("WARM", "10000000"))
RECORDS_MAX: Final = 1_000_000
"""More in a round would take a gigabyte for the rows that are compared."""
PROGRAM: Final = PEERS / "KafkaStreamsJobs.java"
LIBRARY: Final = f"kafka-streams-{NEWEST}"
HEAP: Final = ("-Xms512m", "-Xmx1g")
"""By itself, a JVM takes a quarter of the machine's memory."""
JOBS: Final = ("j1", "j2", "j2-final", "j3")


async def figures(directory: Path, records: int) -> AsyncIterator[Cost | Reading]:
    """Each job's costs, round by round, and the most memory of both."""
    try:
        libraries = await asyncio.to_thread(fetched, LIBRARY, ("kafka-streams-test-utils",), NEWEST)
    except Unavailable as reason:
        print(f"{STREAMS} is left out: {reason}")
        return
    records = min(records, RECORDS_MAX)
    with (
        tempfile.TemporaryDirectory(prefix="streamlog-java-") as classes,
        broker(directory / "log", flush="os") as (_, url),
    ):
        path = compile_java(PROGRAM, Path(classes), libraries)
        command = ("java", *HEAP, "-cp", path, PROGRAM.stem)
        async with Log.open(url) as log:
            contest = Contest(log, url.removeprefix("kafka://"), directory / "runs")
            await contest.prepare()
            for job in JOBS:
                entrants = [
                    (ours(job), Cost(job, VARIANTS[job][0], OURS, records)),
                    (Participant(STREAMS, command, rows_of(job)), Cost(job, "", STREAMS, records)),
                ]
                last: list[Cost] = []
                for last in await contest.run_rounds(entrants, RUNS, WARM):
                    for cost in last:
                        yield cost
                for cost in last:
                    yield Reading(f"{cost.name}: most memory", cost.most_mib, "MiB", digits=0)
