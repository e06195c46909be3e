"""Several disks in memory, of which some fail: every access to them is an I/O error."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from streamlog.broker.storage.disk.files import DiskFiles, File, Files, Mapping


class FailingFile:
    """An open file, whose disk may fail."""

    def __init__(self, file: File, check: Callable[[], None]) -> None:
        self._file = file
        self._check = check

    def share(self) -> FailingFile:
        return FailingFile(self._file.share(), self._check)

    def __getattr__(self, name: str) -> object:
        if name in {"read", "write", "truncate", "sync", "range"}:
            self._check()
        return getattr(self._file, name)


class FailingDisks(DiskFiles):
    """The first part of a path is a disk; those in `failed` have failed."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.failed: set[str] = set()

    def _check(self, path: str) -> None:
        if path.split("/", maxsplit=1)[0] in self.failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def open(self, path: str, *, writable: bool = False) -> File:
        self._check(path)
        file = super().open(path, writable=writable)
        return FailingFile(file, lambda: self._check(path))  # type: ignore[return-value]

    def map(self, path: str) -> Mapping:
        self._check(path)
        return super().map(path)

    def list(self, path: str) -> list[str]:
        self._check(path)
        return super().list(path)

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        self._check(path)
        super().make_directory(path, parents=parents)

    def rename(self, source: str, target: str) -> None:
        self._check(source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._check(path)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self._check(path)
        super().sync_directory(path)

    def sync_disk(self, path: str) -> bool:
        self._check(path)
        return super().sync_disk(path)
