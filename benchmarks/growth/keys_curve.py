"""What a record costs a task by the keys that its state has, up to more than caches hold."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from benchmarks.commits import Bench, Size
from benchmarks.growth.curve import Curve
from streamlog.cli.session import collect_rarely

EVENTS: Final = 200_000
"""At a time, with a commit after them."""
CHECKED_MAX: Final = 1_000_000
"""Rows of more keys are not compared with plain Python's."""


async def keys(directory: Path, count: int) -> AsyncIterator[Curve]:
    """Counts and sums by key and window; each key has been there once before."""
    collect_rarely()
    bench = Bench(directory, Size(keys=count, events=EVENTS))
    rounds = max(1, -(-count // EVENTS))
    for number in range(rounds):
        bench.take(bench.made(number), number)
    arrivals = bench.made(rounds)
    began_s = time.process_time()
    bench.take(arrivals, rounds)
    cost = (time.process_time() - began_s) * 1_000_000 / EVENTS
    if count <= CHECKED_MAX:
        bench.check()
    bench.close()
    title = "a record counted by key and window, with its commit, CPU"
    curve = Curve("keys-counted", title, "keys", "us")
    curve.add(count, cost)
    yield curve
