"""AppendedFile: the file that a log is appended to, open as long as others can spare it.

It is a `Holder` of `open_files`: released, it is opened again with the next append.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlog.broker.storage.files import File, Files


class AppendedFile:
    """The open log of one segment; sealed segments have none."""

    __slots__ = ("_files", "file", "was_released", "was_used")

    def __init__(self, files: Files) -> None:
        self.file: File | None = None
        self.was_released = False
        """Whether the log is appended to, and its file closed to leave others the descriptor."""
        self.was_used = False
        self._files = files

    @property
    def is_closed(self) -> bool:
        """Whether nothing is to be appended."""
        return self.file is None and not self.was_released

    def open(self, path: str, size_bytes: int = 0) -> File | None:
        """Open the log for appending; None if its file is shorter, so not the one that was there.

        Raises:
            OSError: it can't be opened.
        """
        file = self._files.open(path, writable=True)
        if file.size() < size_bytes:
            file.close()
            return None
        self.file, self.was_released = file, False
        self._files.held.add(self)
        return file

    def to_append(self, path: str, size_bytes: int) -> File:
        """The open file, opened again after others needed its descriptor.

        Raises:
            OSError: it can't be opened, or is gone.
        """
        file = self.file
        if file is None:
            if not self.was_released:
                raise ValueError(f"{path} is sealed")
            file = self.open(path, size_bytes)
            if file is None:
                raise FileNotFoundError(errno.ENOENT, "a shorter file has its name", path)
        self.was_used = True
        return file

    def close(self) -> None:
        """Append nothing more."""
        self._files.held.discard(self)
        file, self.file, self.was_released = self.file, None, False
        if file is not None:
            file.close()

    def release(self) -> None:
        """See `Holder`."""
        # Not closed: another thread may be using it, and the last reference closes it.
        self.was_released = self.file is not None
        self.file = None
