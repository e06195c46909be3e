"""Indexes after a kill, a power cut, a full disk or a fault equal those of a scan of the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.disk.files import Files
from streamlog.broker.storage.disk.memory_files import MemoryFiles, Tear
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.errors import LogDirectoryFailed
from tests.broker.storage.batches import (
    batch,
    contents,
    log_files,
    new_log,
    overwrite,
    read_records,
    reopened,
)
from tests.broker.storage.log.test_swap import Killed, MortalFiles

CONFIG = TopicConfig(segment_bytes=2500, index_interval_bytes=64)
PAGE_BYTES = 64
"""Smaller than a disk's page, as the logs are small, too."""

Appended = tuple[int, int]
appends = st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 50)), max_size=60)
"""Number of records and timestamp of each batch."""


@pytest.fixture(autouse=True, scope="module")
def small_steps() -> Iterator[None]:
    """Write entries and reserve room after a few entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamlog.broker.storage.log.index.PENDING_MAX", 3)
        patch.setattr("streamlog.broker.storage.log.index.ROOM_ENTRIES", 4)
        patch.setattr("streamlog.broker.storage.log.index.READ_BYTES_MAX", 64)
        yield


def write(log: PartitionLog, appended: list[Appended]) -> None:
    for count, timestamp_ms in appended:
        log.append(batch(count, timestamp_ms=timestamp_ms, value=bytes(20)), now_ms=0)


def indexes(files: Files) -> dict[str, bytes]:
    return contents(files, "index")


def rebuilt(files: MemoryFiles, config: TopicConfig = CONFIG) -> dict[str, bytes]:
    """Return the indexes that a scan makes from the log files alone."""
    for path in log_files(files, "index"):
        files.remove(path)
    log = reopened(files, config=config)
    read_records(log)  # Sealed segments are scanned when they are needed.
    log.close()
    return indexes(files)


def torn_by(data: st.DataObject) -> Tear:
    """Return a tear that keeps some unsynced pages and loses the others."""

    def torn(durable: bytes, written: bytes) -> bytes:
        size_bytes = data.draw(st.sampled_from(sorted({len(durable), len(written)})))
        old = durable.ljust(size_bytes, b"\0")[:size_bytes]
        new = written.ljust(size_bytes, b"\0")[:size_bytes]
        starts = range(0, size_bytes, PAGE_BYTES)
        kept = data.draw(st.lists(st.booleans(), min_size=len(starts), max_size=len(starts)))
        return b"".join(
            (new if is_new else old)[at : at + PAGE_BYTES]
            for at, is_new in zip(starts, kept, strict=True)
        )

    return torn


@settings(max_examples=60)
@given(appends)
def test_a_closed_logs_indexes_equal_a_scans(appended: list[Appended]) -> None:
    files = MemoryFiles()
    log = new_log(files, CONFIG)
    write(log, appended)
    log.close()
    written = indexes(files)
    assert rebuilt(files) == written


@settings(max_examples=60)
@given(appends, appends, st.data())
def test_indexes_are_right_after_a_crash_at_any_write(
    before: list[Appended], after: list[Appended], data: st.DataObject
) -> None:
    files = MemoryFiles()
    mortal = MortalFiles(files, 10**9)
    log = new_log(mortal, CONFIG)
    write(log, before)
    log.flush()
    flushed = log.log_end_offset
    mortal.left = data.draw(st.integers(0, 40))
    with suppress(Killed):
        write(log, after)
        log.close()
    appended = log.log_end_offset
    killed = data.draw(st.booleans())
    if killed:
        files.crash(keep_bytes=None)
    else:
        files.crash(torn=torn_by(data))
    log = reopened(files, config=CONFIG, recovery_point=flushed)
    assert log.log_end_offset >= (appended if killed else flushed)
    if not log.is_whole:  # A hole in records that were never flushed.
        assert not killed
        assert all(each.first_offset >= flushed for each in log.damage)
        return
    assert len(read_records(log)) == log.log_end_offset
    write(log, after)
    log.close()
    written = indexes(files)
    assert rebuilt(files) == written


@settings(max_examples=60)
@given(appends, st.integers(0, 600), st.integers(0, 40))
def test_a_full_disk_at_any_write_costs_no_index_entry(
    appended: list[Appended], room: int, full_at: int
) -> None:
    files = MemoryFiles()
    log = new_log(files, CONFIG)
    refused = 0
    for number, each in enumerate(appended):
        if number == full_at:
            files.capacity_bytes = files.used_bytes() + room
        try:
            write(log, [each])
        except LogDirectoryFailed:
            refused += each[0]
            files.capacity_bytes = None
            write(log, [each])
    files.capacity_bytes = None
    log.close()
    assert len(read_records(reopened(files, config=CONFIG))) == sum(n for n, _ in appended)
    written = indexes(files)
    assert rebuilt(files) == written


@settings(max_examples=100)
@given(appends.filter(bool), st.data())
def test_a_garbled_index_still_finds_every_record(
    appended: list[Appended], data: st.DataObject
) -> None:
    """The damage happens under the open log; it is reopened afterwards."""
    files = MemoryFiles()
    log = new_log(files, CONFIG)
    write(log, appended)
    if data.draw(st.booleans()):
        log.close()
        log = reopened(files, config=CONFIG, clean=True)
    right = read_records(log)
    times = [log.offset_for_timestamp(timestamp_ms) for timestamp_ms in range(-1, 60)]
    for path in log_files(files, "index"):
        content = bytearray(indexes(files)[path])
        position = data.draw(st.integers(0, len(content)))
        if data.draw(st.booleans()) and position < len(content):
            content[position] ^= data.draw(st.integers(1, 255))
        else:
            content = content[:position]
        overwrite(files, path, bytes(content))
    for first in data.draw(st.permutations(range(len(right)))):
        found = log.read(first, max_bytes=1)
        assert found
        assert read_records(log, first)[0] == right[first]
    assert [log.offset_for_timestamp(timestamp_ms) for timestamp_ms in range(-1, 60)] == times
    files.crash(keep_bytes=None)
    again = reopened(files, config=CONFIG, clean=data.draw(st.booleans()))
    assert read_records(again) == right
    assert [again.offset_for_timestamp(timestamp_ms) for timestamp_ms in range(-1, 60)] == times


def test_a_truncated_mapped_index_is_rebuilt(tmp_path: Path) -> None:
    """With the system's files: reading behind the end would kill this process."""
    files = OsFiles()
    config = TopicConfig(index_interval_bytes=64)
    log = PartitionLog.create(files, f"{tmp_path}/p-0", name="topic-0", config=config)
    for number in range(400):
        log.append(batch(2, timestamp_ms=number), now_ms=0)
    (path,) = tmp_path.glob("p-0/*.index")
    (times,) = tmp_path.glob("p-0/*.timeindex")
    for offset in range(0, 800, 7):
        assert log.read(offset, max_bytes=1)
    assert log.offset_for_timestamp(77) == (153, 77)
    room_bytes = path.stat().st_size
    for cut in (path, times):
        with cut.open("r+b") as file:
            file.truncate(40)
    assert log.offset_for_timestamp(78) == (155, 78)
    for offset in range(1, 800, 7):
        assert log.read(offset, max_bytes=1)
    log.close()
    assert path.stat().st_size == 399 * 8 < room_bytes
    assert times.stat().st_size == 399 * 12


def test_timestamp_zero_is_indexed() -> None:
    """An entry of zeros would look like preallocated room."""
    files = MemoryFiles()
    log = new_log(files, CONFIG)
    write(log, [(1, 0)] * 30)
    log.close()
    written = indexes(files)
    assert rebuilt(files) == written
    log = reopened(files, config=CONFIG, clean=True)
    assert log.recovery.scanned_bytes == 0
    assert log.offset_for_timestamp(0) == (0, 0)
