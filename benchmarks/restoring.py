"""One restoration in a process of its own: `python -m benchmarks.restoring URL PATH END`.

Prints what it took as JSON. `END` is how the store is left behind: "close", "kill", or "snapshot",
which makes one first and then closes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from time import perf_counter, process_time

from benchmarks.state import CHANGELOG
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.tables.local_disk.rocksdb_store import RocksBudget
from streamlog.tables.local_disk.task_directory import TaskDirectory
from streamlog.tables.state.store_transaction import DeferredStore
from streamlog.worker.state.changelog_reader import ChangelogReader
from streamlog.worker.state.restore import Fences

PREFIX = b"\x0busers-table"


def memory_mib(field: str) -> float:
    """Of this process: VmRSS now, VmHWM at most."""
    (kib,) = re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kib) / 1024


async def main(url: str, path: str, end: str) -> None:
    """Restore, print, leave behind."""
    async with Log.open(url) as log:
        idle_mib = memory_mib("VmRSS")
        began_s, began_cpu_s = perf_counter(), process_time()
        directory = TaskDirectory(path)
        budget = RocksBudget()
        store = directory.open(budget)
        front = DeferredStore(store, budget.waiting)
        follower = ChangelogReader(
            log,
            store,
            changelog=CHANGELOG,
            admission=Fences.stored,
            clock=SystemClock(),
            isolation="read_committed",
            front=front,
        )
        async with follower:
            await follower.reach(follower.end)
        took_s, took_cpu_s = perf_counter() - began_s, process_time() - began_cpu_s
        most_mib = memory_mib("VmHWM")
        found = {
            "s": took_s,
            "cpu_s": took_cpu_s,
            "idle_mib": idle_mib,
            "most_mib": most_mib,
            "records": follower.records,
            "keys": sum(1 for _ in front.range(PREFIX, PREFIX + b"\xff")),
        }
        print(json.dumps(found), flush=True)
        if end == "kill":
            os.kill(os.getpid(), 9)
        if end == "snapshot":
            directory.snapshot(store, 0)
        front.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
