"""Races of a log's writer and its reader: every line once, whatever happens between two steps."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.tail.rotation import FilePosition
from streamlog.connectors.tail.tail_reader import TailReader, TailStep

WAIT_MS = 20


class World:
    """A log, the process that writes it, and the reader with what it has committed."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "app.log"
        self.now_ms = 1_000_000
        self.written: list[bytes] = []
        self.committed: list[bytes] = []
        self.position: FilePosition | None = None
        self.held: list[TailStep] = []
        self.notices: list[str] = []
        self.lines_until: dict[int, int] = {}
        """How many lines were written when a file's last one was, by inode."""
        self.late_until_ms = 0
        self.partial = b""
        self.is_late = False
        """Whether the last write was one to the file that was renamed."""
        self.reader = self._reader()
        self._file = self.path.open("ab", buffering=0)
        os.utime(self.path, ns=(self.now_ms * 10**6,) * 2)
        self._former = self.path.open("ab", buffering=0)

    def _reader(self) -> TailReader:
        return TailReader(str(self.path), self.position, rotate_wait_ms=WAIT_MS)

    def close(self) -> None:
        self.reader.close()
        self._file.close()
        self._former.close()

    # The writer.

    def _put(self, data: bytes, *, to_former: bool = False) -> None:
        file = self._former if to_former else self._file
        file.write(data)
        self.now_ms += 1
        os.utime(file.fileno(), ns=(self.now_ms * 10**6,) * 2)

    def _next_line(self) -> bytes:
        line = b"%06d " % len(self.written) + b"x" * 60
        self.written.append(line)
        return line

    def write(self) -> None:
        start, self.partial = self.partial, b""
        if start:
            self._put(self.written[-1][len(start) :] + b"\n")
        self._put(self._next_line() + b"\n")
        self.lines_until[os.fstat(self._file.fileno()).st_ino] = len(self.written)

    def write_half(self) -> None:
        if not self.partial:
            self.partial = self._next_line()[:9]
            self._put(self.partial)

    def write_late(self) -> None:
        """Write to the file that was renamed, as a process does that does not know it yet."""
        inode = os.fstat(self._former.fileno()).st_ino
        if self.now_ms < self.late_until_ms and self.path.stat().st_ino != inode:
            self._put(self._next_line() + b"\n", to_former=True)
            self.lines_until[inode] = len(self.written)
            self.is_late = True

    def rotate(self) -> None:
        self.now_ms = max(self.now_ms, self.late_until_ms + WAIT_MS)
        if self.partial or self.is_late:
            # Files are ordered by their last write: see `rotation`.
            self.write()
        self.is_late = False
        self._shift()
        self.path.rename(f"{self.path}.1")
        self._former.close()
        self._former, self._file = self._file, self.path.open("ab", buffering=0)
        os.utime(self.path, ns=(self.now_ms * 10**6,) * 2)
        self.late_until_ms = self.now_ms + WAIT_MS // 2

    def _shift(self) -> None:
        numbers = sorted((int(p.suffix[1:]) for p in self._rotated()), reverse=True)
        for number in numbers:
            Path(f"{self.path}.{number}").rename(f"{self.path}.{number + 1}")

    def _rotated(self) -> list[Path]:
        return [*self.path.parent.glob("app.log.*")]

    def copy_and_truncate(self) -> None:
        here = self.path.stat()
        position = self.position
        if self.partial or position is None or position.inode != here.st_ino or not position.at:
            return  # Of a file that was never read, nothing tells that it was truncated.
        self._shift()
        self.now_ms += 1
        shutil.copyfile(self.path, f"{self.path}.1")
        os.utime(f"{self.path}.1", ns=(self.now_ms * 10**6,) * 2)
        copy = Path(f"{self.path}.1").stat().st_ino
        self.lines_until[copy] = self.lines_until.get(here.st_ino, 0)
        self._file.truncate(0)
        self.now_ms += 1
        os.utime(self.path, ns=(self.now_ms * 10**6,) * 2)

    def delete(self) -> None:
        """Delete old files once all of their lines are committed."""
        self.now_ms = max(self.now_ms, self.late_until_ms)
        for path in self._rotated():
            if self.lines_until.get(path.stat().st_ino, 0) <= len(self.committed):
                path.unlink()

    # The reader.

    def step(self) -> None:
        self.now_ms += 1
        step = self.reader.step(self.now_ms)
        if step is not None:
            self.held.append(step)
            self.notices += [step.notice] if step.notice else []

    def wait(self) -> None:
        self.now_ms += WAIT_MS
        self.step()

    def commit(self) -> None:
        for step in self.held:
            self.committed += step.records
            self.position = step.position
        self.held = []

    def crash(self) -> None:
        self.held = []
        self.reader.close()
        self.reader = self._reader()

    def finish(self) -> None:
        if self.partial:
            self.write()
        for _ in range(4 * len(self._rotated()) + 8):
            self.wait()
        self.commit()


