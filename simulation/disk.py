"""SimulatedDisk: the port `Files` over a disk that keeps what it promised, and no more.

What a file system may do is done: after a power cut of what was not synced any part of a file is
left, by pages, zeros where nothing got there; names that were not synced are back as they were, up
to some change of their directory; a rename is whole or has not been. A write may be short, a disk
full, a sync refused, and then the pages in question are lost whatever later syncs say (fsyncgate).
After a kill everything that was written is still there.
`trap` ends the process in the middle of what it does: at the n-th call that changes something.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import Final

from simulation.disk_entries import Directory, Regular
from simulation.process import ProcessEnded
from streamlog.broker.storage.disk.descriptors import OpenFiles
from streamlog.broker.storage.disk.files import Content, DiskSpace, Mapping, Reserve

OPEN_LOGS_MAX: Final = 2
"""Logs that keep their files open: so few that every life closes some and opens them again."""
SHORT_WRITES: Final = 0.02
"""Of all writes, where they are to be short."""


class SimulatedFile:
    """An open file; of no use after the process that opened it."""

    def __init__(self, disk: SimulatedDisk, regular: Regular, *, writable: bool) -> None:
        self._disk = disk
        self._regular = regular
        self._writable = writable
        self._life = disk.life
        self._holds_lock = False

    def hold(self) -> None:
        """Take the file's lock, which `close` releases."""
        self._holds_lock = self._regular.locked = True

    def read(self, size_bytes: int, position: int) -> bytes:
        """See the port."""
        return bytes(self._alive().data[position : position + size_bytes])

    def write(self, data: Content, position: int) -> int:
        """See the port."""
        regular = self._alive()
        if not self._writable:
            raise _error(errno.EBADF)
        whole = b"".join(data) if isinstance(data, list) else bytes(data)
        growth_bytes = max(position + len(whole) - len(regular.data), 0)
        self._disk.step(lambda chance: self._put(whole[: chance.randint(0, len(whole))], position))
        taken = self._disk.admit(len(whole), growth_bytes)
        self._put(whole[:taken], position)
        return taken

    def size(self) -> int:
        """See the port."""
        return len(self._alive().data)

    def truncate(self, size_bytes: int) -> None:
        """See the port."""
        regular = self._alive()
        self._disk.step()
        growth_bytes = size_bytes - len(regular.data)
        if growth_bytes > 0:
            if self._disk.admit(growth_bytes, growth_bytes) < growth_bytes:
                raise _error(errno.ENOSPC)
            regular.put(bytes(growth_bytes), len(regular.data))
        else:
            regular.cut(size_bytes)

    def sync(self) -> None:
        """See the port."""
        regular = self._alive()
        self._disk.step()
        if self._disk.refuses_sync():
            regular.lose_dirty()
            raise _error(errno.EIO)
        regular.sync()

    def is_linked(self) -> bool:
        """See the port."""
        return self._alive().links > 0

    def share(self) -> SimulatedFile:
        """See the port."""
        return SimulatedFile(self._disk, self._alive(), writable=self._writable)

    def range(self, size_bytes: int, position: int) -> bytes:
        """See the port."""
        return self.read(size_bytes, position)

    def close(self) -> None:
        """See the port."""
        if self._holds_lock and self._life == self._disk.life:
            self._regular.locked = False
        self._holds_lock = False
        self._life = -1

    def _put(self, data: bytes, position: int) -> None:
        self._regular.put(data, position)

    def _alive(self) -> Regular:
        if self._life != self._disk.life:
            raise _error(errno.EBADF)
        return self._regular


class SimulatedMapping:
    """A file as memory."""

    def __init__(self, disk: SimulatedDisk, regular: Regular) -> None:
        self._disk = disk
        self._regular = regular
        self._size_bytes = len(regular.data)
        self._life = disk.life

    def reaches(self, size_bytes: int) -> bool:
        """See the port."""
        alive = self._life == self._disk.life
        return alive and size_bytes <= min(self._size_bytes, len(self._regular.data))

    def view(self) -> bytearray:
        """See the port."""
        return self._regular.data

    def close(self) -> None:
        """See the port."""
        self._life = -1


