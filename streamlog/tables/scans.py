"""Scans: ranges of keys in memory that are read as far as somebody reads them.

A scan shows a store as it was when it was asked for. Most are asked for one row and dropped, so
nothing is copied for them: only when the store is about to change, what is left of those that
somebody still holds is. Rule of the file: whoever changes the store calls `settle` before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

V = TypeVar("V")
"""Values: bytes, or None for keys that are to be removed."""
V_co = TypeVar("V_co", covariant=True)
"""The same, for who only reads them."""


class Values(Protocol[V_co]):
    """Port: the value of each key."""

    def __getitem__(self, key: bytes) -> V_co:
        """That of a key that is there."""


class _Scan(Generic[V]):
    """One scan: an iterator that can be made independent of what it reads."""

    __slots__ = ("__weakref__", "_pairs")

    def __init__(self, pairs: Iterator[tuple[bytes, V]]) -> None:
        self._pairs = pairs

    def __iter__(self) -> Iterator[tuple[bytes, V]]:
        return self

    def __next__(self) -> tuple[bytes, V]:
        return next(self._pairs)

    def settle(self) -> None:
        """Copy what has not been read."""
        self._pairs = iter(list(self._pairs))


class Scans(Generic[V]):
    """The scans over one store."""

    __slots__ = ("_begun", "are_open")

    def __init__(self) -> None:
        self._begun: WeakSet[_Scan[V]] = WeakSet()
        self.are_open = False
        """Whether there may be some: to be asked before `settle`, which costs more."""

    def begin(self, keys: Iterator[bytes], values: Values[V]) -> Iterator[tuple[bytes, V]]:
        """These keys in their order, and their values, as they are now."""
        scan = _Scan((key, values[key]) for key in keys)
        self._begun.add(scan)
        self.are_open = True
        return scan

    def settle(self) -> None:
        """Keys or values are about to change."""
        for scan in list(self._begun):
            scan.settle()
        self._begun.clear()
        self.are_open = False
