"""Disks that are full or fail, directories that refuse, clocks that jump: nothing is lost or twice.

A library that is loaded before the worker's own (`chaos/shim.c`) makes the faults, of the directory
with the files, the database and the tables of two lakes that four sinks write.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sqlite3
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic

import deltalake
import pytest
from pyiceberg.table import StaticTable

from chaos.broker import build_shim
from tests.worker.commit_steps import IS_THOROUGH
from tests.worker.processes import STREAMLOG, Process, running

pytestmark = [
    pytest.mark.skipif(not IS_THOROUGH, reason="waits for faults that last some seconds"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, of Debian's package gcc"),
]

PROGRAM = """
import os

from streamlog import App
from streamlog.connect import Flush
from streamlog.connectors.lakes.delta import Delta
from streamlog.connectors.lakes.iceberg import Iceberg
from streamlog.connectors.objects import Objects
from streamlog.connectors.sql import SqlSink
from streamlog.connectors.tail import Tail

app = App("faults", log=os.environ["BROKER"], state_dir="./state", commit_interval="50ms")
lines = app.topic("lines", key=None, value=bytes, partitions=1)
app.source(lines, Tail(path="in/*.log"), name="tail")
flush = Flush(records=50, every="200ms")
app.sink(lines, Objects(url="./out/files", format="jsonl", flush=flush), name="files")
database = SqlSink(url="sqlite:///out/out.db", table="lines", auto_create=True, flush=flush)
app.sink(lines, database, name="database")
app.sink(lines, Delta(url="./out/lake", flush=flush), name="lake")
catalog = {"type": "sql", "uri": "sqlite:///out/catalog.db", "warehouse": f"file://{os.getcwd()}/out/ice"}
app.sink(lines, Iceberg(properties=catalog, table="main.lines", flush=flush), name="iceberg")
"""
LINES = 400
"""The lines of each part of a test: before, during and after a fault."""
READ = "select cast(value as blob) from lines"
METADATA = "select metadata_location from iceberg_tables where table_name = 'lines'"
SAYS_S = 10
"""An operator reads of a fault within this time."""
WITHIN_S = 240
LASTS_S = 4.0
YEAR_MS = 31_536_000_000
JUMPS_MS = (-YEAR_MS, -3_600_000, 3_000_000)


class Site:
    """A program with a source and four sinks, and the knobs of its faults."""

    def __init__(self, path: Path, broker: str, shim: Path) -> None:
        self.path, self._broker, self._shim = path, broker, shim
        self.out = path / "out"
        self._count = self._turns = 0
        self.turn()
        self.out.mkdir()
        (path / "in").mkdir()
        (path / "faults.py").write_text(PROGRAM)

    @contextmanager
    def worker(self) -> Iterator[Process]:
        """A worker; root's right to write anywhere is taken from it."""
        command = (*_as_owner(), *STREAMLOG, "-A", "faults", "worker")
        preloaded = {
            "LD_PRELOAD": str(self._shim),
            "CHAOS_KNOBS": str(self.path / "knobs"),
            "CHAOS_DIRECTORY": str(self.out.resolve()),
        }
        with running(*command, cwd=self.path, BROKER=self._broker, **preloaded) as process:
            yield process

    def turn(self, **knobs: int) -> None:
        """Turn the faults on that are named, and all others off."""
        fresh = self.path / "knobs.new"
        self._turns += 1
        knobs["generation"] = self._turns
        fresh.write_text("".join(f"{name}={value}\n" for name, value in knobs.items()))
        fresh.rename(self.path / "knobs")

    def write_lines(self) -> None:
        """Append lines to the file that is tailed."""
        with (self.path / "in" / "app.log").open("a") as file:
            file.writelines(f"line {self._count + at}\n" for at in range(LINES))
        self._count += LINES

    @property
    def expected(self) -> Counter[str]:
        return Counter(f"line {at}" for at in range(self._count))

    @property
    def in_files(self) -> Counter[str]:
        found = [*(self.out / "files").rglob("*.jsonl")]
        rows = [json.loads(row) for each in found for row in each.read_text().splitlines()]
        return Counter(row["value"] for row in rows)

    @property
    def in_database(self) -> Counter[str]:
        if not (self.out / "out.db").exists():
            return Counter()
        with closing(sqlite3.connect(f"file:{self.out}/out.db?mode=ro", uri=True)) as db:
            try:
                return Counter(bytes(v).decode() for (v,) in db.execute(READ))
            except sqlite3.OperationalError:
                return Counter()

    @property
    def in_lake(self) -> Counter[str]:
        try:
            table = deltalake.DeltaTable(self.out / "lake").to_pyarrow_table(columns=["value"])
        except deltalake.exceptions.TableNotFoundError:
            return Counter()
        return Counter(value.decode() for value in table["value"].to_pylist())

    @property
    def in_iceberg(self) -> Counter[str]:
        with closing(sqlite3.connect(f"file:{self.out}/catalog.db?mode=ro", uri=True)) as db:
            try:
                ((location,),) = db.execute(METADATA)
            except (sqlite3.OperationalError, ValueError):
                return Counter()
        values = StaticTable.from_metadata(location).scan().to_arrow()["value"]
        return Counter(value.decode() for value in values.to_pylist())

    @property
    def found(self) -> Iterator[Counter[str]]:
        """What each target has."""
        yield self.in_files
        yield self.in_database
        yield self.in_lake
        yield self.in_iceberg

    async def until_complete(self, process: Process) -> None:
        """Wait until all targets have all lines, once."""
        deadline = monotonic() + WITHIN_S
        while monotonic() < deadline:
            if all(each.total() >= self._count for each in self.found):
                break
            await asyncio.sleep(0.1)
        for each in self.found:
            assert each == self.expected, process.output[-4000:]


