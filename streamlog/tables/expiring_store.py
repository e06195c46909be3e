"""ExpiringStore: a key-value store whose rows live for a time after their last record.

Exact and without a clock: a row is there until stream time is a whole `ttl_ms` past the newest
timestamp that was written to its key, and then it is not, on every machine and in every replay; on
disk it stays a little longer (`expiry`). Keys lie as they are, in their order. Rule of the file: a
late record changes a row's value, but never shortens its life. Not done here: serdes.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamlog.tables.expiry import HINTS, ROWS, Expiry
from streamlog.tables.store import NamedStore
from streamlog.tables.timed_keys import time_at, time_bytes

_TIME_BYTES = 8


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
