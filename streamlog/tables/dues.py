"""Dues: when the rows of a store are over, exactly, in the order of time.

For tables that tell others of each row that is over, at the time it is. A store whose rows only
have to be gone uses `expiry`, which writes less. Rule of the file: each row has one due, so a key
that is given out is over, and it is not due any more. Not done here: the rows.
"""

from __future__ import annotations

from streamlog.tables.store import NamedStore
from streamlog.tables.timed_keys import TIME_MS_MAX, TIME_MS_MIN, time_at, time_bytes

_TIME_BYTES = 8


class Dues:
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
