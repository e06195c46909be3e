"""Logs write, read and sync correctly with fewer open files than logs."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.descriptors import OpenFiles, shares
from streamlog.broker.storage.disk.files import directory_error
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.errors import LogDirectoryFull, TooManyOpenFiles
from streamlog.records.batch import split_batches
from tests.broker.storage.batches import SMALL, batch

LOGS = 5


class OneFile:
    """A holder that records whether its file is open."""

    def __init__(self) -> None:
        self.was_used = False
        self.is_open = False

    def release(self) -> None:
        self.is_open = False


def open_now() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def appended(log: PartitionLog, value: bytes) -> None:
    log.append(bytearray(batch(1, value=value)), now_ms=1_000)


def values(log: PartitionLog) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes=1 << 20)
        for each in split_batches(bytearray(data)):
            found += [record.value or b"" for record in each.records()]
            offset = each.next_offset
    return found


def logs_of(files: MemoryFiles | OsFiles, path: str, count: int = LOGS) -> list[PartitionLog]:
    files.make_directory(path)
    return [
        PartitionLog.create(files, f"{path}/p-{number}", name=f"t-{number}", config=SMALL)
        for number in range(count)
    ]


@given(st.integers(1, 4), st.lists(st.integers(0, 9), max_size=40))
def test_the_least_recently_used_files_are_released(most: int, uses: list[int]) -> None:
    """Compared with a list in the order of the last additions; no file is marked as used."""
    held, files = OpenFiles(most), [OneFile() for _ in range(10)]
    order: list[int] = []
    for number in uses:
        if number in order:
            held.discard(files[number])
            order.remove(number)
        files[number].is_open = True
        held.add(files[number])
        for each in files:
            each.was_used = False
        order = [*order, number][-most:]
        assert len(held) == len(order) <= most
        assert [n for n, each in enumerate(files) if each.is_open] == sorted(order)
    assert held.release_all() == len(order)
    assert not any(files[number].is_open for number in order)


@given(st.integers(2, 5))
def test_a_used_file_stays_open_longer_than_an_unused_one(most: int) -> None:
    held, files = OpenFiles(most), [OneFile() for _ in range(most + 1)]
    for each in files:
        each.is_open = True
    for each in files[:-1]:
        held.add(each)
        each.was_used = False
    files[0].was_used = True
    held.add(files[-1])
    assert [each.is_open for each in files] == [True, False, *[True] * (most - 1)]


@given(
    st.integers(1, LOGS + 1),
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, LOGS - 1)),
            st.tuples(st.just("sync"), st.integers(0, LOGS - 1)),
            st.tuples(st.just("read"), st.integers(0, LOGS - 1)),
            st.tuples(st.just("release"), st.just(0)),
        ),
        max_size=80,
    ),
)
def test_logs_work_with_any_number_of_open_files(most: int, steps: list[tuple[str, int]]) -> None:
    files = MemoryFiles(open_logs=most)
    logs = logs_of(files, "data")
    for path in ("", "data"):
        files.sync_directory(path)
    wanted: list[list[bytes]] = [[] for _ in logs]
    synced = [0] * LOGS
    for number, (what, at) in enumerate(steps):
        if what == "append":
            value = b"%d" % number + b"x" * (number % 7 * 60)  # Some values begin a segment.
            appended(logs[at], value)
            wanted[at].append(value)
        elif what == "release":
            files.held.release_all()
        elif what == "read":
            assert values(logs[at]) == wanted[at]
        elif pending := logs[at].begin_sync():
            files.held.release_all()  # A pending sync has its own handles.
            pending.run()
            logs[at].end_sync(pending)
            synced[at] = len(wanted[at])
        assert len(files.held) <= most
        assert sum(log._segments.active._appended.file is not None for log in logs) <= most
    for log, want in zip(logs, wanted, strict=True):
        assert values(log) == want
    files.crash()
    for number, least in enumerate(synced):
        folder = f"data/p-{number}"
        if least:
            log = PartitionLog.open(files, folder, name="t", config=SMALL)
            assert values(log)[:least] == wanted[number][:least]


def test_more_logs_than_descriptors_can_be_used(tmp_path: Path) -> None:
    before = open_now()
    files = OsFiles(shares(64)._replace(open_logs=3))
    logs = logs_of(files, str(tmp_path), 40)
    for turn in range(3):
        for number, log in enumerate(logs):
            appended(log, b"%d-%d" % (number, turn))
    assert open_now() - before <= 3
    for number, log in enumerate(logs):
        assert values(log) == [b"%d-%d" % (number, turn) for turn in range(3)]
        log.close()
    assert open_now() == before


def test_an_open_without_a_descriptor_releases_other_files(tmp_path: Path) -> None:
    files = OsFiles(shares(1024))
    logs = logs_of(files, str(tmp_path), 8)
    for log in logs:
        appended(log, b"x")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (top, limits[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        more = PartitionLog.create(files, f"{tmp_path}/more", name="more", config=SMALL)
        appended(more, b"a")
        appended(logs[0], b"b")
        assert values(more) == [b"a"]
        assert files.held.released
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_lack_of_descriptors_is_not_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles(shares(1024))
    (log,) = logs_of(files, str(tmp_path), 1)
    appended(log, b"a")
    files.held.release_all()
    opened = os.open
    monkeypatch.setattr("streamlog.broker.storage.disk.os_files.SHORT_WAIT_S", 0)

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for attempt in (lambda: appended(log, b"lost"), log.begin_sync, log.flush):
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(TooManyOpenFiles, match="the disk is fine"):
            attempt()
        monkeypatch.setattr(os, "open", opened)
    appended(log, b"b")
    log.flush()
    assert values(log) == [b"a", b"b"]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_counts_as_a_full_disk(code: int) -> None:
    error = directory_error(OSError(code, os.strerror(code)), "data/x.log")
    assert isinstance(error, LogDirectoryFull)
    assert "ulimit -n" in str(error)
