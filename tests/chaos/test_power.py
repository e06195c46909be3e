"""A disk that keeps synced data: what a power cut may lose, and what it must keep."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from chaos.broker import build_shim
from chaos.power import Disk

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim needs gcc")

WRITE = """
import os, sys
os.chdir(sys.argv[1])

def write(name, data, position=0, sync=True):
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    os.pwritev(file, [data], position)
    if sync:
        os.fdatasync(file)
    return file

def sync_names(path="."):
    os.fsync(os.open(path, os.O_RDONLY))

"""
Run = Callable[[str], None]
CUTS = 20


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def lossy(tmp_path: Path, shim: Path) -> tuple[Disk, Path, Run]:
    data, kept = tmp_path / "data", tmp_path / "kept"
    disk = Disk(data, kept)
    disk.begin()

    def run(program: str) -> None:
        given = {
            "LD_PRELOAD": str(shim),
            "CHAOS_DIRECTORY": str(data.resolve()),
            "CHAOS_DISK": str(kept.resolve()),
        }
        subprocess.run(
            [sys.executable, "-c", WRITE + program, str(data)],
            env={**os.environ, **given},
            check=True,
        )

    return disk, data, run


def after_cuts(lossy: tuple[Disk, Path, Run], program: str) -> set[frozenset[tuple[str, bytes]]]:
    """Return the directory contents that power cuts may leave after the program."""
    disk, data, run = lossy
    found = set()
    for seed in range(CUTS):
        shutil.rmtree(data)
        disk.begin()
        run(program)
        disk.cut(Random(seed))
        files = (each for each in data.rglob("*") if each.is_file())
        found.add(frozenset((str(each.relative_to(data)), each.read_bytes()) for each in files))
    return found


def test_synced_names_and_contents_survive(lossy: tuple[Disk, Path, Run]) -> None:
    found = after_cuts(
        lossy,
        "write('a', b'one'); os.mkdir('d'); write('d/b', b'two'); sync_names(); sync_names('d')",
    )
    assert found == {frozenset({("a", b"one"), ("d/b", b"two")})}


def test_an_unsynced_name_may_be_lost(lossy: tuple[Disk, Path, Run]) -> None:
    assert after_cuts(lossy, "write('a', b'one')") == {frozenset(), frozenset({("a", b"one")})}


def test_only_writes_after_the_last_sync_may_be_lost(
    lossy: tuple[Disk, Path, Run],
) -> None:
    program = "file = write('a', b'one'); sync_names(); os.pwrite(file, b'more', 3)"
    contents = {dict(each)["a"] for each in after_cuts(lossy, program)}
    assert {b"one", b"onemore"} <= contents
    assert all(b"onemore".startswith(each.rstrip(b"\0")) for each in contents)
    assert all(each.startswith(b"one") for each in contents)


def test_a_file_renamed_without_a_sync_is_empty_or_complete(
    lossy: tuple[Disk, Path, Run],
) -> None:
    program = "write('a.tmp', b'new', sync=False); os.rename('a.tmp', 'a'); sync_names()"
    contents = {dict(each)["a"] for each in after_cuts(lossy, program)}
    assert b"" in contents


def test_a_sync_covers_the_writes_of_an_earlier_process(
    lossy: tuple[Disk, Path, Run],
) -> None:
    disk, data, run = lossy
    run("write('a', b'one', sync=False); sync_names()")
    run("os.fsync(os.open('a', os.O_RDWR))")
    disk.cut(Random(0))
    assert (data / "a").read_bytes() == b"one"


def test_an_unsynced_deletion_may_be_undone(lossy: tuple[Disk, Path, Run]) -> None:
    program = "write('a', b'one'); sync_names(); os.remove('a')"
    assert after_cuts(lossy, program) == {frozenset(), frozenset({("a", b"one")})}


def test_a_synced_truncation_survives(lossy: tuple[Disk, Path, Run]) -> None:
    program = "file = write('a', b'one'); sync_names(); os.ftruncate(file, 1); os.fsync(file)"
    assert after_cuts(lossy, program) == {frozenset({("a", b"o")})}


def test_writes_synced_by_concurrent_threads_survive(lossy: tuple[Disk, Path, Run]) -> None:
    disk, data, run = lossy
    program = """
from threading import Thread
file, ends, end = write('a', b''), False, 0
sync_names()

def sync():
    while not ends:
        os.fdatasync(file)

threads = [Thread(target=sync) for _ in range(3)]
for each in threads: each.start()
for number in range(2000):
    if number % 2:
        end += os.pwritev(file, [b'one', b'two'], end)
    else:
        end += os.pwrite(file, b'another', end)
ends = True
for each in threads: each.join()
os.fdatasync(file)
"""
    run(program)
    disk.cut(Random(0))
    assert (data / "a").read_bytes() == b"anotheronetwo" * 1000
