"""DeferredStore: commits gathered in memory before they go to the store on disk.

The changelog has every commit at once; the store beneath is a copy of it that may lag, as its
offset tells what it lacks. So writes wait here until enough of them has come together: a key
that changes with every commit is written once for many, and all of them in the order of the
keys. Reads see what waits. Rules of the file: what waits is whole commits, and goes down in
slices with the offset in the last one, so a crash at any point is repaired by replaying the
changelog from the offset that is found. How much waits is bounded in bytes, for all tasks of a
process together, and in records, which a crash makes a restart replay: into here, where a key that
has changed a hundred times costs little more than a hundred look-ups. What has come and gone while
it waited, as the rows of windows do, never goes down. Not done here: what a transaction has not
committed (`transaction`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from operator import itemgetter
from typing import Final, Literal, Protocol, TypeAlias

from streamlog.records.columns import total_bytes
from streamlog.tables.changelog import OFFSET_KEY, WRITE_KEYS_MAX
from streamlog.tables.scans import Scans
from streamlog.tables.sorted_keys import SortedKeys
from streamlog.tables.store import Change, Changes, KeyValueStore, prefix_end
from streamlog.tables.transaction import ENTRY_BYTES, overlaid
from streamlog.tables.waiting import Waiting

WAITING_BYTES = 48 * 1024 * 1024
"""Default bound of what waits, all tasks of a process together, by estimate."""

REPLAY_RECORDS_MAX = 800_000
"""A task's changes that are not on disk: what a crash makes a restart replay, in a second."""

GONE_SHARE = 4
"""One in so many has to have come and gone; else all the others go down."""

SAMPLE = 16
"""One in so many changes is looked at for its size."""

_RESERVED = b"\x01"
"""Keys below are no store's: progress, owner and offset. They go last, the offset behind all."""


class _Missing(Enum):
    MISSING = 0


_MISSING: Final = _Missing.MISSING
_Found: TypeAlias = bytes | Literal[_Missing.MISSING] | None


class DurableStore(KeyValueStore, Protocol):
    """Port: a store that keeps some of what is written to it in memory before it is on disk."""

    def persist(self) -> None:
        """Begin to bring all of it to disk; does not wait for that."""


class WaitingBudget:
    """The memory that what waits may take, shared by the stores of one process."""

    __slots__ = ("bound_bytes", "used_bytes")

    def __init__(self, bound_bytes: int = WAITING_BYTES) -> None:
        self.bound_bytes = bound_bytes
        self.used_bytes = 0


class DeferredStore:
    """A KeyValueStore that writes to the one beneath when enough has come together."""

    __slots__ = (
        "_budget", "_keys", "_lasts", "_sampled", "_sampled_bytes", "_scans", "_size_bytes",
        "_store", "_unsafe", "_waiting",
    )  # fmt: skip

    def __init__(self, store: DurableStore, budget: WaitingBudget | None = None) -> None:
        """`budget` is shared with the other stores of the process; by default its own."""
        self._store = store
        self._budget = budget or WaitingBudget()
        self._waiting = Waiting()
        self._keys = SortedKeys()
        self._lasts: dict[bytes, bytes] = {}
        """By prefix of a named store: the last key that has gone down."""
        self._scans: Scans[bytes | None] = Scans()
        self._sampled = self._sampled_bytes = 0
        self._size_bytes = 0
        self._unsafe = 0
        """Changes since the store was told to persist: a crash may lose as many."""

    def get(self, key: bytes) -> bytes | None:
        """The value, whether it waits or not."""
        found: _Found = self._waiting.get(key, _MISSING)
        return self._store.get(key) if found is _MISSING else found

    def put(self, key: bytes, value: bytes) -> None:
        """Set one value."""
        self.write([(key, value)])

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self.write([(key, None)])

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` up to but not including `high`, in order, as they are now."""
        waiting = self._scans.begin(self._keys.range(low, high), self._waiting)
        return overlaid(self._store.range(low, high), waiting)

    def range_beside(self, low: bytes, high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """As `range`, for another thread than the one that writes; `get` is for any.

        Each row is as it was or as it is. It costs a look at everything that waits.
        """
        keys, values = self._waiting.columns()  # What leaves it from now on is below already.
        changed = [
            (key, value)
            for key, value in zip(keys, values, strict=True)
            if key >= low and (high is None or key < high)
        ]
        changed.sort(key=itemgetter(0))
        return overlaid(self._store.range(low, high), iter(changed))

    def delete_range(self, low: bytes, high: bytes | None = None) -> None:
        """Remove the keys from `low` up to but not including `high`."""
        self.flush()
        self._store.delete_range(low, high)

    def write(self, changes: Iterable[Change]) -> None:
        """Take in the changes; if they end a commit, the store may be written."""
        fresh = Changes.of(changes)
        waiting = self._waiting
        if self._scans.are_open:
            self._scans.settle()
        before = len(waiting)
        for keys, values, start, stop in fresh.runs():
            waiting.put_all(keys, values, start, stop)
            self._sample(keys[start:stop:SAMPLE], values[start:stop:SAMPLE])
        self._keys.add_all(waiting.keys_from(before))
        self._unsafe += len(fresh)
        self._count()
        is_much = self._budget.used_bytes > self._budget.bound_bytes
        is_long = self._unsafe >= REPLAY_RECORDS_MAX
        if fresh.last_key != OFFSET_KEY or not (is_much or is_long):
            return
        is_enough = self._drop_gone()
        if is_long or not is_enough:
            self._write_down()
        if is_long:
            self._store.persist()
            self._unsafe = 0

    def flush(self) -> None:
        """Write all that waits to the store beneath, but for what has come and gone."""
        self._drop_gone()
        self._write_down()

    def _write_down(self) -> None:
        keys, values = self._waiting.in_order()
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
        """Forget what is to be removed from the store and is not there; whether that was much.

        A window's rows lie behind those of all windows before it. So where nothing beneath lies
        behind what has gone down, all that has come since is known to be nowhere else.
        """
        waiting = self._waiting
        before = len(waiting)
        removed = waiting.removed()
        spans = []
        for prefix in {_prefix_of(key) for key in removed[::SAMPLE]}:
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
        """The keys in their order have gone down, the reserved ones in front."""
        stop = len(keys)
        while stop > reserved:
            last = keys[stop - 1]
            prefix = _prefix_of(last)
            self._lasts[prefix] = max(last, self._lasts.get(prefix, last))
            stop = bisect_left(keys, prefix, reserved, stop)

    def close(self) -> None:
        """Write what waits, and close the store beneath."""
        try:
            self.flush()
        finally:
            self._forget()
            self._store.close()

    def _sample(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self._sampled += len(keys)
        self._sampled_bytes += total_bytes(keys) + total_bytes(values)

    def _count(self) -> None:
        """What waits in memory, as if all were like those looked at."""
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
    """What all keys of its named store begin with (`StoreSpec.prefix`)."""
    return key[: 1 + key[0]] if key else b""
