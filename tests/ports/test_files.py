"""The Files port: one suite over every implementation, and the faults of MemoryFiles."""

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

Root = tuple[Files, str]


@pytest.fixture(params=["os", "memory", "simulated"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """Return files of one implementation, and the path of a directory in them."""
    files: Files = MemoryFiles()
    if request.param == "os":
        files = OsFiles()
    elif request.param == "simulated":
        files = SimulatedDisk(Random(0))
    files.make_directory(str(tmp_path))
    return files, str(tmp_path)


def test_data_is_read_back_from_its_position(root: Root) -> None:
    files, path = root
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


def test_a_write_overwrites_existing_data(root: Root) -> None:
    files, path = root
    file = files.open(f"{path}/a", writable=True)
    write_whole(file, b"aaaaaa", 0)
    write_whole(file, bytearray(b"bb"), 2)
    assert file.read(10, 0) == b"aabbaa"


def test_truncate_shortens_and_extends(root: Root) -> None:
    files, path = root
    file = files.open(f"{path}/a", writable=True)
    write_whole(file, b"abcdef", 0)
    file.truncate(2)
    assert file.read(10, 0) == b"ab"
    file.truncate(4)
    assert file.read(10, 0) == b"ab\0\0"
    file.sync()


def test_a_mapping_shows_writes_and_knows_the_end_of_the_file(root: Root) -> None:
    files, path = root
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
    assert not mapping.reaches(20)  # The mapping keeps its length.
    file.truncate(8)
    assert mapping.reaches(8)
    assert not mapping.reaches(9)
    files.rename(f"{path}/a", f"{path}/b")
    assert bytes(mapping.view()[4:7]) == b"abc"
    for _ in range(2):
        mapping.close()
    assert not mapping.reaches(1)


def test_extending_a_file_allocates_its_blocks(tmp_path: Path) -> None:
    file = OsFiles().open(f"{tmp_path}/a", writable=True)
    file.truncate(1 << 20)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 1 << 20
    file.truncate(0)
    assert (tmp_path / "a").stat().st_blocks == 0


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_extending_falls_back_or_fails_without_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int, position: int, size_bytes: int) -> None:
        os.ftruncate(descriptor, position + size_bytes // 2)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("streamlog.broker.storage.disk.os_file._allocate", refuse)
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


def test_a_file_is_created_only_for_writing(root: Root) -> None:
    files, path = root
    with pytest.raises(FileNotFoundError):
        files.open(f"{path}/a")
    files.open(f"{path}/a", writable=True).close()
    assert files.open(f"{path}/a").size() == 0
    with pytest.raises(OSError):
        files.open(f"{path}/a").write(b"x", 0)
    with pytest.raises(FileNotFoundError):
        files.open(f"{path}/none/a", writable=True)


def test_reopening_a_file_keeps_its_content(root: Root) -> None:
    files, path = root
    first = files.open(f"{path}/a", writable=True)
    write_whole(first, b"abc", 0)
    second = files.open(f"{path}/a", writable=True)
    assert second.read(10, 0) == b"abc"
    write_whole(second, b"d", 3)
    assert first.read(10, 0) == b"abcd"


def test_directories_list_their_entries_in_order(root: Root) -> None:
    files, path = root
    files.make_directory(f"{path}/d/e")
    files.make_directory(f"{path}/d/e")
    for name in ("b", "a", "c"):
        files.open(f"{path}/d/{name}", writable=True).close()
    assert files.list(f"{path}/d") == ["a", "b", "c", "e"]
    with pytest.raises(FileNotFoundError):
        files.list(f"{path}/none")
    with pytest.raises(NotADirectoryError):
        files.list(f"{path}/d/a")


def test_rename_replaces_a_file_and_moves_a_directory(root: Root) -> None:
    files, path = root
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


def test_an_open_file_knows_that_it_was_removed(root: Root) -> None:
    files, path = root
    file = files.open(f"{path}/a", writable=True)
    assert file.is_linked()
    files.remove(f"{path}/a")
    assert not file.is_linked()
    assert file.write(b"x", 0) == 1
    with pytest.raises(FileNotFoundError):
        files.remove(f"{path}/a")


def test_only_empty_directories_are_removed(root: Root) -> None:
    files, path = root
    files.make_directory(f"{path}/d")
    files.open(f"{path}/d/a", writable=True).close()
    with pytest.raises(OSError):
        files.remove(f"{path}/d")
    files.remove(f"{path}/d/a")
    files.remove(f"{path}/d")
    assert files.list(path) == []


def test_a_lock_has_one_holder(root: Root) -> None:
    files, path = root
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


def test_replace_file_leaves_no_temporary_file(root: Root) -> None:
    files, path = root
    for content in (b"first", b"2", b""):
        replace_file(files, f"{path}/a", content)
        assert read_file(files, f"{path}/a") == content
    assert files.list(path) == ["a"]
    files.sync_directory(path)


def test_a_durable_directory_is_created_with_its_parents(root: Root) -> None:
    files, path = root
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


# Faults that only MemoryFiles simulates.


def test_a_short_write_is_continued() -> None:
    files = MemoryFiles()
    file = files.open("a", writable=True)
    files.short_next_write(3)
    write_whole(file, b"abcdefgh", 0)
    assert file.read(100, 0) == b"abcdefgh"


def test_a_failed_write_may_be_partial() -> None:
    files = MemoryFiles()
    file = files.open("a", writable=True)
    files.fail_next_write(errno.EIO, after_bytes=3)
    with pytest.raises(OSError, match="Input/output"):
        write_whole(file, b"abcdefgh", 0)
    assert file.read(100, 0) == b"abc"
    write_whole(file, b"abcdefgh", 0)
    assert file.read(100, 0) == b"abcdefgh"


def test_a_full_disk_writes_what_fits_and_then_refuses() -> None:
    files = MemoryFiles(capacity_bytes=10)
    file = files.open("a", writable=True)
    write_whole(file, bytes(6), 0)
    assert file.write(bytes(6), 6) == 4
    with pytest.raises(OSError) as caught:
        file.write(bytes(2), 10)
    assert caught.value.errno == errno.ENOSPC
    assert file.write(bytes(2), 0) == 2


def test_a_power_cut_loses_unsynced_data() -> None:
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


def test_a_power_cut_may_keep_part_of_unsynced_data() -> None:
    files = MemoryFiles()
    file = files.open("a", writable=True)
    files.sync_directory("")
    write_whole(file, b"abcdef", 0)
    files.crash(keep_bytes=2)
    assert read_file(files, "a") == b"ab"


def test_a_kill_keeps_written_data_and_frees_the_lock() -> None:
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


def test_a_failed_replacement_keeps_the_old_file() -> None:
    files = MemoryFiles()
    replace_file(files, "a", b"old")
    files.fail_next_sync()
    with pytest.raises(OSError):
        replace_file(files, "a", b"new")
    files.crash()
    assert read_file(files, "a") == b"old"


def test_errors_distinguish_lost_and_failing_directories() -> None:
    lost = directory_error(FileNotFoundError(errno.ENOENT, "No such file", "d/a"), "d")
    assert isinstance(lost, LogDirectoryLost)
    assert "d/a has vanished" in str(lost)
    full = directory_error(OSError(errno.ENOSPC, "No space left on device"), "d")
    assert isinstance(full, LogDirectoryFailed)
    assert "free some space" in str(full)
    assert isinstance(directory_error(OSError(errno.EIO, "I/O"), "d"), LogDirectoryFailed)
