"""MemoryStore: a KeyValueStore in memory, and the sorted keys and scans that it consists of.

A dictionary with its keys in order. The test driver and every model test run on it, and it
satisfies the contract of the store on disk. `SortedKeys` is a list of sorted blocks of bounded
length: finding, adding and removing a key costs a binary search and the move of at most one block;
added keys wait unsorted until the order is read (the shape of Grant Jenks' `sortedcontainers`).
`Scans` show a store as it was when they began, and copy only what is unread when the store is about
to change. `CachedStore` keeps all rows of a named store in memory as well. Rules of the module: a
scan costs what is read of it; code that changes a store calls `settle` first. Not done here:
bounds, and survival of the process (the changelog's job).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from streamlog.errors import UsageError
from streamlog.tables.stores.store import Change, KeyValueStore, StoreSpec, prefix_end

V = TypeVar("V")
"""Values: bytes, or None for keys to remove."""
V_co = TypeVar("V_co", covariant=True)
"""Values, for code that only reads them."""


class Values(Protocol[V_co]):
    """Port: the value of each key."""

    def __getitem__(self, key: bytes) -> V_co:
        """Return the value of an existing key."""


class _OpenScan(Generic[V]):
    """An iterator that can be made independent of the store that it reads."""

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
        self._begun: WeakSet[_OpenScan[V]] = WeakSet()
        self.are_open = False
        """Whether scans may be open: check this before `settle`, which costs more."""

    def begin(self, keys: Iterator[bytes], values: Values[V]) -> Iterator[tuple[bytes, V]]:
        """Iterate over these keys in their order, with their current values."""
        # Lazy: nothing is read before the first `next`, so `settle` has to read what is left before
        # the store changes.
        scan = _OpenScan((key, values[key]) for key in keys)
        self._begun.add(scan)
        self.are_open = True
        return scan

    def settle(self) -> None:
        """Make all scans independent: keys or values are about to change."""
        for scan in list(self._begun):
            scan.settle()
        self._begun.clear()
        self.are_open = False


BLOCK_KEYS_MAX = 1_024
"""A larger block is split: moving 8 KiB of pointers costs less than a microsecond."""

REBUILD_SHARE = 4
"""If at least one key in this many is new, sorting everything is faster than inserting."""


class SortedKeys:
    """Distinct keys in ascending order."""

    __slots__ = ("_added", "_blocks", "_lasts")

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._blocks: list[list[bytes]] = []
        self._lasts: list[bytes] = []
        self._added: list[bytes] = list(keys)

    def add(self, key: bytes) -> None:
        """Add a key that does not exist yet."""
        self._added.append(key)

    def add_all(self, keys: Iterable[bytes]) -> None:
        """Add distinct keys that do not exist yet."""
        self._added.extend(keys)

    def remove(self, key: bytes) -> None:
        """Remove an existing key."""
        # The key may still be among the unsorted ones, which are in no block.
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
        """Iterate over keys from `low` up to but not including `high`; do not change the keys."""
        self._settle()
        # The first block whose last key is not below `low`; all earlier blocks lie below it.
        first = bisect_left(self._lasts, low)
        for index in range(first, len(self._blocks)):
            block = self._blocks[index]
            start = bisect_left(block, low) if index == first else 0
            if high is not None and block[-1] >= high:
                yield from block[start : bisect_left(block, high)]
                return
            yield from block[start:] if start else block

    def _settle(self) -> None:
        """Move every added key to its position."""
        if not self._added:
            return
        added, self._added = self._added, []
        # Blocks are at least half full after a rebuild or a split, so this underestimates the
        # number of keys. Without blocks the bound is 0, so `_insert` always finds a block.
        if len(added) * REBUILD_SHARE >= len(self._blocks) * BLOCK_KEYS_MAX // 2:
            self._rebuild(added)
            return
        for key in added:
            self._insert(key)

    def _rebuild(self, added: list[bytes]) -> None:
        keys = [key for block in self._blocks for key in block]
        keys += added
        keys.sort()
        # Half full, so that the next keys do not split every block immediately.
        step = BLOCK_KEYS_MAX // 2
        self._blocks = [keys[at : at + step] for at in range(0, len(keys), step)]
        self._lasts = [block[-1] for block in self._blocks]

    def _insert(self, key: bytes) -> None:
        # A key after all others belongs to the last block.
        index = min(bisect_right(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[index]
        insort(block, key)
        if len(block) > BLOCK_KEYS_MAX:
            half = len(block) // 2
            self._blocks[index : index + 1] = [block[:half], block[half:]]
            self._lasts[index : index + 1] = [block[half - 1], block[-1]]
        else:
            self._lasts[index] = block[-1]


class MemoryStore:
    """A KeyValueStore in memory."""

    __slots__ = ("_closed", "_keys", "_scans", "_values")

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys = SortedKeys()
        self._scans: Scans[bytes] = Scans()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None if there is none."""
        self._check_open()
        return self._values.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key; None for a key that has none."""
        self._check_open()
        return list(map(self._values.get, keys))

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self._begin_change()
        if key not in self._values:
            self._keys.add(key)
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._begin_change()
        if self._values.pop(key, None) is not None:
            self._keys.remove(key)

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the current keys from `low` up to but not including `high`, in order."""
        self._check_open()
        return self._scans.begin(self._keys.range(low, high), self._values)

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`."""
        self._check_open()
        for key in list(self._keys.range(low, high)):
            self.delete(key)

    def persist(self) -> None:
        """Do nothing: there is no disk."""

    def write(self, changes: Iterable[Change]) -> None:
        """Apply the changes in their order."""
        self._check_open()
        # Exhaust the iterable first: if it fails half-way, nothing has been changed.
        for key, value in list(changes):
            if value is None:
                self.delete(key)
            else:
                self.put(key, value)

    def close(self) -> None:
        """Remove everything."""
        # An open scan keeps the rows that it has not yielded yet.
        self._closed = True
        self._scans.settle()
        self._values = {}
        self._keys.clear()

    def _begin_change(self) -> None:
        self._check_open()
        if self._scans.are_open:
            self._scans.settle()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the store is closed: its task has ended")


class CachedStore:
    """A KeyValueStore for one named store of a task, with all its rows in memory."""

    __slots__ = ("_memory", "_prefix", "_store")

    def __init__(self, store: KeyValueStore, spec: StoreSpec) -> None:
        self._store = store
        self._prefix = spec.prefix
        self._memory: MemoryStore | None = None

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None if there is none."""
        return self._rows.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key; None for a key that has none."""
        return self._rows.get_all(keys)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self._rows.put(key, value)
        self._store.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._rows.delete(key)
        self._store.delete(key)

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the current keys from `low` up to but not including `high`, in order."""
        return self._rows.range(low, high)

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`."""
        self._rows.delete_range(low, high)
        self._store.delete_range(low, high)

    def write(self, changes: Iterable[Change]) -> None:
        """Apply the changes in their order."""
        found = list(changes)  # Both stores read it, and an iterator can be read only once.
        self._rows.write(found)
        self._store.write(found)

    def close(self) -> None:
        """Do nothing: the task closes the underlying store."""

    def look_again(self) -> None:
        """Forget the rows in memory: the underlying store was changed directly."""
        self._memory = None

    @property
    def _rows(self) -> MemoryStore:
        if self._memory is None:
            self._memory = MemoryStore()
            self._memory.write(self._store.range(self._prefix, prefix_end(self._prefix)))
        return self._memory
