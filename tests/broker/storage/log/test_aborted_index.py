from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.aborted_index import (
    ENTRY_BYTES,
    PENDING_MAX,
    AbortedIndex,
    decode_entries,
)
from streamlog.broker.storage.log.producer_states import EndedTransaction
from tests.broker.storage.batches import overwrite

PATH = "d/00000000000000000000.txnindex"
ENTRIES = [
    EndedTransaction(7, 0, 4, 2, aborted=True),
    EndedTransaction(8, 2, 9, 10, aborted=True),
    EndedTransaction(7, 10, 12, 13, aborted=True),
]


def disk() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory("d")
    return files


def filled(files: MemoryFiles) -> AbortedIndex:
    index = AbortedIndex(files, PATH, in_memory=False)
    index.remove()
    for entry in ENTRIES:
        index.add(entry)
    return index


def test_aborted_entries_have_kafkas_layout() -> None:
    files = disk()
    filled(files).flush()
    data = read_file(files, PATH)
    assert len(data) == 3 * ENTRY_BYTES == 3 * 34
    assert struct.unpack_from(">hqqqq", data) == (0, 7, 0, 4, 2)
    assert decode_entries(data) == ENTRIES


def test_an_index_without_entries_has_no_file() -> None:
    files = disk()
    index = AbortedIndex(files, PATH, in_memory=False)
    index.remove()
    index.flush(durable=True)
    assert files.list("d") == []
    assert index.load(0)
    assert list(index) == []


def test_pending_entries_are_visible_and_written_by_a_flush() -> None:
    files = disk()
    index = filled(files)
    assert (list(index), index.is_behind, index.needs_flush) == (ENTRIES, True, False)
    index.flush()
    assert not index.is_behind
    index.add(EndedTransaction(1, 20, 30, 31, aborted=True))
    index.flush(durable=True)
    again = AbortedIndex(files, PATH, in_memory=False)
    assert again.load(0)
    assert list(again) == [*ENTRIES, EndedTransaction(1, 20, 30, 31, aborted=True)]


def test_many_pending_entries_need_a_flush() -> None:
    index = AbortedIndex(disk(), PATH, in_memory=False)
    for number in range(PENDING_MAX):
        assert not index.needs_flush
        index.add(EndedTransaction(1, number, number + 1, number + 2, aborted=True))
    assert index.needs_flush


def test_synced_entries_survive_a_power_cut() -> None:
    files = disk()
    files.sync_directory("")
    filled(files).flush(durable=True)
    files.crash()
    assert decode_entries(read_file(files, PATH)) == ENTRIES


@pytest.mark.parametrize(
    ("offset", "end_offset", "found", "complete"),
    [
        (0, 1, ENTRIES[:1], True),
        (0, 3, ENTRIES[:2], True),
        (3, 5, ENTRIES[:2], True),
        (5, 11, ENTRIES[1:], True),
        (10, 11, ENTRIES[2:], True),
        (10, 99, ENTRIES[2:], False),
        (13, 99, [], False),
    ],
)
def test_overlapping_transactions_are_found(
    offset: int, end_offset: int, found: list[EndedTransaction], *, complete: bool
) -> None:
    assert filled(disk()).overlapping(offset, end_offset) == (found, complete)


def _entry(*fields: int) -> bytes:
    return struct.pack(">hqqqq", *fields)


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 33,
        bytes(34),
        _entry(1, 7, 0, 4, 5),
        _entry(0, 7, 4, 4, 5),
        _entry(0, 7, 0, 4, 6),
        _entry(0, 7, 0, 4, 5) + _entry(0, 7, 0, 4, 5),
    ],
)
def test_a_damaged_file_is_not_loaded(data: bytes) -> None:
    files = disk()
    overwrite(files, PATH, data)
    index = AbortedIndex(files, PATH, in_memory=False)
    assert not index.load(0)
    assert (index.is_known, index.is_distrusted) == (False, True)
    assert not index.load(0)
    index.rebuild(ENTRIES)
    assert list(index) == ENTRIES
    index.flush()
    assert decode_entries(read_file(files, PATH)) == ENTRIES
    assert decode_entries(data) is None


def test_a_marker_before_its_segment_is_not_loaded() -> None:
    files = disk()
    filled(files).flush()
    assert not AbortedIndex(files, PATH, in_memory=False).load(5)


def test_rebuilding_without_entries_removes_the_file() -> None:
    files = disk()
    filled(files).flush()
    index = AbortedIndex(files, PATH, in_memory=False)
    index.rebuild([])
    index.flush()
    assert files.list("d") == []


def test_an_in_memory_index_writes_nothing() -> None:
    files = disk()
    index = AbortedIndex(files, PATH, in_memory=True)
    assert index.load(0)
    index.rebuild(ENTRIES)
    index.flush()
    assert files.list("d") == []
    assert list(index) == ENTRIES


def test_a_sealed_index_has_a_file_even_if_empty() -> None:
    files = disk()
    AbortedIndex(files, PATH, in_memory=False).seal()
    assert read_file(files, PATH) == b""


@given(
    st.lists(
        st.sampled_from(["add", "distrust", "flush", "load", "rebuild", "rebuild_empty", "remove"]),
        max_size=8,
    )
)
def test_an_index_is_empty_if_it_is_known_to_have_no_entries(steps: list[str]) -> None:
    """Fetches ask no more of an empty index, so one with entries must never say that it is."""
    index = AbortedIndex(disk(), PATH, in_memory=False)
    acts = {
        "add": lambda: index.add(ENTRIES[0]),
        "distrust": index.distrust,
        "flush": index.flush,
        "load": lambda: index.load(0),
        "rebuild": lambda: index.rebuild(ENTRIES),
        "rebuild_empty": lambda: index.rebuild([]),
        "remove": index.remove,
    }
    for step in steps:
        acts[step]()
        assert index.is_empty == (index.is_known and list(index) == [])
