"""StoreTransaction: what a task has changed since its last commit, over the store beneath.

A write-back cache behind the KeyValueStore port: a task's own writes are visible at once,
also in scans, and nothing reaches the store before the changelog has it. `commit` then takes
exactly the records that were sent; what was written since stays pending, so that a task may
go on while its commit is under way. Values that were read stay cached, bounded by bytes and
renewed by commits, so that a key in use costs a dictionary look-up instead of a read from disk;
what is only written (rows that their step keeps as objects) does not drive them out.
Rule of the file: a pending None is a deletion, a cached None a key known to be absent. Not
done here: sending, and deciding when to commit (`size_bytes` is there to decide by).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import Final, Literal, TypeAlias

from streamlog.records.columns import total_bytes
from streamlog.tables.cache_budget import CacheBudget
from streamlog.tables.changelog import apply_records
from streamlog.tables.scans import Scans
from streamlog.tables.sorted_keys import SortedKeys
from streamlog.tables.store import Change, Changes, KeyValueStore

CACHE_BYTES = 16 * 1024 * 1024
"""Default bound of the cache of one task: enough for some 80,000 small aggregates."""

ENTRY_BYTES = 160
"""What an entry costs beyond its key and value: two objects' heads and a slot in a dict."""

MANY = 4_096
"""Of so many changes that come at once one in `SAMPLE` is looked at for its size."""

SAMPLE = 16


class _Missing(Enum):
    """Tells "not here" from a None that means something."""

    MISSING = 0


_MISSING: Final = _Missing.MISSING
_Found: TypeAlias = bytes | Literal[_Missing.MISSING] | None


