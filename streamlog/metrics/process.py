"""Process: memory, CPU time and open files of this process, from Linux' /proc.

Names are those of Prometheus' client libraries. Elsewhere than on Linux there are none.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from streamlog.metrics.registry import Kind, Metric, number

PROC = Path("/proc/self")
START_FIELD = 19
"""Field 22 of /proc/self/stat, counted from the one after the name of the program (proc(5))."""


def process_metrics() -> Iterator[Metric]:
    """Yield the metrics of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield number(
        "process_cpu_seconds_total",
        "CPU time of this process, in seconds.",
        used.ru_utime + used.ru_stime,
        kind=Kind.COUNTER,
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield number("process_max_fds", "Most files that may be open.", soft)
    try:
        pages = [int(each) for each in (PROC / "statm").read_text().split()[:2]]
        # The name of the program may contain spaces and parentheses.
        fields = (PROC / "stat").read_text().rpartition(")")[2].split()
        boot_s = int(Path("/proc/stat").read_text().partition("\nbtime ")[2].split()[0])
        open_files = sum(1 for _ in (PROC / "fd").iterdir())
    except OSError:
        return
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    yield number("process_virtual_memory_bytes", "Virtual memory.", pages[0] * page_bytes)
    yield number("process_resident_memory_bytes", "Memory in RAM.", pages[1] * page_bytes)
    ticks = int(fields[START_FIELD])
    yield number(
        "process_start_time_seconds",
        "Start of this process, in seconds since 1970.",
        boot_s + ticks / os.sysconf("SC_CLK_TCK"),
    )
    yield number("process_open_fds", "Open files.", open_files)
