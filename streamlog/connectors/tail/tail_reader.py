"""TailReader: reads one log step by step, over all the files that it has had.

A step reads at most one chunk; it blocks, so it runs in a thread. Between steps the open file is
kept: a file that is deleted meanwhile is still read to its end. Rules of the module:

- Content counts only if the file's first bytes are what they were *after* it was read. So a chunk
  is never one from behind a truncation.
- A file that another one follows is read until it has been quiet for `rotate_wait_ms`: its writer
  may learn late that it was renamed (nginx: when each of its processes gets its signal).
- A look at a directory is repeated until two are equal: in a single one, a file that is renamed
  meanwhile may be missing, and would count as deleted.

Not done here: which file follows (`rotation`), and what a record is (`line_cutting`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from streamlog.allowed_paths import opener
from streamlog.connectors.tail.line_cutting import Cut, cut_records
from streamlog.connectors.tail.rotation import (
    COMPRESSED,
    HEAD_BYTES,
    FilePosition,
    Following,
    LogFile,
    checksum,
    head_bytes,
    in_order,
    log_name,
    next_file,
    resume,
)
from streamlog.errors import StreamlogError
from streamlog.replace import replace

StartOfLog: TypeAlias = Literal["oldest", "beginning", "end"]

CHUNK_BYTES = 1024 * 1024
"""What a step reads at most, unless a record is longer."""
LOOKS_MAX = 20
"""Looks at a directory until two are equal; a directory that changes with each look is an error."""


class DirectoryChanging(StreamlogError, OSError):
    """A directory changed with every look at it; as an OSError, it is tried again."""


class TailStep(NamedTuple):
    """What a step has read.

    Attributes:
        records: the records.
        position: how far the log is read with them.
        notice: what the operator has to know; "" for nothing.
        is_long: whether a record was cut because it is too long.
    """

    records: Sequence[bytes | None]
    position: FilePosition
    notice: str = ""
    is_long: bool = False


class TailReader:
    """Reads the log under one path.

    Args:
        path: the log's own name.
        position: how far it was read; None if it never was.
        start: where a log begins that was never read.
        first_line: matches the first line of a record; None: each line is a record.
        record_bytes_max: the longest record.
        rotate_wait_ms: how long a file must be quiet until the next one is read.
        record_wait_ms: how long the last record of several lines waits for another line.
    """

    def __init__(
        self,
        path: str,
        position: FilePosition | None,
        *,
        start: StartOfLog = "beginning",
        first_line: re.Pattern[bytes] | None = None,
        record_bytes_max: int = 1024 * 1024,
        rotate_wait_ms: int = 5_000,
        record_wait_ms: int = 5_000,
    ) -> None:
        self.path = path
        self.position = position
        self._start_of_log = start
        self._first_line = first_line
        self._record_bytes_max = record_bytes_max
        self._rotate_wait_ms = rotate_wait_ms
        self._record_wait_ms = record_wait_ms
        self._descriptor = -1
        self._head = b""
        """The first `HEAD_BYTES` of the file, as far as they were read."""
        self._quiet: tuple[int, int] | None = None
        """The size of the file, and since when it has had it, if its end was read."""
        self._newest_ns = 0
        """The last write to any file of the log, at the latest look."""

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def step(self, now_ms: int) -> TailStep | None:
        """Read what comes next; None if there is nothing yet."""
        if self._descriptor < 0 or self.position is None:
            return self._begin()
        read = self._read(self.position)
        if read is None:  # The file does not hold any more what was read of it.
            self.close()
            return self._begin()
        data, cut, found = read
        if cut.size_bytes:
            self._quiet = None
            return self._advance(self.position, cut, (data, found))
        return self._at_end(data, found, now_ms)

    def _begin(self) -> TailStep | None:
        """Open the file to go on with; the position in it is a step of its own."""
        files = self._look()
        if self.position is None:
            following, mtime_ns = self._first(files)
        else:
            following = resume(self.position, files, {f.inode: _head(f.path) for f in files})
            mtime_ns = self.position.mtime_ns
        return self._open(following, mtime_ns) if following is not None else None

    def _open(self, following: Following, mtime_ns: int) -> TailStep | None:
        """Open a file, unless it was renamed or deleted since the look."""
        file, at, lost = following
        try:
            descriptor = opener(file.path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        # The path may be that of another file by now: the next step looks again.
        if os.fstat(descriptor).st_ino != file.inode:
            os.close(descriptor)
            return None
        self.close()
        self._descriptor = descriptor
        self._quiet = None
        self._head = os.pread(descriptor, head_bytes(at), 0)
        before = self.position
        # The old checksum if it still counts: if the file is truncated at this moment, it shows.
        is_known = before is not None and at == before.at
        crc = before.crc if before is not None and is_known else checksum(self._head)
        self.position = FilePosition(file.inode, at, crc, mtime_ns)
        return TailStep([], self.position, lost and f"{lost}; reading continues in {file.path}")

    def _first(self, files: list[LogFile]) -> tuple[Following | None, int]:
        """Return where a log begins that was never read, and the last write before it."""
        if not files:
            return None, 0
        if self._start_of_log == "oldest":
            return Following(in_order(files)[0]), 0
        file = in_order(files)[-1]
        at = self._start(file) if self._start_of_log == "end" else 0
        # The files before it count as read.
        return Following(file, at), max((f.mtime_ns for f in files if f != file), default=0)

    def _start(self, file: LogFile) -> int:
        """Return the beginning of the last line if it is unfinished, else the end of the file."""
        with open(file.path, "rb", buffering=0, opener=opener) as opened:
            from_byte = max(0, file.size - CHUNK_BYTES)
            tail = os.pread(opened.fileno(), file.size - from_byte, from_byte)
        return from_byte + tail.rfind(b"\n") + 1 if b"\n" in tail else file.size

    def _read(self, position: FilePosition) -> tuple[bytes, Cut, os.stat_result] | None:
        """Return a chunk, its records and the state of the file; None if it was truncated."""
        # The order matters: data, then size, then head. A file that was truncated and filled again
        # between the first and the last shows another head, so its data is not taken for old data.
        data = os.pread(self._descriptor, CHUNK_BYTES, position.at)
        cut = self._cut(data)
        if len(data) == CHUNK_BYTES and not cut.size_bytes:
            # A record that is longer than a chunk; + 2, so that its line end may be seen as well.
            data = os.pread(self._descriptor, self._record_bytes_max + 2, position.at)
            cut = self._cut(data)
        found = os.fstat(self._descriptor)
        head = os.pread(self._descriptor, head_bytes(position.at), 0)
        if found.st_size < position.at or checksum(head) != position.crc:
            return None
        return data, cut, found

    def _cut(self, data: bytes, *, is_final: bool = False) -> Cut:
        return cut_records(
            data,
            record_bytes_max=self._record_bytes_max,
            first_line=self._first_line,
            is_final=is_final,
        )

    def _advance(
        self, position: FilePosition, cut: Cut, read: tuple[bytes, os.stat_result]
    ) -> TailStep | None:
        data, found = read
        at, crc = position.at + cut.size_bytes, position.crc
        if position.at < HEAD_BYTES:
            # Of the bytes that were read: those in the file may be others by now.
            self._head = (self._head + data[: cut.size_bytes])[:HEAD_BYTES]
            crc = checksum(self._head)
        mtime_ns = max(position.mtime_ns, found.st_mtime_ns)
        self.position = replace(position, at=at, crc=crc, mtime_ns=mtime_ns)
        return TailStep(cut.records, self.position, is_long=cut.is_long)

    def _at_end(self, data: bytes, found: os.stat_result, now_ms: int) -> TailStep | None:
        """Go on to the next file if this one has ended; `data` is its unfinished record."""
        position = self.position
        if position is None:
            return None
        if self._quiet is None or self._quiet[0] != found.st_size:
            self._quiet = found.st_size, now_ms
        quiet_ms = now_ms - self._quiet[1]
        following = self._next(position)
        # Quiet by this reader's clock, or by that of the files: after a standstill, the reader need
        # not wait at each of the files that were renamed meanwhile. The newest file of all tells
        # that time, for the next one may have been written to for a moment only.
        has_ended = following is not None and (
            quiet_ms >= self._rotate_wait_ms
            or self._newest_ns - found.st_mtime_ns >= self._rotate_wait_ms * 1_000_000
        )
        # A last line without its end will not get one any more.
        if has_ended and data:
            return self._advance(position, self._cut(data, is_final=True), (data, found))
        if self._first_line is not None and quiet_ms >= self._record_wait_ms:
            # Whole lines: what is behind the last line end may still become one.
            whole = self._cut(data[: data.rfind(b"\n") + 1], is_final=True)
            if whole.size_bytes:
                return self._advance(position, whole, (data, found))
        if following is None or not has_ended:
            return None
        mtime_ns = max(position.mtime_ns, found.st_mtime_ns)
        return self._open(Following(following), mtime_ns)

    def _next(self, position: FilePosition) -> LogFile | None:
        try:
            if Path(self.path).stat().st_ino == position.inode:
                return None  # It is the active one: the usual case, without a look.
        except FileNotFoundError:
            pass
        files = self._look()
        self._newest_ns = max((each.mtime_ns for each in files), default=0)
        return next_file(position, files)

    def _look(self) -> list[LogFile]:
        """Return the files of the log, none of them twice.

        Raises:
            DirectoryChanging: the directory changes with each look.
        """
        before: list[tuple[str, int]] | None = None
        for _ in range(LOOKS_MAX):
            files = self._scan()
            names = [(each.path, each.inode) for each in files]
            if names == before:
                return [*{each.inode: each for each in files}.values()]
            before = names
        raise DirectoryChanging(f"{Path(self.path).parent} changes with every look")

    def _scan(self) -> list[LogFile]:
        active = Path(self.path)
        files: list[LogFile] = []
        try:
            paths = sorted(active.parent.iterdir())
        except FileNotFoundError:
            return []
        for path in paths:
            is_active = path.name == active.name
            if not is_active and not _is_former(path.name, active.name):
                continue
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # It was renamed or deleted: the next look tells.
            if stat.S_ISREG(found.st_mode):
                size, mtime_ns = found.st_size, found.st_mtime_ns
                files.append(LogFile(str(path), found.st_ino, size, mtime_ns, is_active))
        return files


def _is_former(name: str, log: str) -> bool:
    # A compressed file is one that was read before it was compressed.
    return name.startswith(log[:1]) and not name.endswith(COMPRESSED) and log_name(name) == log


def _head(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0, opener=opener) as file:
            return file.read(HEAD_BYTES)
    except FileNotFoundError:
        return b""
