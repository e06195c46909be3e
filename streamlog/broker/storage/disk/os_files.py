"""OsFiles: the disk, behind the port `files`.

Rule of this module: it is the only module of the broker that opens files (`os_file`).
"""

# ruff: noqa: D102 - the port documents the methods
# ruff: noqa: PTH103, PTH105, PTH106, PTH108, PTH208 - the port's paths are strings
from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import time
from contextlib import suppress

from streamlog.broker.storage.disk.descriptors import (
    RESERVED,
    SHORT,
    OpenFiles,
    Shares,
    shares,
    soft_limit,
)
from streamlog.broker.storage.disk.file_range import Descriptor
from streamlog.broker.storage.disk.files import DiskSpace, Reserve
from streamlog.broker.storage.disk.os_file import FileTail, OsFile

MAPPED_BYTES_MAX = 64 * 1024 * 1024
"""The limit of the resident memory that is pages of mapped files."""
OWNER_ONLY = 0o600
"""A reader of a log can read everything in it, including keys derived from passwords."""
OWNER_ONLY_DIRECTORY = 0o700

TAILS_MAX = 256
"""The files that keep some, so that all of them together take 1 MiB at most."""
SHORT_TRIES = 10
"""How often an open is repeated while no descriptor is free."""
SHORT_WAIT_S = 0.02
"""The pause between two of those tries, in which others may close files."""

_OPEN_NOW = "/proc/self/fd"


class OsMapping:
    """A file mapped by the operating system."""

    __slots__ = ("_files", "_map", "_open", "size_bytes")

    def __init__(self, files: OsFiles, descriptor: int) -> None:
        self.size_bytes = os.fstat(descriptor).st_size
        self._files = files
        self._open = True
        self._map: mmap.mmap | None = None
        if self.size_bytes:
            self._map = mmap.mmap(descriptor, self.size_bytes, access=mmap.ACCESS_READ)

    def reaches(self, size_bytes: int) -> bool:
        # `size` of a mapping asks the system for the file's size now.
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
        """`shares` limits the descriptors that files use; the default is computed now."""
        self.shares = shares_now() if shares is None else shares
        self._held = OpenFiles(self.shares.open_logs)
        self.reserve = Reserve()
        self._numbers: set[int] = set()
        """The descriptors of all open files, without those of mappings."""
        self._mapped: dict[OsMapping, None] = {}
        """The open mappings, the oldest first."""
        self._mapped_bytes = 0
        self._tails: dict[FileTail, None] = {}
        """Those that hold bytes, the one that was written to longest ago first."""
        self._newest: FileTail | None = None

    def keep(self, tail: FileTail) -> None:
        """Note that a file keeps the bytes that were just written; another may lose its own."""
        if tail is self._newest:
            return
        self._newest = tail
        self._tails.pop(tail, None)
        self._tails[tail] = None
        if len(self._tails) > TAILS_MAX:
            oldest = next(iter(self._tails))
            del self._tails[oldest]
            oldest.data = b""

    def open(self, path: str, *, writable: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        return self._file(self._descriptor(path, flags))

    @property
    def held(self) -> OpenFiles:
        return self._held

    @property
    def is_short(self) -> bool:
        """Whether descriptors are short, so that a slow reader should not keep a file open."""
        return len(self._numbers) > self.shares.open_logs + self.shares.reads

    def map(self, path: str) -> OsMapping:
        descriptor = self._descriptor(path, os.O_RDONLY)
        try:
            mapping = OsMapping(self, descriptor)
        finally:
            os.close(descriptor)
        self._mapped[mapping] = None
        self._mapped_bytes += mapping.size_bytes
        # The oldest first. A reader that needs a closed mapping maps the file again.
        while len(self._mapped) > self.shares.mappings or self._mapped_bytes > MAPPED_BYTES_MAX:
            oldest = next(iter(self._mapped))
            if oldest is mapping:
                break
            oldest.close()
        return mapping

    def forget(self, mapping: OsMapping) -> None:
        """Stop counting a mapping that has been closed."""
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

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        if parents:
            os.makedirs(path, mode=OWNER_ONLY_DIRECTORY, exist_ok=True)
            return
        with suppress(FileExistsError):
            os.mkdir(path, OWNER_ONLY_DIRECTORY)  # noqa: PTH102 - storage uses paths as strings

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

    def sync_disk(self, path: str) -> bool:
        sync = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)  # Linux has it.
        if sync is None:
            return False
        descriptor = self._descriptor(path, os.O_RDONLY)
        try:
            if sync(descriptor):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(descriptor)
        return True

    def space(self, path: str) -> DiskSpace:
        found = os.statvfs(path)
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def _file(self, descriptor: int) -> OsFile:
        return OsFile(self, Descriptor(descriptor, self._numbers))

    def _descriptor(self, path: str, flags: int) -> int:
        """Open `path`; while no descriptor is free, make holders release theirs.

        Raises:
            OSError: it can't be opened.
        """
        for _ in range(SHORT_TRIES):
            try:
                return os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY)
            except OSError as error:
                if error.errno not in SHORT:
                    raise
            # Descriptors may be short only for a moment: files that logs keep open are given up
            # first, then wait for requests that end.
            if not self._held.release_all():
                time.sleep(SHORT_WAIT_S)
        return os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY)


def shares_now() -> Shares:
    """Divide the descriptor limit of this process, less those that are already open."""
    try:
        taken = RESERVED + len(os.listdir(_OPEN_NOW))
    except OSError:
        taken = RESERVED  # macOS has no such directory.
    return shares(soft_limit(), taken)


def process_id() -> int:
    """Return this process's id, for the lock file."""
    return os.getpid()
