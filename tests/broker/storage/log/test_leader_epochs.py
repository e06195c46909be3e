"""Leader epochs of a log, through restarts, crashes and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.leader_epochs import EPOCHS, LeaderEpochHistory
from streamlog.errors import OffsetOutOfRange
from tests.broker.storage.batches import (
    DIRECTORY,
    batch,
    log_files,
    new_log,
    overwrite,
    read_batches,
    reopened,
)

PATH = f"{DIRECTORY}/{EPOCHS}"


def test_a_clean_start_keeps_the_epoch() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append(batch(2), now_ms=0)
    log.close()
    again = reopened(files, clean=True)
    again.append(batch(2), now_ms=0)
    assert [found.leader_epoch for found in read_batches(again)] == [0, 0]


def test_an_unclean_start_begins_an_epoch_with_its_first_batch() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append(batch(3), now_ms=0)
    log.flush()
    log.append(batch(2), now_ms=0)
    assert log.epochs.end_of(0, log.log_end_offset) == (0, 5)
    files.crash()
    again = reopened(files)
    assert again.epochs.current == 1
    again.append(batch(4), now_ms=0)
    assert read_file(files, PATH).decode() == "0\n1\n1 3\n"
    assert [found.leader_epoch for found in read_batches(again)] == [0, 1]
    assert again.epochs.end_of(0, again.log_end_offset) == (0, 3), (
        "not 5, where a reader may have been"
    )
    assert again.epochs.end_of(1, again.log_end_offset) == (1, 7)
    assert again.epochs.end_of(2, again.log_end_offset) == (-1, -1)
    assert [again.epochs.at(offset) for offset in (0, 2, 3, 6)] == [0, 0, 1, 1]


def test_an_epoch_whose_records_were_lost_is_not_reused() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append(batch(3), now_ms=0)
    log.flush()
    for epoch in (1, 2, 3):
        files.crash()
        again = reopened(files)
        assert again.epochs.current == epoch
        again.append(batch(4), now_ms=0)  # lost with the next crash
        assert read_file(files, PATH).decode() == f"0\n1\n{epoch} 3\n"
    again.flush()
    files.crash()
    last = reopened(files)
    last.append(batch(), now_ms=0)
    assert read_file(files, PATH).decode() == "0\n2\n3 3\n4 7\n"
    assert last.epochs.end_of(2, 8) == (0, 3)
    last.close()
    assert reopened(files, clean=True).epochs.current == 4


def test_an_unclean_start_of_an_empty_log_begins_no_epoch() -> None:
    files = MemoryFiles()
    new_log(files).flush()
    files.crash()
    assert reopened(files).epochs.current == 0


def test_a_malformed_epoch_file_begins_an_epoch() -> None:
    for damaged in (b"", b"1\n0\n", b"0\n2\n1 3\n", b"0\n2\n2 3\n1 4\n", b"\xff\xfe"):
        files = MemoryFiles()
        log = new_log(files)
        log.append(batch(3), now_ms=0)
        log.close()
        overwrite(files, PATH, damaged)
        log = reopened(files, clean=True)
        assert log.epochs.current == 1
        assert read_file(files, PATH) == b"0\n0\n"


def three_epochs() -> MemoryFiles:
    """Return a closed log of several segments, whose epochs begin at 0, 40 and 80."""
    files = MemoryFiles()
    log = new_log(files)
    for epoch in range(3):
        assert log.epochs.current == epoch
        for _ in range(20):
            log.append(batch(2), now_ms=0)
        if epoch < 2:
            files.crash(keep_bytes=None)
            log = reopened(files)
    log.close()
    assert read_file(files, PATH) == b"0\n2\n1 40\n2 80\n"
    return files


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("damaged", [b"", b"0\n2\n1 4", bytes(12), None])
def test_a_damaged_epoch_file_is_rebuilt_from_the_log(
    damaged: bytes | None, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = three_epochs()
    files.remove(PATH)
    if damaged is not None:
        overwrite(files, PATH, damaged)
    elif clean:
        return  # A clean start reads no batches, so it can't know.
    log = reopened(files, clean=clean, recovery_point=0 if clean else 100)
    assert "rebuilt from the log's batches" in caplog.text
    assert read_file(files, PATH) == b"0\n2\n1 40\n2 80\n"
    assert log.epochs.current == 3
    assert [log.epochs.end_of(epoch, 120) for epoch in (0, 1, 2)] == [(0, 40), (1, 80), (2, 120)]
    log.append(batch(), now_ms=0)
    assert read_file(files, PATH) == b"0\n3\n1 40\n2 80\n3 120\n"


@given(st.integers(0, 59), st.integers(0, 31))
def test_a_flipped_bit_in_one_batchs_epoch_is_ignored(number: int, bit: int) -> None:
    """No checksum covers the leader epoch of a batch."""
    files = three_epochs()
    overwrite(files, PATH, b"?")
    offsets = sorted(int(path[-24:-4]) for path in log_files(files))
    base = max(offset for offset in offsets if offset <= 2 * number)
    position = (2 * number - base) // 2 * len(batch(2))
    file = files.open(f"{DIRECTORY}/{base:020d}.log", writable=True)
    flipped = int.from_bytes(file.read(4, position + 12), "big") ^ (1 << bit)
    file.write(flipped.to_bytes(4, "big"), position + 12)
    log = reopened(files, clean=True)
    lines = read_file(files, PATH).decode().splitlines()[2:]
    beginnings = [int(line.split()[1]) for line in lines]
    # At an edge, the batch may belong to either side, or to an epoch of its own.
    edges = {19, 20, 21, 39, 40, 41, 59}
    if number not in edges:
        assert beginnings == [40, 80]
    assert log.epochs.current >= 2
    assert log.append(batch(), now_ms=0).base_offset == 120


def test_a_diverging_reader_learns_where_its_epoch_ended() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append(batch(5), now_ms=0)
    files.crash(keep_bytes=None)
    log = reopened(files)
    log.append(batch(5), now_ms=0)
    epochs = log.epochs
    assert epochs.diverges(0, 5, 10) is None
    assert epochs.diverges(1, 10, 10) is None
    assert epochs.diverges(0, 7, 10) == (0, 5), "it has read lost records"
    assert epochs.diverges(1, 11, 10) == (1, 10)
    with pytest.raises(OffsetOutOfRange, match="no epoch 2"):
        epochs.diverges(2, 3, 10)


def test_the_current_epoch_is_known_before_its_first_batch() -> None:
    files = MemoryFiles()
    new_log(files).append(batch(5), now_ms=0)
    files.crash(keep_bytes=None)
    log = reopened(files)
    assert log.epochs.end_of(1, 5) == (1, 5)
    assert log.epochs.end_of(0, 5) == (0, 5)


def kept(starts: list[tuple[int, int]], files: MemoryFiles) -> LeaderEpochHistory:
    """Return epochs with these start offsets, of a log with the end offset 100."""
    files.make_directory("p")
    epochs = LeaderEpochHistory(files, "p")
    for epoch, offset in starts:
        epochs.begin(epoch)
        epochs.note(offset)
    return epochs


@given(st.dictionaries(st.integers(1, 9), st.integers(0, 90)), st.integers(0, 100))
def test_trimmed_epochs_agree_on_the_remaining_log(
    begun: dict[int, int], start_offset: int
) -> None:
    starts = list(zip(sorted(begun), sorted(begun.values()), strict=True))
    files = MemoryFiles()
    whole, trimmed = kept(starts, MemoryFiles()), kept(starts, files)
    trimmed.trim(start_offset)
    again = LeaderEpochHistory(files, "p")
    again.open((start_offset, 100), clean=True, batches=lambda: ())
    for epochs in (trimmed, again):
        for offset in range(max(start_offset - 1, 0), 100):
            assert epochs.at(offset) == whole.at(offset)
        for epoch in range(whole.at(start_offset), 10):
            assert epochs.start_after(epoch) == whole.start_after(epoch)
        for epoch in range(whole.current + 1):
            found, end = epochs.end_of(epoch, 100)
            if whole.end_of(epoch, 100)[1] > start_offset:
                assert (found, end) == whole.end_of(epoch, 100)
            else:  # A reader that has read the epoch whole continues at the log's start.
                assert end == start_offset
                assert epochs.diverges(epoch, start_offset, 100) in (None, (found, end))


def test_epochs_of_deleted_records_are_dropped() -> None:
    files = MemoryFiles()
    log = new_log(files)
    for epoch in range(30):
        log.epochs.begin(epoch)
        log.append(batch(2), now_ms=0)
    assert len(read_file(files, PATH).splitlines()) == 2 + 29
    log.advance_start(50)
    log.retire()
    assert read_file(files, PATH).decode() == "0\n6\n24 48\n25 50\n26 52\n27 54\n28 56\n29 58\n"
    assert log.epochs.diverges(25, 52, 60) is None
    assert log.epochs.diverges(24, 50, 60) is None
    assert log.epochs.diverges(3, 50, 60) is None, "it has read the epoch whole"
    assert log.epochs.diverges(24, 51, 60) == (24, 50)
