"""A file reads as what was written to it, whether its last bytes come from memory or from disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk import os_file, os_files
from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.broker.storage.disk.os_file import OsFile
from streamlog.broker.storage.disk.os_files import OsFiles

POSITIONS = st.integers(0, 60)
SIZES = st.integers(0, 25)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 1), SIZES),
    st.tuples(st.just("write"), POSITIONS, SIZES),
    st.tuples(st.just("truncate"), POSITIONS, st.just(0)),
    st.tuples(st.just("read"), POSITIONS, SIZES),
    st.tuples(st.just("range"), POSITIONS, SIZES),
)


@pytest.fixture(autouse=True, scope="module")
def _small_tails() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os_file, "TAIL_BYTES_MAX", 32)
        patch.setattr(os_files, "TAILS_MAX", 2)
        yield


def content(found: FileRange | bytes) -> bytes:
    return found.read() if isinstance(found, FileRange) else found


class Pair:
    """A file of the operating system, and what it should contain."""

    def __init__(self, files: OsFiles, path: Path) -> None:
        self.file = files.open(str(path), writable=True)
        self.bytes = bytearray()

    def step(self, what: str, position: int, size_bytes: int, fill: int) -> None:
        held = self.bytes
        data = bytes([fill]) * size_bytes
        if what == "append":
            halves = [data[: size_bytes // 2], data[size_bytes // 2 :]]
            assert self.file.write(halves if position else data, len(held)) == size_bytes
            held += data
        elif what == "write" and position <= len(held):
            assert self.file.write(data, position) == size_bytes
            held[position : position + size_bytes] = data
        elif what == "truncate" and position <= len(held):
            self.file.truncate(position)
            del held[position:]
        elif what == "read":
            assert self.file.read(size_bytes, position) == held[position : position + size_bytes]
        elif what == "range" and position + size_bytes <= len(held):
            found = content(self.file.range(size_bytes, position))
            assert found == held[position : position + size_bytes]


@given(st.lists(st.tuples(st.integers(0, 2), STEPS), max_size=40))
def test_a_file_reads_as_it_was_written(steps: list[tuple[int, tuple[str, int, int]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = OsFiles()
        pairs = [Pair(files, Path(directory, name)) for name in "abc"]
        for number, (which, step) in enumerate(steps):
            pairs[which].step(*step, fill=number + 1)


@pytest.fixture
def _copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that is not kept in memory stays in its file, however small."""
    monkeypatch.setattr(os_file, "COPIED_BYTES_MAX", 0)


def appended(file: OsFile, data: bytes) -> FileRange | bytes:
    """Append to a file that is read at its end, and return that range."""
    end = file.size()
    file.write(data, end)
    return file.range(len(data), end)


@pytest.mark.usefixtures("_copies_nothing")
def test_only_a_file_whose_reader_is_at_its_end_keeps_bytes(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "log"), writable=True)
    assert isinstance(appended(file, b"first"), FileRange)
    assert appended(file, b"second") == b"second"
    # Nothing reads any more.
    for _ in range(os_file.TAIL_WRITES + 1):
        file.write(b"x", file.size())
    assert isinstance(file.range(1, file.size() - 1), FileRange)


@pytest.mark.usefixtures("_copies_nothing")
def test_a_large_append_stays_in_its_file(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "log"), writable=True)
    appended(file, b"first")
    assert isinstance(appended(file, bytes(os_file.TAIL_BYTES_MAX + 1)), FileRange)


@pytest.mark.usefixtures("_copies_nothing")
def test_the_file_written_longest_ago_gives_its_bytes_up(tmp_path: Path) -> None:
    files = OsFiles()
    opened = [files.open(str(tmp_path / name), writable=True) for name in "abc"]
    for file in opened:
        appended(file, b"first")
        assert appended(file, b"second") == b"second"
    first, *others = (file.range(6, 5) for file in opened)
    assert isinstance(first, FileRange)
    assert others == [b"second", b"second"]
