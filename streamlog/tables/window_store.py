"""WindowStore: rows by key and by the time at which their window starts, for a retention time.

Rows lie in the order of (key, start): the windows of a key, and of a range of keys, are one scan.
A window that starts a retention time before stream time, or earlier, is over: it is not shown and
not taken, to the millisecond; its row is removed when a bucket of them is over (`expiry`). Stream
time is what the owner says it is, so the same records give the same rows after a restart.
Rule of the file: as Kafka Streams' WindowStore, bounds of times are included. Not done here:
serdes, and rows for windows that wait for their end (`store.window_key`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlog.tables.expiry import HINTS, ROWS, ExpiringRows
from streamlog.tables.timed_keys import (
    TIME_MS_MAX,
    TIME_MS_MIN,
    escaped,
    time_at,
    time_bytes,
    unescaped,
)


class WindowRow(NamedTuple):
    """A row of a window store."""

    key: bytes
    start_ms: int
    value: bytes


class WindowStore(ExpiringRows):
    """Rows of windows, behind a named store of a task."""

    __slots__ = ()

    def put(self, key: bytes, start_ms: int, value: bytes | None) -> bool:
        """Set the row of a window, or remove it (None); False if the window is over."""
        if start_ms <= self._expiry.bound_ms:
            return False
        row = ROWS + escaped(key) + time_bytes(start_ms)
        if value is None:
            self._store.delete(row)
        else:
            self._store.put(row, value)
            self._expiry.note(key, start_ms)
        return True

    def get(self, key: bytes, start_ms: int) -> bytes | None:
        """The row of the window that starts then."""
        if start_ms <= self._expiry.bound_ms:
            return None
        return self._store.get(ROWS + escaped(key) + time_bytes(start_ms))

    def fetch(
        self, key: bytes, from_ms: int = TIME_MS_MIN, to_ms: int = TIME_MS_MAX
    ) -> Iterator[tuple[int, bytes]]:
        """A key's windows that start in [from, to], by their start: start and value."""
        prefix = ROWS + escaped(key)
        low = prefix + time_bytes(max(from_ms, self._expiry.bound_ms + 1))
        # A byte more than the last time, which is included.
        high = prefix + time_bytes(to_ms) + b"\x00"
        if low >= high:
            return
        cut = len(prefix)
        for row, value in self._store.range(low, high):
            yield time_at(row, cut), value

    def fetch_range(
        self,
        low_key: bytes | None = None,
        high_key: bytes | None = None,
        *,
        from_ms: int = TIME_MS_MIN,
        to_ms: int = TIME_MS_MAX,
    ) -> Iterator[WindowRow]:
        """The windows that start in [from, to] of the keys in [low, high], by key and start.

        Without a bound: from the first key, to the last one.
        """
        low = ROWS if low_key is None else ROWS + escaped(low_key)
        high = HINTS if high_key is None else ROWS + escaped(high_key) + time_bytes(to_ms) + b"\x00"
        if low >= high:
            return
        least_ms = max(from_ms, self._expiry.bound_ms + 1)
        for row, value in self._store.range(low, high):
            start_ms = time_at(row, len(row) - 8)
            if least_ms <= start_ms <= to_ms:
                key, _ = unescaped(row[len(ROWS) :])
                yield WindowRow(key, start_ms, value)
