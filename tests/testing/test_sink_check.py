"""The conformance suite of sinks: it passes those that keep their promise, and finds the others."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pytest

from streamlog.connect import (
    Batch,
    Fenced,
    Flush,
    Sink,
    SinkContext,
    SinkTask,
    TopicPartition,
    fields_of,
)
from streamlog.testing import CheckFailed, check_sink

OFFSETS = """create table if not exists streamlog_offsets (
    sink text, topic text, part int, next int, epoch int, primary key (sink, topic, part))"""
TAKE = """insert into streamlog_offsets values (?, ?, ?, -1, 1)
    on conflict do update set epoch = epoch + 1 returning next, epoch"""
ADVANCE = "update streamlog_offsets set next = ? where (sink, topic, part, epoch) = (?, ?, ?, ?)"


class SqliteSink(Sink[str, object], frozen=True, kw_only=True):
    effect = "transactional"
    path: str
    flush: Flush = Flush(records=30, every="1s")
    has_epoch: bool = True
    has_offsets: bool = True

    def open(self, context: SinkContext) -> SinkTask[str, object]:
        return SqliteTask(self, context.name)


class SqliteTask(SinkTask[str, object]):
    def __init__(self, sink: SqliteSink, name: str) -> None:
        self.sink, self.name = sink, name
        self.epochs: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> Self:
        self.db = sqlite3.connect(self.sink.path, isolation_level=None)
        self.db.execute("pragma synchronous = off")
        self.db.execute(OFFSETS)
        self.db.execute("create table if not exists hits (key text, number int)")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.db.close()

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        found = {}
        for at in partitions:
            ((offset, self.epochs[at]),) = self.db.execute(TAKE, (self.name, *at)).fetchall()
            if offset >= 0:
                found[at] = offset
        return found if self.sink.has_offsets else {}

    async def begin(self) -> None:
        self.db.execute("begin immediate")

    async def write(self, batch: Batch[str, object]) -> None:
        for record in batch.records:
            row = {"key": record.key, **fields_of(record.value)}
            self.db.execute("insert into hits values (:key, :number)", row)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for at, offset in offsets.items():
            moved = self.db.execute(ADVANCE, (offset, self.name, *at, self.epochs[at])).rowcount
            if not moved and self.sink.has_epoch:
                raise Fenced(f"another task has {at}")
        self.db.execute("commit")

    async def abort(self) -> None:
        if self.db.in_transaction:
            self.db.execute("rollback")

    async def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        for at, offset in offsets.items():
            self.db.execute(
                "update streamlog_offsets set next = ? where (sink, topic, part) = (?, ?, ?)",
                (-1 if offset is None else offset, self.name, *at),
            )


class Database:
    def __init__(self, path: Path) -> None:
        self.path = path

    async def put(self, rows: Sequence[object]) -> None:
        raise NotImplementedError

    async def rows(self) -> Sequence[object]:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute("select * from hits").fetchall()


Files = dict[tuple[TopicPartition, int], list[object]]


class Store:
    """Holds files. As a setting it is equal in all lives, whatever it holds."""

    def __init__(self) -> None:
        self.files: Files = {}


class FilesSink(Sink[str, object], frozen=True, kw_only=True):
    """Files by the first offset of a range, or rows one behind the other."""

    effect = "repeatable"
    store: Any
    flush: Flush = Flush(records=30, every="1s")

    def open(self, context: SinkContext) -> SinkTask[str, object]:
        return FilesTask(self.store.files)


class AppendingSink(Sink[str, object], frozen=True, kw_only=True):
    effect = "appending"
    store: Any
    flush: Flush = Flush(records=30, every="1s")

    def open(self, context: SinkContext) -> SinkTask[str, object]:
        return FilesTask(self.store.files, is_appending=True)


class BoastingSink(FilesSink, frozen=True, kw_only=True):
    """Says that it is repeatable, and appends."""

    def open(self, context: SinkContext) -> SinkTask[str, object]:
        return FilesTask(self.store.files, is_appending=True)


class StreamingSink(FilesSink, frozen=True, kw_only=True):
    """Takes records as they come, several writes to a file."""

    streams = True


class ForgetfulSink(FilesSink, frozen=True, kw_only=True):
    """Drops the last record of each batch."""

    def open(self, context: SinkContext) -> SinkTask[str, object]:
        return FilesTask(self.store.files, is_forgetful=True)


class FilesTask(SinkTask[str, object]):
    def __init__(
        self, files: Files, *, is_appending: bool = False, is_forgetful: bool = False
    ) -> None:
        self.files, self.is_appending, self.is_forgetful = files, is_appending, is_forgetful
        self.open: Files = {}

    async def write(self, batch: Batch[str, object]) -> None:
        names = [at for at in self.open if at[0] == batch.partition]
        name = names[0] if names else (batch.partition, batch.first_offset)
        rows = [(record.key, record.value) for record in batch.records]
        self.open.setdefault(name, []).extend(rows[:-1] if self.is_forgetful else rows)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        for name, rows in self.open.items():
            if self.is_appending:
                self.files.setdefault(name, []).extend(rows)
            else:
                self.files[name] = rows
        self.open = {}

    async def abort(self) -> None:
        self.open = {}


class Memory:
    def __init__(self, files: Files) -> None:
        self.files = files

    async def put(self, rows: Sequence[object]) -> None:
        raise NotImplementedError

    async def rows(self) -> Sequence[object]:
        return [row for rows in self.files.values() for row in rows]


def run(sink: Callable[[], Sink[Any, Any]], outside: Database | Memory, **options: Any) -> None:
    asyncio.run(check_sink(sink, outside, **options))


@pytest.mark.parametrize("seed", range(3))
def test_a_sink_with_offsets_and_epochs_in_its_target_passes(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "web.db"
    run(lambda: SqliteSink(path=str(path)), Database(path), lives=25, seed=seed)


@pytest.mark.parametrize("kind", [FilesSink, StreamingSink, AppendingSink])
@pytest.mark.parametrize("seed", range(3))
def test_sinks_that_keep_their_promise_pass(kind: Any, seed: int) -> None:
    store = Store()
    run(lambda: kind(store=store), Memory(store.files), lives=40, seed=seed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", ["epoch", "offsets"])
def test_a_target_without_epochs_or_offsets_is_found(tmp_path: Path, fault: str, seed: int) -> None:
    path = tmp_path / "web.db"

    def make() -> SqliteSink:
        return SqliteSink(
            path=str(path), has_epoch=fault != "epoch", has_offsets=fault != "offsets"
        )

    with pytest.raises(CheckFailed, match=f"seed={seed}"):
        run(make, Database(path), lives=40, seed=seed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [BoastingSink, ForgetfulSink])
def test_a_sink_that_promises_too_much_is_found(kind: type[FilesSink], seed: int) -> None:
    store = Store()
    with pytest.raises(CheckFailed, match=f"seed={seed}"):
        run(lambda: kind(store=store), Memory(store.files), lives=40, seed=seed)
