"""Files: the port through which storage touches the disk; OsFiles and MemoryFiles behind it.

Rule of the file: it is the only one in the broker that opens files. The port is as thin as
the system calls, so a write may be short and a rename is not durable until its directory is
synced; the loops stand above the port, where MemoryFiles can try them. `replace_file` is the
one way to change a small file: write aside, sync, rename, sync the directory.
MemoryFiles loses on `crash` what was not synced, entries of directories included, and fails
when told to. Errors are the system's `OSError`; `directory_error` gives them their meaning.
"""

# ruff: noqa: D102 - what a method promises is written at the port, once
# ruff: noqa: PTH103, PTH105, PTH106, PTH108, PTH116, PTH208 - a path is a string, as the port has it
from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from functools import partial
from typing import Protocol

from streamlog.errors import LogDirectoryError, LogDirectoryFailed, LogDirectoryLost

Buffer = bytes | bytearray | memoryview
Content = Buffer | list[memoryview]
"""What is written at one place: one piece, or several that follow each other."""
PIECES_MAX = 1024
"""In one system call (IOV_MAX)."""
View = mmap.mmap | bytearray
"""The bytes of a mapping."""
Tear = Callable[[bytes, bytes], bytes]
"""What a power cut leaves of a file, from what was synced and what was written."""

MAPPINGS_MAX = 256
"""Each has a descriptor, too."""
MAPPED_BYTES_MAX = 64 * 1024 * 1024
"""At most so much of this process's resident memory are pages of mapped files."""
OWNER_ONLY = 0o600
"""Who may read a log may read everything in it, keys made of passwords included."""
OWNER_ONLY_DIRECTORY = 0o700

_VANISHED = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
_TEMPORARY = ".tmp"
# macOS has no fdatasync.
_sync_data = getattr(os, "fdatasync", os.fsync)
# macOS has none; some file systems refuse it.
_allocate = getattr(os, "posix_fallocate", None)
_NO_ALLOCATION = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV}
_ZEROS_BYTES = 64 * 1024


