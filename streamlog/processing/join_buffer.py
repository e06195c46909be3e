"""JoinBuffer: the records of one side of a join, by key and timestamp, while they may be joined.

Records lie in buckets of time, in memory and in the store, so that a look for partners touches two
or three of them and what is over goes as one range, whatever its keys are. Records in use are
objects; `flush` writes those that are new, under (bucket, key, timestamp, number). Rule of the
file: which records are found follows from the time that is given and from nothing else; those that
are over stay in the store a little longer, unseen. A store that was written with buckets of another
size is rewritten by `load`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, TypeAlias

from streamlog.processing.aggregate import ROW_BYTES, ROWS_BYTES_MAX, STATE_TIMES
from streamlog.serdes import Serde
from streamlog.tables.store import NamedStore
from streamlog.tables.timed_keys import escaped, time_at, time_bytes, unescaped
from streamlog.windows.emit import FAR_MS

Entry: TypeAlias = tuple[int, int, Any]
"""Timestamp, number, and value of a record; no two of a join have the same number."""

_TIME_BYTES = 8
_NUMBER = struct.Struct(">Q")
_FAR = 1 << 63
"""Above every number."""


class _Bucket:
    """The records of one stretch of time."""

    __slots__ = ("bytes", "fresh", "is_whole", "rows")

    def __init__(self, *, is_whole: bool) -> None:
        self.bytes = 0
        """In memory, by estimate."""
        self.rows: dict[bytes, list[Entry]] = {}
        self.is_whole = is_whole
        """Whether a key that is not in `rows` has none; otherwise the store has to be asked."""
        self.fresh: list[tuple[bytes, int, int, bytes]] = []
        """Key, timestamp, number and value of those that are not in the store yet."""


class JoinBuffer:
    """The records of one side."""

    def __init__(
        self,
        store: NamedStore,
        value: Serde[Any],
        *,
        keep_ms: int,
        bytes_max: int = ROWS_BYTES_MAX,
    ) -> None:
        """Records are kept until stream time is more than `keep_ms` beyond them.

        Up to `bytes_max` of them are held as objects after a flush, by estimate.
        """
        self._store = store
        self._value = value
        self._keep_ms = keep_ms
        self._bytes_max = bytes_max
        self.bucket_ms = max(keep_ms // 2, 1)
        self._buckets: dict[int, _Bucket] = {}
        self.over_ms = FAR_MS
        """Nothing is over before stream time is beyond this."""

    def add(self, key: bytes, timestamp_ms: int, number: int, value: Any, data: bytes) -> None:  # noqa: ANN401 - the stream's values
        """Keep a record; `data` is its value as bytes."""
        at = timestamp_ms // self.bucket_ms
        bucket = self._buckets.get(at)
        if bucket is None:
            bucket = self._buckets[at] = _Bucket(is_whole=True)
            self._set_gate()
        insort(self._rows(at, bucket, key), (timestamp_ms, number, value))
        bucket.fresh.append((key, timestamp_ms, number, data))
        bucket.bytes += ROW_BYTES + len(key) + (1 + STATE_TIMES) * len(data)

    def find(self, key: bytes, from_ms: int, to_ms: int) -> list[Entry]:
        """The records of a key in [from, to], by timestamp, those of one time as they came."""
        found: list[Entry] = []
        for at in range(from_ms // self.bucket_ms, to_ms // self.bucket_ms + 1):
            bucket = self._buckets.get(at)
            if bucket is None:
                continue
            rows = self._rows(at, bucket, key) if not bucket.is_whole else bucket.rows.get(key)
            if rows:
                low = bisect_left(rows, (from_ms,))
                high = bisect_right(rows, (to_ms, _FAR))
                found += rows[low:high]
        return found

    def expire(self, now_ms: int) -> None:
        """Stream time is `now_ms`: remove what is over."""
        if now_ms <= self.over_ms:
            return
        over = [at for at in self._buckets if self._over_ms(at) < now_ms]
        for at in over:
            del self._buckets[at]
            self._store.delete_range(self._head(at), self._head(at + 1))
        self._set_gate()

    def flush(self) -> None:
        """Write new records into the store; if they are many, do without their objects."""
        for at, bucket in self._buckets.items():
            for key, timestamp_ms, number, data in bucket.fresh:
                self._store.put(self._row_key(at, key, timestamp_ms, number), data)
            bucket.fresh = []
        if sum(bucket.bytes for bucket in self._buckets.values()) > self._bytes_max:
            for bucket in self._buckets.values():
                bucket.is_whole = bucket.is_whole and not bucket.rows
                bucket.rows.clear()
                bucket.bytes = 0

    def load(self, bucket_ms: int) -> None:
        """The records are in the store, with buckets of this size."""
        if bucket_ms != self.bucket_ms:
            self._rewrite()
        low = b""
        while (found := next(self._store.range(low), None)) is not None:
            at = time_at(found[0]) // self.bucket_ms
            self._buckets[at] = _Bucket(is_whole=False)
            low = self._head(at + 1)
        self._set_gate()

    def _rewrite(self) -> None:
        """Put all records into the buckets that they are in now."""
        rows = list(self._stored())
        self._store.delete_range()
        for key, timestamp_ms, number, data in rows:
            at = timestamp_ms // self.bucket_ms
            self._store.put(self._row_key(at, key, timestamp_ms, number), data)

    def _stored(self) -> Iterator[tuple[bytes, int, int, bytes]]:
        for row, data in self._store.range():
            key, end = unescaped(row[_TIME_BYTES:])
            place = _TIME_BYTES + end
            (number,) = _NUMBER.unpack_from(row, place + _TIME_BYTES)
            yield key, time_at(row, place), number, data

    def _rows(self, at: int, bucket: _Bucket, key: bytes) -> list[Entry]:
        """The records of a key in a bucket, in memory from now on."""
        rows = bucket.rows.get(key)
        if rows is None:
            rows = bucket.rows[key] = [] if bucket.is_whole else self._read(at, bucket, key)
        return rows

    def _read(self, at: int, bucket: _Bucket, key: bytes) -> list[Entry]:
        head = self._head(at) + escaped(key)
        loads = self._value.loads
        rows: list[Entry] = []
        bucket.bytes += ROW_BYTES + len(key)
        for row, data in self._store.range(head, head + b"\xff" * (2 * _TIME_BYTES + 1)):
            (number,) = _NUMBER.unpack_from(row, len(head) + _TIME_BYTES)
            rows.append((time_at(row, len(head)), number, loads(data)))
            bucket.bytes += ROW_BYTES + STATE_TIMES * len(data)
        return rows

    def _head(self, at: int) -> bytes:
        return time_bytes(at * self.bucket_ms)

    def _row_key(self, at: int, key: bytes, timestamp_ms: int, number: int) -> bytes:
        return self._head(at) + escaped(key) + time_bytes(timestamp_ms) + _NUMBER.pack(number)

    def _over_ms(self, at: int) -> int:
        """When stream time is beyond this, the last record that a bucket can have is over."""
        return (at + 1) * self.bucket_ms - 1 + self._keep_ms

    def _set_gate(self) -> None:
        first = min(self._buckets, default=None)
        self.over_ms = FAR_MS if first is None else self._over_ms(first)
