from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from tracemalloc import get_traced_memory, start, stop

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.descriptors import shares
from streamlog.broker.storage.disk.files import Files, read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.log.index import PENDING_MAX, ROOM_ENTRIES, OffsetIndex, TimeIndex
from streamlog.errors import CorruptData

MAX = 1 << 20
PAIR = Struct(">II")
entries = st.lists(st.integers(1, 10_000), unique=True, max_size=60).map(sorted)


def offset_index(files: Files, path: str = "index", *, bytes_max: int = MAX) -> OffsetIndex:
    return OffsetIndex(files, path, bytes_max=bytes_max, in_memory=False)


def time_index(files: Files, path: str = "index") -> TimeIndex:
    return TimeIndex(files, path, bytes_max=MAX, in_memory=False)


def filled(files: Files, path: str, count: int) -> OffsetIndex:
    """Return an index whose entries are all in its file, with preallocated room for more."""
    index = offset_index(files, path)
    index.create()
    for number in range(1, count + 1):
        index.add((2 * number, number))
    index.flush()
    return index


@pytest.fixture(autouse=True, scope="module", params=["mapped", "read"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set how small indexes are read; indexes of a page and more are always mapped."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "mapped":
            patch.setattr("streamlog.broker.storage.log.index.READ_BYTES_MAX", 0)
        yield request.param


@pytest.fixture(params=["os", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    files: Files = OsFiles() if request.param == "os" else MemoryFiles()
    files.make_directory(str(tmp_path))
    return files, f"{tmp_path}/index"


def test_pending_entries_take_little_memory() -> None:
    index = offset_index(MemoryFiles())
    start()
    try:
        before, _ = get_traced_memory()
        for number in range(1, PENDING_MAX):
            index.add((1000 * number, 1000 * number))
        assert get_traced_memory()[0] - before < 2 * PENDING_MAX * PAIR.size
    finally:
        stop()


@given(entries, st.data())
def test_floor_finds_the_last_entry_that_is_not_greater(
    firsts: list[int], data: st.DataObject
) -> None:
    files = MemoryFiles()
    index = offset_index(files)
    index.create()
    for number, first in enumerate(firsts):
        index.add((first, number))
        match data.draw(st.integers(0, 8)):
            case 0:
                index.flush()
            case 1:
                index.trim()
            case 2:
                index.floor(first - 1)  # maps the file in its current state
    reader = OffsetIndex(files, "index", bytes_max=MAX, in_memory=True)
    assert reader.load()
    for target in {0, 10_001, *firsts, *(first - 1 for first in firsts)}:
        at = bisect_right(firsts, target) - 1
        assert index.floor(target) == ((firsts[at], at) if at >= 0 else None)
        there = min(at, len(reader) - 1)
        assert reader.floor(target) == ((firsts[there], there) if there >= 0 else None)


@given(entries)
def test_written_entries_are_loaded(firsts: list[int]) -> None:
    files = MemoryFiles()
    index = time_index(files)
    for first in firsts:
        index.add((first, first // 2))
    index.flush()
    for _ in range(2):
        again = time_index(files)
        assert again.load()
        assert len(again) == len(firsts)
        assert again.last == index.last
        again.trim(durable=True)  # Cuts off the room that a kill has left in the file.
        assert len(read_file(files, "index")) == 12 * len(firsts)


def test_entries_have_kafkas_layout() -> None:
    files = MemoryFiles()
    offsets = offset_index(files)
    offsets.add((3, 0x1234))
    offsets.trim()
    assert read_file(files, "index") == bytes.fromhex("00000003 00001234")
    times = time_index(files, "timeindex")
    times.add((0x1122334455, 3))
    times.trim()
    assert read_file(files, "timeindex") == bytes.fromhex("0000001122334455 00000003")


def test_a_missing_or_uneven_file_is_not_loaded() -> None:
    files = MemoryFiles()
    index = offset_index(files)
    assert not index.load()
    files.open("index", writable=True).write(bytes(7), 0)
    assert not index.load()


def test_a_cleared_index_is_rewritten() -> None:
    files = MemoryFiles()
    index = offset_index(files)
    for first in range(1, 10):
        index.add((first, first))
    index.trim()
    index.clear()
    assert index.floor(100) is None
    index.add((4, 5))
    index.trim()
    assert len(read_file(files, "index")) == 8
    assert index.floor(100) == (4, 5)


def test_a_flush_is_due_after_many_entries_and_never_in_memory() -> None:
    files = MemoryFiles()
    for in_memory in (False, True):
        index = OffsetIndex(files, "index", bytes_max=MAX, in_memory=in_memory)
        for first in range(1, PENDING_MAX + 1):
            assert not index.needs_flush
            index.add((first, first))
        assert index.needs_flush is not in_memory
    index.flush()
    index.trim()
    assert files.list("") == []


def test_a_file_doubles_its_room_and_trim_cuts_it_off(disk: tuple[Files, str]) -> None:
    files, path = disk
    index = offset_index(files, path)
    index.create()
    assert read_file(files, path) == b""
    sizes = []
    for number in range(1, 2 * ROOM_ENTRIES + 2):
        index.add((number, number))
        if index.needs_flush or number > 2 * ROOM_ENTRIES:
            index.flush()
            sizes.append(files.open(path).size() // 8)
    assert sorted({*sizes}) == [ROOM_ENTRIES, 2 * ROOM_ENTRIES, 4 * ROOM_ENTRIES]
    assert index.floor(1000) == (1000, 1000)
    index.trim()
    data = read_file(files, path)
    assert [*PAIR.iter_unpack(data)] == [(n, n) for n in range(1, 2 * ROOM_ENTRIES + 2)]
    assert index.floor(1001) == (1001, 1001)


def test_a_file_reserves_no_more_than_its_maximum() -> None:
    files = MemoryFiles()
    index = offset_index(files, bytes_max=1003)
    index.add((1, 1))
    index.flush()
    assert len(read_file(files, "index")) == 1000
    for number in range(2, 201):
        index.add((number, number))
    index.flush()
    assert len(read_file(files, "index")) == 1600


def test_a_full_disk_keeps_entries_in_memory() -> None:
    files = MemoryFiles(capacity_bytes=100)
    index = offset_index(files)
    index.create()
    for number in range(1, 10):
        index.add((number, number))
    with pytest.raises(OSError, match="No space"):
        index.flush()
    assert read_file(files, "index") == b""
    assert index.floor(7) == (7, 7)
    index.trim()  # They fit without room for more.
    assert len(read_file(files, "index")) == 72


@pytest.mark.parametrize("size_bytes", [0, 7, 64, 799])
def test_a_file_truncated_under_its_mapping_is_detected(
    disk: tuple[Files, str], size_bytes: int
) -> None:
    """Reading behind the end of a mapped file would kill the process."""
    files, path = disk
    index = filled(files, path, 100)
    assert index.floor(101) == (100, 50)
    files.open(path, writable=True).truncate(size_bytes)
    with pytest.raises(CorruptData, match="cut off"):
        index.floor(101)
    index.add((1000, 1000))
    index.flush()
    assert index.floor(999) is None
    assert index.floor(1000) == (1000, 1000)


def test_a_removed_file_is_detected(disk: tuple[Files, str]) -> None:
    files, path = disk
    index = filled(files, path, 100)
    files.remove(path)
    with pytest.raises(CorruptData, match="gone"):
        index.floor(101)


def test_rebuilding_an_equal_index_writes_nothing() -> None:
    files = MemoryFiles()
    index = filled(files, "index", 100)
    index.trim()
    index.clear()
    for number in range(1, 101):
        index.add((2 * number, number))
    files.fail_next_write()
    index.trim()
    assert index.floor(101) == (100, 50)


def test_the_number_of_mapped_indexes_is_bounded(
    tmp_path: Path,
) -> None:
    files = OsFiles(shares(1024)._replace(mappings=3))
    indexes = [filled(files, f"{tmp_path}/{number}", 1000) for number in range(8)]
    for _ in range(3):
        for index in indexes:
            assert index.floor(101) == (100, 50)
    assert mapped(tmp_path) == 3
    for index in indexes:
        index.unmap()
    assert mapped(tmp_path) == 0


def mapped(path: Path) -> int:
    """Return how many files of a directory this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(f" {path}/" in line for line in lines)
