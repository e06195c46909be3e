"""What is on a simulated disk: files and directories, and what a power cut leaves of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PAGE_BYTES: Final = 512
"""A page gets to disk whole or not at all: the sector of old disks, the least that is promised."""


class Regular:
    """A file: its bytes, and those that are on disk."""

    __slots__ = ("data", "durable", "links", "locked", "lost")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.links = 1
        self.locked = False
        self.lost: dict[int, bytes] = {}
        """Pages that a refused sync was for, as they were: no later one brings them to disk."""

    def put(self, data: bytes, position: int) -> None:
        """Write."""
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
        if self.lost:
            last = (position + len(data)) // PAGE_BYTES
            for page in range(position // PAGE_BYTES, last + 1):
                self.lost.pop(page, None)

    def cut(self, size_bytes: int) -> None:
        """Make it shorter."""
        del self.data[size_bytes:]

    def sync(self) -> None:
        """Bring it to disk, but for what is lost."""
        self.durable = self._on_its_way()

    def lose_dirty(self) -> None:
        """A sync has failed: the system forgets that these pages were to be written."""
        for at in range(0, len(self.data), PAGE_BYTES):
            now, before = self.data[at : at + PAGE_BYTES], self.durable[at : at + PAGE_BYTES]
            if now != before:
                self.lost[at // PAGE_BYTES] = before.ljust(len(now), b"\0")

    def tear(self, chance: random.Random) -> None:
        """The power is gone."""
        self.locked = False
        self.links = 1
        self.data = bytearray(self._left(chance))
        self.durable = bytes(self.data)
        self.lost.clear()

    def _on_its_way(self) -> bytes:
        """What would be on disk with the next sync."""
        written = bytearray(self.data)
        for page, before in self.lost.items():
            written[page * PAGE_BYTES : page * PAGE_BYTES + len(before)] = before
        return bytes(written[: len(self.data)])

    def _left(self, chance: random.Random) -> bytes:
        durable, written = self.durable, self._on_its_way()
        if durable == written:
            return durable
        how = chance.randrange(4)
        if how == 0:
            return durable
        if how == 1:
            return written
        if how == 2 and written.startswith(durable):
            return written[: chance.randint(len(durable), len(written))]
        size = chance.choice((len(durable), len(written)))
        pages = bytearray()
        for at in range(0, size, PAGE_BYTES):
            new = chance.random() < 0.5
            page = (written if new else durable)[at : at + PAGE_BYTES]
            pages += page.ljust(min(PAGE_BYTES, size - at), b"\0")
        return bytes(pages[:size])


@dataclass(eq=False, slots=True)
class Change:
    """A change of a directory's names: whole or not at all."""

    names: Mapping[str, Regular | Directory | None]
    twin: Change | None = None
    """The change of another directory that is one with this one."""
    of: Directory | None = None
    kept: bool = False


@dataclass(eq=False, slots=True)
class Directory:
    """A directory: its names, and those that are on disk."""

    entries: dict[str, Regular | Directory] = field(default_factory=dict)
    durable: dict[str, Regular | Directory] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    """What was changed since it was synced, in order."""

    def change(
        self, names: Mapping[str, Regular | Directory | None], *, twin: Change | None = None
    ) -> Change:
        """Change names: None takes one away."""
        change = Change(names, twin, self)
        if twin is not None:
            twin.twin = change
        self.pending.append(change)
        _apply(self.entries, change)
        return change

    def sync(self) -> None:
        """What it has now is on disk, and what is one with that."""
        for change in self.pending:
            twin = change.twin
            if twin is not None and twin.of is not None and twin in twin.of.pending:
                twin.of.pending.remove(twin)
                _apply(twin.of.durable, twin)
        self.pending.clear()
        self.durable = dict(self.entries)

    def settle_twins(self, chance: random.Random) -> None:
        """The power is gone: decide how much of what was changed has got to disk."""
        for change in self.pending[: chance.randint(0, len(self.pending))]:
            change.kept = True
            if change.twin is not None:
                change.twin.kept = True
        for entry in self.entries.values():
            if isinstance(entry, Directory):
                entry.settle_twins(chance)

    def tear(self, chance: random.Random) -> None:
        """The power is gone: after `settle_twins` of the whole disk."""
        for change in self.pending:
            if change.kept:
                _apply(self.durable, change)
        self.pending.clear()
        self.entries = dict(self.durable)
        for entry in self.entries.values():
            entry.tear(chance)

    def unlock(self) -> None:
        """Whoever held locks is gone."""
        for entry in self.entries.values():
            if isinstance(entry, Directory):
                entry.unlock()
            else:
                entry.locked = False

    def size_bytes(self) -> int:
        """What all files in it hold."""
        return sum(
            entry.size_bytes() if isinstance(entry, Directory) else len(entry.data)
            for entry in self.entries.values()
        )


def _apply(names: dict[str, Regular | Directory], change: Change) -> None:
    for name, entry in change.names.items():
        if entry is None:
            names.pop(name, None)
    names.update({name: entry for name, entry in change.names.items() if entry is not None})
