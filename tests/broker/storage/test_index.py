from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.files import MemoryFiles, read_file
from streamlog.broker.storage.index import PENDING_MAX, OffsetIndex, TimeIndex

entries = st.lists(st.integers(1, 10_000), unique=True, max_size=60).map(sorted)


@given(entries, st.data())
def test_finds_the_last_entry_that_is_not_greater(firsts: list[int], data: st.DataObject) -> None:
    files = MemoryFiles()
    index = OffsetIndex(files, "index", in_memory=False)
    index.create()
    for number, first in enumerate(firsts):
        index.add((first, number))
        if data.draw(st.integers(0, 5)) == 0:
            index.flush()
    for target in {0, 10_001, *firsts, *(first - 1 for first in firsts)}:
        at = bisect_right(firsts, target) - 1
        assert index.floor(target) == ((firsts[at], at) if at >= 0 else None)


@given(entries)
def test_what_was_flushed_is_loaded(firsts: list[int]) -> None:
    files = MemoryFiles()
    index = TimeIndex(files, "index", in_memory=False)
    for first in firsts:
        index.add((first, first // 2))
    index.flush(durable=True)
    again = TimeIndex(files, "index", in_memory=False)
    assert again.load()
    assert len(again) == len(firsts)
    assert again.last == index.last
    assert len(read_file(files, "index")) == 12 * len(firsts)


def test_entries_are_as_kafka_lays_them_out() -> None:
    files = MemoryFiles()
    offsets = OffsetIndex(files, "index", in_memory=False)
    offsets.add((3, 0x1234))
    offsets.flush()
    assert read_file(files, "index") == bytes.fromhex("00000003 00001234")
    times = TimeIndex(files, "timeindex", in_memory=False)
    times.add((0x1122334455, 3))
    times.flush()
    assert read_file(files, "timeindex") == bytes.fromhex("0000001122334455 00000003")


def test_a_missing_or_uneven_file_is_not_loaded() -> None:
    files = MemoryFiles()
    index = OffsetIndex(files, "index", in_memory=False)
    assert not index.load()
    files.open("index", writable=True).write(bytes(7), 0)
    assert not index.load()


def test_a_cleared_index_is_written_anew() -> None:
    files = MemoryFiles()
    index = OffsetIndex(files, "index", in_memory=False)
    for first in range(1, 10):
        index.add((first, first))
    index.flush()
    index.clear()
    assert index.floor(100) is None
    index.add((4, 5))
    index.flush()
    assert len(read_file(files, "index")) == 8
    assert index.floor(100) == (4, 5)


def test_a_flush_is_due_after_many_entries_and_never_in_memory() -> None:
    files = MemoryFiles()
    for in_memory in (False, True):
        index = OffsetIndex(files, "index", in_memory=in_memory)
        for first in range(1, PENDING_MAX + 1):
            assert not index.flush_due
            index.add((first, first))
        assert index.flush_due is not in_memory
    index.flush()
    assert files.list("") == []
