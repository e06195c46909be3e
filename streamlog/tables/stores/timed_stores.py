"""WindowStore, SessionStore and VersionedStore: rows by key and time, for a retention time.

Window rows are stored by (key, start), session rows by (key, end, start), versions by (key,
descending timestamp) with the end of their validity (KIP-889), so each lookup is one scan of few
rows. Rows that are a retention time behind stream time are neither visible nor accepted, to the
millisecond, and are removed some time later (`ttl_queue`); the newest version of a key never
expires. Rules of the module: bounds of times are inclusive, as in Kafka Streams; a result depends
on stream time and the records alone, and not on which rows are already removed. Not done here:
serdes, merging sessions, and rows of windows that wait for their end (`store.window_key`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlog.tables.stores.store import (
    TIME_MS_MAX,
    TIME_MS_MIN,
    NamedStore,
    escape_key,
    prefix_end,
    span_at,
    span_bytes,
    time_at,
    time_bytes,
    unescape_key,
)
from streamlog.tables.stores.ttl_queue import HINTS, ROWS, ExpiringRows, Expiry


class SessionRow(NamedTuple):
    """A row of a session store; both times belong to the session."""

    key: bytes
    start_ms: int
    end_ms: int
    value: bytes


class SessionStore(ExpiringRows):
    """Rows of sessions in a named store of a task."""

    __slots__ = ()

    def put(self, key: bytes, start_ms: int, end_ms: int, value: bytes) -> bool:
        """Set the row of a session; returns False if the session has expired."""
        if end_ms <= self._expiry.bound_ms:
            return False
        self._store.put(ROWS + escape_key(key) + span_bytes(end_ms, start_ms), value)
        self._expiry.note(key, end_ms)
        return True

    def remove(self, key: bytes, start_ms: int, end_ms: int) -> None:
        """Remove the row of a session, for example after merging it with another one."""
        self._store.delete(ROWS + escape_key(key) + span_bytes(end_ms, start_ms))

    def get(self, key: bytes, start_ms: int, end_ms: int) -> bytes | None:
        """Return the row of exactly this session."""
        if end_ms <= self._expiry.bound_ms:
            return None
        return self._store.get(ROWS + escape_key(key) + span_bytes(end_ms, start_ms))

    def find(
        self, key: bytes, earliest_end_ms: int = TIME_MS_MIN, latest_start_ms: int = TIME_MS_MAX
    ) -> Iterator[SessionRow]:
        """Iterate over a key's sessions with these bounds, both inclusive, by end and start.

        A record joins the sessions that end at its timestamp minus the gap or later, and start at
        its timestamp plus the gap or earlier.
        """
        prefix = ROWS + escape_key(key)
        low = prefix + time_bytes(max(earliest_end_ms, self._expiry.bound_ms + 1))
        # Rows are in the order of their ends, so the bound on starts has to be checked row by row.
        for row, value in self._store.range(low, prefix_end(prefix)):
            end_ms, start_ms = span_at(row, len(prefix))
            if start_ms <= latest_start_ms:
                yield SessionRow(key, start_ms, end_ms, value)

    def all(self) -> Iterator[SessionRow]:
        """Iterate over every session that has not expired, by key, end and start."""
        for row, value in self._store.range(ROWS, HINTS):
            key, at = unescape_key(row[len(ROWS) :])
            end_ms, start_ms = span_at(row, at + len(ROWS))
            if end_ms > self._expiry.bound_ms:
                yield SessionRow(key, start_ms, end_ms, value)


_VALID_TO_BYTES = 8
_TIME_BYTES = 8
_DELETED, _PRESENT = b"\x00", b"\x01"


class VersionedRecord(NamedTuple):
    """A value of a key, and its validity."""

    value: bytes
    timestamp_ms: int
    valid_to_ms: int | None
    """The timestamp of the next version; None if this is the newest one."""


class _Version(NamedTuple):
    """A row: `value` is None for a deletion, `valid_to_ms` is TIME_MS_MAX for the newest."""

    timestamp_ms: int
    valid_to_ms: int
    value: bytes | None

    def record(self) -> VersionedRecord | None:
        if self.value is None:
            return None
        valid_to_ms = None if self.valid_to_ms == TIME_MS_MAX else self.valid_to_ms
        return VersionedRecord(self.value, self.timestamp_ms, valid_to_ms)

    def last_ms(self) -> int:
        """Return the last time for which the version is needed; the newest value never expires."""
        if self.valid_to_ms == TIME_MS_MAX and self.value is None:
            return self.timestamp_ms
        return self.valid_to_ms - 1


class VersionedStore:
    """Versions of values in a named store of a task."""

    __slots__ = ("_expiry", "_store")

    def __init__(self, store: NamedStore, *, history_retention_ms: int) -> None:
        self._store = store
        # A time exactly the retention ago is still known.
        self._expiry = Expiry(store, history_retention_ms + 1)

    def advance(self, stream_time_ms: int) -> None:
        """Set stream time, and remove the versions that have expired by it.

        Call this with the task's stream time before anything else, also after a restart.
        """
        if not self._expiry.advance(stream_time_ms):
            return
        bound_ms = self._expiry.bound_ms
        for key in self._expiry.due():
            prefix = ROWS + escape_key(key)
            for version in list(self._versions(prefix, TIME_MS_MAX)):
                if version.last_ms() <= bound_ms:
                    self._store.delete(prefix + _falling(version.timestamp_ms))

    def put(self, key: bytes, value: bytes | None, timestamp_ms: int) -> bool:
        """Set a key's value (None: deleted) from this time until its next version.

        Returns False if the history does not go back to this time.
        """
        if timestamp_ms <= self._expiry.bound_ms:
            return False
        prefix = ROWS + escape_key(key)
        # Versions of k: A from 10, B from 30 (valid: A [10, 30), B [30, ...)).
        # 1. A put at 40 ends B at 40 and is the newest.
        # 2. A put at 20 arrives late: it ends A at 20 and is valid until 30; B stays the newest.
        # 3. A put at 5 precedes all versions: it is valid until 10.
        # 4. A put at 30 replaces B, with its validity.
        before = next(self._versions(prefix, timestamp_ms), None)
        if before is None:
            valid_to_ms = self._first_after(prefix, timestamp_ms)
        else:
            valid_to_ms = before.valid_to_ms
            if before.timestamp_ms < timestamp_ms:
                self._write(key, before._replace(valid_to_ms=timestamp_ms))
        self._write(key, _Version(timestamp_ms, valid_to_ms, value))
        return True

    def delete(self, key: bytes, timestamp_ms: int) -> VersionedRecord | None:
        """Delete a key from this time on; returns the value that it had at that time."""
        old = self.get(key, timestamp_ms)
        self.put(key, None, timestamp_ms)
        return old

    def newest_ms(self, key: bytes) -> int | None:
        """Return the timestamp of a key's newest version, or of its deletion if that is known."""
        version = next(self._versions(ROWS + escape_key(key), TIME_MS_MAX), None)
        return None if version is None else version.timestamp_ms

    def get(self, key: bytes, as_of_ms: int | None = None) -> VersionedRecord | None:
        """Return the newest value, or the value at a time; None if it is missing or unknown."""
        prefix = ROWS + escape_key(key)
        is_known = as_of_ms is not None and as_of_ms > self._expiry.bound_ms
        # Of the time before the retention only the newest version is certain to remain. It
        # answers if it was valid by then; if not, the version of that time may have been removed.
        latest_ms = as_of_ms if as_of_ms is not None and is_known else TIME_MS_MAX
        version = next(self._versions(prefix, latest_ms), None)
        if version is None:
            return None
        if as_of_ms is not None and not is_known and version.timestamp_ms > as_of_ms:
            return None
        return version.record()

    def history(
        self, key: bytes, from_ms: int = TIME_MS_MIN, to_ms: int = TIME_MS_MAX
    ) -> Iterator[VersionedRecord]:
        """Iterate over the values that were valid at any time in [from, to], newest first."""
        least_ms = max(from_ms, self._expiry.bound_ms + 1)
        for version in self._versions(ROWS + escape_key(key), to_ms):
            if version.valid_to_ms <= least_ms:
                return
            if (record := version.record()) is not None:
                yield record

    def _versions(self, prefix: bytes, latest_ms: int) -> Iterator[_Version]:
        """Iterate over the versions of a key up to this timestamp, newest first."""
        cut = len(prefix)
        for row, data in self._store.range(prefix + _falling(latest_ms), prefix_end(prefix)):
            flag = data[_VALID_TO_BYTES : _VALID_TO_BYTES + 1]
            value = data[_VALID_TO_BYTES + 1 :] if flag == _PRESENT else None
            yield _Version(-1 - time_at(row, cut), time_at(data), value)

    def _first_after(self, prefix: bytes, timestamp_ms: int) -> int:
        """Return the timestamp of the first version after this time, where none is before it."""
        # Versions are in descending order, so the last row before the bound is the earliest one.
        first_ms = TIME_MS_MAX
        for row, _ in self._store.range(prefix, prefix + _falling(timestamp_ms)):
            first_ms = -1 - time_at(row, len(prefix))
        return first_ms

    def _write(self, key: bytes, version: _Version) -> None:
        flag = _DELETED if version.value is None else _PRESENT
        data = time_bytes(version.valid_to_ms) + flag + (version.value or b"")
        self._store.put(ROWS + escape_key(key) + _falling(version.timestamp_ms), data)
        # The newest value ends at TIME_MS_MAX: it never expires, and needs no hint.
        if (last_ms := version.last_ms()) < TIME_MS_MAX - 1:
            self._expiry.note(key, last_ms)