class SimulatedDisk:
    """One machine's disk. What it does by chance it draws from `chance`."""

    def __init__(self, chance: random.Random, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        """When it is full: the write that passes it is short, the next one refused."""
        self.life = 0
        """Counts the processes that have had it."""
        self.held = OpenFiles(OPEN_LOGS_MAX)
        self.reserve = Reserve()
        self.steps = 0
        """Calls that have changed something."""
        self.short_writes = 0.0
        """How many of all writes take only a part."""
        self.syncs_refused = 0
        self._chance = chance
        self._root = Directory()
        self._refuse_syncs = 0
        self._trap: tuple[int, Callable[[], None]] | None = None

    # ---- what goes wrong ----

    def trap(self, in_steps: int, end: Callable[[], None]) -> None:
        """At the so-manieth change from now on call `end`, and the process goes no further."""
        self._trap = (self.steps + in_steps, end)

    def release(self) -> None:
        """The trap is taken away, if it has not gone off."""
        self._trap = None

    @property
    def is_trapped(self) -> bool:
        """Whether a trap waits."""
        return self._trap is not None

    def refuse_syncs(self, count: int = 1) -> None:
        """The next syncs fail, and the pages that they were for are lost."""
        self._refuse_syncs = count

    def kill(self) -> None:
        """The process is gone, the machine is not: what was written is there."""
        self.life += 1
        self._trap = None
        self._root.unlock()

    def cut(self) -> None:
        """The power is gone: what was not synced is there in part."""
        self.life += 1
        self._trap = None
        self._refuse_syncs = 0
        self._root.settle_twins(self._chance)
        self._root.tear(self._chance)

    def used_bytes(self) -> int:
        """What all files together hold."""
        return self._root.size_bytes()

    # ---- asked by files ----

    def step(self, partly: Callable[[random.Random], None] | None = None) -> None:
        """Something is about to be changed; `partly` does a part of it.

        Raises:
            ProcessEnded: it was not.
        """
        self.steps += 1
        if self._trap is not None and self.steps >= self._trap[0]:
            _, end = self._trap
            self._trap = None
            if partly is not None:
                partly(self._chance)
            end()
            raise ProcessEnded

    def admit(self, size_bytes: int, growth_bytes: int) -> int:
        """How much of a write is taken.

        Raises:
            OSError: the disk is full.
        """
        if size_bytes > 1 and self._chance.random() < self.short_writes:
            return self._chance.randint(1, size_bytes - 1)
        if self.capacity_bytes is None or growth_bytes <= 0:
            return size_bytes
        over_bytes = self.used_bytes() + growth_bytes - self.capacity_bytes
        if over_bytes >= size_bytes:
            raise _error(errno.ENOSPC)
        return size_bytes - max(over_bytes, 0)

    def refuses_sync(self) -> bool:
        """Whether this one fails."""
        if self._refuse_syncs:
            self._refuse_syncs -= 1
            self.syncs_refused += 1
            return True
        return False

    # ---- the port ----

    def open(self, path: str, *, writable: bool = False) -> SimulatedFile:
        """See the port."""
        return SimulatedFile(self, self._regular(path, make=writable), writable=writable)

    def map(self, path: str) -> Mapping:
        """See the port."""
        return SimulatedMapping(self, self._regular(path, make=False))

    def lock(self, path: str) -> SimulatedFile | None:
        """See the port."""
        regular = self._regular(path, make=True)
        if regular.locked:
            return None
        file = SimulatedFile(self, regular, writable=True)
        file.hold()
        return file

    def list(self, path: str) -> list[str]:
        """See the port."""
        return sorted(self._directory(path).entries)

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        """See the port."""
        if not parents:
            self._place(path)
        names = self._root
        for part in _parts(path):
            if part not in names.entries:
                self.step()
                names.change({part: Directory()})
            entry = names.entries[part]
            if isinstance(entry, Regular):
                raise _error(errno.EEXIST, path)
            names = entry

    def rename(self, source: str, target: str) -> None:
        """See the port."""
        moved = self._entry(source)
        names, name = self._place(target)
        replaced = names.entries.get(name)
        if isinstance(replaced, Directory) and (replaced.entries or isinstance(moved, Regular)):
            raise _error(errno.ENOTEMPTY, target)
        self.step()
        if isinstance(replaced, Regular) and replaced is not moved:
            replaced.links -= 1
        old_names, old_name = self._place(source)
        if old_names is names:
            names.change({old_name: None, name: moved})
        else:
            names.change({name: moved}, twin=old_names.change({old_name: None}))

    def remove(self, path: str) -> None:
        """See the port."""
        entry = self._entry(path)
        if isinstance(entry, Directory) and entry.entries:
            raise _error(errno.ENOTEMPTY, path)
        self.step()
        if isinstance(entry, Regular):
            entry.links -= 1
        names, name = self._place(path)
        names.change({name: None})

    def sync_directory(self, path: str) -> None:
        """See the port."""
        names = self._directory(path)
        self.step()
        if self.refuses_sync():
            raise _error(errno.EIO, path)
        names.sync()

    def sync_disk(self, path: str) -> bool:
        """See the port: each file is synced by itself here, with a fault of its own."""
        self._directory(path)
        return False

    def space(self, path: str) -> DiskSpace:
        """See the port."""
        self._directory(path)
        if self.capacity_bytes is None:
            return DiskSpace()
        return DiskSpace(self.capacity_bytes, max(self.capacity_bytes - self.used_bytes(), 0))

    def _entry(self, path: str) -> Regular | Directory:
        entry: Regular | Directory = self._root
        for part in _parts(path):
            if isinstance(entry, Regular):
                raise _error(errno.ENOTDIR, path)
            if part not in entry.entries:
                raise _error(errno.ENOENT, path)
            entry = entry.entries[part]
        return entry

    def _directory(self, path: str) -> Directory:
        entry = self._entry(path)
        if isinstance(entry, Regular):
            raise _error(errno.ENOTDIR, path)
        return entry

    def _place(self, path: str) -> tuple[Directory, str]:
        *parents, name = _parts(path)
        return self._directory("/".join(parents)), name

    def _regular(self, path: str, *, make: bool) -> Regular:
        names, name = self._place(path)
        if make and name not in names.entries:
            self.step()
            names.change({name: Regular()})
        entry = self._entry(path)
        if isinstance(entry, Directory):
            raise _error(errno.EISDIR, path)
        return entry


def _error(code: int, path: str | None = None) -> OSError:
    if path is None:
        return OSError(code, os.strerror(code))
    return OSError(code, os.strerror(code), path)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]
