"""What every implementation of the Files port promises, and what MemoryFiles can do to you."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from simulation.disk import SimulatedDisk
from streamlog.broker.storage.disk.files import (
    Files,
    directory_error,
    make_durable_directory,
    parent_of,
    read_file,
    replace_file,
    write_whole,
)
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.errors import LogDirectoryFailed, LogDirectoryLost

Place = tuple[Files, str]


@pytest.fixture(params=["os", "memory", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The files, and a directory in them."""
    files: Files = MemoryFiles()
    if request.param == "os":
        files = OsFiles()
    elif request.param == "simulated":
        files = SimulatedDisk(Random(0))
    files.make_directory(str(tmp_path))
    return files, str(tmp_path)


def test_reads_back_what_was_written_at_its_position(place: Place) -> None:
    files, path = place
    file = files.open(f"{path}/a", writable=True)
    assert file.write(b"hello", 0) == 5
    assert file.write(memoryview(b"xyz"), 10) == 3
    assert file.size() == 13
    assert file.read(100, 0) == b"hello" + bytes(5) + b"xyz"
    assert file.read(2, 1) == b"el"
    assert file.read(5, 13) == b""
    assert file.read(5, 50) == b""
    file.close()
    assert read_file(files, f"{path}/a").endswith(b"xyz")


def test_writes_over_what_is_there(place: Place) -> None:
    files, path = place
    file = files.open(f"{path}/a", writable=True)
    write_whole(file, b"aaaaaa", 0)
    write_whole(file, bytearray(b"bb"), 2)
    assert file.read(10, 0) == b"aabbaa"


def test_truncate_cuts_and_extends(place: Place) -> None:
    files, path = place
    file = files.open(f"{path}/a", writable=True)
    write_whole(file, b"abcdef", 0)
    file.truncate(2)
    assert file.read(10, 0) == b"ab"
    file.truncate(4)
    assert file.read(10, 0) == b"ab\0\0"
    file.sync()


def test_a_mapping_shows_what_is_written_and_knows_where_the_file_ends(place: Place) -> None:
    files, path = place
    file = files.open(f"{path}/a", writable=True)
    with pytest.raises(FileNotFoundError):
        files.map(f"{path}/none")
    assert not files.map(f"{path}/a").reaches(1)
    file.truncate(10)
    mapping = files.map(f"{path}/a")
    assert mapping.reaches(10)
    assert not mapping.reaches(11)
    write_whole(file, b"abc", 4)
    assert bytes(mapping.view()[2:8]) == b"\0\0abc\0"
    file.truncate(20)
    assert not mapping.reaches(20)  # It is as long as the file was.
    file.truncate(8)
    assert mapping.reaches(8)
    assert not mapping.reaches(9)
    files.rename(f"{path}/a", f"{path}/b")
    assert bytes(mapping.view()[4:7]) == b"abc"
    for _ in range(2):
        mapping.close()
    assert not mapping.reaches(1)


