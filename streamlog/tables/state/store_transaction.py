"""StoreTransaction and DeferredStore: what a task has changed, on its way to the store on disk.

`StoreTransaction` is a write-back cache: a task sees its own writes immediately, also in scans, and
nothing reaches the store before the changelog has it. `commit` takes exactly the records that were
sent; later writes stay pending. Values that were read stay cached within a share of the process's
`CacheBudget`. `DeferredStore` gathers commits in memory below the transaction: the store on disk
may lag behind the changelog, because its offset tells what it lacks, so a key that changes with
every commit is written once for many commits. Rules of the module:

1. A pending None is a deletion; a cached None is a key known to be absent.
2. Deferred commits go to disk in slices with the offset in the last one, so a restart repairs a
   crash at any point by replaying the changelog from the stored offset.
3. Waiting changes are bounded in bytes, for all tasks of a process together, and in records, which
   a restart replays. The shares of a budget never add up to more than the whole.

Not done here: sending, and deciding when to commit (`size_bytes` helps to decide).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from operator import itemgetter
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, cast
from weakref import WeakSet

from streamlog.records.record_columns import total_bytes
from streamlog.tables.state.changelog import OFFSET_KEY, WRITE_KEYS_MAX, apply_records
from streamlog.tables.state.write_buffer import WriteBuffer
from streamlog.tables.stores.memory_store import Scans, SortedKeys
from streamlog.tables.stores.store import Change, Changes, KeyValueStore, prefix_end

MEMORY_BYTES = 192 * 1024 * 1024
"""Default memory for the state of all tasks of a process, including RocksDB's share."""
MEMORY_BYTES_MIN = 16 * 1024 * 1024
"""The least memory for the state. With less, every write would go to disk separately."""
EACH_BYTES_MAX = 16 * 1024 * 1024
"""The largest share of one task's cache: enough for some 80,000 small aggregates."""


class Bounded(Protocol):
    """A cache with a bound."""

    def resize(self, bound_bytes: int) -> None:
        """Set the bound, and free memory beyond it."""


