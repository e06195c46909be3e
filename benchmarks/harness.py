"""What every benchmark shares: a broker process of its own, CPU accounting, a row of figures.

Rates depend on what else the machine does; CPU seconds per million records hardly do.
Both sides of the wire are counted apart, from the kernel's accounting of each process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

from streamlog.metrics.build_info import HOT_MODULES

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STOP_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Figure:
    """One run of one benchmark."""

    name: str
    records: int
    wall_s: float
    client_cpu_s: float
    broker_cpu_s: float
    latency_ms: dict[str, float] = field(default_factory=dict)
    """By percentile, where single records were timed."""
    bar_cpu_s: float | None = None
    """The most CPU seconds that a million records may cost the broker."""
    bar_records_per_s: float | None = None
    """The least rate that it may have."""
    bar_ms: dict[str, float] = field(default_factory=dict)
    """The most that it may take, by percentile."""

    @property
    def records_per_s(self) -> float:
        """Records a second of wall time."""
        return self.records / self.wall_s

    def cpu_s_per_million(self, cpu_s: float) -> float:
        """CPU seconds per million records."""
        return cpu_s * 1_000_000 / self.records


@dataclass(frozen=True, slots=True)
class Reading:
    """One thing that was measured, in its own unit."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    """The most that it may be."""
    least: float | None = None
    """The least that it may be."""
    digits: int = 1
    """Printed behind the point."""


@dataclass(slots=True)
class Process:
    """A child of ours whose CPU time can be read while it runs."""

    popen: subprocess.Popen[str]

    def cpu_s(self) -> float:
        """User and system time so far."""
        return cpu_of(self.popen.pid)

    def most_mib(self) -> float:
        """The most resident memory that it has had, in MiB."""
        return most_mib_of(self.popen.pid)


def cpu_of(pid: int) -> float:
    """User and system CPU seconds of a live process."""
    # Its CPU clock, as clock_getcpuclockid(3) names it on Linux. `/proc` counts in ticks of 10 ms,
    # which are 50 ns a record where 200,000 are measured.
    return time.clock_gettime(~pid << 3 | 2)


def most_mib_of(pid: int) -> float:
    """The most resident memory that a live process has had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def tree_cpu_watch() -> Callable[[], float]:
    """Tells the CPU seconds that this process and all below it have taken since now.

    Those that end meanwhile are left out: Spark ends Python's processes that have long been idle.
    """
    before = _tree_cpu_s()
    return lambda: sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in _tree_cpu_s().items())


def _tree_cpu_s() -> dict[int, float]:
    """User and system CPU seconds of this process and of all below it."""
    found: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        found[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    tree, below = set[int](), {os.getpid()}
    while below:
        tree |= below
        below = {pid for pid, (parent, _) in found.items() if parent in below} - tree
    return {pid: found[pid][1] / TICKS_PER_SECOND for pid in tree if pid in found}


def conditions() -> dict[str, str]:
    """What children run on, as far as it shows in figures: wall times need a machine at rest."""
    interpreted = [
        name
        for name in HOT_MODULES
        if (spec := find_spec(name)) is None or str(spec.origin).endswith(".py")
    ]
    return {
        "event loop": "asyncio" if find_spec("uvloop") is None else "uvloop",
        "hot modules": f"interpreted: {', '.join(interpreted)}" if interpreted else "compiled",
        "load average": f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
    }


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[Process]:
    """`python -m ...` as a child; stopped by SIGTERM at the end.

    Raises:
        RuntimeError: it had to be killed.
    """
    popen = subprocess.Popen(
        [sys.executable, "-u", "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield Process(popen)
    finally:
        popen.terminate()
        try:
            popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
            message = f"{arguments[0]} did not stop within {STOP_TIMEOUT_S} s"
            raise RuntimeError(message) from None


@contextmanager
def broker(
    directory: Path, *, flush: str = "always", settings: Mapping[str, object] | None = None
) -> Iterator[tuple[Process, str]]:
    """A broker process on a free port; yields it with its URL."""
    options = ["--listen", "127.0.0.1:0", "--flush", flush]
    if settings:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory.with_suffix(".properties")
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        options += ["--config", str(file)]
    with running("streamlog", "broker", "--data", str(directory), *options) as process:
        said = []
        for line in process.popen.stdout or ():
            said.append(line)
            if found := re.search(r"127\.0\.0\.1:(\d+)", line):
                # What it says from now on is read, or it would wait for that in the end.
                Thread(target=deque, args=(process.popen.stdout, 0), daemon=True).start()
                yield process, f"kafka://127.0.0.1:{found[1]}"
                return
        message = "the broker did not start:\n" + "".join(said)
        raise RuntimeError(message)


class Stopwatch:
    """Wall time, our CPU time and another process's CPU time since it was made."""

    def __init__(self, client_pid: int, broker_process: Process) -> None:
        self._client_pid = client_pid
        self._broker = broker_process
        self._client_cpu_s = cpu_of(client_pid)
        self._broker_cpu_s = broker_process.cpu_s()
        self._wall_s = time.perf_counter()

    def figure(self, name: str, records: int) -> Figure:
        """What `records` records have cost."""
        return Figure(
            name=name,
            records=records,
            wall_s=time.perf_counter() - self._wall_s,
            client_cpu_s=cpu_of(self._client_pid) - self._client_cpu_s,
            broker_cpu_s=self._broker.cpu_s() - self._broker_cpu_s,
        )
