"""SessionStore: rows by key and session, for a retention time after the session's end.

Rows lie in the order of (key, end, start): the sessions of a key that may touch a record are those
that end late enough, one scan. A session that ends a retention time before stream time, or earlier,
is over: it is not shown and not taken, to the millisecond, and removed some time later (`expiry`).
Rule of the file: as Kafka Streams' SessionStore, bounds of times are included. Not done here:
serdes, and merging sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlog.tables.expiry import HINTS, ROWS, ExpiringRows
from streamlog.tables.store import prefix_end
from streamlog.tables.timed_keys import (
    TIME_MS_MAX,
    TIME_MS_MIN,
    escaped,
    span_at,
    span_bytes,
    time_bytes,
    unescaped,
)


class SessionRow(NamedTuple):
    """A row of a session store; both times belong to the session."""

    key: bytes
    start_ms: int
    end_ms: int
    value: bytes


class SessionStore(ExpiringRows):
    """Rows of sessions, behind a named store of a task."""

    __slots__ = ()

    def put(self, key: bytes, start_ms: int, end_ms: int, value: bytes) -> bool:
        """Set the row of a session; False if the session is over."""
        if end_ms <= self._expiry.bound_ms:
            return False
        self._store.put(ROWS + escaped(key) + span_bytes(end_ms, start_ms), value)
        self._expiry.note(key, end_ms)
        return True

    def remove(self, key: bytes, start_ms: int, end_ms: int) -> None:
        """Remove the row of a session, as when it has been merged with another one."""
        self._store.delete(ROWS + escaped(key) + span_bytes(end_ms, start_ms))

    def get(self, key: bytes, start_ms: int, end_ms: int) -> bytes | None:
        """The row of exactly this session."""
        if end_ms <= self._expiry.bound_ms:
            return None
        return self._store.get(ROWS + escaped(key) + span_bytes(end_ms, start_ms))

    def find(
        self, key: bytes, earliest_end_ms: int = TIME_MS_MIN, latest_start_ms: int = TIME_MS_MAX
    ) -> Iterator[SessionRow]:
        """A key's sessions that end then or later and start then or earlier, by end and start.

        A record joins those that it finds with its own time less, and plus, the gap.
        """
        prefix = ROWS + escaped(key)
        low = prefix + time_bytes(max(earliest_end_ms, self._expiry.bound_ms + 1))
        for row, value in self._store.range(low, prefix_end(prefix)):
            end_ms, start_ms = span_at(row, len(prefix))
            if start_ms <= latest_start_ms:
                yield SessionRow(key, start_ms, end_ms, value)

    def all(self) -> Iterator[SessionRow]:
        """Every session that is not over, by key, end and start."""
        for row, value in self._store.range(ROWS, HINTS):
            key, at = unescaped(row[len(ROWS) :])
            end_ms, start_ms = span_at(row, at + len(ROWS))
            if end_ms > self._expiry.bound_ms:
                yield SessionRow(key, start_ms, end_ms, value)
