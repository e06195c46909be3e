"""DirectoryLock: who has a state directory open, on this machine.

A lock of the kernel's on a file in the directory: it ends with its holder, however that ends, and
holds between two databases in the same place as well. Processes are told apart, and holders within
one. Rule of the file: a lock on a directory that was removed meanwhile is none. Not done here:
holders on other machines, as state directories are local; who owns a task is the changelog's word.
"""

from __future__ import annotations

import fcntl
import os
from typing import Self

from streamlog.errors import LogDirectoryError, LogDirectoryLocked

OWNER_FILE = "owner"
"""The file that is locked, in the directory."""


class DirectoryLock:
    """Held from `acquire` until `release`."""

    __slots__ = ("_file",)

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def acquire(cls, path: str) -> Self:
        """Lock the directory `path`.

        Raises:
            LogDirectoryLocked: somebody holds it, here or in another process.
            LogDirectoryError: it is not there, or can't be written.
        """
        name = f"{path}/{OWNER_FILE}"
        try:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LogDirectoryError(
                f"the state directory {path} can't be used: {error.strerror}; choose another one "
                "or change its permissions"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.path.samestat(os.fstat(file), os.stat(name))  # noqa: PTH116 - text here
        except OSError as error:
            os.close(file)
            raise LogDirectoryLocked(
                f"the state directory {path} is in use by another worker or task: stop that one, "
                f"or give this one a directory of its own ({error.strerror})"
            ) from error
        if not is_there:
            os.close(file)
            raise LogDirectoryLocked(f"the state directory {path} is being removed")
        return cls(file)

    def release(self) -> None:
        """Let go; a second time is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
