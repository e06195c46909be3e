"""Truncation of a log, and its restart at another offset, with crashes at every step."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.files import read_file, replace_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.leader_epochs import EPOCHS
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.errors import LogDirectoryFailed, LogDirectoryFull
from streamlog.records.batch import set_offset_and_epoch
from streamlog.records.control_batches import Marker, encode_marker
from tests.broker.storage.batches import DIRECTORY, SMALL, batch, new_log, read_records, stamped

Oracle = list[list[int]]  # timestamps by batch


def opened(files: MemoryFiles, *, point: int, start: int = 0) -> PartitionLog:
    return PartitionLog.open(
        files,
        DIRECTORY,
        name="topic-0",
        config=SMALL,
        recovery_point=point,
        log_start_offset=start,
    )


def copied(log: PartitionLog, count: int, *, epoch: int, producer: int = -1) -> None:
    """Append a batch of `count` records as a leader's copy."""
    sequence = log.log_end_offset if producer >= 0 else -1
    data = bytearray(batch(count, producer=(producer, 0 if producer >= 0 else -1, sequence)))
    set_offset_and_epoch(data, log.log_end_offset, epoch)
    log.append(data, now_ms=0, origin=AppendOrigin.COPY)


append = st.lists(st.integers(0, 50), min_size=1, max_size=6)
steps = st.lists(
    st.one_of(append, append, append, st.integers(0, 40), st.sampled_from(["kill", "cut"])),
    max_size=30,
)


@given(steps)
def test_a_truncated_log_is_a_prefix_of_its_history(history: list[list[int] | int | str]) -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.syncs_off_loop = True
    oracle: Oracle = []
    for step in history:
        if isinstance(step, int):
            kept = oracle[:step]
            offset = sum(map(len, kept))
            log.truncation.begin(offset)
            log.truncation.cut(offset)
            oracle = kept
        elif isinstance(step, str):
            if step == "cut":
                log.flush()
                files.crash()
            else:
                files.crash(keep_bytes=None)
            log = opened(files, point=log.recovery_point if step == "cut" else 0)
            log.syncs_off_loop = True
        else:
            log.append(stamped(step), now_ms=0)
            oracle.append(step)
    assert log.recovery.damage == ()
    assert [record.timestamp_ms for record in read_records(log)] == [
        timestamp_ms for step in oracle for timestamp_ms in step
    ]
    reopened = opened(files, point=0)
    assert reopened.log_end_offset == log.log_end_offset


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("offset", [0, 3, 30, 59, 60])
def test_a_power_cut_between_truncation_steps_damages_nothing(offset: int, finished: bool) -> None:
    files = MemoryFiles()
    log = new_log(files)
    for _ in range(60):
        log.append(batch(), now_ms=0)
    log.flush()
    log.truncation.begin(offset)
    point = log.recovery_point
    assert point <= offset
    if finished:
        log.truncation.cut(offset)
    files.crash()
    log = opened(files, point=point)
    assert log.is_whole
    assert log.log_end_offset == (offset if finished else 60)


def test_a_sync_that_began_before_a_truncation_does_not_count() -> None:
    log = new_log()
    log.syncs_off_loop = True
    copied(log, 10, epoch=3)
    sync = log.begin_sync()
    assert sync is not None
    log.truncation.begin(0)
    log.truncation.cut(0)
    copied(log, 10, epoch=4)
    sync.run()
    log.end_sync(sync)
    assert log.synced.offset == 0


def test_truncation_removes_epochs_and_producer_states() -> None:
    log = new_log()
    copied(log, 2, epoch=3, producer=1)
    copied(log, 2, epoch=5, producer=2)
    log.truncation.begin(2)
    log.truncation.cut(2)
    assert log.epochs.start_after(3) is None
    assert log.epochs.at(1) == 3
    assert log.producers.snapshot() == opened_again(log).producers.snapshot()
    copied(log, 1, epoch=4)
    assert log.epochs.start_after(3) == 2


