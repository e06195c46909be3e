"""MemoryFiles: a disk in memory, behind the port `files`, for tests that break it.

`crash` loses what was not synced, directory entries included; tests make operations fail.
"""

# ruff: noqa: D102 - the port documents the methods

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial

from streamlog.broker.storage.disk.descriptors import OpenFiles
from streamlog.broker.storage.disk.files import Content, DiskSpace, Reserve

OPEN_LOGS_MAX = 1_000
"""The default limit of logs that keep their files open; no system provides descriptors here."""

Tear = Callable[[bytes, bytes], bytes]
"""Returns what a power cut leaves of a file, from its synced and its written bytes."""


class _Content:
    """The bytes of a file: as written, and as they are after a power cut."""

    __slots__ = ("data", "durable", "links", "locked")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.links = 0
        self.locked = False


class _Names:
    """A directory: its entries, and those that are left after a power cut."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, _Content | _Names] = {}
        self.durable: dict[str, _Content | _Names] = {}


class MemoryFile:
    """An open file of MemoryFiles."""

    def __init__(self, files: MemoryFiles, content: _Content, *, writable: bool) -> None:
        self._files = files
        self._content = content
        self._writable = writable
        self._life = files.life
        self._holds_lock = False

    def hold(self) -> None:
        """Take the file's lock, which `close` releases."""
        self._holds_lock = self._content.locked = True

    def read(self, size_bytes: int, position: int) -> bytes:
        return bytes(self._alive().data[position : position + size_bytes])

    def write(self, data: Content, position: int) -> int:
        content = self._alive()
        if not self._writable:
            raise OSError(errno.EBADF, "the file was opened for reading")
        if isinstance(data, list):
            data = b"".join(data)
        taken = self._files.admit(len(data), position + len(data) - len(content.data))
        # A gap reads as zeros, as in a sparse file.
        if position > len(content.data):
            content.data.extend(bytes(position - len(content.data)))
        content.data[position : position + taken] = memoryview(data)[:taken]
        return taken

    def size(self) -> int:
        return len(self._alive().data)

    def truncate(self, size_bytes: int) -> None:
        content = self._alive()
        if size_bytes > len(content.data):
            self._files.admit_room(size_bytes - len(content.data))
        del content.data[size_bytes:]
        content.data.extend(bytes(size_bytes - len(content.data)))

    def sync(self) -> None:
        content = self._alive()
        self._files.admit_sync()
        content.durable = bytes(content.data)

    def is_linked(self) -> bool:
        return self._alive().links > 0

    def share(self) -> MemoryFile:
        self._alive()
        return type(self)(self._files, self._content, writable=self._writable)

    def range(self, size_bytes: int, position: int) -> bytes:
        return self.read(size_bytes, position)

    def close(self) -> None:
        # A crash has released the locks of the life before.
        if self._holds_lock and self._life == self._files.life:
            self._content.locked = False
        self._holds_lock = False
        self._life = -1

    def _alive(self) -> _Content:
        if self._life != self._files.life:
            raise OSError(errno.EBADF, "the file is closed")
        return self._content


class MemoryMapping:
    """A mapping of a file in memory; access after the file's end raises `struct.error`."""

    def __init__(self, files: MemoryFiles, content: _Content) -> None:
        self._files = files
        self._content = content
        self._size_bytes = len(content.data)
        self._life = files.life

    def reaches(self, size_bytes: int) -> bool:
        alive = self._life == self._files.life
        return alive and size_bytes <= min(self._size_bytes, len(self._content.data))

    def view(self) -> bytearray:
        return self._content.data

    def close(self) -> None:
        self._life = -1


