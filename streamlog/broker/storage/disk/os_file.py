"""OsFile: an open file of the operating system, behind the port `files`.

Rule of this module: compiled, because each Fetch reads a header and makes a range. Directories, and
what opens files, are in `os_files`, where most of the time is the system's.
"""

# ruff: noqa: D102 - the port documents the methods
from __future__ import annotations

import errno
import os
from typing import Protocol

from streamlog.broker.storage.disk import sync_loop
from streamlog.broker.storage.disk.file_range import Descriptor, FileRange, read_at
from streamlog.broker.storage.disk.files import PIECES_MAX, Content, write_whole

TAIL_BYTES_MAX = 4 * 1024
"""The bytes written last that a file keeps in memory: small appends that consumers wait for."""
TAIL_WRITES = 64
"""How many writes after a range was read keep their bytes: without readers, none need to."""
COPIED_BYTES_MAX = 8 * 1024
"""The bytes of a range that are copied, and not sent from the file."""

# macOS has no fdatasync.
_sync_data = getattr(os, "fdatasync", os.fsync)
# macOS has none; some file systems don't support it.
_allocate = getattr(os, "posix_fallocate", None)
_NO_ALLOCATION = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV}
_ZEROS_BYTES = 64 * 1024


def serve_syncs(jobs: int, results: int) -> None:
    """Sync one file after another, in a thread: see `sync_loop`, which is compiled only here."""
    sync_loop.serve(jobs, results)


class FileTail:
    """The bytes that were written last to one file, while they are few.

    A consumer at the end of a log reads what was appended a moment ago. From here, that takes no
    system call; from the file, it takes two: one for the header, and sendfile.
    """

    __slots__ = ("begin", "data")

    def __init__(self) -> None:
        self.begin = 0
        """The position of the first byte."""
        self.data = b""

    def part(self, size_bytes: int, position: int) -> bytes | None:
        """Return these bytes of the file; None if not all of them are here."""
        at = position - self.begin
        if at < 0 or at + size_bytes > len(self.data):
            return None
        return self.data[at : at + size_bytes]

    def add(self, data: bytes, position: int) -> None:
        """Note what was written, behind what is here or instead of it."""
        held = self.data
        if position == self.begin + len(held) and len(held) + len(data) <= TAIL_BYTES_MAX:
            self.data = held + data
        else:
            self.begin, self.data = position, data


class TailKeeper(Protocol):
    """What all open files have in common: a bound for descriptors, and one for tails."""

    @property
    def is_short(self) -> bool:
        """Whether descriptors are short, so that a slow reader should not keep a file open."""
        ...

    def keep(self, tail: FileTail) -> None:
        """Note that a file keeps the bytes that were just written; another may lose its own."""
        ...


class OsFile:
    """An open file of the operating system."""

    __slots__ = ("_descriptor", "_files", "_held", "_tail", "_tail_writes")

    def __init__(self, files: TailKeeper, held: Descriptor) -> None:
        self._files = files
        self._descriptor = held.number
        self._held: Descriptor | None = held
        self._tail: FileTail | None = None
        self._tail_writes = 0

    @property
    def descriptor(self) -> int:
        """The number by which the system knows it; -1 once it is closed."""
        return self._descriptor

    def read(self, size_bytes: int, position: int) -> bytes:
        tail = self._tail
        if tail is not None:
            part = tail.part(size_bytes, position)
            if part is not None:
                return part
        # Mostly one call of the system brings all; `read_at` takes what is left.
        part = os.pread(self._descriptor, size_bytes, position)
        if len(part) == size_bytes:
            return part
        return part + read_at(self._descriptor, size_bytes - len(part), position + len(part))

    def write(self, data: Content, position: int) -> int:
        # A write that fails may have changed the file, so what is known of it counts no more.
        tail, self._tail = self._tail, None
        if isinstance(data, list):
            data = data[:PIECES_MAX]
            written = os.pwritev(self._descriptor, data, position)
        else:
            written = os.pwrite(self._descriptor, data, position)
        if self._tail_writes and written <= TAIL_BYTES_MAX:
            self._tail_writes -= 1
            joined = b"".join(data) if isinstance(data, list) else bytes(data)
            if tail is None:
                tail = FileTail()
            tail.add(joined[:written], position)
            self._tail = tail
            self._files.keep(tail)
        return written

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size_bytes: int) -> None:
        self._tail = None
        held_bytes = self.size()
        if size_bytes <= held_bytes:
            os.ftruncate(self._descriptor, size_bytes)
            return
        try:
            self._extend(held_bytes, size_bytes)
        except OSError:
            os.ftruncate(self._descriptor, held_bytes)
            raise

    def _extend(self, begin: int, end: int) -> None:
        """Extend the file with allocated blocks: a sparse file would run out of space later."""
        if _allocate is not None:
            try:
                _allocate(self._descriptor, begin, end - begin)
            except OSError as error:
                if error.errno not in _NO_ALLOCATION:
                    raise
            else:
                return
        for position in range(begin, end, _ZEROS_BYTES):
            write_whole(self, bytes(min(_ZEROS_BYTES, end - position)), position)

    def sync(self) -> None:
        _sync_data(self._descriptor)

    def is_linked(self) -> bool:
        return os.fstat(self._descriptor).st_nlink > 0

    def share(self) -> OsFile:
        return OsFile(self._files, self._open_descriptor())

    def range(self, size_bytes: int, position: int) -> FileRange | bytes:
        self._tail_writes = TAIL_WRITES
        held, tail = self._open_descriptor(), self._tail
        part = None if tail is None else tail.part(size_bytes, position)
        if part is not None:
            return part
        # Few bytes are copied sooner than sent: a Fetch of a thousand partitions would need two
        # system calls for each, and this way all of them leave together.
        #
        # The range holds a descriptor until the client has read all of it. When many files are
        # open, slow clients must not keep theirs: copy the bytes instead.
        if size_bytes <= COPIED_BYTES_MAX or self._files.is_short:
            return self.read(size_bytes, position)
        return FileRange(held, size_bytes, position)

    def _open_descriptor(self) -> Descriptor:
        if self._held is None:
            raise OSError(errno.EBADF, "the file is closed")
        return self._held

    def close(self) -> None:
        # The number may belong to another file from now on.
        self._descriptor = -1
        self._held = self._tail = None
