"""A small real file system, which tests fill to its last block and inode."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE_BYTES = 2 * 1024 * 1024
NAMES = 400
PAGE_BYTES = 4096


class SmallDisk:
    """A mounted tmpfs; ballast files fill it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    @property
    def free_bytes(self) -> int:
        """Free bytes of the file system."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, *, left_bytes: int = 0, names: bool = False) -> None:
        """Fill every block but `left_bytes`; with `names` also every inode."""
        with self._ballast.open("ab", buffering=0) as file, _until_full():
            while True:
                file.write(bytes(PAGE_BYTES))
        if left_bytes:
            os.truncate(self._ballast, self._ballast.stat().st_size - left_bytes)
        number = len(list(self.path.iterdir()))
        with _until_full():
            while names:
                (self.path / f"ballast-{number}").touch()
                number += 1

    def free(self) -> None:
        """Remove the ballast."""
        for each in self.path.glob("ballast*"):
            each.unlink()


@contextmanager
def small_disk(
    path: Path, *, size_bytes: int = SIZE_BYTES, names: int = NAMES
) -> Iterator[SmallDisk]:
    """Mount a small disk at `path`; skip the test where mounting is not permitted."""
    path.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},nr_inodes={names}"
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("there is no `mount` to make a small file system with")
    if mounted.returncode:
        pytest.skip(f"a small file system can't be mounted: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def _until_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