def test_a_file_is_extended_with_room_that_it_has(tmp_path: Path) -> None:
    file = OsFiles().open(f"{tmp_path}/a", writable=True)
    file.truncate(1 << 20)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 1 << 20
    file.truncate(0)
    assert (tmp_path / "a").stat().st_blocks == 0


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_a_file_system_may_know_no_allocation_or_have_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int, position: int, size_bytes: int) -> None:
        os.ftruncate(descriptor, position + size_bytes // 2)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("streamlog.broker.storage.disk.os_files._allocate", refuse)
    file = OsFiles().open(f"{tmp_path}/a", writable=True)
    write_whole(file, b"abc", 0)
    if code == errno.ENOSPC:
        with pytest.raises(OSError, match="No space"):
            file.truncate(200_000)
        assert file.read(10, 0) == b"abc"
        return
    file.truncate(200_000)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 200_000
    assert file.read(300_000, 0) == b"abc" + bytes(199_997)


def test_a_file_is_made_only_for_writing(place: Place) -> None:
    files, path = place
    with pytest.raises(FileNotFoundError):
        files.open(f"{path}/a")
    files.open(f"{path}/a", writable=True).close()
    assert files.open(f"{path}/a").size() == 0
    with pytest.raises(OSError):
        files.open(f"{path}/a").write(b"x", 0)
    with pytest.raises(FileNotFoundError):
        files.open(f"{path}/none/a", writable=True)


def test_opening_again_keeps_the_content(place: Place) -> None:
    files, path = place
    first = files.open(f"{path}/a", writable=True)
    write_whole(first, b"abc", 0)
    second = files.open(f"{path}/a", writable=True)
    assert second.read(10, 0) == b"abc"
    write_whole(second, b"d", 3)
    assert first.read(10, 0) == b"abcd"


def test_directories_list_their_names_in_order(place: Place) -> None:
    files, path = place
    files.make_directory(f"{path}/d/e")
    files.make_directory(f"{path}/d/e")
    for name in ("b", "a", "c"):
        files.open(f"{path}/d/{name}", writable=True).close()
    assert files.list(f"{path}/d") == ["a", "b", "c", "e"]
    with pytest.raises(FileNotFoundError):
        files.list(f"{path}/none")
    with pytest.raises(NotADirectoryError):
        files.list(f"{path}/d/a")


def test_rename_replaces_a_file_and_moves_a_directory(place: Place) -> None:
    files, path = place
    for name in ("a", "b"):
        write_whole(files.open(f"{path}/{name}", writable=True), name.encode(), 0)
    old = files.open(f"{path}/b")
    files.rename(f"{path}/a", f"{path}/b")
    assert files.list(path) == ["b"]
    assert read_file(files, f"{path}/b") == b"a"
    assert not old.is_linked()
    files.make_directory(f"{path}/d")
    files.open(f"{path}/d/x", writable=True).close()
    files.rename(f"{path}/d", f"{path}/e")
    assert files.list(f"{path}/e") == ["x"]
    with pytest.raises(FileNotFoundError):
        files.rename(f"{path}/none", f"{path}/a")


def test_an_open_file_notices_that_it_was_removed(place: Place) -> None:
    files, path = place
    file = files.open(f"{path}/a", writable=True)
    assert file.is_linked()
    files.remove(f"{path}/a")
    assert not file.is_linked()
    assert file.write(b"x", 0) == 1
    with pytest.raises(FileNotFoundError):
        files.remove(f"{path}/a")


def test_removes_empty_directories_only(place: Place) -> None:
    files, path = place
    files.make_directory(f"{path}/d")
    files.open(f"{path}/d/a", writable=True).close()
    with pytest.raises(OSError):
        files.remove(f"{path}/d")
    files.remove(f"{path}/d/a")
    files.remove(f"{path}/d")
    assert files.list(path) == []


def test_a_lock_is_held_by_one(place: Place) -> None:
    files, path = place
    lock = files.lock(f"{path}/lock")
    assert lock is not None
    assert files.lock(f"{path}/lock") is None
    write_whole(lock, b"me", 0)
    assert read_file(files, f"{path}/lock") == b"me"
    lock.close()
    lock.close()
    again = files.lock(f"{path}/lock")
    assert again is not None
    again.close()


def test_replace_file_leaves_no_trace_of_itself(place: Place) -> None:
    files, path = place
    for content in (b"first", b"2", b""):
        replace_file(files, f"{path}/a", content)
        assert read_file(files, f"{path}/a") == content
    assert files.list(path) == ["a"]
    files.sync_directory(path)


def test_a_durable_directory_is_made_with_those_above_it(place: Place) -> None:
    files, path = place
    for _ in range(2):
        make_durable_directory(files, f"{path}/a/b/c")
    assert files.list(f"{path}/a/b") == ["c"]
    files.open(f"{path}/file", writable=True).close()
    with pytest.raises(NotADirectoryError):
        make_durable_directory(files, f"{path}/file/a")


@pytest.mark.parametrize(
    ("path", "parent"), [("/a/b", "/a"), ("/a", "/"), ("a/b", "a"), ("a", ".")]
)
def test_a_path_has_a_parent(path: str, parent: str) -> None:
    assert parent_of(path) == parent


# What only MemoryFiles does.


def test_a_short_write_is_continued() -> None:
    files = MemoryFiles()
    file = files.open("a", writable=True)
    files.short_next_write(3)
    write_whole(file, b"abcdefgh", 0)
    assert file.read(100, 0) == b"abcdefgh"


def test_a_failing_write_may_have_begun() -> None:
    files = MemoryFiles()
    file = files.open("a", writable=True)
    files.fail_next_write(errno.EIO, after_bytes=3)
    with pytest.raises(OSError, match="Input/output"):
        write_whole(file, b"abcdefgh", 0)
    assert file.read(100, 0) == b"abc"
    write_whole(file, b"abcdefgh", 0)
    assert file.read(100, 0) == b"abcdefgh"


def test_a_full_disk_takes_what_fits_and_then_refuses() -> None:
    files = MemoryFiles(capacity_bytes=10)
    file = files.open("a", writable=True)
    write_whole(file, bytes(6), 0)
    assert file.write(bytes(6), 6) == 4
    with pytest.raises(OSError) as caught:
        file.write(bytes(2), 10)
    assert caught.value.errno == errno.ENOSPC
    assert file.write(bytes(2), 0) == 2


def test_a_power_cut_takes_what_was_not_synced() -> None:
    files = MemoryFiles()
    files.make_directory("d")
    files.sync_directory("")
    file = files.open("d/a", writable=True)
    write_whole(file, b"abc", 0)
    file.sync()
    files.sync_directory("d")
    write_whole(file, b"def", 3)
    files.open("d/b", writable=True).sync()
    files.crash()
    with pytest.raises(OSError):
        file.read(1, 0)
    assert files.list("d") == ["a"]
    assert read_file(files, "d/a") == b"abc"


def test_a_power_cut_may_leave_a_part_of_what_was_not_synced() -> None:
    files = MemoryFiles()
    file = files.open("a", writable=True)
    files.sync_directory("")
    write_whole(file, b"abcdef", 0)
    files.crash(keep_bytes=2)
    assert read_file(files, "a") == b"ab"


def test_a_kill_leaves_what_was_written_and_frees_the_lock() -> None:
    files = MemoryFiles()
    write_whole(files.open("a", writable=True), b"abc", 0)
    assert files.lock("lock") is not None
    files.crash(keep_bytes=None)
    assert read_file(files, "a") == b"abc"
    assert files.lock("lock") is not None


def test_a_failed_sync_makes_nothing_durable() -> None:
    files = MemoryFiles()
    file = files.open("a", writable=True)
    files.sync_directory("")
    write_whole(file, b"abc", 0)
    files.fail_next_sync()
    with pytest.raises(OSError):
        file.sync()
    files.crash()
    assert read_file(files, "a") == b""


def test_a_replaced_file_is_the_old_one_or_the_new_one() -> None:
    files = MemoryFiles()
    replace_file(files, "a", b"old")
    files.fail_next_sync()
    with pytest.raises(OSError):
        replace_file(files, "a", b"new")
    files.crash()
    assert read_file(files, "a") == b"old"


def test_errors_say_whether_the_directory_is_lost_or_failing() -> None:
    lost = directory_error(FileNotFoundError(errno.ENOENT, "No such file", "d/a"), "d")
    assert isinstance(lost, LogDirectoryLost)
    assert "d/a has vanished" in str(lost)
    full = directory_error(OSError(errno.ENOSPC, "No space left on device"), "d")
    assert isinstance(full, LogDirectoryFailed)
    assert "free some space" in str(full)
    assert isinstance(directory_error(OSError(errno.EIO, "I/O"), "d"), LogDirectoryFailed)
