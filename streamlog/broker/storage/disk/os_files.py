"""OsFiles: the disk, behind the port `files`.

Rule of the file: it is the only one in the broker that opens files.
"""

# ruff: noqa: D102 - what a method promises is written at the port, once
# ruff: noqa: PTH103, PTH105, PTH106, PTH108, PTH116, PTH208 - a path is a string, as the port has it
from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time

from streamlog.broker.storage.disk.descriptors import (
    RESERVED,
    SHORT,
    OpenFiles,
    Shares,
    shares,
    soft_limit,
)
from streamlog.broker.storage.disk.file_range import Descriptor, FileRange, read_at
from streamlog.broker.storage.disk.files import PIECES_MAX, Content, Reserve, write_whole

MAPPED_BYTES_MAX = 64 * 1024 * 1024
"""At most so much of this process's resident memory are pages of mapped files."""
OWNER_ONLY = 0o600
"""Who may read a log may read everything in it, keys made of passwords included."""
OWNER_ONLY_DIRECTORY = 0o700

SHORT_TRIES = 10
"""How often an open is repeated while the process has no descriptor left."""
SHORT_WAIT_S = 0.02
"""Between two of those tries; others close files meanwhile."""

# macOS has no fdatasync.
_sync_data = getattr(os, "fdatasync", os.fsync)
# macOS has none; some file systems refuse it.
_allocate = getattr(os, "posix_fallocate", None)
_NO_ALLOCATION = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV}
_ZEROS_BYTES = 64 * 1024
_OPEN_NOW = "/proc/self/fd"


class OsFile:
    """An open file of the operating system."""

    __slots__ = ("_descriptor", "_files", "_held")

    def __init__(self, files: OsFiles, held: Descriptor) -> None:
        self._files = files
        self._descriptor = held.number
        self._held: Descriptor | None = held

    def read(self, size_bytes: int, position: int) -> bytes:
        return read_at(self._descriptor, size_bytes, position)

    def write(self, data: Content, position: int) -> int:
        if isinstance(data, list):
            return os.pwritev(self._descriptor, data[:PIECES_MAX], position)
        return os.pwrite(self._descriptor, data, position)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size_bytes: int) -> None:
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
        """A file with holes would be short of space later, when nobody can tell the writer."""
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

    def linked(self) -> bool:
        return os.fstat(self._descriptor).st_nlink > 0

    def shared(self) -> OsFile:
        return OsFile(self._files, self._open_descriptor())

    def range(self, size_bytes: int, position: int) -> FileRange | bytes:
        held = self._open_descriptor()
        if self._files.is_short:
            return self.read(size_bytes, position)
        return FileRange(held, size_bytes, position)

    def _open_descriptor(self) -> Descriptor:
        if self._held is None:
            raise OSError(errno.EBADF, "the file is closed")
        return self._held

    def close(self) -> None:
        # The number may belong to another file from now on.
        self._descriptor = -1
        self._held = None


class OsMapping:
    """A file that is mapped by the operating system."""

    __slots__ = ("_files", "_map", "_open", "size_bytes")

    def __init__(self, files: OsFiles, descriptor: int) -> None:
        self.size_bytes = os.fstat(descriptor).st_size
        self._files = files
        self._open = True
        self._map: mmap.mmap | None = None
        if self.size_bytes:
            self._map = mmap.mmap(descriptor, self.size_bytes, access=mmap.ACCESS_READ)

    def reaches(self, size_bytes: int) -> bool:
        # The mapping asks the system how long the file is now.
        return self._map is not None and size_bytes <= min(self.size_bytes, self._map.size())

    def view(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError("the mapping is closed")
        return self._map

    def close(self) -> None:
        if self._open:
            self._open = False
            self._files.forget(self)
        if self._map is not None:
            self._map.close()
            self._map = None


class OsFiles:
    """The files of the operating system."""

    def __init__(self, shares: Shares | None = None) -> None:
        """`shares` is what files may hold of the process's descriptors; by default, as of now."""
        self.shares = shares_now() if shares is None else shares
        self._held = OpenFiles(self.shares.open_logs)
        self.reserve = Reserve()
        self._numbers: set[int] = set()
        """The descriptors of all open files; mappings have others."""
        self._mapped: dict[OsMapping, None] = {}
        """Those that are open, the oldest first."""
        self._mapped_bytes = 0

    def open(self, path: str, *, writable: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        return self._file(self._descriptor(path, flags))

    @property
    def held(self) -> OpenFiles:
        return self._held

    @property
    def is_short(self) -> bool:
        """Whether so many files are open that none should stay open for a slow reader."""
        return len(self._numbers) > self.shares.open_logs + self.shares.reads

    def map(self, path: str) -> OsMapping:
        descriptor = self._descriptor(path, os.O_RDONLY)
        try:
            mapping = OsMapping(self, descriptor)
        finally:
            os.close(descriptor)
        self._mapped[mapping] = None
        self._mapped_bytes += mapping.size_bytes
        while len(self._mapped) > self.shares.mappings or self._mapped_bytes > MAPPED_BYTES_MAX:
            oldest = next(iter(self._mapped))
            if oldest is mapping:
                break
            oldest.close()
        return mapping

    def forget(self, mapping: OsMapping) -> None:
        """It is closed."""
        del self._mapped[mapping]
        self._mapped_bytes -= mapping.size_bytes

    def lock(self, path: str) -> OsFile | None:
        descriptor = self._descriptor(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return None
            raise
        return self._file(descriptor)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=OWNER_ONLY_DIRECTORY, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except (IsADirectoryError, PermissionError):
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = self._descriptor(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _file(self, descriptor: int) -> OsFile:
        return OsFile(self, Descriptor(descriptor, self._numbers))

    def _descriptor(self, path: str, flags: int) -> int:
        """Open `path`; while there is no descriptor left, have others give theirs back.

        Raises:
            OSError: it can't be opened.
        """
        for _ in range(SHORT_TRIES):
            try:
                return os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY)
            except OSError as error:
                if error.errno not in SHORT:
                    raise
            if not self._held.release_all():
                time.sleep(SHORT_WAIT_S)
        return os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY)


def shares_now() -> Shares:
    """The shares under the limit of this process, less what it has open already."""
    try:
        taken = RESERVED + len(os.listdir(_OPEN_NOW))
    except OSError:
        taken = RESERVED  # macOS has no such directory.
    return shares(soft_limit(), taken)


def file_stamp(path: str) -> tuple[int, int, int] | None:
    """What changes when a file is replaced or written to; None while there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def process_id() -> int:
    """The number of this process, for those who find a lock of it."""
    return os.getpid()