class File(Protocol):
    """An open file, addressed by position."""

    def read(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes` from `position`; fewer only where the file ends."""
        ...

    def write(self, data: Content, position: int) -> int:
        """Write at `position`; how many bytes were taken, which may be less than all."""
        ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to `size_bytes`, or extend it with zeros that the disk has room for.

        A file that can't be extended stays as it is.
        """
        ...

    def sync(self) -> None:
        """Return when the content is on disk. A sync that failed once must not be repeated."""
        ...

    def linked(self) -> bool:
        """Whether some directory still has the file."""
        ...

    def range(self, size_bytes: int, position: int) -> Buffer | FileRange:
        """Bytes that are in the file, for whoever sends them on; closing it takes none away."""
        ...

    def close(self) -> None:
        """Give the file back; a lock that it holds is released."""
        ...


class Mapping(Protocol):
    """A file as memory, for reading: what is written to the file shows in it.

    A look behind the end of the file kills the process (SIGBUS): `reaches` is asked before, and
    who cuts a file off gives its mapping back first.
    """

    def reaches(self, size_bytes: int) -> bool:
        """Whether as much of the file is mapped, and still there; never so once it is closed."""
        ...

    def view(self) -> View:
        """The bytes; not to be kept."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class Files(Protocol):
    """The disk; paths use `/`."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open a file; a writable one is made if it is not there."""
        ...

    def map(self, path: str) -> Mapping:
        """Map a file, as long as it is now. Only so many are kept: the oldest ones are closed."""
        ...

    def lock(self, path: str) -> File | None:
        """Open a file, made if need be, and hold it alone; None if another one does."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it; fine if it is there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; a file at `target` is replaced in one step."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory are on disk."""
        ...


def size_of(data: Content) -> int:
    """The bytes of all its pieces."""
    return sum(map(len, data)) if isinstance(data, list) else len(data)


def write_whole(file: File, data: Content, position: int) -> None:
    """Write all of `data`, however often the file takes only a part.

    Raises:
        OSError: the file takes no more; some of `data` may have been written.
    """
    written = file.write(data, position)
    if written == size_of(data):
        return
    rest = memoryview(b"".join(data) if isinstance(data, list) else data)
    while written < len(rest):
        taken = file.write(rest[written:], position + written)
        if taken <= 0:
            raise OSError(errno.EIO, "the file takes no bytes and reports no error")
        written += taken


def read_file(files: Files, path: str) -> bytes:
    """The content of a small file.

    Raises:
        OSError: it can't be opened or read.
    """
    file = files.open(path)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Give a file new content, all or nothing, also through a power cut.

    Raises:
        OSError: the content is the old one or, if only the last step failed, the new one.
    """
    file = files.open(path + _TEMPORARY, writable=True)
    try:
        file.truncate(0)
        write_whole(file, data, 0)
        file.sync()
    finally:
        file.close()
    files.rename(path + _TEMPORARY, path)
    files.sync_directory(parent_of(path))


def make_durable_directory(files: Files, path: str) -> None:
    """Make a directory and those above it that are missing, so that a power cut leaves them.

    Raises:
        OSError: it can't be made.
    """
    try:
        files.list(path)
    except FileNotFoundError:
        make_durable_directory(files, parent_of(path))
        files.make_directory(path)
        files.sync_directory(parent_of(path))


def parent_of(path: str) -> str:
    """The directory that has `path` in it."""
    parent, slash, _ = path.rpartition("/")
    return parent or slash or "."


def directory_error(error: OSError, path: str) -> LogDirectoryError:
    """What an error of the system on `path` means for the data directory."""
    reason = error.strerror or str(error)
    path = error.filename or path
    if error.errno in _VANISHED:
        return LogDirectoryLost(
            f"{path} has vanished while it was in use ({reason}): the log stops here; put the"
            " data directory back in its place, or start with a new one"
        )
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return LogDirectoryFailed(
            f"{path} can't be written ({reason}): what was acknowledged is there; free some"
            " space, then write again"
        )
    return LogDirectoryFailed(
        f"{path} can't be written ({reason}): what was acknowledged before is there; look at"
        " the disk, then start again"
    )


def process_id() -> int:
    """The number of this process, for those who find a lock of it."""
    return os.getpid()


class _Descriptor:
    """An open file of the kernel; closed when nobody refers to it any more."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class FileRange:
    """Bytes that stay in their file until a socket takes them; never changed, for a log only grows.

    It keeps the file open: deleted or closed by others, the bytes are still there.
    """

    __slots__ = ("_descriptor", "_position", "_size_bytes")

    def __init__(self, descriptor: _Descriptor, size_bytes: int, position: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._position = position

    def __len__(self) -> int:
        return self._size_bytes

    def read(self) -> bytes:
        """The bytes, in memory.

        Raises:
            OSError: they can't be read, or the file has been cut off.
        """
        data = _read(self._descriptor.number, self._size_bytes, self._position)
        if len(data) < self._size_bytes:
            raise OSError(errno.EIO, "the file has been cut off under a reader")
        return data

    def part(self, start_bytes: int, size_bytes: int) -> FileRange:
        """Some of the bytes."""
        return FileRange(self._descriptor, size_bytes, self._position + start_bytes)

    def send(self, socket_descriptor: int, sent_bytes: int) -> int:
        """Hand what follows the first `sent_bytes` to a socket, past this process's memory.

        Returned is how many bytes it took; 0 if the file has been cut off.

        Raises:
            OSError: the socket takes nothing now (BlockingIOError), or never will.
        """
        left_bytes = self._size_bytes - sent_bytes
        position = self._position + sent_bytes
        return os.sendfile(socket_descriptor, self._descriptor.number, position, left_bytes)


def _read(descriptor: int, size_bytes: int, position: int) -> bytes:
    data = os.pread(descriptor, size_bytes, position)
    if len(data) == size_bytes or not data:
        return data
    parts = [data]
    got = len(data)
    while data and got < size_bytes:
        data = os.pread(descriptor, size_bytes - got, position + got)
        parts.append(data)
        got += len(data)
    return b"".join(parts)


class OsFile:
    """An open file of the operating system."""

    __slots__ = ("_descriptor", "_held")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held: _Descriptor | None = _Descriptor(descriptor)

    def read(self, size_bytes: int, position: int) -> bytes:
        return _read(self._descriptor, size_bytes, position)

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

    def range(self, size_bytes: int, position: int) -> FileRange:
        if self._held is None:
            raise OSError(errno.EBADF, "the file is closed")
        return FileRange(self._held, size_bytes, position)

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

    def __init__(self) -> None:
        self._mapped: dict[OsMapping, None] = {}
        """Those that are open, the oldest first."""
        self._mapped_bytes = 0

    def open(self, path: str, *, writable: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        return OsFile(os.open(path, flags | os.O_CLOEXEC, OWNER_ONLY))

    def map(self, path: str) -> OsMapping:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapping = OsMapping(self, descriptor)
        finally:
            os.close(descriptor)
        self._mapped[mapping] = None
        self._mapped_bytes += mapping.size_bytes
        while len(self._mapped) > MAPPINGS_MAX or self._mapped_bytes > MAPPED_BYTES_MAX:
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
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return None
            raise
        return OsFile(descriptor)

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
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Content:
    """Bytes of a file in memory: as they are, and as they would be after a power cut."""

    __slots__ = ("data", "durable", "links", "locked")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.links = 0
        self.locked = False


class _Names:
    """A directory in memory: its entries, and those that a power cut would leave."""

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

    def linked(self) -> bool:
        return self._alive().links > 0

    def range(self, size_bytes: int, position: int) -> bytes:
        return self.read(size_bytes, position)

    def close(self) -> None:
        if self._holds_lock and self._life == self._files.life:
            self._content.locked = False
        self._holds_lock = False
        self._life = -1

    def _alive(self) -> _Content:
        if self._life != self._files.life:
            raise OSError(errno.EBADF, "the file is closed")
        return self._content


class MemoryMapping:
    """A mapping of a file in memory; a look behind the file's end is a `struct.error`."""

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

    `capacity_bytes` is when it is full: the write that passes it is short, the next one is
    refused. `crash` is a power cut or a kill; whoever had files open has to open them again.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.life = 0
        self._root = _Names()
        self._short_bytes: int | None = None
        self._write_failure: int | None = None
        self._sync_failure: int | None = None

    def short_next_write(self, size_bytes: int) -> None:
        """The next write takes only `size_bytes`; the one after it goes on as if nothing was."""
        self._short_bytes = size_bytes

    def fail_next_write(self, code: int = errno.ENOSPC, *, after_bytes: int = 0) -> None:
        """The next write fails, or, with `after_bytes`, takes that many and the next one fails."""
        self._short_bytes = after_bytes or None
        self._write_failure = code

    def fail_next_sync(self, code: int = errno.EIO) -> None:
        """The next sync fails and makes nothing durable."""
        self._sync_failure = code

    def crash(self, *, keep_bytes: int | None = 0, torn: Tear | None = None) -> None:
        """Lose what was not synced, but for the first `keep_bytes` behind what each file had.

        With None the process died and the machine did not: everything written is still there.
        `torn` decides by itself what is left of a file, from what was synced and what was written.
        """
        self.life += 1
        self._short_bytes = self._write_failure = self._sync_failure = None
        if keep_bytes is None:
            self._revert(self._root, None)
        else:
            self._revert(self._root, torn or partial(_first_bytes, keep_bytes))

    def used_bytes(self) -> int:
        """What all files together hold."""
        return sum(len(content.data) for content in _contents(self._root))

    def admit(self, size_bytes: int, growth_bytes: int) -> int:
        """How much of a write of `size_bytes` is taken now.

        Raises:
            OSError: a fault that was ordered, or the disk is full.
        """
        if self._short_bytes is not None:
            size_bytes, self._short_bytes = min(size_bytes, self._short_bytes), None
            return size_bytes
        if self._write_failure is not None:
            code, self._write_failure = self._write_failure, None
            raise OSError(code, os.strerror(code))
        if self.capacity_bytes is None or growth_bytes <= 0:
            return size_bytes
        over_bytes = self.used_bytes() + growth_bytes - self.capacity_bytes
        if over_bytes >= size_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return size_bytes - max(over_bytes, 0)

    def admit_room(self, growth_bytes: int) -> None:
        """Let a file be extended by as much.

        Raises:
            OSError: a fault that was ordered, or there is not so much room.
        """
        if self._write_failure is not None and self._short_bytes is None:
            code, self._write_failure = self._write_failure, None
            raise OSError(code, os.strerror(code))
        capacity_bytes = self.capacity_bytes
        if capacity_bytes is not None and self.used_bytes() + growth_bytes > capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def admit_sync(self) -> None:
        """Let a sync happen.

        Raises:
            OSError: a fault that was ordered.
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

    def make_directory(self, path: str) -> None:
        names = self._root
        for part in _parts(path):
            entry = names.entries.setdefault(part, _Names())
            if isinstance(entry, _Content):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            names = entry

    def rename(self, source: str, target: str) -> None:
        moved = self._entry(source)
        names, name = self._place(target)
        replaced = names.entries.get(name)
        if isinstance(replaced, _Names):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        if replaced is not None:
            replaced.links -= 1
        old_names, old_name = self._place(source)
        del old_names.entries[old_name]
        names.entries[name] = moved

    def remove(self, path: str) -> None:
        entry = self._entry(path)
        if isinstance(entry, _Content):
            entry.links -= 1
        elif entry.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        names, name = self._place(path)
        del names.entries[name]

    def sync_directory(self, path: str) -> None:
        names = self._directory(path)
        self.admit_sync()
        names.durable = dict(names.entries)

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

    def _place(self, path: str) -> tuple[_Names, str]:
        *parents, name = _parts(path)
        return self._directory("/".join(parents)), name

    def _content(self, path: str, *, make: bool) -> _Content:
        names, name = self._place(path)
        if make and name not in names.entries:
            content = _Content()
            content.links = 1
            names.entries[name] = content
        entry = self._entry(path)
        if isinstance(entry, _Names):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return entry

    def _revert(self, names: _Names, torn: Tear | None) -> None:
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


def file_stamp(path: str) -> tuple[int, int, int] | None:
    """What changes when a file is replaced or written to; None while there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
