"""Memory of a worker's connectors where something is far larger, or far slower, than they are.

`python -m benchmarks.connect_memory [ROW ...]`: a file, one transaction of PostgreSQL, a log that
takes nothing for a while, and a target that does not keep up, each with `--bytes` (1 GiB). The
worker is let idle first; then the kernel's high-water mark of its resident memory (VmHWM) is set
back, and read again when everything has arrived. What it grew by may be what the connector is
allowed to hold (`docs/connectors.md`), and 64 MiB for everything else.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psycopg

from benchmarks.connect.apps import WARM_UP
from benchmarks.connect.lab import Lab, LabWorker
from benchmarks.connect.orders import RECORD_BYTES, TABLE, encoded
from benchmarks.harness import Process, broker
from streamlog.connect import Flush
from streamlog.connect.source_progress import HELD_BYTES_MAX
from streamlog.connect_tasks.sink_task import FLUSHES_HELD_MAX
from streamlog.log import Log
from tests.servers.postgres import PostgresServer

MIB = 1024 * 1024
HELD_MIB = 2 * HELD_BYTES_MAX / MIB
"""What a source may hold: for the next commit, and in flight with the present one."""
FLUSHES_MIB = FLUSHES_HELD_MAX * Flush().size_bytes / MIB
"""What a sink may hold of one partition."""
REST_MIB = 64
SUSPENDED_S = 20
"""How long the log takes nothing."""
SLOW_SHARE = 10
"""The target that is too slow gets one in so many of the bytes."""
NOTE_BYTES = 1_000
LINES = 100_000
LOOK_S = 0.2
TIMEOUT_S = 1_800


@dataclass(frozen=True, slots=True)
class Scene:
    """What a row needs."""

    lab: Lab
    log: Process
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Grown:
    """What a worker needed."""

    idle_mib: float
    most_mib: float
    limit_mib: float

    @property
    def is_kept(self) -> bool:
        """Whether it is within the bar."""
        return self.most_mib - self.idle_mib <= self.limit_mib + REST_MIB


def forget_most(worker: LabWorker) -> None:
    """Set a worker's VmHWM back to what it has now."""
    Path(f"/proc/{worker.pid}/clear_refs").write_text("5")


def status_mib(worker: LabWorker, field: str) -> float:
    """Return resident memory of a worker: VmRSS now, VmHWM at most since it was set back."""
    text = Path(f"/proc/{worker.pid}/status").read_text()
    (kib,) = re.findall(rf"{field}:\s+(\d+) kB", text)
    return int(kib) / 1024


async def grown(
    worker: LabWorker,
    limit_mib: float,
    work: Callable[[], Awaitable[object]],
    is_there: Callable[[], Awaitable[bool]],
) -> Grown:
    """Return what a worker grows by until the work has arrived."""
    await asyncio.sleep(2)
    idle_mib = status_mib(worker, "VmRSS")
    forget_most(worker)
    await work()
    async with asyncio.timeout(TIMEOUT_S):
        while not await is_there():
            worker.check(0)
            await asyncio.sleep(LOOK_S)
    return Grown(idle_mib, status_mib(worker, "VmHWM"), limit_mib)


def write_lines(path: Path, records: int) -> None:
    """Append so many lines."""
    lines = encoded(range(records))
    with path.open("ab") as file:
        while chunk := [*islice(lines, LINES)]:
            file.write(b"\n".join(chunk) + b"\n")


async def file(scene: Scene, *, suspended_s: float = 0) -> Grown:
    """A file that is there at once; the log may take nothing at first."""
    lab, records = scene.lab, scene.size_bytes // RECORD_BYTES
    path = lab.directory / f"{lab.name('lines')}.log"
    write_lines(path, WARM_UP)
    part = await lab.create_topic(lab.name("lines"))
    async with lab.worker("tail", topic=part.topic, path=str(path)) as worker:
        await worker.until(lambda: lab.has(part, WARM_UP))

        async def work() -> None:
            if suspended_s:
                scene.log.popen.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(write_lines, path, records)
            if suspended_s:
                await asyncio.sleep(suspended_s)
                scene.log.popen.send_signal(signal.SIGCONT)

        return await grown(worker, HELD_MIB, work, lambda: lab.has(part, WARM_UP + records))


