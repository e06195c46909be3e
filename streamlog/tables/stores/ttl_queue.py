"""Rows with a time to live: finds those that have expired without reading the others.

`TtlQueue` keeps one exact due time per row, for tables that emit each expiry. `Expiry` keeps hints
instead, at most one bucket after the row's own time, and writes less: a hint may be out of date, so
its reader checks the row. `ExpiringStore` is a key-value store on hints: a row is visible until
stream time is `ttl_ms` past the newest timestamp of its key, or until the end that a write has
given it, to the millisecond, on every machine and in every replay, and stays on disk a little
longer. Rules of the module: expiry follows from the times that are passed in, and never from a
clock; a late record changes a row's value but never shortens its life, unless it gives it an end.
Not done here: serdes.
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
    """The due times of the rows of one store."""

    __slots__ = ("_next_ms",)

    def __init__(self) -> None:
        self._next_ms = TIME_MS_MIN
        """The time before which no row is due."""

    def move(self, store: NamedStore, key: bytes, old_ms: int | None, new_ms: int | None) -> None:
        """Change the due time of a key's row; None stands for no row, before or after."""
        if old_ms == new_ms:
            return
        if old_ms is not None:
            store.delete(time_bytes(old_ms) + key)
        if new_ms is not None:
            store.put(time_bytes(new_ms) + key, b"")
            # Only ever earlier: if the row moves to a later time, `take` looks once in vain.
            self._next_ms = min(self._next_ms, new_ms)

    def may_be_due(self, now_ms: int) -> bool:
        """Return whether `take` may find rows at this time."""
        return now_ms >= self._next_ms

    def next_ms(self, store: NamedStore) -> int | None:
        """Return when the next row is due; None if there is none."""
        if self._next_ms == TIME_MS_MIN:
            following = next(store.range(), None)
            self._next_ms = TIME_MS_MAX if following is None else time_at(following[0])
        return None if self._next_ms == TIME_MS_MAX else self._next_ms

    def take(self, store: NamedStore, now_ms: int) -> list[bytes]:
        """Remove and return the keys that are due by this time, in the order of their times."""
        if now_ms < self._next_ms:
            return []
        # The range excludes its end, and a row is due at its own millisecond.
        due_keys = [due for due, _ in store.range(b"", time_bytes(now_ms + 1))]
        for due in due_keys:
            store.delete(due)
        following = next(store.range(), None)
        self._next_ms = TIME_MS_MAX if following is None else time_at(following[0])
        return [due[_TIME_BYTES:] for due in due_keys]

    def look_again(self) -> None:
        """Forget when the next row is due: writes have been undone."""
        self._next_ms = TIME_MS_MIN


ROWS = b"\x00"
"""The prefix of row keys, in every store that has hints."""
HINTS = b"\x01"
"""The prefix of hints, which follow all rows."""

BUCKETS = 8
"""Buckets per time to live: rows stay on disk for an eighth of it longer than visible."""
SLICE_KEYS = 1_000
"""The number of hints to read at once."""