class MemoryFiles:
    """A disk in memory, for tests and simulation, that fails as disks do.

    When it has `capacity_bytes`, it is full: the write that exceeds them is short, and the next is
    refused. `crash` is a power cut or a kill; files that were open must be opened again.
    """

    def __init__(
        self, *, capacity_bytes: int | None = None, open_logs: int = OPEN_LOGS_MAX
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.held = OpenFiles(open_logs)
        self.reserve = Reserve()
        self.life = 0
        self._root = _Names()
        self._short_bytes: int | None = None
        self._write_failure: int | None = None
        self._sync_failure: int | None = None

    def short_next_write(self, size_bytes: int) -> None:
        """Make the next write accept only `size_bytes`; the one after it works."""
        self._short_bytes = size_bytes

    def fail_next_write(self, code: int = errno.ENOSPC, *, after_bytes: int = 0) -> None:
        """Make the next write fail; with `after_bytes`, it is short and the one after it fails."""
        self._short_bytes = after_bytes or None
        self._write_failure = code

    def fail_next_sync(self, code: int = errno.EIO) -> None:
        """Make the next sync fail and sync nothing."""
        self._sync_failure = code

    def crash(self, *, keep_bytes: int | None = 0, torn: Tear | None = None) -> None:
        """Lose what was not synced, except the first `keep_bytes` after each file's synced bytes.

        With None, the process died and the machine did not: everything written is still there. With
        `torn`, that function decides what is left of a file, from its synced and written bytes.
        """
        self.life += 1
        self.held = OpenFiles(self.held.most)
        self.reserve = Reserve()
        self._short_bytes = self._write_failure = self._sync_failure = None
        if keep_bytes is None:
            self._revert(self._root, None)
        else:
            self._revert(self._root, torn or partial(_first_bytes, keep_bytes))

    def used_bytes(self) -> int:
        """Return the total size of all files."""
        return sum(len(content.data) for content in _contents(self._root))

    def admit(self, size_bytes: int, growth_bytes: int) -> int:
        """Return how much of a write of `size_bytes` is accepted.

        Raises:
            OSError: a fault that a test has ordered, or the disk is full.
        """
        if self._short_bytes is not None:
            size_bytes, self._short_bytes = min(size_bytes, self._short_bytes), None
            return size_bytes
        if self._write_failure is not None:
            code, self._write_failure = self._write_failure, None
            raise OSError(code, os.strerror(code))
        if self.capacity_bytes is None or growth_bytes <= 0:
            return size_bytes
        # A write that fits in part is short; one that does not fit at all is refused.
        over_bytes = self.used_bytes() + growth_bytes - self.capacity_bytes
        if over_bytes >= size_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return size_bytes - max(over_bytes, 0)

    def admit_room(self, growth_bytes: int) -> None:
        """Allow a file to grow by `growth_bytes`.

        Raises:
            OSError: a fault that a test has ordered, or there is not enough space.
        """
        # With a short write ordered before it, the failure is for the next write.
        if self._write_failure is not None and self._short_bytes is None:
            code, self._write_failure = self._write_failure, None
            raise OSError(code, os.strerror(code))
        capacity_bytes = self.capacity_bytes
        if capacity_bytes is not None and self.used_bytes() + growth_bytes > capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def admit_sync(self) -> None:
        """Allow a sync.

        Raises:
            OSError: a fault that a test has ordered.
        """
        if self._sync_failure is not None:
            code, self._sync_failure = self._sync_failure, None
            raise OSError(code, os.strerror(code))

    def map(self, path: str) -> MemoryMapping:
        return MemoryMapping(self, self._content(path, make=False))

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        return MemoryFile(self, self._content(path, make=writable), writable=writable)

    def lock(self, path: str) -> MemoryFile | None:
        content = self._content(path, make=True)
        if content.locked:
            return None
        file = MemoryFile(self, content, writable=True)
        file.hold()
        return file

    def list(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        if not parents:
            self._locate(path)
        names = self._root
        for part in _parts(path):
            entry = names.entries.setdefault(part, _Names())
            if isinstance(entry, _Content):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            names = entry

    def rename(self, source: str, target: str) -> None:
        moved = self._entry(source)
        names, name = self._locate(target)
        replaced = names.entries.get(name)
        if isinstance(replaced, _Names):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        if replaced is not None:
            replaced.links -= 1
        old_names, old_name = self._locate(source)
        del old_names.entries[old_name]
        names.entries[name] = moved

    def remove(self, path: str) -> None:
        entry = self._entry(path)
        if isinstance(entry, _Content):
            entry.links -= 1
        elif entry.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        names, name = self._locate(path)
        del names.entries[name]

    def sync_directory(self, path: str) -> None:
        names = self._directory(path)
        self.admit_sync()
        names.durable = dict(names.entries)

    def sync_disk(self, path: str) -> bool:
        self._directory(path)
        self.admit_sync()
        self._settle(self._root)
        return True

    def space(self, path: str) -> DiskSpace:
        self._directory(path)
        if self.capacity_bytes is None:
            return DiskSpace()
        return DiskSpace(self.capacity_bytes, max(self.capacity_bytes - self.used_bytes(), 0))

    def _entry(self, path: str) -> _Content | _Names:
        entry: _Content | _Names = self._root
        for part in _parts(path):
            if isinstance(entry, _Content):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if part not in entry.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            entry = entry.entries[part]
        return entry

    def _directory(self, path: str) -> _Names:
        entry = self._entry(path)
        if isinstance(entry, _Content):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return entry

    def _locate(self, path: str) -> tuple[_Names, str]:
        *parents, name = _parts(path)
        return self._directory("/".join(parents)), name

    def _content(self, path: str, *, make: bool) -> _Content:
        names, name = self._locate(path)
        if make and name not in names.entries:
            content = _Content()
            content.links = 1
            names.entries[name] = content
        entry = self._entry(path)
        if isinstance(entry, _Names):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return entry

    def _settle(self, names: _Names) -> None:
        names.durable = dict(names.entries)
        for entry in names.entries.values():
            if isinstance(entry, _Names):
                self._settle(entry)
            else:
                entry.durable = bytes(entry.data)

    def _revert(self, names: _Names, torn: Tear | None) -> None:
        # A name that was not synced is gone, and with a directory's name everything in it.
        if torn is not None:
            names.entries = dict(names.durable)
        for entry in names.entries.values():
            if isinstance(entry, _Names):
                self._revert(entry, torn)
                continue
            entry.locked = False
            entry.links = 1
            if torn is not None:
                entry.data = bytearray(torn(entry.durable, bytes(entry.data)))
                entry.durable = bytes(entry.data)


def _first_bytes(keep_bytes: int, durable: bytes, written: bytes) -> bytes:
    return durable + written[len(durable) : len(durable) + keep_bytes]


def _contents(names: _Names) -> list[_Content]:
    found: list[_Content] = []
    for entry in names.entries.values():
        found += _contents(entry) if isinstance(entry, _Names) else [entry]
    return found


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]
