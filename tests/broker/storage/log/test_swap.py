"""A kill or a power cut at every operation of a compaction loses nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from streamlog.broker.storage.disk.files import Content, File, Files
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.records.batch import LogRecord
from tests.broker.storage.batches import contents, new_log, read_batches, read_records, reopened
from tests.broker.storage.compaction.test_cleaning import COMPACTED, clean, keyed, seen

BATCHES = 40


class Killed(BaseException):
    """Raised instead of an operation after which the process is dead."""


class MortalFile:
    """A file of `MortalFiles`: each change counts as an operation."""

    def __init__(self, file: File, act: Callable[[], None]) -> None:
        self._file = file
        self._act = act

    def read(self, size_bytes: int, position: int) -> bytes:
        return self._file.read(size_bytes, position)

    def write(self, data: Content, position: int) -> int:
        self._act()
        return self._file.write(data, position)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size_bytes: int) -> None:
        self._act()
        self._file.truncate(size_bytes)

    def sync(self) -> None:
        self._act()
        self._file.sync()

    def is_linked(self) -> bool:
        return self._file.is_linked()

    def close(self) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class MortalFiles:
    """A disk that raises `Killed` after `left` more operations that change something."""

    def __init__(self, files: MemoryFiles, left: int) -> None:
        self._files = files
        self.left = left

    def act(self) -> None:
        if self.left <= 0:
            raise Killed
        self.left -= 1

    def open(self, path: str, *, writable: bool = False) -> File:
        if writable:
            self.act()
        return MortalFile(self._files.open(path, writable=writable), self.act)

    def lock(self, path: str) -> File | None:
        return self._files.lock(path)

    def list(self, path: str) -> list[str]:
        return self._files.list(path)

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        self.act()
        self._files.make_directory(path, parents=parents)

    def rename(self, source: str, target: str) -> None:
        self.act()
        self._files.rename(source, target)

    def remove(self, path: str) -> None:
        self.act()
        self._files.remove(path)

    def sync_directory(self, path: str) -> None:
        self.act()
        self._files.sync_directory(path)

    def sync_disk(self, path: str) -> bool:
        self.act()
        return self._files.sync_disk(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)


def dirty_disk() -> MemoryFiles:
    """Return a disk with a log whose segments need compaction, some of them merged before."""
    files = MemoryFiles()
    log = new_log(files, COMPACTED)
    for number in range(BATCHES):
        log.append(keyed((f"k{number % 5}", str(number)), ("x", "x" * 40)), now_ms=0)
    clean(log)
    for number in range(BATCHES):
        log.append(keyed((f"k{number % 7}", None if number % 3 else "v" * 30)), now_ms=0)
    log.close()
    files.sync_directory("data/p-0")
    return files


def opened(files: Files) -> PartitionLog:
    return reopened(files, config=COMPACTED, recovery_point=undamaged_log().log_end_offset)


def undamaged_log() -> PartitionLog:
    return reopened(dirty_disk(), config=COMPACTED, clean=True)


def data(log: PartitionLog) -> dict[int, LogRecord]:
    return {record.offset: record for record in read_records(log)}


STRIDE = 1 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 8
"""How many operations lie between crashes; each crash takes a third of a second."""


@pytest.mark.parametrize(
    ("keep_bytes", "first"), [(None, 0), (0, 1), (50, 2)], ids=["kill", "power cut", "torn"]
)
def test_a_crash_at_every_operation_loses_nothing(keep_bytes: int | None, first: int) -> None:
    before = undamaged_log()
    values, records, end_offset = seen(before), data(before), before.log_end_offset
    crashes = first if STRIDE > 1 else 0
    while True:
        files = dirty_disk()
        mortal = MortalFiles(files, crashes)
        try:
            log = PartitionLog.open(
                mortal, "data/p-0", name="topic-0", config=COMPACTED, clean=True
            )
            clean(log)
        except Killed:
            pass
        else:
            break
        crashes += STRIDE
        files.crash(keep_bytes=keep_bytes)
        survive_openings_that_are_killed(files, keep_bytes)
        log = opened(files)
        check(log, files, end_offset)
        assert seen(log) == values
        assert data(log).items() <= records.items()
        clean(log)
        assert seen(log) == values
    assert crashes > 40
    check(log, files, end_offset)


def survive_openings_that_are_killed(files: MemoryFiles, keep_bytes: int | None) -> None:
    """Open the log 12 times, and kill each opening one operation later than the last."""
    for left in range(12):
        try:
            opened(MortalFiles(files, left))
        except Killed:
            files.crash(keep_bytes=keep_bytes)


def check(log: PartitionLog, files: MemoryFiles, end_offset: int) -> None:
    assert log.recovery.damage == ()
    offset = 0
    for batch in read_batches(log):
        assert batch.base_offset == offset
        offset = batch.next_offset
    assert offset == log.log_end_offset == end_offset
    assert log.damage == ()
    left = files.list("data/p-0")
    assert [name for name in left if name.endswith(".cleaned")] == []
    assert [name for name in left if name.endswith(".swap")] == []


def test_a_cleaned_segments_indexes_equal_a_scans() -> None:
    files = MemoryFiles()
    log = new_log(files, COMPACTED)
    for number in range(BATCHES):
        log.append(keyed((f"k{number // 2}", "v" * 30), timestamp_ms=number), now_ms=0)
    assert clean(log) is not None
    log.close()
    suffixes = (".index", ".timeindex")
    active = max(contents(files, ".log")).removesuffix(".log")
    made = [contents(files, suffix) for suffix in suffixes]
    for each in made:
        each.pop(active + ".index", None)
        each.pop(active + ".timeindex", None)
    assert max(map(len, made[0].values())) > 0
    for path in (path for each in made for path in each):
        files.remove(path)
    log = reopened(files, config=COMPACTED)
    read_records(log)
    log.close()
    for each, suffix in zip(made, suffixes, strict=True):
        assert each.items() <= contents(files, suffix).items()
