"""Rows with a time to live: which of them have expired, found without a look at the others.

`TtlQueue` keeps one exact due time per row, for tables that emit each expiry. `Expiry` keeps hints
instead, at most one bucket behind the row's own time, and writes less: a hint may be out of date,
so its reader looks at the row. `ExpiringStore` is a key-value store on hints: a row is visible
until stream time is `ttl_ms` past the newest timestamp of its key, to the millisecond, on every
machine and in every replay, and stays on disk a little longer. Rules of the module: expiry follows
from the times that are passed in, and never from a clock; a late record changes a row's value but
never shortens its life. Not done here: serdes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from streamlog.tables.stores.store import (
    TIME_MS_MAX,
    TIME_MS_MIN,
    NamedStore,
    escape_key,
    time_at,
    time_bytes,
)

_TIME_BYTES = 8


class TtlQueue:
    """The dues of one store."""

    __slots__ = ("_next_ms",)

    def __init__(self) -> None:
        self._next_ms = TIME_MS_MIN
        """Nothing is due before this."""

    def move(self, store: NamedStore, key: bytes, old_ms: int | None, new_ms: int | None) -> None:
        """The row of a key was due at one time, and is at another now; None: it is not there."""
        if old_ms == new_ms:
            return
        if old_ms is not None:
            store.delete(time_bytes(old_ms) + key)
        if new_ms is not None:
            store.put(time_bytes(new_ms) + key, b"")
            self._next_ms = min(self._next_ms, new_ms)

    def may_be_due(self, now_ms: int) -> bool:
        """Whether `take` may find something at this time."""
        return now_ms >= self._next_ms

    def next_ms(self, store: NamedStore) -> int | None:
        """When the next one is due; None: none is."""
        if self._next_ms == TIME_MS_MIN:
            following = next(store.range(), None)
            self._next_ms = TIME_MS_MAX if following is None else time_at(following[0])
        return None if self._next_ms == TIME_MS_MAX else self._next_ms

    def take(self, store: NamedStore, now_ms: int) -> list[bytes]:
        """The keys that are due at this time or before, in the order of their times."""
        if now_ms < self._next_ms:
            return []
        dues = [due for due, _ in store.range(b"", time_bytes(now_ms + 1))]
        for due in dues:
            store.delete(due)
        following = next(store.range(), None)
        self._next_ms = TIME_MS_MAX if following is None else time_at(following[0])
        return [due[_TIME_BYTES:] for due in dues]

    def look_again(self) -> None:
        """What was written has been taken back: nothing is known of what comes next."""
        self._next_ms = TIME_MS_MIN


ROWS = b"\x00"
"""What the keys of rows begin with, in every store that has hints."""
HINTS = b"\x01"
"""What hints begin with, behind all rows."""

BUCKETS = 8
"""In the time that rows live: they stay on disk for an eighth of it longer than they are shown."""
SLICE_KEYS = 1_000
"""Hints in hand at once."""


class Expiry:
    """The hints of one store whose rows live for a time."""

    __slots__ = ("_bucket_ms", "_looked", "_store", "bound_ms", "life_ms")

    def __init__(self, store: NamedStore, life_ms: int) -> None:
        """Rows are over when stream time is `life_ms` behind their own, or more."""
        self._store = store
        self.life_ms = life_ms
        self.bound_ms = TIME_MS_MIN
        """Rows of this time, and of all before, are over."""
        self._bucket_ms = max(life_ms // BUCKETS, 1)
        self._looked: int | None = None

    def note(self, key: bytes, time_ms: int) -> None:
        """The key has a row of this time."""
        hint = self._hint(time_ms) + key
        if self._store.get(hint) is None:
            self._store.put(hint, b"")

    def move(self, key: bytes, old_ms: int, new_ms: int) -> None:
        """The key's only row was of one time and is of another now."""
        old, new = self._hint(old_ms), self._hint(new_ms)
        if old != new:
            self._store.delete(old + key)
        self.note(key, new_ms)

    def advance(self, stream_time_ms: int) -> bool:
        """Set the bound, which never goes back; whether `due` may find something new."""
        self.bound_ms = max(self.bound_ms, stream_time_ms - self.life_ms)
        bucket = self.bound_ms // self._bucket_ms
        if bucket == self._looked:
            return False
        self._looked = bucket
        return True

    def expire(self, stream_time_ms: int) -> None:
        """Set the bound, and remove what is over from rows that lie by key and time.

        Each store that has such rows says so to its owner: its `advance` is nothing but this.
        """
        if not self.advance(stream_time_ms):
            return
        for key in self.due():
            prefix = ROWS + escape_key(key)
            self._store.delete_range(prefix, prefix + time_bytes(self.bound_ms + 1))

    def due(self) -> Iterator[bytes]:
        """Keys with a row that may be over; when all have been seen their hints are gone."""
        end = HINTS + time_bytes(self.bound_ms + 1)
        while hints := [hint for hint, _ in islice(self._store.range(HINTS, end), SLICE_KEYS)]:
            yield from dict.fromkeys(hint[len(HINTS) + _TIME_BYTES :] for hint in hints)
            self._store.delete_range(HINTS, hints[-1] + b"\x00")

    def _hint(self, time_ms: int) -> bytes:
        """The end of the bucket that a time is in."""
        return HINTS + time_bytes(-(-time_ms // self._bucket_ms) * self._bucket_ms)


class ExpiringRows:
    """Rows that live for a time after their own, behind a named store of a task."""

    __slots__ = ("_expiry", "_store")

    def __init__(self, store: NamedStore, *, retention_ms: int) -> None:
        self._store = store
        self._expiry = Expiry(store, retention_ms)

    def advance(self, stream_time_ms: int) -> None:
        """Stream time is at least this: forget the rows that are over by it.

        To be called with the task's stream time before anything else, also after a restart.
        """
        self._expiry.expire(stream_time_ms)


class ExpiringStore:
    """Rows with a time to live, behind a named store of a task."""

    __slots__ = ("_expiry", "_store")

    def __init__(self, store: NamedStore, *, ttl_ms: int) -> None:
        self._store = store
        self._expiry = Expiry(store, ttl_ms)

    def advance(self, stream_time_ms: int) -> None:
        """Stream time is at least this: forget the rows that are over by it.

        To be called with the task's stream time before anything else, also after a restart.
        """
        if not self._expiry.advance(stream_time_ms):
            return
        for key in self._expiry.due():
            data = self._store.get(ROWS + key)
            if data is not None and time_at(data) <= self._expiry.bound_ms:
                self._store.delete(ROWS + key)

    def put(self, key: bytes, value: bytes, timestamp_ms: int) -> bool:
        """Set a value by a record of this time; False if it would be over at once."""
        old = self._store.get(ROWS + key)
        old_ms = None if old is None else time_at(old)
        new_ms = timestamp_ms if old_ms is None else max(timestamp_ms, old_ms)
        if new_ms <= self._expiry.bound_ms:
            return False
        self._store.put(ROWS + key, time_bytes(new_ms) + value)
        if old_ms is None:
            self._expiry.note(key, new_ms)
        else:
            self._expiry.move(key, old_ms, new_ms)
        return True

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._store.delete(ROWS + key)

    def get(self, key: bytes) -> bytes | None:
        """The value, if there is one that is not over."""
        data = self._store.get(ROWS + key)
        if data is None or time_at(data) <= self._expiry.bound_ms:
            return None
        return data[_TIME_BYTES:]

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` up to but not including `high` (None: to the last), in order."""
        end = HINTS if high is None else ROWS + high
        if ROWS + low >= end:
            return
        bound_ms = self._expiry.bound_ms
        for row, data in self._store.range(ROWS + low, end):
            if time_at(data) > bound_ms:
                yield row[len(ROWS) :], data[_TIME_BYTES:]
