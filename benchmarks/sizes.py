"""What a record costs a worker, log to log, where there is ten times as much of something.

The job is J2 of the engine's contest: counts and sums per key and window, a row for every update,
state on disk with a changelog, exactly once. It runs as it is beside one with 10 times the keys,
one with 10 windows open at a time instead of one, and one with 10 partitions instead of one; of
each two, one works while the other is stopped, in turns (`contest`). Every row is compared with the
oracle's. `commits` shows the same of a task alone, where ten times the keys mean ten times the rows
that a commit writes.

What a run costs once is not what a record costs. First and last commits and an idle moment are a
third of the plain job's cost at half a window, and nothing of that grows with the size; memory that
is touched for the first time grows with it, and is kept. So one window of events comes before, in
turns as well, and does not count, and a job gets two more at least. (That makes nothing look
better: 1.28 so, in five runs, and 1.23 where the first window counted, in three.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.engine.contest import Contest, Cost
from benchmarks.engine.events import EVENTS_PER_MS, PLAIN, USERS, WINDOW_MS, Size
from benchmarks.engine.participants import OURS, ours
from benchmarks.harness import Reading, broker
from streamlog.log import Log

TIMES = 10
TIMES_BAR = 1.3
EVENTS_BEFORE = WINDOW_MS * EVENTS_PER_MS
EVENTS_MIN = 2 * EVENTS_BEFORE
SIZES = {
    "keys": Size(users=TIMES * USERS),
    "windows": Size(windows=TIMES),
    "partitions": Size(partitions=TIMES),
}


async def figures(directory: Path, records: int) -> AsyncIterator[Reading]:
    """The plain job beside each of the others, and what that costs in terms of the plain one."""
    with broker(directory / "log", flush="os") as (_, url):
        async with Log.open(url) as log:
            contest = Contest(log, url.removeprefix("kafka://"), directory / "runs")
            await contest.prepare()
            cost = Cost("j2", "built-in", OURS, max(records, EVENTS_MIN), EVENTS_BEFORE)
            for what, size in SIZES.items():
                plain, sized = await contest.run_by_turns(ours("j2"), cost, (PLAIN, size))
                yield Reading("J2, log to log", plain.cpu_ns, "ns", digits=0)
                name = f"J2, log to log, at {TIMES} x the {what}"
                times = sized.cpu_ns / plain.cpu_ns
                yield Reading(name, times, "times", bar=TIMES_BAR, digits=2)
