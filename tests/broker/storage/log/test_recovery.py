"""Lost offsets: a repair records them, and they are dropped once the log has passed them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.files import make_durable_directory, read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log.recovery import LOST_OFFSETS, LostOffsets
from tests.broker.storage.batches import SMALL, batch, overwrite

END = 40


def lost(files: MemoryFiles) -> LostOffsets:
    found = LostOffsets(files, "p")
    found.read()
    return found


def opened(files: MemoryFiles, *, log_start_offset: int = 0) -> PartitionLog:
    return PartitionLog.open(
        files, "p", name="t-0", config=SMALL, log_start_offset=log_start_offset
    )


def filled(*ranges: tuple[int, int]) -> MemoryFiles:
    """Return a log of 40 records with these ranges of lost offsets."""
    files = MemoryFiles()
    make_durable_directory(files, "p")
    log = PartitionLog.create(files, "p", name="t-0", config=SMALL)
    for number in range(END):
        log.append(batch(value=b"%d" % number), now_ms=number)
    log.close()
    for first, end in ranges:
        lost(files).add(first, end)
    return files


ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=4)


@given(ranges, st.integers(0, END))
def test_the_first_lost_offset_covers_every_lost_range(
    found: list[tuple[int, int]], log_start_offset: int
) -> None:
    files = MemoryFiles()
    files.make_directory("p")
    for first, count in found:
        lost(files).add(first, first + count)
    first_lost = lost(files).first_from(log_start_offset)
    left = [
        max(first, log_start_offset) for first, count in found if first + count > log_start_offset
    ]
    if left:
        assert first_lost is not None
        assert log_start_offset <= first_lost <= min(left)
    else:
        assert first_lost is None


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff", b'{"version": 2, "first_offset": 7, "end_offset": 9}']
)
def test_an_unreadable_lost_offsets_file_means_all_is_lost(content: bytes) -> None:
    files = filled((7, 9))
    overwrite(files, f"p/{LOST_OFFSETS}", content)
    assert lost(files).first_from(0) == 0
    assert lost(files).first_from(5) == 5


def test_lost_offsets_count_until_the_log_is_truncated_below_them() -> None:
    files = filled((12, 15))
    log = opened(files)
    for offset, first_lost in ((30, 12), (13, 12), (12, None)):
        log.truncation.begin(offset)
        log.truncation.cut(offset)
        assert log.lost.first_from(0) == first_lost
        assert log.lacks_records == (first_lost is not None)
    for number in range(20):
        log.append(batch(value=b"%d" % number), now_ms=number)
    log.close()
    assert not opened(files).lacks_records


def test_a_restarted_log_has_no_lost_offsets() -> None:
    log = opened(filled((12, 15)))
    log.truncation.begin_restart(0)
    log.truncation.restart(0)
    assert not log.lacks_records


def test_deleted_records_drop_their_lost_offsets() -> None:
    files = filled((12, 15))
    log = opened(files)
    log.advance_start(14)
    assert log.lost.first_from(log.log_start_offset) == 14
    log.advance_start(15)
    assert not log.lacks_records
    log.close()
    opened(files, log_start_offset=15)
    with pytest.raises(FileNotFoundError):
        read_file(files, f"p/{LOST_OFFSETS}")


def test_lost_offsets_beyond_the_end_are_dropped_at_the_next_open() -> None:
    files = filled((12, 15))
    log = opened(files)
    before = read_file(files, f"p/{LOST_OFFSETS}")
    log.truncation.begin(12)
    log.truncation.cut(12)
    files.crash()
    overwrite(files, f"p/{LOST_OFFSETS}", before)
    assert not opened(files).lacks_records


def test_lost_offsets_notify_a_watcher_of_damage() -> None:
    calls: list[bool] = []
    for files in (filled(), filled((12, 15))):
        opened(files).watch_damage(lambda: calls.append(True))
    assert calls == [True]
