"""A thread syncs one file after another; what the system says of each comes back."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socketpair

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker.storage.disk.file_range import Descriptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.os_file import OsFile
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.disk.sync_thread import SyncThread
from streamlog.errors import NoThread
from tests.broker.storage.disk.test_offload import no_free_descriptor, open_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no eventfd")
DEADLINE_S = 60
CODES = {"file": 0, "folder": 0, "pipe": errno.EINVAL, "socket": errno.EINVAL}
"""What fdatasync(2) says of them: a file that does not support it is EINVAL."""


@contextmanager
def opened(folder: Path) -> Iterator[dict[str, OsFile]]:
    """Open one file of each kind."""
    files, among = OsFiles(), set[int]()
    reading, writing = os.pipe()
    one, other = (each.detach() for each in socketpair())
    numbers = {
        "file": os.open(folder / "file", os.O_RDWR | os.O_CREAT),
        "folder": os.open(folder, os.O_RDONLY),
        "pipe": writing,
        "socket": one,
    }
    held = {kind: OsFile(files, Descriptor(number, among)) for kind, number in numbers.items()}
    try:
        yield held
    finally:
        for each in held.values():
            each.close()
        os.close(reading)
        os.close(other)


async def synced(thread: SyncThread, file: OsFile) -> tuple[int, float]:
    """Sync a file; return the error's number, or 0, and the time."""
    done: asyncio.Future[tuple[int, float]] = asyncio.get_running_loop().create_future()

    def then(error: OSError | None, took_s: float) -> None:
        done.set_result(((error.errno or -1) if error else 0, took_s))

    assert thread.begin(file, then)
    async with asyncio.timeout(DEADLINE_S):
        return await done


@given(kinds=st.lists(st.sampled_from([*CODES]), max_size=12))
@settings(max_examples=30, deadline=None)
def test_each_sync_has_the_systems_own_outcome(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    async def main() -> list[int]:
        thread, found = SyncThread("test"), list[int]()
        with opened(tmp_path_factory.mktemp("sync")) as files:
            for kind in kinds:
                began_s = asyncio.get_running_loop().time()
                code, took_s = await synced(thread, files[kind])
                assert 0 <= took_s <= asyncio.get_running_loop().time() - began_s
                found.append(code)
        thread.close()
        return found

    gc.collect()  # It closes what other tests have left.
    before = open_files()
    assert asyncio.run(main()) == [CODES[kind] for kind in kinds]
    assert open_files() == before, "a descriptor is left open"
    assert "test" not in {each.name for each in threading.enumerate()}


def test_closing_waits_for_the_sync_and_calls_nothing_back(tmp_path: Path) -> None:
    async def main() -> None:
        gc.collect()
        before, called = open_files(), list[object]()
        with opened(tmp_path) as files:
            thread = SyncThread("test")
            os.pwrite(files["file"].descriptor, bytes(1 << 20), 0)
            assert thread.begin(files["file"], lambda *result: called.append(result))
            thread.close()
            thread.close()
        await asyncio.sleep(0)
        assert not called
        assert open_files() == before, "a descriptor is left open"

    asyncio.run(main())


def test_what_it_can_not_sync_is_left_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refusals = threading.Thread.start, ["can't start new thread"]

    def short(thread: threading.Thread) -> None:
        if refusals:
            raise RuntimeError(refusals.pop())
        start(thread)

    async def main() -> None:
        gc.collect()
        before = open_files()
        thread = SyncThread("test")
        in_memory = MemoryFiles().open("file", writable=True)
        assert not thread.begin(in_memory, lambda *_: None)
        with opened(tmp_path) as files:
            with no_free_descriptor():
                assert not thread.begin(files["file"], lambda *_: None)
            monkeypatch.setattr(threading.Thread, "start", short)
            with pytest.raises(NoThread, match="thread test does not start"):
                thread.begin(files["file"], lambda *_: None)
            assert (await synced(thread, files["file"]))[0] == 0
            thread.close()
        assert open_files() == before, "a descriptor is left open"

    asyncio.run(main())
