"""Reserve: room that a data directory sets aside for the files that free more of it.

On a disk without a free block nothing could be deleted: that records or topics are gone has to be
written down before their files go. So some files of zeros lie in the directory. Where a small file
can't be written for want of space, one of them is removed, and made again as soon as there is
room: one at a time, as others may take what becomes free.
"""

from __future__ import annotations

import errno
from contextlib import closing, contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from streamlog import repeated

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


class File(Protocol):
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


class Files(Protocol):
    """What is asked of the disk."""

    @property
    def reserve(self) -> Reserve:
        """Its reserve."""
        ...

    def open(self, path: str, *, writable: bool = False) -> File:
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

    def hold(self, files: Files, directory: str) -> None:
        """Have a reserve in this directory from now on.

        Raises:
            OSError: the disk refused, and not for want of space.
        """
        with self._lock:
            self._directory, self._held = f"{directory}/{RESERVE}", []
        self.renew(files)

    def renew(self, files: Files) -> None:
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

    def give_up(self, files: Files) -> bool:
        """Free some blocks and a name; False if there are none left."""
        with self._lock:
            while self._held:
                with suppress(OSError):
                    files.remove(self._path(self._held.pop()))
                    return True
            return False

    def look(self, files: Files) -> bool:
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


def tell_of_memory(directory: str, partitions: int) -> None:
    """Say that the indexes of so many partitions are not on disk."""
    if partitions:
        _log.warning(
            "the disk of %s is full: the indexes of %d partitions are kept in memory; records can"
            " be read, and are accepted again as soon as there is room",
            *(directory, partitions),
        )


def _fill(files: Files, path: str, size_bytes: int = PIECE_BYTES) -> None:
    with closing(files.open(path, writable=True)) as file:
        if file.size() < size_bytes:
            file.truncate(size_bytes)


def with_reserve(files: Files, write: Callable[[], None]) -> None:
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