def _falling(time_ms: int) -> bytes:
    """Return a time as bytes that sort in descending order."""
    # -1 - t maps 64-bit times onto themselves; -t would overflow for the smallest one.
    return time_bytes(-1 - time_ms)


class WindowRow(NamedTuple):
    """A row of a window store."""

    key: bytes
    start_ms: int
    value: bytes


class WindowStore(ExpiringRows):
    """Rows of windows in a named store of a task."""

    __slots__ = ()

    def put(self, key: bytes, start_ms: int, value: bytes | None) -> bool:
        """Set the row of a window, or remove it (None); returns False if the window has expired."""
        if start_ms <= self._expiry.bound_ms:
            return False
        row = ROWS + escape_key(key) + time_bytes(start_ms)
        if value is None:
            self._store.delete(row)
        else:
            self._store.put(row, value)
            self._expiry.note(key, start_ms)
        return True

    def get(self, key: bytes, start_ms: int) -> bytes | None:
        """Return the row of the window that starts at this time."""
        if start_ms <= self._expiry.bound_ms:
            return None
        return self._store.get(ROWS + escape_key(key) + time_bytes(start_ms))

    def fetch(
        self, key: bytes, from_ms: int = TIME_MS_MIN, to_ms: int = TIME_MS_MAX
    ) -> Iterator[tuple[int, bytes]]:
        """Iterate over a key's windows that start in [from, to], by start: start and value."""
        prefix = ROWS + escape_key(key)
        low = prefix + time_bytes(max(from_ms, self._expiry.bound_ms + 1))
        # One byte more than the last time, which is inclusive.
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
        """Iterate over windows that start in [from, to] of the keys in [low, high], by key, start.

        A key bound of None means from the first key, or to the last one.
        """
        low = ROWS if low_key is None else ROWS + escape_key(low_key)
        high = (
            HINTS if high_key is None else ROWS + escape_key(high_key) + time_bytes(to_ms) + b"\x00"
        )
        if low >= high:
            return
        least_ms = max(from_ms, self._expiry.bound_ms + 1)
        # The key comes first in a row, so the times of each key have to be checked row by row.
        for row, value in self._store.range(low, high):
            start_ms = time_at(row, len(row) - 8)
            if least_ms <= start_ms <= to_ms:
                key, _ = unescape_key(row[len(ROWS) :])
                yield WindowRow(key, start_ms, value)