def opened_again(log: PartitionLog) -> PartitionLog:
    log.flush()
    files = log._segments._files
    assert isinstance(files, MemoryFiles)
    return opened(files, point=0)


def test_truncating_a_marker_reopens_its_transaction() -> None:
    log = new_log()
    data = bytearray(batch(1, producer=(7, 0, 0)))
    data[22] |= 0x10  # transactional
    set_offset_and_epoch(data, 0, 3)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    log.append(data, now_ms=0, origin=AppendOrigin.COPY)
    marker = bytearray(encode_marker(Marker(kind=0, coordinator_epoch=0), (7, 0), timestamp_ms=0))
    set_offset_and_epoch(marker, 1, 3)
    log.append(marker, now_ms=0, origin=AppendOrigin.COPY)
    assert [each.first_offset for each in log.aborted(0, 2)] == [0]
    log.truncation.begin(1)
    log.truncation.cut(1)
    assert list(log.producers.transactions) == [(7, 0)]
    assert log.aborted(0, 1) == []


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("offset", [100, 10_000])
def test_a_log_restarts_beyond_its_end(offset: int, finished: bool) -> None:
    files = MemoryFiles()
    log = new_log(files)
    for _ in range(60):
        copied(log, 1, epoch=3, producer=1)
    log.flush()
    log.truncation.begin_restart(offset)
    point = log.recovery_point
    if finished:
        log.truncation.restart(offset)
        assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
    files.crash()
    log = opened(files, point=point, start=offset)
    assert log.is_whole
    assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
    if finished:
        assert log.producers.snapshot() == new_log().producers.snapshot()
    copied(log, 3, epoch=9)
    assert log.epochs.at(offset) == 9


def test_a_failed_truncation_stops_the_log() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append(batch(3), now_ms=0)
    log.append(batch(3), now_ms=0)
    log.truncation.begin(3)
    files.fail_next_sync()
    with pytest.raises(LogDirectoryFailed):
        log.truncation.cut(3)
    with pytest.raises(LogDirectoryFailed):
        log.append(batch(1), now_ms=0)


def test_truncation_works_on_a_full_disk() -> None:
    """A full disk can't replace the file of epochs, so the next append writes it first."""
    files = MemoryFiles()
    log = new_log(files)
    for epoch in (3, 3, 5):
        copied(log, 2, epoch=epoch, producer=epoch)
    log.flush()
    # Truncating a batch frees less room than the file of epochs takes.
    log.truncation.begin(4)
    files.capacity_bytes = 0
    log.truncation.cut(4)
    assert (log.log_end_offset, log.epochs.start_after(3)) == (4, None)
    assert log.producers.snapshot() == opened(files, point=4).producers.snapshot()
    for _ in range(2):
        with pytest.raises(LogDirectoryFull):
            copied(log, 1, epoch=3)
    assert log.log_end_offset == 4
    files.capacity_bytes = None
    copied(log, 3, epoch=3)
    assert log.epochs.end_of(3, log.log_end_offset) == (3, 7)
    log.flush()
    files.crash()
    again = opened(files, point=7)
    assert (again.log_end_offset, again.epochs.start_after(3)) == (7, None)


def test_truncated_epochs_do_not_return_after_a_power_cut() -> None:
    """The power cut lies between the truncation of the records and that of the epochs."""
    files = MemoryFiles()
    log = new_log(files)
    copied(log, 4, epoch=3)
    copied(log, 2, epoch=5)
    log.flush()
    kept = read_file(files, f"{DIRECTORY}/{EPOCHS}")
    log.truncation.begin(4)
    log.truncation.cut(4)
    replace_file(files, f"{DIRECTORY}/{EPOCHS}", kept)
    files.crash()
    log = opened(files, point=4)
    log.epochs.begin(4)
    copied(log, 4, epoch=3)
    log.flush()
    files.crash()
    again = opened(files, point=8)
    assert (again.log_end_offset, again.epochs.start_after(3)) == (8, None)
