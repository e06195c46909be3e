"""The program of the tests: numbers come in, and go out to a database, to files and to lines."""

from __future__ import annotations

PROGRAM = '''
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

from mortal import run
from streamlog import App, on_error
from streamlog.connect import (
    Batch, Fenced, Flush, Read, Sink, SinkContext, SinkTask, Source, SourceContext, SourceOffset,
    SourcePartition, TopicPartition,
)
from streamlog.worker import worker
from streamlog.worker.connect import sink_group

for room in (worker, sink_group):
    room.SESSION_TIMEOUT_MS, room.HEARTBEAT_INTERVAL_MS = 2_000, 300

PARTS, COUNT = 4, int(os.environ.get("COUNT", "200"))
OFFSETS = """create table if not exists streamlog_offsets (
    sink text, topic text, part int, next int, epoch int, primary key (sink, topic, part))"""
TAKE = """insert into streamlog_offsets values (?, ?, ?, -1, 1)
    on conflict do update set epoch = epoch + 1 returning next, epoch"""
ADVANCE = "update streamlog_offsets set next = ? where (sink, topic, part, epoch) = (?, ?, ?, ?)"


class Numbers(Source[str, int], frozen=True, kw_only=True):
    """Numbers of several parts, which come in portions while the test lasts."""

    async def partitions(self, context: SourceContext) -> list[SourcePartition]:
        return [{"part": number} for number in range(PARTS)]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, int]]:
        part = int(str(partition["part"]))
        at = 0 if offset is None else int(str(offset["at"]))
        while at < COUNT:
            end = min(at + 3, COUNT)
            numbers = [part * 1_000_000 + number for number in range(at, end)]
            records = [context.record(n, key=f"{n}", timestamp=n) for n in numbers]
            yield Read(records, {"at": end})
            at = end
            await context.sleep("2ms")
        while True:
            await context.sleep("1h")


class Database(Sink[str, int], frozen=True, kw_only=True):
    """Rows and offsets in one transaction."""

    effect = "transactional"
    path: str

    def open(self, context: SinkContext) -> SinkTask[str, int]:
        return DatabaseTask(self.path, context.name)


class DatabaseTask(SinkTask[str, int]):
    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        self.epochs: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> "DatabaseTask":
        self.db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        self.db.execute(OFFSETS)
        self.db.execute("create table if not exists numbers (n int)")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.db.close()

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        found = {}
        for place in partitions:
            ((offset, self.epochs[place]),) = self.db.execute(TAKE, (self.name, *place)).fetchall()
            if offset >= 0:
                found[place] = offset
        return found

    async def begin(self) -> None:
        self.db.execute("begin immediate")

    async def write(self, batch: Batch[str, int]) -> None:
        # No key that would hide a row which comes twice.
        self.db.executemany("insert into numbers values (?)", [(n,) for n in batch.values])

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for place, offset in offsets.items():
            row = (offset, self.name, *place, self.epochs[place])
            if not self.db.execute(ADVANCE, row).rowcount:
                raise Fenced(f"another task has {place}")
        self.db.execute("commit")

    async def abort(self) -> None:
        if self.db.in_transaction:
            self.db.execute("rollback")


class Files(Sink[str, int], frozen=True, kw_only=True):
    """Files named by their first offset, which appear by a rename."""

    effect = "repeatable"
    streams = True
    path: str

    def open(self, context: SinkContext) -> SinkTask[str, int]:
        return FilesTask(Path(self.path))


class FilesTask(SinkTask[str, int]):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, list[str]] = {}
        self.names: dict[TopicPartition, str] = {}

    async def write(self, batch: Batch[str, int]) -> None:
        topic, number = batch.partition
        name = self.names.setdefault(batch.partition, f"{topic}-{number}-{batch.first_offset}")
        self.lines.setdefault(name, []).extend(map(str, batch.values))

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.path.mkdir(exist_ok=True)
        for name, lines in self.lines.items():
            draft = self.path / f".{name}.{os.getpid()}"
            draft.write_text("\\n".join(lines) + "\\n")
            draft.rename(self.path / f"{name}.txt")
        self.lines, self.names = {}, {}

    async def abort(self) -> None:
        self.lines, self.names = {}, {}


class Lines(Sink[str, int], frozen=True, kw_only=True):
    """Appends lines; some may come twice."""

    path: str

    def open(self, context: SinkContext) -> SinkTask[str, int]:
        return LinesTask(Path(self.path))


class LinesTask(SinkTask[str, int]):
    def __init__(self, path: Path) -> None:
        self.path = path

    async def write(self, batch: Batch[str, int]) -> None:
        with self.path.open("a") as file:
            file.write("".join(f"{n}\\n" for n in batch.values))


app = App(
    "outside",
    state_dir=os.environ.get("STATE", "./state"),
    commit_interval="20ms",
    guarantee=os.environ.get("GUARANTEE", "exactly_once"),
)
numbers = app.topic("numbers", key=str, value=int, partitions=2)
doubled = app.topic("doubled", key=str, value=int, partitions=2)
app.source(numbers, Numbers(), name="in", tasks=3)
if "ONLY_CONNECTORS" in os.environ:
    doubled = numbers
else:
    app.stream(numbers).map_values(lambda n: 2 * n).to(doubled)
flush = Flush(records=40, every="50ms")
app.sink(doubled, Database(path="out.db", flush=flush), name="database", tasks=2)
app.sink(doubled, Files(path="files", flush=flush), name="files")
app.sink(doubled, Lines(path="lines.txt", flush=flush), name="lines")

run(app, sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
'''
PARTS = 4
