"""Power: what is left of a data directory when the power goes.

The preloaded library keeps, beside the directory, what fsync has brought to disk (`shim.c`). A cut
puts that in the directory's place, and of what was on its way any part, as a disk may: of a file
all, nothing, its beginning or some pages, of a directory the names as they were or as they are.
A kill alone proves nothing of the kind: the page cache outlives the process.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

PAGE_BYTES = 512
_STATX_SIZE = 256
_STATX_MASK = 0xFFF
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_INODE = struct.Struct("=Q")
_BORN = struct.Struct("=qI")
_INODE_AT, _BORN_AT = 32, 80
_libc = ctypes.CDLL(None, use_errno=True)


class Name(NamedTuple):
    """What a directory has."""

    is_directory: bool
    identity: str
    name: str


class Disk:
    """What is on disk for sure of the directory `data`, kept in `disk` by the library."""

    def __init__(self, data: Path, disk: Path) -> None:
        self._data = data
        self.place = disk
        self.counts: Counter[str] = Counter()
        """What the cuts have left of files and directories that were not wholly on disk."""

    def begin(self) -> None:
        """All that is there now is on disk; nobody may be using it."""
        shutil.rmtree(self.place, ignore_errors=True)
        self._data.mkdir(parents=True, exist_ok=True)
        (self.place / "files").mkdir(parents=True)
        (self.place / "names").mkdir()
        for directory in (self._data, *(each for each in self._data.rglob("*") if each.is_dir())):
            lines = (f"{'d' if d else 'f'} {i} {name}\n" for d, i, name in _names(directory))
            (self.place / "names" / identity(directory)).write_text("".join(lines))
        for file in self._data.rglob("*"):
            if file.is_file():
                shutil.copyfile(file, self.place / "files" / identity(file))

    def cut(self, chance: Random) -> None:
        """The power is gone, and back; whoever used the directory is dead."""
        there = {identity(each): each for each in (self._data, *self._data.rglob("*"))}
        left = self._data.with_name(self._data.name + ".left")
        shutil.rmtree(left, ignore_errors=True)
        self._rebuild(identity(self._data), left, there, chance)
        shutil.rmtree(self._data)
        left.rename(self._data)
        self.begin()

    def _rebuild(self, which: str, target: Path, there: dict[str, Path], chance: Random) -> None:
        target.mkdir(mode=0o700)
        for each in self._names_left(which, there.get(which), chance):
            if each.is_directory:
                self._rebuild(each.identity, target / each.name, there, chance)
            else:
                content = self._bytes_left(each.identity, there.get(each.identity), chance)
                (target / each.name).write_bytes(content)
                (target / each.name).chmod(0o600)

    def _names_left(self, which: str, now: Path | None, chance: Random) -> list[Name]:
        kept = self.place / "names" / which
        durable = _parsed(kept.read_text()) if kept.exists() else []
        current = durable if now is None else _names(now)
        if sorted(durable) == sorted(current):
            return durable
        found = chance.choice(("as they were", "as they are"))
        self.counts[f"names {found}"] += 1
        return durable if found == "as they were" else current

    def _bytes_left(self, which: str, now: Path | None, chance: Random) -> bytes:
        kept = self.place / "files" / which
        durable = kept.read_bytes() if kept.exists() else b""
        written = durable if now is None else now.read_bytes()
        if durable == written:
            return durable
        how = chance.choice(("nothing", "all", "a beginning", "some pages"))
        self.counts[f"bytes on their way: {how}"] += 1
        if how == "nothing":
            return durable
        if how == "all":
            return written
        if how == "a beginning" and written.startswith(durable):
            return written[: chance.randint(len(durable), len(written))]
        size = chance.choice((len(durable), len(written)))
        pages = bytearray()
        for at in range(0, size, PAGE_BYTES):
            page = chance.choice((durable, written))[at : at + PAGE_BYTES]
            pages += page.ljust(min(PAGE_BYTES, size - at), b"\0")
        return bytes(pages[:size])


def identity(path: Path) -> str:
    """As the library names it: inodes are given out again, so when it was born belongs to it.

    Raises:
        OSError: it is not there.
    """
    about = ctypes.create_string_buffer(_STATX_SIZE)
    place = os.fsencode(path)
    if _libc.statx(_AT_FDCWD, place, _AT_SYMLINK_NOFOLLOW, _STATX_MASK, about):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    (inode,) = _INODE.unpack_from(about, _INODE_AT)
    seconds, nanoseconds = _BORN.unpack_from(about, _BORN_AT)
    return f"{inode}-{seconds * 1_000_000_000 + nanoseconds}"


def _names(directory: Path) -> list[Name]:
    return sorted(Name(each.is_dir(), identity(each), each.name) for each in directory.iterdir())


def _parsed(text: str) -> list[Name]:
    fields = (line.split(" ", 2) for line in text.splitlines())
    return [Name(kind == "d", which, name) for kind, which, name in fields]