@contextmanager
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as directory:
        found = World(Path(directory))
        try:
            yield found
        finally:
            found.close()


WRITES = ["write", "write_half", "write_late", "rotate", "delete"]
READS = ["step", "step", "wait", "commit", "crash"]


@given(st.lists(st.sampled_from([*WRITES, *READS, "copy_and_truncate"]), max_size=60))
def test_every_line_is_read_once(actions: list[str]) -> None:
    with world() as log:
        log.step()
        log.commit()  # Where it begins is committed before anything else happens.
        for action in actions:
            getattr(log, action)()
        log.finish()
        assert sorted(log.committed) == log.written
        # Of a file that was deleted, its reader can't say whether it had read all of it.
        assert log.notices == [] or "delete" in actions


@given(st.lists(st.sampled_from(["write", "rotate", "delete", *READS]), max_size=60))
def test_lines_are_read_in_order(actions: list[str]) -> None:
    with world() as log:
        log.step()
        log.commit()
        for action in actions:
            getattr(log, action)()
        log.finish()
        assert log.committed == log.written


def test_a_log_is_read_from_its_present_end_if_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"old\nhalf")
    reader = TailReader(str(path), None, start="end")
    begin = reader.step(0)
    assert begin is not None
    assert (begin.records, begin.position.at) == ([], 4)
    path.write_bytes(b"old\nhalf of it\nnew\n")
    step = reader.step(1)
    assert step is not None
    assert step.records == [b"half of it", b"new"]
    reader.close()


def test_a_log_that_is_emptied_begins_anew_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"a\n" * 100)
    reader = TailReader(str(path), None)
    steps = [reader.step(0), reader.step(1)]
    path.write_bytes(b"new\n")
    begin, after = reader.step(2), reader.step(3)
    assert [len(step.records) for step in steps if step] == [0, 100]
    assert begin is not None
    assert "behind byte 200" in begin.notice
    assert after is not None
    assert after.records == [b"new"]
    reader.close()


def test_a_file_that_was_emptied_and_filled_with_more_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"a\n" * 10)
    reader = TailReader(str(path), None)
    reader.step(0)
    reader.step(1)
    path.write_bytes(b"b\n" * 50)
    reader.step(2)
    after = reader.step(3)
    assert after is not None
    assert after.records == [b"b"] * 50
    reader.close()


def test_the_last_line_of_a_renamed_file_may_lack_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo")
    reader = TailReader(str(path), None, rotate_wait_ms=0)
    read = [reader.step(0), reader.step(1)]
    path.rename(tmp_path / "a.log.1")
    path.write_bytes(b"three\n")
    read += [reader.step(now_ms) for now_ms in range(2, 6)]
    assert [record for step in read if step for record in step.records] == [
        b"one",
        b"two",
        b"three",
    ]
    reader.close()


def test_a_record_of_several_lines_is_complete_once_nothing_was_added(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"1 error\n at a\n")
    reader = TailReader(str(path), None, first_line=re.compile(rb"\d"), record_wait_ms=100)
    assert [reader.step(0) is None, reader.step(1), reader.step(50)] == [False, None, None]
    step = reader.step(101)
    assert step is not None
    assert step.records == [b"1 error\n at a"]
    reader.close()


def test_files_that_were_renamed_during_a_standstill_are_read_without_a_wait(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"0\n")
    reader = TailReader(str(path), None, rotate_wait_ms=5_000)
    read = [reader.step(0), reader.step(0)]
    # A rotation each second: no file is much younger than the one before it.
    for number in range(1, 11):
        os.utime(path, ns=(number * 10**9,) * 2)
        path.rename(tmp_path / f"a.log.{number}")
        path.write_bytes(b"%d\n" % number)
    os.utime(path, ns=(11 * 10**9,) * 2)
    while (step := reader.step(0)) is not None:
        read.append(step)
    found = [record for each in read if each for record in each.records]
    # The file of "6" got its last line less than five seconds before the last one of all.
    assert found == [b"%d" % number for number in range(7)]
    reader.close()
