"""The reserve gives small files room on a full disk, and is renewed once there is room."""

from __future__ import annotations

import errno

import pytest

from streamlog.broker.storage.disk.files import (
    PIECE_BYTES,
    PIECES,
    PROBE_BYTES,
    read_file,
    replace_file,
)
from streamlog.broker.storage.disk.memory_files import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    """A disk that its reserve fills."""
    found = MemoryFiles()
    found.make_directory("/data")
    found.reserve.hold(found, "/data")
    found.capacity_bytes = found.used_bytes()
    return found


def test_a_small_file_is_replaced_on_a_full_disk(files: MemoryFiles) -> None:
    assert files.used_bytes() == PIECES * PIECE_BYTES
    for content in (b"a" * 100, b"b" * 100, b"c" * (PIECE_BYTES + 1)):
        replace_file(files, "/data/small", content)
        assert read_file(files, "/data/small") == content
    files.capacity_bytes = None
    files.reserve.renew(files)
    assert files.used_bytes() == PIECES * PIECE_BYTES + PIECE_BYTES + 1


def test_a_file_larger_than_the_reserve_is_refused(files: MemoryFiles) -> None:
    with pytest.raises(OSError, match="No space") as caught:
        replace_file(files, "/data/small", bytes(PIECES * PIECE_BYTES + 1))
    assert caught.value.errno == errno.ENOSPC
    files.reserve.renew(files)
    assert files.used_bytes() == PIECES * PIECE_BYTES


def test_a_removed_reserve_is_renewed(files: MemoryFiles) -> None:
    for name in files.list("/data/reserve"):
        files.remove(f"/data/reserve/{name}")
    files.remove("/data/reserve")
    for content in (b"a", b"b"):
        replace_file(files, "/data/small", content)
    files.reserve.renew(files)
    files.capacity_bytes = None
    replace_file(files, "/data/small", b"c" * 1_000)
    assert read_file(files, "/data/small") == b"c" * 1_000


def test_without_a_reserve_a_full_disk_refuses_a_file() -> None:
    files = MemoryFiles(capacity_bytes=10)
    with pytest.raises(OSError, match="No space"):
        replace_file(files, "small", bytes(11))


def test_look_is_true_until_the_disk_has_room(files: MemoryFiles) -> None:
    assert not files.reserve.look(files)
    files.reserve.is_short = True
    assert files.reserve.look(files)
    files.capacity_bytes = files.used_bytes() + PROBE_BYTES
    assert not files.reserve.look(files)
    assert files.used_bytes() == PIECES * PIECE_BYTES, "the probe is removed"


def test_a_failed_probe_counts_as_no_room(
    files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.capacity_bytes = None
    files.reserve.is_short = True
    files.fail_next_write(errno.EROFS)
    assert files.reserve.look(files)
    assert "/data/reserve.probe can't be written: [Errno 30] Read-only" in caplog.text
    assert not files.reserve.look(files)