class Expiry:
    """The hints of one store whose rows have a time to live."""

    __slots__ = ("_bucket_ms", "_looked", "_store", "bound_ms", "life_ms")

    def __init__(
        self, store: NamedStore, life_ms: int, *, bucket_ms_max: int = TIME_MS_MAX
    ) -> None:
        """Rows expire when stream time is `life_ms` or more past their own time.

        They stay on disk for a bucket longer, of at most `bucket_ms_max`.
        """
        self._store = store
        self.life_ms = life_ms
        self.bound_ms = TIME_MS_MIN
        """Rows of this time or before have expired."""
        self._bucket_ms = max(min(life_ms // BUCKETS, bucket_ms_max), 1)
        self._looked: int | None = None

    def note(self, key: bytes, time_ms: int) -> None:
        """Add a hint: the key has a row of this time."""
        hint = self._hint(time_ms) + key
        if self._store.get(hint) is None:
            self._store.put(hint, b"")

    def move(self, key: bytes, old_ms: int, new_ms: int) -> None:
        """Replace the hint of a key whose only row has another time now."""
        old, new = self._hint(old_ms), self._hint(new_ms)
        if old != new:
            self._store.delete(old + key)
        self.note(key, new_ms)

    def advance(self, stream_time_ms: int) -> bool:
        """Set the bound, which never goes back; returns whether `due` may find something new."""
        self.bound_ms = max(self.bound_ms, stream_time_ms - self.life_ms)
        # The time to live is 80 s, so a bucket is 10 s. A row has time 103, its hint is 110.
        # 1. The bound is 105: `get` no longer shows the row; its hint is not read before 110.
        # 2. The bound is 112: the hint is due, the row is checked and removed.
        # 3. The row was written again at 130: its hint moved to 130 with it (`move`), or, where
        #    keys have several rows, the old hint finds no row that has expired.
        bucket = self.bound_ms // self._bucket_ms
        if bucket == self._looked:
            return False
        self._looked = bucket
        return True

    def expire(self, stream_time_ms: int) -> None:
        """Set the bound, and remove the expired rows of a store with rows by key and time."""
        if not self.advance(stream_time_ms):
            return
        for key in self.due():
            prefix = ROWS + escape_key(key)
            self._store.delete_range(prefix, prefix + time_bytes(self.bound_ms + 1))

    def due(self) -> Iterator[bytes]:
        """Yield keys with a row that may have expired, and remove their hints."""
        end = HINTS + time_bytes(self.bound_ms + 1)
        while hints := [hint for hint, _ in islice(self._store.range(HINTS, end), SLICE_KEYS)]:
            yield from dict.fromkeys(hint[len(HINTS) + _TIME_BYTES :] for hint in hints)
            # The smallest key after the last hint that was read: a range excludes its end.
            self._store.delete_range(HINTS, hints[-1] + b"\x00")

    def _hint(self, time_ms: int) -> bytes:
        """Return the key prefix of a hint: the end of the bucket that contains the time."""
        return HINTS + time_bytes(-(-time_ms // self._bucket_ms) * self._bucket_ms)


class ExpiringRows:
    """Rows that expire a retention time after their own time, in a named store of a task."""

    __slots__ = ("_expiry", "_store")

    def __init__(self, store: NamedStore, *, retention_ms: int) -> None:
        self._store = store
        self._expiry = Expiry(store, retention_ms)

    def advance(self, stream_time_ms: int) -> None:
        """Set stream time, and remove the rows that have expired by it.

        Call this with the task's stream time before anything else, also after a restart.
        """
        self._expiry.expire(stream_time_ms)


FOREVER_MS = 2**61
"""The time to live of rows that expire only if a write gives them an end."""
_END_FROM, _END = 2**61, 2**62
"""A row's time is that of its newest record, which is less than `_END_FROM`; or, from there on, its
end plus `_END`. So an end stays where it is when the time to live of the store is changed."""
END_BUCKET_MS = 600_000
"""The longest time that a row with an end of its own stays on disk after it."""


class ExpiringStore:
    """Rows with a time to live, in a named store of a task."""

    __slots__ = ("_expiry", "_life_ms", "_store")

    def __init__(self, store: NamedStore, *, ttl_ms: int, bucket_ms_max: int = TIME_MS_MAX) -> None:
        """`bucket_ms_max` limits how long an expired row stays on disk."""
        self._store = store
        self._life_ms = ttl_ms
        self._expiry = Expiry(store, ttl_ms, bucket_ms_max=bucket_ms_max)

    def advance(self, stream_time_ms: int) -> None:
        """Set stream time, and remove the rows that have expired by it.

        Call this with the task's stream time before anything else, also after a restart.
        """
        if not self._expiry.advance(stream_time_ms):
            return
        for key in self._expiry.due():
            data = self._store.get(ROWS + key)
            if data is None:
                continue
            if (time_ms := self._time_of(data)) <= self._expiry.bound_ms:
                self._store.delete(ROWS + key)
            elif self._is_hinted(data):
                # The hint is one of a former time to live, under which the end came sooner.
                self._expiry.note(key, time_ms)

    def put(
        self, key: bytes, value: bytes, timestamp_ms: int, *, ttl_ms: int | None = None
    ) -> bool:
        """Set a value by a record of this time; returns False if it has already expired.

        With `ttl_ms`, the row ends that long after this record, whatever its end was before.
        """
        old = self._store.get(ROWS + key)
        new = time_bytes(min(timestamp_ms, _END_FROM - 1))
        if ttl_ms is not None:
            new = time_bytes(_END + min(timestamp_ms + ttl_ms, _END_FROM - 1))
        elif old is not None and self._time_of(old) > self._time_of(new):
            # A late record changes the value, but the row lives as long as was said before.
            new = old[:_TIME_BYTES]
        new_ms = self._time_of(new)
        if new_ms <= self._expiry.bound_ms:
            if ttl_ms is not None and old is not None:
                self._store.delete(ROWS + key)
            return False
        self._store.put(ROWS + key, new + value)
        if not self._is_hinted(new):
            return True
        if old is None or not self._is_hinted(old):
            self._expiry.note(key, new_ms)
        else:
            self._expiry.move(key, self._time_of(old), new_ms)
        return True

    def delete(self, key: bytes) -> None:
        """Remove one key, if it is there."""
        self._store.delete(ROWS + key)

    def get(self, key: bytes) -> bytes | None:
        """Return the value, if there is one that has not expired."""
        data = self._store.get(ROWS + key)
        if data is None or self._time_of(data) <= self._expiry.bound_ms:
            return None
        return data[_TIME_BYTES:]

    def range(self, low: bytes = b"", high: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys from `low` up to but not including `high`, in order.

        `high` None means to the end.
        """
        end = HINTS if high is None else ROWS + high
        if ROWS + low >= end:
            return
        bound_ms = self._expiry.bound_ms
        for row, data in self._store.range(ROWS + low, end):
            if self._time_of(data) > bound_ms:
                yield row[len(ROWS) :], data[_TIME_BYTES:]

    def _time_of(self, data: bytes) -> int:
        """Return the time of the record that would give a row its end by the store's own life."""
        time_ms = time_at(data)
        return time_ms if time_ms < _END_FROM else time_ms - _END - self._life_ms

    def _is_hinted(self, data: bytes) -> bool:
        """Return whether a row can expire; the others need no hint."""
        return self._life_ms < FOREVER_MS or time_at(data) >= _END_FROM
