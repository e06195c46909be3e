"""Epochs: which leadership wrote what, through crashes."""

from __future__ import annotations

from streamlog.broker.storage.epochs import EPOCHS, LeaderEpochs
from streamlog.broker.storage.files import MemoryFiles, read_file
from tests.broker.storage.batches import (
    DIRECTORY,
    batch,
    new_log,
    overwrite,
    read_batches,
    reopened,
)

PATH = f"{DIRECTORY}/{EPOCHS}"


def test_a_start_in_order_goes_on_in_the_same_epoch() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append(batch(2), now_ms=0)
    log.close()
    again = reopened(files, clean=True)
    again.append(batch(2), now_ms=0)
    assert [found.leader_epoch for found in read_batches(again)] == [0, 0]


def test_every_other_start_begins_an_epoch_with_its_first_batch() -> None:
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
    assert again.epochs.end_of(0, again.log_end_offset) == (0, 3), "not 5, as a reader may think"
    assert again.epochs.end_of(1, again.log_end_offset) == (1, 7)
    assert again.epochs.end_of(2, again.log_end_offset) == (-1, -1)
    assert [again.epochs.at(offset) for offset in (0, 2, 3, 6)] == [0, 0, 1, 1]


def test_an_epoch_of_which_nothing_is_left_is_not_used_again() -> None:
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


def test_an_empty_log_has_no_epoch_to_part_from() -> None:
    files = MemoryFiles()
    new_log(files).flush()
    files.crash()
    assert reopened(files).epochs.current == 0


def test_a_file_that_is_no_good_begins_an_epoch() -> None:
    for damaged in (b"", b"1\n0\n", b"0\n2\n1 3\n", b"0\n2\n2 3\n1 4\n", b"\xff\xfe"):
        files = MemoryFiles()
        log = new_log(files)
        log.append(batch(3), now_ms=0)
        log.close()
        overwrite(files, PATH, damaged)
        epochs = LeaderEpochs(files, DIRECTORY)
        epochs.open(3, clean=True)
        assert epochs.current == 1
