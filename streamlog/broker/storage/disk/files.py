"""Files: the port through which storage reaches the disk, and a reserve for a full disk.

`os_files` and `memory_files` implement the port. It is as thin as the system calls, so a write may
be short, and a rename is not durable until its directory is synced; the loops are above the port,
where MemoryFiles can test them. `replace_file` is the one way to change a small file: write a
temporary file, sync it, rename it, sync the directory. Errors are the system's `OSError`;
`directory_error` translates them.

`Reserve`: on a full disk nothing could be deleted, because a deletion is recorded before its files
are removed. So a data directory keeps some files of zeros. When a small file can't be written for
lack of space, one of them is removed; they are created again, one by one, when there is space.
"""

from __future__ import annotations

import errno
import mmap
from contextlib import closing, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from streamlog import repeated
from streamlog.broker.storage.disk.descriptors import SHORT, OpenFiles
from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.errors import (
    LogDirectoryError,
    LogDirectoryFailed,
    LogDirectoryFull,
    LogDirectoryLost,
    TooManyOpenFiles,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


RESERVE = "reserve"
PIECES = 8
PIECE_BYTES = 32 * 1024
"""Together they hold the small files of a thousand partitions, some 100 KiB."""
PROBE_BYTES = 1024 * 1024
"""Free space that ends the state of a full disk."""
_log = repeated.logger(__name__)
_FULL = {errno.ENOSPC, errno.EDQUOT}


class ReservedFile(Protocol):
    """The part of `File` that the reserve needs."""

    def size(self) -> int:
        """Return the size of the file in bytes."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Extend the file, if the disk has space."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class ReservedFiles(Protocol):
    """The part of `Files` that the reserve needs."""

    @property
    def reserve(self) -> Reserve:
        """The reserve of the disk."""
        ...

    def open(self, path: str, *, writable: bool = False) -> ReservedFile:
        """Open a file."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a directory."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...


def is_full(error: OSError) -> bool:
    """Whether the disk refused for lack of space."""
    return error.errno in _FULL


class Reserve:
    """The reserve of one data directory, empty before `hold`. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._directory: str | None = None
        self._held: list[int] = []
        self.is_short = False
        """Whether a log was refused space, and no space was found since (`look`)."""

    def __deepcopy__(self, memo: dict[int, object]) -> Reserve:
        """Return an empty reserve: a copied disk holds none."""
        return Reserve()

    def hold(self, files: ReservedFiles, directory: str) -> None:
        """Keep a reserve in this directory from now on.

        Raises:
            OSError: the disk refused for a reason other than lack of space.
        """
        with self._lock:
            self._directory, self._held = f"{directory}/{RESERVE}", []
        self.renew(files)

    def renew(self, files: ReservedFiles) -> None:
        """Create the missing files of the reserve, as far as there is space.

        Raises:
            OSError: the disk refused for a reason other than lack of space.
        """
        with self._lock, unless_full():
            while self._directory is not None and len(self._held) < PIECES:
                number = min({*range(PIECES)} - {*self._held})
                try:
                    _fill(files, self._path(number))
                except FileNotFoundError:
                    # There was no space for its directory, or an operator removed it. Listing
                    # the data directory raises if that is gone too.
                    files.list(self._directory.removesuffix(f"/{RESERVE}"))
                    files.make_directory(self._directory)
                    _fill(files, self._path(number))
                self._held.append(number)

    def give_up(self, files: ReservedFiles) -> bool:
        """Remove one file of the reserve, which frees blocks and a name; False if none is left."""
        with self._lock:
            while self._held:
                with suppress(OSError):
                    files.remove(self._path(self._held.pop()))
                    return True
            return False

    def look(self, files: ReservedFiles) -> bool:
        """Whether logs were refused space, and the disk is still full.

        Errors are only logged: a disk that can't be probed accepts no records either.
        """
        if self._directory is None or not self.is_short:
            return False
        path = f"{self._directory}.probe"
        with self._lock:
            try:
                _fill(files, path, PROBE_BYTES)
                self.is_short = False
            except OSError as error:
                if not is_full(error):
                    _log.warning("%s can't be written: %s", path, error)
            try:
                files.remove(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                _log.warning("%s can't be removed: %s", path, error)
        return self.is_short

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number}"


@contextmanager
def unless_full(what: str = "") -> Iterator[None]:
    """Suppress the error of a full disk; `what` is then logged as not written."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        if what:
            _log.warning("%s can't be written: %s", what, error)


def warn_of_unwritten_indexes(directory: str, partitions: int) -> None:
    """Log that the indexes of `partitions` partitions are not on disk."""
    if partitions:
        _log.warning(
            "the disk of %s is full: indexes are kept in memory (partitions: %d); records can be"
            " read, and are accepted again as soon as there is room",
            *(directory, partitions),
        )


def _fill(files: ReservedFiles, path: str, size_bytes: int = PIECE_BYTES) -> None:
    with closing(files.open(path, writable=True)) as file:
        if file.size() < size_bytes:
            file.truncate(size_bytes)


def with_reserve(files: ReservedFiles, write: Callable[[], None]) -> None:
    """Call `write`, and call it again with space from the reserve while the disk is full.

    Raises:
        OSError: the disk refused.
    """
    was_full = False
    while True:
        try:
            write()
        except OSError as error:
            if not is_full(error) or not files.reserve.give_up(files):
                raise
            was_full = True
        else:
            break
    if was_full:
        files.reserve.renew(files)  # Before others use the space.


Buffer = bytes | bytearray | memoryview
Content = Buffer | list[memoryview]
"""Bytes to write at one position: one piece, or several consecutive ones."""
PIECES_MAX = 1024
"""Pieces per system call (IOV_MAX)."""
View = mmap.mmap | bytearray
"""The bytes of a mapping."""
_VANISHED = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
TEMPORARY = ".tmp"
"""The suffix of a file while it is being written."""


class File(Protocol):
    """An open file, addressed by position."""

    def read(self, size_bytes: int, position: int) -> bytes:
        """Read up to `size_bytes` from `position`; fewer only at the end of the file."""
        ...

    def write(self, data: Content, position: int) -> int:
        """Write at `position`; return the number of bytes written, which may be less than all."""
        ...

    def size(self) -> int:
        """Return the size of the file in bytes."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to `size_bytes`, or extend it with allocated zeros.

        A file that can't be extended stays unchanged.
        """
        ...

    def sync(self) -> None:
        """Sync the content to disk. A sync that failed once must not be repeated."""
        ...

    def is_linked(self) -> bool:
        """Whether the file still has a name in a directory."""
        ...

    def share(self) -> File:
        """Return the same open file under a separate handle; each is closed separately."""
        ...

    def range(self, size_bytes: int, position: int) -> Buffer | FileRange:
        """Return bytes of the file to send on; closing the file does not invalidate them."""
        ...

    def close(self) -> None:
        """Close the file; a lock on it is released."""
        ...


class Mapping(Protocol):
    """A file mapped for reading; writes to the file are visible in it.

    Access after the end of the file kills the process (SIGBUS): call `reaches` first, and close the
    mapping before the file is cut.
    """

    def reaches(self, size_bytes: int) -> bool:
        """Whether the mapping is open, and map and file have at least `size_bytes` bytes."""
        ...

    def view(self) -> View:
        """Return the bytes, which must not be kept."""
        ...

    def close(self) -> None:
        """Close the mapping."""
        ...


class Files(Protocol):
    """The disk; paths use `/`."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Open a file; a writable one is created if it does not exist."""
        ...

    @property
    def held(self) -> OpenFiles:
        """The holders that keep a file open between two uses."""
        ...

    @property
    def reserve(self) -> Reserve:
        """Space for small files on a full disk."""
        ...

    def map(self, path: str) -> Mapping:
        """Map a file at its current size. Beyond a limit, the oldest mappings are closed."""
        ...

    def lock(self, path: str) -> File | None:
        """Open a file, created if needed, with an exclusive lock; None if it is taken."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        """Create a directory, and its parents if `parents`, unless they exist."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; a file at `target` is replaced atomically."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Sync the names in a directory to disk."""
        ...

    def sync_disk(self, path: str) -> bool:
        """Sync all files and names of the disk that `path` is on; False if it can't be asked to."""
        ...

    def space(self, path: str) -> DiskSpace:
        """Return the space of the disk that a directory is on."""
        ...


class DiskSpace(NamedTuple):
    """The space of a disk in bytes; -1 if it is not known."""

    total_bytes: int = -1
    usable_bytes: int = -1
    """What this process may still write."""


class DiskFiles:
    """The files of one disk of several: as `files`, with a reserve of their own."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.reserve = Reserve()

    @property
    def held(self) -> OpenFiles:
        """See `Files`."""
        return self._files.held

    def open(self, path: str, *, writable: bool = False) -> File:
        """See `Files`."""
        return self._files.open(path, writable=writable)

    def map(self, path: str) -> Mapping:
        """See `Files`."""
        return self._files.map(path)

    def lock(self, path: str) -> File | None:
        """See `Files`."""
        return self._files.lock(path)

    def list(self, path: str) -> list[str]:
        """See `Files`."""
        return self._files.list(path)

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        """See `Files`."""
        self._files.make_directory(path, parents=parents)

    def rename(self, source: str, target: str) -> None:
        """See `Files`."""
        self._files.rename(source, target)

    def remove(self, path: str) -> None:
        """See `Files`."""
        self._files.remove(path)

    def sync_directory(self, path: str) -> None:
        """See `Files`."""
        self._files.sync_directory(path)

    def sync_disk(self, path: str) -> bool:
        """See `Files`."""
        return self._files.sync_disk(path)

    def space(self, path: str) -> DiskSpace:
        """See `Files`."""
        return self._files.space(path)


def size_of(data: Content) -> int:
    """Return the number of bytes of all pieces."""
    return sum(map(len, data)) if isinstance(data, list) else len(data)


def write_whole(file: File, data: Content, position: int) -> None:
    """Write all of `data`, with as many calls as it takes.

    Raises:
        OSError: the file accepts no more; a part of `data` may have been written.
    """
    written = file.write(data, position)
    if written == size_of(data):
        return
    # A short write is rare (a full disk, a signal), so only then the pieces are joined.
    rest = memoryview(b"".join(data) if isinstance(data, list) else data)
    while written < len(rest):
        taken = file.write(rest[written:], position + written)
        if taken <= 0:
            raise OSError(errno.EIO, "the file accepts no bytes and reports no error")
        written += taken


def read_file(files: Files, path: str) -> bytes:
    """Return the content of a small file.

    Raises:
        OSError: it can't be opened or read.
    """
    file = files.open(path)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Replace the content of a file atomically, also with respect to a power cut.

    On a full disk it uses the reserve.

    Raises:
        OSError: the file has the old content or, if only the last step failed, the new one.
    """
    # 1. The temporary file is synced before the rename: otherwise a power cut could leave the
    #    new name with an empty file. 2. The directory is synced after it: otherwise a power cut
    #    could bring the old content back although the caller has acted on the new one.
    with_reserve(files, lambda: _write_temporary(files, path, data))
    files.rename(path + TEMPORARY, path)
    files.sync_directory(parent_of(path))
    files.reserve.renew(files)  # The old content's blocks are free now.


def _write_temporary(files: Files, path: str, data: bytes) -> None:
    file = files.open(path + TEMPORARY, writable=True)
    try:
        file.truncate(0)
        write_whole(file, data, 0)
        file.sync()
    except OSError:
        # The rest of it would occupy blocks that others need.
        with suppress(OSError):
            file.truncate(0)
        raise
    finally:
        file.close()


def make_durable_directory(files: Files, path: str) -> None:
    """Create a directory and its missing parents, durably.

    Raises:
        OSError: it can't be created.
    """
    try:
        files.list(path)
    except FileNotFoundError:
        make_durable_directory(files, parent_of(path))
        files.make_directory(path)
        files.sync_directory(parent_of(path))


def names_in(files: Files, path: str) -> list[str]:
    """Return the names in a directory, sorted; none if it does not exist.

    Raises:
        OSError: it can't be read.
    """
    try:
        return files.list(path)
    except FileNotFoundError:
        return []


def parent_of(path: str) -> str:
    """Return the directory that contains `path`."""
    parent, slash, _ = path.rpartition("/")
    return parent or slash or "."


def directory_error(error: OSError, path: str) -> LogDirectoryError:
    """Return what a system error on `path` means for the data directory."""
    reason = error.strerror or str(error)
    path = error.filename or path
    if error.errno in _VANISHED:
        return LogDirectoryLost(
            f"{path} has vanished while it was in use ({reason}): the log stops here; restore the"
            " data directory, or start with a new one"
        )
    if is_full(error):
        return LogDirectoryFull(
            f"{path} can't be written ({reason}): everything acknowledged is stored; free some"
            " space, then write again"
        )
    if error.errno in SHORT:
        return TooManyOpenFiles(
            f"{path} can't be opened ({reason}): the disk is fine, and the request can be"
            " repeated; raise the limit of open files (ulimit -n, LimitNOFILE=), or lower"
            " max.connections"
        )
    return LogDirectoryFailed(
        f"{path} can't be written ({reason}): everything acknowledged before is stored; check"
        " the disk, then start again"
    )


MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""The exceptions of decoding content that is malformed."""
