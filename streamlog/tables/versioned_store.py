"""VersionedStore: what a key's value was at a time, as far back as a history retention (KIP-889).

A record of a time takes effect at that time, whenever it arrives: it is put between those before
and behind it. A version holds from its timestamp until the next one's; a deletion is one too.
Rows lie by key and falling timestamp, each with the end of its validity, so a reading as of some
time looks at one row. Times more than the retention behind stream time are refused by `put`, and
nothing is known of them but what still holds: the newest version of a key is never too old.
Rule of the file: what `get` says depends on stream time and the records alone, not on which rows
have been removed yet. Not done here: serdes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlog.tables.expiry import ROWS, Expiry
from streamlog.tables.store import NamedStore, prefix_end
from streamlog.tables.timed_keys import TIME_MS_MAX, TIME_MS_MIN, escaped, time_at, time_bytes

_VALID_TO_BYTES = 8
_TIME_BYTES = 8
_DELETED, _PRESENT = b"\x00", b"\x01"


class VersionedRecord(NamedTuple):
    """A value of a key, and when it holds."""

    value: bytes
    timestamp_ms: int
    valid_to_ms: int | None
    """The timestamp of the next version; None: there is none."""


class _Version(NamedTuple):
    """A row: `value` is None for a deletion, `valid_to_ms` TIME_MS_MAX for the newest."""

    timestamp_ms: int
    valid_to_ms: int
    value: bytes | None

    def record(self) -> VersionedRecord | None:
        if self.value is None:
            return None
        valid_to_ms = None if self.valid_to_ms == TIME_MS_MAX else self.valid_to_ms
        return VersionedRecord(self.value, self.timestamp_ms, valid_to_ms)

    def last_ms(self) -> int:
        """What it was good for is over when this is; the newest value is never over."""
        if self.valid_to_ms == TIME_MS_MAX and self.value is None:
            return self.timestamp_ms
        return self.valid_to_ms - 1


class VersionedStore:
    """Versions of values, behind a named store of a task."""

    __slots__ = ("_expiry", "_store")

    def __init__(self, store: NamedStore, *, history_retention_ms: int) -> None:
        self._store = store
        # Just at the retention a time is still known.
        self._expiry = Expiry(store, history_retention_ms + 1)

    def advance(self, stream_time_ms: int) -> None:
        """Stream time is at least this: forget the versions that are over by it.

        To be called with the task's stream time before anything else, also after a restart.
        """
        if not self._expiry.advance(stream_time_ms):
            return
        bound_ms = self._expiry.bound_ms
        for key in self._expiry.due():
            prefix = ROWS + escaped(key)
            for version in list(self._versions(prefix, TIME_MS_MAX)):
                if version.last_ms() <= bound_ms:
                    self._store.delete(prefix + _falling(version.timestamp_ms))

    def put(self, key: bytes, value: bytes | None, timestamp_ms: int) -> bool:
        """The key has this value (None: it is deleted) from this time on, until the next version.

        False if the time is further back than the history goes.
        """
        if timestamp_ms <= self._expiry.bound_ms:
            return False
        prefix = ROWS + escaped(key)
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
        """The key has no value from this time on; what it had then."""
        old = self.get(key, timestamp_ms)
        self.put(key, None, timestamp_ms)
        return old

    def newest_ms(self, key: bytes) -> int | None:
        """The timestamp of the newest version of a key, or of its deletion if that is known."""
        version = next(self._versions(ROWS + escaped(key), TIME_MS_MAX), None)
        return None if version is None else version.timestamp_ms

    def get(self, key: bytes, as_of_ms: int | None = None) -> VersionedRecord | None:
        """The newest value, or the one that held at a time; None if there is none or none known."""
        prefix = ROWS + escaped(key)
        is_known = as_of_ms is not None and as_of_ms > self._expiry.bound_ms
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
        """The values that held at any time in [from, to], the newest first."""
        least_ms = max(from_ms, self._expiry.bound_ms + 1)
        for version in self._versions(ROWS + escaped(key), to_ms):
            if version.valid_to_ms <= least_ms:
                return
            if (record := version.record()) is not None:
                yield record

    def _versions(self, prefix: bytes, latest_ms: int) -> Iterator[_Version]:
        """Rows of a key with this timestamp or before, the newest first."""
        cut = len(prefix)
        for row, data in self._store.range(prefix + _falling(latest_ms), prefix_end(prefix)):
            flag = data[_VALID_TO_BYTES : _VALID_TO_BYTES + 1]
            value = data[_VALID_TO_BYTES + 1 :] if flag == _PRESENT else None
            yield _Version(-1 - time_at(row, cut), time_at(data), value)

    def _first_after(self, prefix: bytes, timestamp_ms: int) -> int:
        """The timestamp of the version that follows one before all that there are."""
        first_ms = TIME_MS_MAX
        for row, _ in self._store.range(prefix, prefix + _falling(timestamp_ms)):
            first_ms = -1 - time_at(row, len(prefix))
        return first_ms

    def _write(self, key: bytes, version: _Version) -> None:
        flag = _DELETED if version.value is None else _PRESENT
        data = time_bytes(version.valid_to_ms) + flag + (version.value or b"")
        self._store.put(ROWS + escaped(key) + _falling(version.timestamp_ms), data)
        if (last_ms := version.last_ms()) < TIME_MS_MAX - 1:
            self._expiry.note(key, last_ms)


def _falling(time_ms: int) -> bytes:
    """A time, the later ones first."""
    return time_bytes(-1 - time_ms)