class StoreTransaction:
    """A KeyValueStore whose writes stay pending until they are committed or rolled back."""

    __slots__ = (
        "_budget", "_cache", "_fresh", "_given", "_keys", "_pending", "_scans", "_store",
        "size_bytes",
    )  # fmt: skip

    size_bytes: int
    """What the pending changes take in memory, by estimate."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        cache_bytes: int = CACHE_BYTES,
        budget: CacheBudget | None = None,
    ) -> None:
        """`cache_bytes` bounds what is kept after a commit; 0 keeps nothing.

        With a `budget` the bound is a share of it instead, until this is closed.
        """
        self._store = store
        self._pending: dict[bytes, bytes | None] = {}
        self._fresh: Changes | None = None
        """Changes that are pending as they came, and all there are: nobody has looked for one."""
        self._given: Changes | None = None
        """What `changes` gave last, as long as nothing has been changed since."""
        self._keys = SortedKeys()
        self._scans: Scans[bytes | None] = Scans()
        self._cache = _Cache(cache_bytes)
        self._budget = budget
        if budget is not None:
            budget.join(self._cache)
        self.size_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        """The value as this transaction sees it."""
        if self._fresh is not None:
            self._index()
        found: _Found = self._pending.get(key, _MISSING)
        if found is _MISSING:
            found = self._cache.get(key)
            if found is _MISSING:
                found = self._store.get(key)
                self._cache.add(key, found)
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value, pending."""
        self._change(key, value)

    def delete(self, key: bytes) -> None:
        """Remove one key, pending, whether it is there or not."""
        self._change(key, None)

    def _index(self) -> None:
        """Let changes that came as columns be found by their keys."""
        if self._fresh is not None:
            fresh, self._fresh = self._fresh, None
            self._pending = dict(fresh)
            self._keys.add_all(self._pending)

    def _change(self, key: bytes, value: bytes | None) -> None:
        self._index()
        if self._scans.are_open:
            self._scans.settle()
        self._given = None
        old: _Found = self._pending.get(key, _MISSING)
        if old is _MISSING:
            self._keys.add(key)
            self.size_bytes += ENTRY_BYTES + len(key)
        elif old is not None:
            self.size_bytes -= len(old)
        if value is not None:
            self.size_bytes += len(value)
        self._pending[key] = value

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` up to but not including `high`, in order, pending changes included."""
        self._index()
        changed = self._scans.begin(self._keys.range(low, high), self._pending)
        return overlaid(self._store.range(low, high), changed)

    def stored(self, key: bytes) -> bytes | None:
        """The value as of the last commit, whatever has been changed since."""
        return self._store.get(key)

    def stored_range(
        self, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """As `range`, as of the last commit."""
        return self._store.range(low, high)

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`, pending.

        One change for each, as the changelog knows no ranges.
        """
        for key, _ in self.range(low, high):
            self._change(key, None)

    def write(self, changes: Iterable[Change]) -> None:
        """Take in the changes in their order, pending."""
        self._index()
        if self._scans.are_open:
            self._scans.settle()
        self._given = None
        if isinstance(changes, Changes) and not self._pending:
            if changes:
                self._fresh = changes
                self.size_bytes += _estimated_bytes(changes)
            return
        fresh = dict(changes)
        if not self._pending:
            self._pending = fresh
            self._keys.add_all(fresh)
            self.size_bytes += _size_bytes(fresh.keys(), fresh.values())
            return
        if self._pending.keys().isdisjoint(fresh):
            self._pending.update(fresh)
            self._keys.add_all(fresh)
            self.size_bytes += _size_bytes(fresh.keys(), fresh.values())
            return
        for key, value in fresh.items():
            self._change(key, value)

    def close(self) -> None:
        """Roll back and close the store beneath."""
        self.rollback()
        if self._budget is not None:
            self._budget.leave(self._cache)
        self._cache = _Cache(0)
        self._store.close()

    def changes(self) -> Changes:
        """The pending changes, in no order of keys; they stay pending until `commit`."""
        pending = self._pending
        self._given = self._fresh or Changes(list(pending), list(pending.values()))
        return self._given

    def commit(self, records: Changes, *, next_offset: int) -> None:
        """The changelog has taken `records` and goes on at `next_offset`: store them.

        `records` are earlier `changes()` with the progress behind them, just as they were
        sent. A key that has been written again since then stays pending.
        """
        self._scans.settle()
        apply_records(self._store, records, next_offset=next_offset)
        self._cache.renew(records)
        given = self._given
        if given is not None and (records is given or records.head is given):
            self.rollback()  # They are all that is pending.
            return
        self._index()
        pending = self._pending
        # Identity: an equal value written since is another change, but to the same value.
        for key, value in records:
            if pending.get(key, _MISSING) is value:
                del pending[key]
                self.size_bytes -= ENTRY_BYTES + len(key) + len(value or b"")
        self.size_bytes = max(self.size_bytes, 0) if pending else 0
        self._keys = SortedKeys(pending)

    def rollback(self) -> None:
        """Forget the pending changes.

        Not to be used while records are under way to the changelog: whether they arrived is
        for a restoration to find out.
        """
        self._scans.settle()
        self._given = self._fresh = None
        self._pending.clear()
        self._keys.clear()
        self.size_bytes = 0


def _estimated_bytes(changes: Changes) -> int:
    """What changes take in memory, as if all were like those looked at."""
    found = 0
    for keys, values, start, stop in changes.runs():
        step = SAMPLE if stop - start >= MANY else 1
        found += step * _size_bytes(keys[start:stop:step], values[start:stop:step])
    return found


def _size_bytes(keys: Collection[bytes], values: Iterable[bytes | None]) -> int:
    """What changes take in memory, by estimate."""
    return ENTRY_BYTES * len(keys) + total_bytes(keys) + total_bytes(values)


def overlaid(
    stored: Iterator[tuple[bytes, bytes]], changed: Iterator[Change]
) -> Iterator[tuple[bytes, bytes]]:
    """Stored pairs with the changed ones in their places; both ascending by key."""
    first = next(changed, None)
    return stored if first is None else _merged(stored, chain((first,), changed))


def _merged(
    stored: Iterator[tuple[bytes, bytes]], changed: Iterator[Change]
) -> Iterator[tuple[bytes, bytes]]:
    below = next(stored, None)
    for key, value in changed:
        while below is not None and below[0] < key:
            yield below
            below = next(stored, None)
        if below is not None and below[0] == key:
            below = next(stored, None)
        if value is not None:
            yield key, value
    if below is not None:
        yield below
        yield from stored


class _Cache:
    """Values by key within a bound: two generations, the older one dropped when full.

    What is used moves to the young generation, so a key in use survives. Nothing is moved
    or counted for keys that leave, unlike with a list in order of use.
    """

    __slots__ = ("__weakref__", "_generation_bytes", "_old", "_young", "_young_bytes")

    def __init__(self, bound_bytes: int) -> None:
        self._generation_bytes = bound_bytes // 2
        self._young: dict[bytes, bytes | None] = {}
        self._old: dict[bytes, bytes | None] = {}
        self._young_bytes = 0

    def resize(self, bound_bytes: int) -> None:
        """Keep to another bound; what was kept under a larger one goes."""
        if bound_bytes // 2 < self._generation_bytes:
            self._young, self._old, self._young_bytes = {}, {}, 0
        self._generation_bytes = bound_bytes // 2

    def get(self, key: bytes) -> _Found:
        """The cached value; None is known to be absent, _MISSING is not known."""
        found: _Found = self._young.get(key, _MISSING)
        if found is _MISSING and self._old:
            found = self._old.get(key, _MISSING)
            if found is not _MISSING:
                self.add(key, found)
        return found

    def renew(self, changes: Iterable[Change]) -> None:
        """Remember new values of the keys that are known here: those that somebody reads."""
        if not self._young and not self._old:
            return
        for key, value in changes:
            if key in self._young or key in self._old:
                self.add(key, value)

    def add(self, key: bytes, value: bytes | None) -> None:
        """Remember a value; it counts again when it is written again, which only turns earlier."""
        entry_bytes = ENTRY_BYTES + len(key) + len(value or b"")
        if self._young_bytes + entry_bytes > self._generation_bytes:
            if entry_bytes > self._generation_bytes:
                self._young.pop(key, None)
                self._old.pop(key, None)
                return
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._young[key] = value
        self._young_bytes += entry_bytes