def _as_owner() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root needs setpriv, of Debian's package util-linux")
    rights = "-dac_override,-dac_read_search"
    return (setpriv, f"--inh-caps={rights}", f"--bounding-set={rights}")


@contextmanager
def site(path: Path) -> Iterator[Site]:
    listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
    with running(*STREAMLOG, *listen, cwd=path) as broker:
        address = broker.line(r"listening on (\S+)").group(1)
        yield Site(path, f"kafka://{address}", build_shim(path))


def disk_full(here: Site) -> None:
    here.turn(enospc=1)


def disk_failing(here: Site) -> None:
    here.turn(sync_eio=1_000_000)


def directory_refusing(here: Site) -> None:
    for each in (here.out, *(path for path in here.out.rglob("*") if path.is_dir())):
        each.chmod(stat.S_IRUSR | stat.S_IXUSR)


def whole_again(here: Site) -> None:
    here.turn()
    for each in (here.out, *(path for path in here.out.rglob("*") if path.is_dir())):
        each.chmod(stat.S_IRWXU)


FAULTS: dict[str, tuple[Callable[[Site], None], str]] = {
    "disk full": (disk_full, "No space left on device"),
    "disk failing": (disk_failing, "Input/output error"),
    "directory refusing": (directory_refusing, "Permission denied"),
}


@pytest.mark.parametrize("is_killed", [False, True], ids=["survived", "killed"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_target_is_told_and_outlasted(
    tmp_path: Path, name: str, is_killed: bool
) -> None:
    fault, words = FAULTS[name]

    async def story(here: Site) -> None:
        here.write_lines()
        with here.worker() as worker:
            await here.until_complete(worker)
            fault(here)
            try:
                here.write_lines()
                began = monotonic()
                await asyncio.to_thread(worker.line, f"files.*{words}")
                assert monotonic() - began < SAYS_S
                await asyncio.sleep(LASTS_S)
                if is_killed:
                    worker.kill()
            finally:
                whole_again(here)
            if not is_killed:
                here.write_lines()
                await here.until_complete(worker)
                assert await asyncio.to_thread(worker.stop) == 0, worker.output
        with here.worker() as worker:
            here.write_lines()
            await here.until_complete(worker)
            assert await asyncio.to_thread(worker.stop) == 0, worker.output

    with site(tmp_path) as here:
        asyncio.run(story(here))


def test_writes_that_are_cut_short_are_completed(tmp_path: Path) -> None:
    async def story(here: Site) -> None:
        here.turn(short=2)
        with here.worker() as worker:
            for _ in range(5):
                here.write_lines()
                await here.until_complete(worker)
            assert await asyncio.to_thread(worker.stop) == 0, worker.output

    with site(tmp_path) as here:
        asyncio.run(story(here))


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
def test_a_clock_that_jumps_stops_nothing(tmp_path: Path, jump_ms: int) -> None:
    async def story(here: Site) -> None:
        with here.worker() as worker:
            for clock_ms in (0, jump_ms, 0):
                here.turn(clock_ms=clock_ms)
                here.write_lines()
                await here.until_complete(worker)
            assert await asyncio.to_thread(worker.stop) == 0, worker.output

    with site(tmp_path) as here:
        asyncio.run(story(here))


def test_a_clock_a_year_ahead_ends_the_worker_with_the_reason(tmp_path: Path) -> None:
    """Brokers refuse such timestamps (KIP-937); with the clock put right, everything arrives."""

    async def story(here: Site) -> None:
        with here.worker() as worker:
            here.write_lines()
            await here.until_complete(worker)
            here.turn(clock_ms=YEAR_MS)
            here.write_lines()
            assert await asyncio.to_thread(worker.wait) != 0
            assert re.search("error: .* timestamp is .* put its clock right", worker.output), (
                worker.output
            )
        here.turn()
        with here.worker() as worker:
            await here.until_complete(worker)
            assert await asyncio.to_thread(worker.stop) == 0, worker.output

    with site(tmp_path) as here:
        asyncio.run(story(here))
