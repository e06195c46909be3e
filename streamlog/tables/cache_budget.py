"""CacheBudget: what the caches of all tasks of a process may take, shared out among them.

Every task caches what it reads of its state, and how many tasks a process has changes while it
runs. Each gets an equal share, and no more than is of use to one; who leaves gives its share back,
also by being forgotten. Rule of the file: the shares never come to more than the whole. Not done
here: what the store beneath keeps in memory (`rocksdb`).
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

MEMORY_BYTES = 192 * 1024 * 1024
"""Default for the state of all tasks of a process, what RocksDB keeps included."""
MEMORY_BYTES_MIN = 16 * 1024 * 1024
"""With less, every write would go to the disk by itself."""
EACH_BYTES_MAX = 16 * 1024 * 1024
"""Enough for some 80,000 small aggregates of one task."""


class Bounded(Protocol):
    """A cache with a bound."""

    def resize(self, bound_bytes: int) -> None:
        """Take no more than this from now on, and give back what is more."""


class CacheBudget:
    """Shares out a number of bytes."""

    __slots__ = ("_each_bytes_max", "_members", "_total_bytes")

    def __init__(self, total_bytes: int, *, each_bytes_max: int = EACH_BYTES_MAX) -> None:
        self._total_bytes = total_bytes
        self._each_bytes_max = each_bytes_max
        self._members: WeakSet[Bounded] = WeakSet()

    @property
    def share_bytes(self) -> int:
        """What each one may take."""
        return min(self._each_bytes_max, self._total_bytes // max(len(self._members), 1))

    def join(self, member: Bounded) -> None:
        """One more takes part: it and the others are told their new bound."""
        self._members.add(member)
        self._tell()

    def leave(self, member: Bounded) -> None:
        """One gives its share back; it keeps nothing."""
        self._members.discard(member)
        member.resize(0)
        self._tell()

    def _tell(self) -> None:
        for member in self._members:
            member.resize(self.share_bytes)