async def full_log(scene: Scene) -> Grown:
    """The same file while the broker is suspended, and behind it."""
    return await file(scene, suspended_s=SUSPENDED_S)


async def transaction(scene: Scene) -> Grown:
    """One transaction of PostgreSQL."""
    lab, rows = scene.lab, scene.size_bytes // NOTE_BYTES
    part = await lab.create_topic(lab.name("changes"))
    with PostgresServer() as server:
        url = server.url(server.create_database())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE orders ({TABLE})".encode())
            insert = (
                "INSERT INTO orders SELECT n, 'customer', n, true, repeat('x', %s) "
                "FROM generate_series(%s::bigint, %s::bigint) n"
            )
            connection.execute(insert, (NOTE_BYTES, 1, WARM_UP))
            async with lab.worker("cdc", topic=part.topic, table="orders", url=url) as worker:
                await worker.until(lambda: lab.has(part, WARM_UP))

                async def work() -> None:
                    values = (NOTE_BYTES, WARM_UP + 1, WARM_UP + rows)
                    await asyncio.to_thread(connection.execute, insert, values)

                return await grown(worker, HELD_MIB, work, lambda: lab.has(part, WARM_UP + rows))


async def slow_target(scene: Scene) -> Grown:
    """A topic, and a target that takes a flush a second."""
    lab, records = scene.lab, scene.size_bytes // RECORD_BYTES
    part = await lab.create_topic(lab.name("orders"))
    taken = records // SLOW_SHARE
    path = lab.directory / lab.name("taken")
    path.write_text("0")
    await lab.load(part, encoded(range(WARM_UP)))
    async with lab.worker("slow-sink", topic=part.topic, path=str(path)) as worker:

        async def has(least: int) -> bool:
            return int(path.read_text() or 0) >= least

        await worker.until(lambda: has(WARM_UP))
        return await grown(
            worker,
            FLUSHES_MIB,
            lambda: lab.load(part, encoded(range(records))),
            lambda: has(WARM_UP + taken),
        )


ROWS: dict[str, Callable[[Scene], Awaitable[Grown]]] = {
    "file": file,
    "full-log": full_log,
    "transaction": transaction,
    "slow-target": slow_target,
}


async def figures(names: list[str], size_bytes: int) -> AsyncIterator[tuple[str, Grown]]:
    """Yield the rows, each on a broker of its own."""
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            with broker(directory / "log", flush="os") as (process, url):
                async with Log.open(url) as log, log.consumer(auto_offset_reset="none") as looking:
                    lab = Lab(log, looking, url, directory)
                    yield name, await ROWS[name](Scene(lab, process, size_bytes))


async def main(arguments: list[str]) -> int:
    """Print the rows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.connect_memory")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; default all")
    parser.add_argument("--bytes", type=int, default=1024 * MIB, help="of each row; 1 GiB")
    options = parser.parse_args(arguments)
    if unknown := {*options.rows} - {*ROWS}:
        parser.error(
            f"there is no row {', '.join(sorted(unknown))}: the rows are {', '.join(ROWS)}"
        )
    are_kept = True
    async for name, found in figures(options.rows or [*ROWS], options.bytes):
        are_kept = are_kept and found.is_kept
        print(
            f"{name}, {options.bytes / MIB:.0f} MiB: {found.idle_mib:.0f} MiB idle, "
            f"{found.most_mib:.0f} MiB at most, {found.most_mib - found.idle_mib:+.0f} MiB "
            f"(bar {found.limit_mib + REST_MIB:.0f}{'' if found.is_kept else ', missed'})",
            flush=True,
        )
    return int(not are_kept)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