class CacheBudget:
    """Shares a number of bytes among its members, and lends what they may not take."""

    __slots__ = ("_each_bytes_max", "_lend", "_members", "_total_bytes")

    def __init__(
        self,
        total_bytes: int,
        *,
        each_bytes_max: int = EACH_BYTES_MAX,
        lend: Callable[[int], None] | None = None,
    ) -> None:
        """`lend` is called with the bytes that are left, whenever they may have changed."""
        self._total_bytes = total_bytes
        self._each_bytes_max = each_bytes_max
        self._members: WeakSet[Bounded] = WeakSet()
        self._lend = lend
        self._lend_rest()

    @property
    def share_bytes(self) -> int:
        """The bytes that each member may take."""
        return min(self._each_bytes_max, self._total_bytes // max(len(self._members), 1))

    def join(self, member: Bounded) -> None:
        """Add a member, and resize all of them."""
        self._members.add(member)
        self._lend_rest()  # First what is lent shrinks, then the members grow.
        self._resize_members()

    def leave(self, member: Bounded) -> None:
        """Remove a member, which keeps nothing, and resize the others."""
        # First this one, then the others grow: together they never exceed the whole.
        self._members.discard(member)
        member.resize(0)
        self._resize_members()
        self._lend_rest()

    def _lend_rest(self) -> None:
        if self._lend is not None:
            self._lend(self._total_bytes - len(self._members) * self.share_bytes)

    def _resize_members(self) -> None:
        for member in self._members:
            member.resize(self.share_bytes)


WAITING_BYTES = 48 * 1024 * 1024
"""Default bound of the estimated memory of waiting changes, for all tasks of a process."""


class WaitingBudget:
    """The memory that waiting changes may take, shared by the stores of one process."""

    __slots__ = ("bound_bytes", "used_bytes")

    def __init__(self, bound_bytes: int = WAITING_BYTES) -> None:
        self.bound_bytes = bound_bytes
        self.used_bytes = 0


CACHE_BYTES = 16 * 1024 * 1024
"""Default bound of the cache of one task: enough for some 80,000 small aggregates."""

ENTRY_BYTES = 160
"""The memory that an entry takes beyond its key and value: two object headers and a dict entry."""

MANY = 4_096
"""From this many changes at once, one in `SAMPLE` is measured for its size."""

SAMPLE = 16


class _Missing(Enum):
    """Distinguishes "not here" from a meaningful None."""

    MISSING = 0


_MISSING: Final = _Missing.MISSING
_Found: TypeAlias = bytes | Literal[_Missing.MISSING] | None


class StateReads(NamedTuple):
    """Look-ups of single keys since a task began."""

    lookups: int = 0
    misses: int = 0
    """Those of keys that were neither pending nor cached: read from the store below."""


class StoreTransaction:
    """A KeyValueStore whose writes stay pending until they are committed or rolled back."""

    __slots__ = (
        "_budget", "_cache", "_fresh", "_given", "_keys", "_lookups", "_misses", "_pending",
        "_scans", "_store", "size_bytes",
    )  # fmt: skip

    size_bytes: int
    """The memory that the pending changes take, by estimate."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        cache_bytes: int = CACHE_BYTES,
        budget: CacheBudget | None = None,
    ) -> None:
        """`cache_bytes` bounds what is kept after a commit; 0 keeps nothing.

        With a `budget`, the bound is a share of it instead, until `close`.
        """
        self._store = store
        self._pending: dict[bytes, bytes | None] = {}
        self._fresh: Changes | None = None
        """All pending changes in the columns in which they came; None after a look-up or write."""
        self._given: Changes | None = None
        """The last result of `changes`; None after a later write."""
        self._keys = SortedKeys()
        self._scans: Scans[bytes | None] = Scans()
        self._cache = _Cache(cache_bytes)
        self._budget = budget
        if budget is not None:
            budget.join(self._cache)
        self.size_bytes = 0
        self._lookups = self._misses = 0

    @property
    def reads(self) -> StateReads:
        """How many keys were looked up, and how many of them in the store below."""
        return StateReads(self._lookups, self._misses)

    def get(self, key: bytes) -> bytes | None:
        """Return the value as this transaction sees it."""
        self._lookups += 1
        if self._fresh is not None:
            self._index()
        found: _Found = self._pending.get(key, _MISSING)
        if found is _MISSING:
            found = self._cache.get(key)
            if found is _MISSING:
                self._misses += 1
                found = self._store.get(key)
                self._cache.add(key, found)
        return found

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key as this transaction sees it.

        What is read from the store is not cached: the caller keeps the rows for which it reads
        many at once.
        """
        self._lookups += len(keys)
        if self._fresh is not None:
            self._index()
        # Most often neither has anything: steps write at commits, and read many rows at once.
        if not self._pending and self._cache.is_empty:
            self._misses += len(keys)
            return self._store.get_all(keys)
        found: list[_Found] = [self._pending.get(key, _MISSING) for key in keys]
        cached = self._cache.get
        found = [
            cached(key) if value is _MISSING else value
            for key, value in zip(keys, found, strict=True)
        ]
        absent = [at for at, value in enumerate(found) if value is _MISSING]
        self._misses += len(absent)
        values = self._store.get_all([keys[at] for at in absent])
        for at, value in zip(absent, values, strict=True):
            found[at] = value
        return cast("list[bytes | None]", found)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value, pending."""
        self._change(key, value)

    def delete(self, key: bytes) -> None:
        """Remove one key, pending, whether it exists or not."""
        self._change(key, None)

    def _index(self) -> None:
        """Index the changes that came as columns by their keys."""
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
        """Iterate over keys from `low` to `high`, exclusive, in order, pending changes included."""
        self._index()
        changed = self._scans.begin(self._keys.range(low, high), self._pending)
        return overlay(self._store.range(low, high), changed)

    def stored(self, key: bytes) -> bytes | None:
        """Return the value as of the last commit."""
        return self._store.get(key)

    def stored_range(
        self, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate as `range` does, as of the last commit."""
        return self._store.range(low, high)

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`, pending.

        One change for each key, because the changelog knows no ranges.
        """
        keys = [key for key, _ in self.range(low, high)]
        self.write(Changes(keys, [None] * len(keys)))

    def write(self, changes: Iterable[Change]) -> None:
        """Add the changes in their order, pending."""
        self._index()
        if self._scans.are_open:
            self._scans.settle()
        self._given = None
        # 1. Columns, and nothing is pending: keep them as they are. An index by key would be in
        #    vain if the commit reads none of its rows.
        # 2. No key is pending yet: add all changes at once.
        # 3. A key is pending: one by one, because the size of each replaced value is subtracted.
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
        """Roll back and close the underlying store."""
        self.rollback()
        if self._budget is not None:
            self._budget.leave(self._cache)
        self._cache = _Cache(0)
        self._store.close()

    def changes(self) -> Changes:
        """Return the pending changes, in no order of keys; they stay pending until `commit`."""
        pending = self._pending
        self._given = self._fresh or Changes(list(pending), list(pending.values()))
        return self._given

    def commit(self, records: Changes, *, next_offset: int) -> None:
        """Store `records`, which the changelog has taken and which end before `next_offset`.

        `records` are the result of an earlier `changes`, followed by the progress, as they were
        sent. A key that was written again since then stays pending.
        """
        self._scans.settle()
        apply_records(self._store, records, next_offset=next_offset)
        self._cache.renew(records)
        given = self._given
        if given is not None and (records is given or records.head is given):
            self.rollback()  # The records are all that is pending.
            return
        self._index()
        pending = self._pending
        # By identity: an equal value that was written since is another change, and stays pending.
        # 1. `changes` returns k=1, which is sent to the changelog.
        # 2. Meanwhile the task writes k=2.
        # 3. The changelog has taken k=1. The store gets 1; 2 is pending for the next commit.
        for key, value in records:
            if pending.get(key, _MISSING) is value:
                del pending[key]
                self.size_bytes -= ENTRY_BYTES + len(key) + len(value or b"")
        self.size_bytes = max(self.size_bytes, 0) if pending else 0
        self._keys = SortedKeys(pending)

    def rollback(self) -> None:
        """Discard the pending changes.

        Do not call this while records are on their way to the changelog: only a restoration finds
        out whether they arrived.
        """
        self._scans.settle()
        self._given = self._fresh = None
        self._pending.clear()
        self._keys.clear()
        self.size_bytes = 0


def _estimated_bytes(changes: Changes) -> int:
    """Return the memory that changes take, extrapolated from a sample."""
    found = 0
    for keys, values, start, stop in changes.runs():
        step = SAMPLE if stop - start >= MANY else 1
        found += step * _size_bytes(keys[start:stop:step], values[start:stop:step])
    return found


def _size_bytes(keys: Collection[bytes], values: Iterable[bytes | None]) -> int:
    """Return the memory that changes take, by estimate."""
    return ENTRY_BYTES * len(keys) + total_bytes(keys) + total_bytes(values)


def overlay(
    stored: Iterator[tuple[bytes, bytes]], changed: Iterator[Change]
) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the stored pairs, overlaid with the changed ones; both ascend by key."""
    first = next(changed, None)
    return stored if first is None else _merge_changes(stored, chain((first,), changed))


def _merge_changes(
    stored: Iterator[tuple[bytes, bytes]], changed: Iterator[Change]
) -> Iterator[tuple[bytes, bytes]]:
    below = next(stored, None)
    for key, value in changed:
        while below is not None and below[0] < key:
            yield below
            below = next(stored, None)
        if below is not None and below[0] == key:
            below = next(stored, None)  # Replaced, or deleted if the new value is None.
        if value is not None:
            yield key, value
    if below is not None:
        yield below
        yield from stored


class _Cache:
    """Values by key within a bound: two generations, the older one dropped when full.

    A key that is read moves to the young generation, so keys in use survive. Dropping a whole
    generation needs no list in the order of use, and no work per key.
    """

    __slots__ = ("__weakref__", "_generation_bytes", "_old", "_young", "_young_bytes")

    def __init__(self, bound_bytes: int) -> None:
        self._generation_bytes = bound_bytes // 2
        self._young: dict[bytes, bytes | None] = {}
        self._old: dict[bytes, bytes | None] = {}
        self._young_bytes = 0

    def resize(self, bound_bytes: int) -> None:
        """Set another bound; a smaller one drops everything."""
        # Cached values are in the store too: dropping all of them costs reads, never data.
        if bound_bytes // 2 < self._generation_bytes:
            self._young, self._old, self._young_bytes = {}, {}, 0
        self._generation_bytes = bound_bytes // 2

    @property
    def is_empty(self) -> bool:
        """Whether there is no value."""
        return not self._young and not self._old

    def get(self, key: bytes) -> _Found:
        """Return the cached value, None for a key known to be absent, or _MISSING if not cached."""
        found: _Found = self._young.get(key, _MISSING)
        if found is _MISSING and self._old:
            found = self._old.get(key, _MISSING)
            if found is not _MISSING:
                self.add(key, found)
        return found

    def renew(self, changes: Iterable[Change]) -> None:
        """Store new values of the keys that are cached: those that are being read."""
        if self.is_empty:
            return
        for key, value in changes:
            if key in self._young or key in self._old:
                self.add(key, value)

    def add(self, key: bytes, value: bytes | None) -> None:
        """Store a value. A key that is stored again counts again, which ends a generation early."""
        entry_bytes = ENTRY_BYTES + len(key) + len(value or b"")
        if self._young_bytes + entry_bytes > self._generation_bytes:
            if entry_bytes > self._generation_bytes:
                self._young.pop(key, None)
                self._old.pop(key, None)
                return
            self._old, self._young, self._young_bytes = self._young, {}, 0
        self._young[key] = value
        self._young_bytes += entry_bytes


REPLAY_RECORDS_MAX = 800_000
"""The most changes of a task that may be missing on disk: a restart after a crash replays them from
the changelog, in about a second."""

GONE_SHARE = 4
"""If fewer than one in this many waiting changes can be dropped, the others are written to disk."""

SAMPLE_STEP = 16
"""One in this many changes is measured for its size."""

_RESERVED = b"\x01"
"""Keys below this one belong to no named store: progress, owner and offset. They are written after
all others, the offset last."""


class _Unbuffered(Enum):
    MISSING = 0


_UNBUFFERED: Final = _Unbuffered.MISSING
_Buffered: TypeAlias = bytes | Literal[_Unbuffered.MISSING] | None


class DurableStore(KeyValueStore, Protocol):
    """Port: a store that keeps some of its writes in memory before they are on disk."""

    def persist(self) -> None:
        """Begin to write everything to disk, without waiting."""


class DeferredStore:
    """A KeyValueStore that writes to the underlying one when enough changes wait."""

    __slots__ = (
        "_budget", "_keys", "_lasts", "_sampled", "_sampled_bytes", "_scans", "_size_bytes",
        "_store", "_unsafe", "_waiting",
    )  # fmt: skip

    def __init__(self, store: DurableStore, budget: WaitingBudget | None = None) -> None:
        """`budget` is shared with the other stores of the process; by default, it is not shared."""
        self._store = store
        self._budget = budget or WaitingBudget()
        self._waiting = WriteBuffer()
        self._keys = SortedKeys()
        self._lasts: dict[bytes, bytes] = {}
        """The last key that was written to disk, by the prefix of its named store."""
        self._scans: Scans[bytes | None] = Scans()
        self._sampled = self._sampled_bytes = 0
        self._size_bytes = 0
        self._unsafe = 0
        """The number of changes since the last `persist`, which a crash may lose."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, whether it waits or not."""
        found: _Buffered = self._waiting.get(key, _UNBUFFERED)
        return self._store.get(key) if found is _UNBUFFERED else found

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, whether it waits or not."""
        return self._waiting.read_through(keys, self._store.get_all)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self.write([(key, value)])

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self.write([(key, None)])

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the current keys from `low` up to but not including `high`, in order."""
        waiting = self._scans.begin(self._keys.range(low, high), self._waiting)
        return overlay(self._store.range(low, high), waiting)

    def concurrent_range(
        self, low: bytes, high: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate as `range` does, from a thread other than the writer's.

        A row that is written meanwhile appears with its old or its new value. The call costs a pass
        over all waiting changes. `get` may be called from any thread too.
        """
        # The order matters: waiting changes first, then the store. In the reverse order, a change
        # that is written to the store in between would be in neither.
        keys, values = self._waiting.columns()
        changed = [
            (key, value)
            for key, value in zip(keys, values, strict=True)
            if key >= low and (high is None or key < high)
        ]
        changed.sort(key=itemgetter(0))
        return overlay(self._store.range(low, high), iter(changed))

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`."""
        self.flush()
        self._store.delete_range(low, high)

    def write(self, changes: Iterable[Change]) -> None:
        """Add the changes; if they end a commit and enough wait, write to the store."""
        fresh = Changes.of(changes)
        waiting = self._waiting
        if self._scans.are_open:
            self._scans.settle()
        before = len(waiting)
        for keys, values, start, stop in fresh.runs():
            waiting.put_all(keys, values, start, stop)
            self._sample(keys[start:stop:SAMPLE_STEP], values[start:stop:SAMPLE_STEP])
        self._keys.add_all(waiting.keys_from(before))
        self._unsafe += len(fresh)
        self._count()
        # `apply_records` writes a commit in slices: only the last one has the offset, so changes go
        # to disk only at the end of a commit.
        is_much = self._budget.used_bytes > self._budget.bound_bytes
        is_long = self._unsafe >= REPLAY_RECORDS_MAX
        if fresh.last_key != OFFSET_KEY or not (is_much or is_long):
            return
        is_enough = self._drop_gone()
        if is_long or not is_enough:
            self._write_down()
        if is_long:
            # `write` leaves the rows in RocksDB's memory, where a crash loses them.
            self._store.persist()
            self._unsafe = 0

    def flush(self) -> None:
        """Write all waiting changes to the underlying store, except rows that came and went."""
        self._drop_gone()
        self._write_down()

    def _write_down(self) -> None:
        keys, values = self._waiting.in_order()
        # 1. The rows go down in slices; the store still has the old offset.
        # 2. A crash: the restart replays from the old offset, and overwrites the rows.
        # 3. The last slice has the progress and, as its last entry, the new offset.
        last = bisect_left(keys, _RESERVED)
        for start in range(last, len(keys), WRITE_KEYS_MAX):
            stop = start + WRITE_KEYS_MAX
            self._store.write(Changes(keys[start:stop], values[start:stop]))
        if last:
            reserved = list(zip(keys[:last], values[:last], strict=True))
            reserved.sort(key=lambda change: change[0] == OFFSET_KEY)
            self._store.write(reserved)
        self._note_lasts(keys, last)
        self._forget()

    def _drop_gone(self) -> bool:
        """Drop deletions of keys that the store does not have; return whether they were many.

        A window's rows come after those of all earlier windows. So if the store has no row after
        the last one that was written, all later rows exist in memory only.
        """
        # Rows of window 1 were written to disk; those of 2 and 3 wait.
        # 1. Window 2 closes and its rows are deleted before they ever reached the disk: the store
        #    has nothing after window 1, so the deletions are dropped with the rows.
        # 2. Window 1 closes: its rows are on disk, so its deletions are written.
        waiting = self._waiting
        before = len(waiting)
        removed = waiting.removed()
        spans = []
        for prefix in {_prefix_of(key) for key in removed[::SAMPLE_STEP]}:
            end = prefix_end(prefix)
            low = self._lasts[prefix] + b"\x00" if prefix in self._lasts else prefix
            if prefix >= _RESERVED and end and next(self._store.range(low, end), None) is None:
                spans.append((low, end))
        if not spans:
            return False
        self._scans.settle()
        waiting.drop_removed(spans)
        self._keys = SortedKeys(waiting.keys_from(0))
        self._count()
        return (before - len(waiting)) * GONE_SHARE >= before

    def _note_lasts(self, keys: Sequence[bytes], reserved: int) -> None:
        """Note the last key per named store of these sorted keys, which were written to disk.

        The first `reserved` keys belong to no store.
        """
        stop = len(keys)
        while stop > reserved:
            last = keys[stop - 1]
            prefix = _prefix_of(last)
            self._lasts[prefix] = max(last, self._lasts.get(prefix, last))
            stop = bisect_left(keys, prefix, reserved, stop)

    def close(self) -> None:
        """Write the waiting changes, and close the underlying store."""
        try:
            self.flush()
        finally:
            self._forget()
            self._store.close()

    def _sample(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self._sampled += len(keys)
        self._sampled_bytes += total_bytes(keys) + total_bytes(values)

    def _count(self) -> None:
        """Update the estimate of the memory that waiting changes take, from a sample."""
        mean_bytes = ENTRY_BYTES + self._sampled_bytes // max(self._sampled, 1)
        size_bytes = len(self._waiting) * mean_bytes
        self._budget.used_bytes += size_bytes - self._size_bytes
        self._size_bytes = size_bytes

    def _forget(self) -> None:
        self._scans.settle()
        self._waiting.clear()
        self._keys.clear()
        self._budget.used_bytes -= self._size_bytes
        self._size_bytes = 0


def _prefix_of(key: bytes) -> bytes:
    """Return the prefix of all keys of its named store (`StoreSpec.prefix`)."""
    return key[: 1 + key[0]] if key else b""
