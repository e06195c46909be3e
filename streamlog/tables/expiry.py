"""Expiry: which keys of a store have something that is over, found without looking at the others.

Beside the rows stand hints: a time and a key, ordered by the time. Each row has a hint that is not
before its own time and at most one bucket behind it, so all that is over at a time is found under
the hints up to then, and whole stretches of hints go as one range. A hint may be out of date, as
its row has been written again: whoever is given the key looks at the row. So buckets may have
another size after a restart. Rule of the file: what is over is a matter of the times given, never
of a clock. Not done here: hiding what is over and still there; each store does, to the millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from streamlog.tables.store import NamedStore
from streamlog.tables.timed_keys import TIME_MS_MIN, escaped, time_bytes

ROWS = b"\x00"
"""What the keys of rows begin with, in every store that has hints."""
HINTS = b"\x01"
"""What hints begin with, behind all rows."""

BUCKETS = 8
"""In the time that rows live: they stay on disk for an eighth of it longer than they are shown."""
SLICE_KEYS = 1_000
"""Hints in hand at once."""

_TIME_BYTES = 8


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
            prefix = ROWS + escaped(key)
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
