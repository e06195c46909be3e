"""What the simulated disk may leave after a power cut, a kill and a refused sync."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from simulation.disk import SimulatedDisk
from simulation.process import ProcessEnded
from streamlog.broker.storage.disk.files import make_durable_directory, read_file, replace_file

LIVES = 200


def disk(seed: int = 0) -> SimulatedDisk:
    created = SimulatedDisk(Random(seed))
    make_durable_directory(created, "d")
    return created


def write(files: SimulatedDisk, path: str, data: bytes, *, at: int = 0, sync: bool = False) -> None:
    file = files.open(path, writable=True)
    assert file.write(data, at) == len(data)
    if sync:
        file.sync()
    file.close()


def contents_after_cuts(
    prepare: Callable[[SimulatedDisk], None], path: str = "d/a"
) -> set[bytes | None]:
    """Return the contents of a file after many power cuts; None: the file is missing."""
    found: set[bytes | None] = set()
    for seed in range(LIVES):
        files = disk(seed)
        prepare(files)
        files.cut()
        name = path.rpartition("/")[2]
        found.add(read_file(files, path) if name in files.list("d") else None)
    return found


def test_a_synced_file_with_a_synced_name_survives() -> None:
    def prepare(files: SimulatedDisk) -> None:
        write(files, "d/a", b"kept", sync=True)
        files.sync_directory("d")

    assert contents_after_cuts(prepare) == {b"kept"}


def test_an_unsynced_name_may_be_lost_and_its_file_be_empty() -> None:
    def prepare(files: SimulatedDisk) -> None:
        write(files, "d/a", b"new")

    found = contents_after_cuts(prepare)
    assert {None, b"", b"new"} <= found
    assert found <= {None, b"", b"n", b"ne", b"new", bytes(3)}


def test_a_synced_file_without_a_synced_name_may_be_lost() -> None:
    assert contents_after_cuts(lambda files: write(files, "d/a", b"kept", sync=True)) == {
        None,
        b"kept",
    }


def test_unsynced_pages_reach_the_disk_in_any_order() -> None:
    def prepare(files: SimulatedDisk) -> None:
        write(files, "d/a", b"s" * 512, sync=True)
        files.sync_directory("d")
        write(files, "d/a", b"1" * 512 + b"2" * 512, at=512)

    found = contents_after_cuts(prepare)
    assert all(each is not None and each.startswith(b"s" * 512) for each in found)
    assert b"s" * 512 + bytes(512) + b"2" * 512 in found
    assert len(found) > 10


def test_a_rename_happens_completely_or_not_at_all() -> None:
    def prepare(files: SimulatedDisk) -> None:
        write(files, "d/a", b"old", sync=True)
        write(files, "d/b", b"new", sync=True)
        files.sync_directory("d")
        files.rename("d/b", "d/a")

    assert contents_after_cuts(prepare) == {b"old", b"new"}


def test_a_rename_without_a_sync_of_the_file_may_leave_it_empty() -> None:
    def prepare(files: SimulatedDisk) -> None:
        write(files, "d/b", b"new")
        files.rename("d/b", "d/a")
        files.sync_directory("d")

    assert b"" in contents_after_cuts(prepare)


def test_a_rename_to_another_directory_loses_nothing() -> None:
    for seed in range(LIVES):
        files = disk(seed)
        make_durable_directory(files, "e")
        write(files, "d/a", b"kept", sync=True)
        files.sync_directory("d")
        files.rename("d/a", "e/a")
        if seed % 3 == 0:
            files.sync_directory("d")
        elif seed % 3 == 1:
            files.sync_directory("e")
        files.cut()
        assert files.list("d") + files.list("e") == ["a"]


def test_a_file_is_replaced_completely_or_not_at_all() -> None:
    def prepare(files: SimulatedDisk) -> None:
        replace_file(files, "d/a", b"old")
        files.trap(files.steps % 7 + 1, lambda: None)
        with suppress(ProcessEnded):
            for _ in range(9):
                replace_file(files, "d/a", b"new")

    assert contents_after_cuts(prepare) <= {b"old", b"new"}


def test_a_kill_loses_no_write_and_closes_open_files() -> None:
    files = disk()
    file = files.open("d/a", writable=True)
    held = files.lock("d/lock")
    assert held is not None
    assert files.lock("d/lock") is None
    file.write(b"written", 0)
    files.kill()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(b"x", 0)
    assert read_file(files, "d/a") == b"written"
    assert files.lock("d/lock") is not None


def test_a_sync_after_a_refused_one_does_not_write_the_lost_pages() -> None:
    files = disk()
    file = files.open("d/a", writable=True)
    file.write(b"1" * 512, 0)
    files.sync_directory("d")
    files.refuse_syncs()
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.write(b"2" * 512, 512)
    file.sync()
    assert read_file(files, "d/a") == b"1" * 512 + b"2" * 512
    files.cut()
    assert read_file(files, "d/a") == bytes(512) + b"2" * 512


def test_a_full_disk_takes_part_of_a_write_and_then_nothing() -> None:
    files = disk()
    files.capacity_bytes = 10
    file = files.open("d/a", writable=True)
    assert file.write(b"x" * 8, 0) == 8
    assert file.write(b"x" * 8, 8) == 2
    with pytest.raises(OSError, match="No space") as full:
        file.write(b"x", 10)
    assert full.value.errno == errno.ENOSPC
    files.capacity_bytes = None
    assert file.write(b"x", 10) == 1


def test_a_trap_ends_the_process_during_a_write() -> None:
    found = set()
    for seed in range(LIVES):
        files = disk(seed)
        file = files.open("d/a", writable=True)
        files.trap(1, files.kill)
        with pytest.raises(ProcessEnded):
            file.write(b"abc", 0)
        found.add(read_file(files, "d/a"))
    assert found == {b"", b"a", b"ab", b"abc"}
