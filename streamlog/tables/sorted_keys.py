"""SortedKeys: a set of byte strings in order, for stores that live in memory.

A list of sorted blocks of bounded length: finding, adding and removing a key costs a binary
search and the move of at most one block, so that nothing is quadratic in the number of keys.
Added keys wait unsorted until somebody asks for the order, as a store on the hot path is
written per record and scanned far less often. The shape is that of Grant Jenks'
`sortedcontainers`. Not done here: values, and duplicates (the caller adds a key once).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

BLOCK_KEYS_MAX = 1_024
"""A block splits beyond this: moving 8 KiB of pointers costs less than a microsecond."""

REBUILD_SHARE = 4
"""When a fourth or more of the keys are new, sorting everything beats inserting one by one."""


class SortedKeys:
    """Distinct keys in ascending order."""

    __slots__ = ("_added", "_blocks", "_lasts")

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._blocks: list[list[bytes]] = []
        self._lasts: list[bytes] = []
        self._added: list[bytes] = list(keys)

    def add(self, key: bytes) -> None:
        """Add a key that is not there yet."""
        self._added.append(key)

    def add_all(self, keys: Iterable[bytes]) -> None:
        """Add distinct keys that are not there yet."""
        self._added.extend(keys)

    def remove(self, key: bytes) -> None:
        """Remove a key that is there."""
        self._settle()
        index = bisect_left(self._lasts, key)
        block = self._blocks[index]
        del block[bisect_left(block, key)]
        if block:
            self._lasts[index] = block[-1]
        else:
            del self._blocks[index], self._lasts[index]

    def clear(self) -> None:
        """Remove all keys."""
        self._blocks, self._lasts, self._added = [], [], []

    def range(self, low: bytes, high: bytes | None) -> Iterator[bytes]:
        """Keys from `low` up to but not including `high`; the keys must not change meanwhile."""
        self._settle()
        first = bisect_left(self._lasts, low)
        for index in range(first, len(self._blocks)):
            block = self._blocks[index]
            start = bisect_left(block, low) if index == first else 0
            if high is not None and block[-1] >= high:
                yield from block[start : bisect_left(block, high)]
                return
            yield from block[start:] if start else block

    def _settle(self) -> None:
        """Give every added key its place."""
        if not self._added:
            return
        added, self._added = self._added, []
        if len(added) * REBUILD_SHARE >= len(self._blocks) * BLOCK_KEYS_MAX // 2:
            self._rebuild(added)
            return
        for key in added:
            self._insert(key)

    def _rebuild(self, added: list[bytes]) -> None:
        keys = [key for block in self._blocks for key in block]
        keys += added
        keys.sort()
        # Half full, so that the next keys do not split every block at once.
        step = BLOCK_KEYS_MAX // 2
        self._blocks = [keys[at : at + step] for at in range(0, len(keys), step)]
        self._lasts = [block[-1] for block in self._blocks]

    def _insert(self, key: bytes) -> None:
        index = min(bisect_right(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[index]
        insort(block, key)
        if len(block) > BLOCK_KEYS_MAX:
            half = len(block) // 2
            self._blocks[index : index + 1] = [block[:half], block[half:]]
            self._lasts[index : index + 1] = [block[half - 1], block[-1]]
        else:
            self._lasts[index] = block[-1]
