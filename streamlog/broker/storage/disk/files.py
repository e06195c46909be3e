"""Files: the port through which storage reaches the disk, and a reserve for a full disk.

`os_files` and `memory_files` implement the port. It is as thin as the system calls, so a write may
be short and a rename is not durable until its directory is synced; the loops are above the port,
where MemoryFiles can test them. `replace_file` is the one way to change a small file: write a
temporary file, sync, rename, sync the directory. Errors are the system's `OSError`;
`directory_error` gives them their meaning.

`Reserve`: on a full disk nothing could be deleted, because a deletion is recorded before its files
go. So a data directory keeps some files of zeros. When a small file can't be written for lack of
space, one of them is removed, and created again, one at a time, as soon as there is room.
"""

from __future__ import annotations

import errno
import mmap
from contextlib import closing, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Protocol

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
"""Together they hold what is replaced of a thousand partitions, some 100 KiB."""
PROBE_BYTES = 1024 * 1024
"""With so much more there is room again."""
_log = repeated.logger(__name__)
_FULL = {errno.ENOSPC, errno.EDQUOT}


class ReservedFile(Protocol):
    """What is asked of an open file; see `files`."""

    def size(self) -> int:
        """Bytes in it."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Have it extended, if there is room."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class ReservedFiles(Protocol):
    """What is asked of the disk."""

    @property
    def reserve(self) -> Reserve:
        """Its reserve."""
        ...

    def open(self, path: str, *, writable: bool = False) -> ReservedFile:
        """Open a file."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...


def is_full(error: OSError) -> bool:
    """Whether the disk has refused for want of space."""
    return error.errno in _FULL


class Reserve:
    """The reserve of one data directory; there is none before `hold`. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._directory: str | None = None
        self._held: list[int] = []
        self.is_short = False
        """Whether a log was refused room, and none was found since (`look`)."""

    def __deepcopy__(self, memo: dict[int, object]) -> Reserve:
        """Of a copied disk nothing is held."""
        return Reserve()

    def hold(self, files: ReservedFiles, directory: str) -> None:
        """Have a reserve in this directory from now on.

        Raises:
            OSError: the disk refused, and not for want of space.
        """
        with self._lock:
            self._directory, self._held = f"{directory}/{RESERVE}", []
        self.renew(files)

    def renew(self, files: ReservedFiles) -> None:
        """Take what is missing of it, as far as there is room.

        Raises:
            OSError: the disk refused, and not for want of space.
        """
        with self._lock, unless_full():
            while self._directory is not None and len(self._held) < PIECES:
                number = min({*range(PIECES)} - {*self._held})
                try:
                    _fill(files, self._path(number))
                except FileNotFoundError:
                    # There was no room for its directory, or somebody has removed that.
                    files.list(self._directory.removesuffix(f"/{RESERVE}"))
                    files.make_directory(self._directory)
                    _fill(files, self._path(number))
                self._held.append(number)

    def give_up(self, files: ReservedFiles) -> bool:
        """Free some blocks and a name; False if there are none left."""
        with self._lock:
            while self._held:
                with suppress(OSError):
                    files.remove(self._path(self._held.pop()))
                    return True
            return False

    def look(self, files: ReservedFiles) -> bool:
        """Whether logs were refused room, and would not get some now either.

        Nobody waits for the answer: a disk that refuses to be looked at takes no records either.
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
    """Go on where the disk refuses for want of space; `what` is then logged as not written."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        if what:
            _log.warning("%s can't be written: %s", what, error)


def warn_of_unwritten_indexes(directory: str, partitions: int) -> None:
    """Say that the indexes of so many partitions are not on disk."""
    if partitions:
        _log.warning(
            "the disk of %s is full: the indexes of %d partitions are kept in memory; records can"
            " be read, and are accepted again as soon as there is room",
            *(directory, partitions),
        )


def _fill(files: ReservedFiles, path: str, size_bytes: int = PIECE_BYTES) -> None:
    with closing(files.open(path, writable=True)) as file:
        if file.size() < size_bytes:
            file.truncate(size_bytes)


def with_reserve(files: ReservedFiles, write: Callable[[], None]) -> None:
    """Do `write`, again with room of the reserve while there is none for it.

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
        files.reserve.renew(files)  # Before somebody else takes what is left of it.


Buffer = bytes | bytearray | memoryview
Content = Buffer | list[memoryview]
"""What is written at one place: one piece, or several that follow each other."""
PIECES_MAX = 1024
"""In one system call (IOV_MAX)."""
View = mmap.mmap | bytearray
"""The bytes of a mapping."""
_VANISHED = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
TEMPORARY = ".tmp"
"""Behind the name of a file that is being written, until it has that name."""


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

    def shared(self) -> File:
        """The same open file, under a handle of its own; each is closed by itself."""
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

    @property
    def held(self) -> OpenFiles:
        """Those who keep a file open between two uses."""
        ...

    @property
    def reserve(self) -> Reserve:
        """Room for small files on a disk that is full."""
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

    On a full disk it takes the room that is set aside for this.

    Raises:
        OSError: the content is the old one or, if only the last step failed, the new one.
    """
    with_reserve(files, lambda: _write_aside(files, path, data))
    files.rename(path + TEMPORARY, path)
    files.sync_directory(parent_of(path))
    files.reserve.renew(files)  # The old content has left its blocks.


def _write_aside(files: Files, path: str, data: bytes) -> None:
    file = files.open(path + TEMPORARY, writable=True)
    try:
        file.truncate(0)
        write_whole(file, data, 0)
        file.sync()
    except OSError:
        # What is left of it would hold blocks that others need.
        with suppress(OSError):
            file.truncate(0)
        raise
    finally:
        file.close()


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
    if is_full(error):
        return LogDirectoryFull(
            f"{path} can't be written ({reason}): what was acknowledged is there; free some"
            " space, then write again"
        )
    if error.errno in SHORT:
        return TooManyOpenFiles(
            f"{path} can't be opened ({reason}): nothing is wrong with the disk, and the request"
            " can be repeated; raise the limit of open files (ulimit -n, LimitNOFILE=), or lower"
            " max.connections"
        )
    return LogDirectoryFailed(
        f"{path} can't be written ({reason}): what was acknowledged before is there; look at"
        " the disk, then start again"
    )


MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What comes of looking into something that is not what it should be."""
