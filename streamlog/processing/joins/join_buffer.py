"""JoinBuffer and DueRows: records that wait in a join, by key and time, and by when they are due.

`JoinBuffer` keeps one side of a stream join in buckets of time, so that a search for partners
touches two or three buckets and expired records leave as one range. `DueRows` keeps waiting records
in the order (due, rank, key, number), the first of them in memory and the others in the store.
Records in use are objects; `flush` writes the new ones. Rules of the module: which records are
found depends only on the time that is passed in; the order of due rows is that of their keys,
however much time passes at once. Not done here: what happens to the records.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec

from streamlog.processing.tables.aggregate import ROW_BYTES, ROWS_BYTES_MAX, STATE_TIMES
from streamlog.record import Headers
from streamlog.serdes.erased_types import AnySerde, UserValue
from streamlog.tables.stores.store import NamedStore, escape_key, time_at, time_bytes, unescape_key
from streamlog.windows.emit import FAR_MS

PAGE_ROWS = 1_000
"""The number of rows to read from the store at once."""
STALE_KEYS_MAX = 1_000
"""When the heap holds this many more keys than twice the rows, keys of removed rows are dropped."""

_TIME_BYTES = 8
_NUMBER = struct.Struct(">Q")


class DueRow(NamedTuple):
    """A record that waits until it is due."""

    due_ms: int
    rank: int
    key: bytes
    number: int
    value: bytes
    headers: Headers


class _Data(msgspec.Struct, array_like=True):
    value: bytes
    headers: list[tuple[str, bytes | None]] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Data).decode


_decode_headers = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]]).decode


def _headers_bytes(headers: Headers) -> int:
    """Return the size of headers in memory, by estimate."""
    return sum(ROW_BYTES + len(name) + len(value or b"") for name, value in headers)


def agreed_headers(left: Headers, right: Headers) -> Headers:
    """Return the headers of a pair of records: those of the left one that the right one has, too.

    A name is kept if both have the same values of it, in the same order.
    """
    if left == right:
        return left
    if not left or not right:
        return ()
    names = {
        name
        for name in {name for name, _ in left}
        if [each for each in left if each[0] == name] == [each for each in right if each[0] == name]
    }
    return tuple(each for each in left if each[0] in names)


def due_row_key(due_ms: int, rank: int, key: bytes, number: int) -> bytes:
    """Return the key of a row in the store, which is also its order; `rank` is a byte."""
    return time_bytes(due_ms) + bytes((rank,)) + escape_key(key) + _NUMBER.pack(number)


class DueRows:
    """The records that wait until they are due."""

    def __init__(self, store: NamedStore, *, bytes_max: int = ROWS_BYTES_MAX) -> None:
        """After a flush, up to `bytes_max` of them stay in memory, by estimate."""
        self._store = store
        self._bytes_max = bytes_max
        self._order: list[bytes] = []
        """A heap of row keys; some are of rows that were removed."""
        self._data: dict[bytes, bytes] = {}
        self._fresh: set[bytes] = set()
        """Keys of rows that are not in the store."""
        self._beyond: bytes | None = None
        """Rows from this key on are in the store only; None: there are none."""
        self._bytes = 0

    def add(self, row_key: bytes, value: bytes, headers: Headers) -> None:
        """Add a row that waits; its key is unique."""
        # 5,000 rows wait: the first 1,000 are in memory, `_beyond` is the key of the next one.
        # 1. A row before `_beyond` goes to memory: `due` reads no page before memory is empty, so
        #    in the store alone it would come too late.
        # 2. A row from `_beyond` on goes to the store: a later page reads it, in its order.
        data = _encode(_Data(value, list(headers)))
        if self._beyond is not None and row_key >= self._beyond:
            self._store.put(row_key, data)
            return
        self._hold(row_key, data)
        self._fresh.add(row_key)

    def discard(self, row_key: bytes) -> None:
        """Remove a row, if it waits."""
        if self._beyond is not None and row_key >= self._beyond:
            if self._store.get(row_key) is not None:
                self._store.delete(row_key)
        elif row_key in self._data:
            self._forget(row_key)

    @property
    def next_ms(self) -> int | None:
        """The time before which no row is due; None: no row waits."""
        first = self._order[0] if self._order else self._beyond
        return None if first is None else time_at(first)

    def due(self, before_ms: int) -> Iterator[DueRow]:
        """Remove and return the rows that are due before this time, in order."""
        end = time_bytes(before_ms)
        while (first := self._first()) is not None and first < end:
            heappop(self._order)
            if first in self._data:
                yield _read(first, self._forget(first))

    def flush(self) -> None:
        """Write new rows, and keep no more in memory than allowed."""
        for row_key in self._fresh:
            self._store.put(row_key, self._data[row_key])
        self._fresh.clear()
        if len(self._order) > 2 * len(self._data) + STALE_KEYS_MAX:
            self._order = list(self._data)
            heapify(self._order)
        if self._bytes > self._bytes_max:
            self._evict()

    def load(self) -> None:
        """Start from the rows in the store."""
        self._beyond = b""
        self._page()

    def rewrite(self, key_of: Callable[[DueRow], bytes]) -> None:
        """Give all rows in the store new keys; call `load` afterwards."""
        rows = [(key_of(_read(row_key, data)), data) for row_key, data in self._store.range()]
        self._store.delete_range()
        for row_key, data in rows:
            self._store.put(row_key, data)

    def _first(self) -> bytes | None:
        """Return the first key, in memory; None: no row waits."""
        if not self._order:
            self._page()
        return self._order[0] if self._order else None

    def _page(self) -> None:
        """Read the next page from the store."""
        if self._beyond is None:
            return
        rows = list(islice(self._store.range(self._beyond), PAGE_ROWS + 1))
        for row_key, data in rows[:PAGE_ROWS]:
            self._hold(row_key, data)
        self._beyond = rows[PAGE_ROWS][0] if len(rows) > PAGE_ROWS else None

    def _evict(self) -> None:
        """Keep only the first page in memory: all rows are in the store."""
        order = sorted(self._data)
        if len(order) > PAGE_ROWS:
            self._beyond = order[PAGE_ROWS]
        held = {row_key: self._data[row_key] for row_key in order[:PAGE_ROWS]}
        self._order, self._data, self._bytes = [], {}, 0
        for row_key, data in held.items():
            self._hold(row_key, data)

    def _hold(self, row_key: bytes, data: bytes) -> None:
        self._data[row_key] = data
        self._bytes += ROW_BYTES + len(row_key) + len(data)
        heappush(self._order, row_key)

    def _forget(self, row_key: bytes) -> bytes:
        data = self._data.pop(row_key)
        self._bytes -= ROW_BYTES + len(row_key) + len(data)
        if row_key in self._fresh:
            self._fresh.remove(row_key)
        else:
            self._store.delete(row_key)
        return data


def _read(row_key: bytes, data: bytes) -> DueRow:
    row = _decode(data)
    key, end = unescape_key(row_key[_TIME_BYTES + 1 :])
    (number,) = _NUMBER.unpack_from(row_key, _TIME_BYTES + 1 + end)
    return DueRow(
        time_at(row_key), row_key[_TIME_BYTES], key, number, row.value, tuple(row.headers)
    )


JoinEntry: TypeAlias = tuple[int, int, UserValue, Headers]
"""Timestamp, number, value and headers of a record; the number is unique in a join."""

_HEADERS = b"h"
"""Ends the key of the row with a record's headers, which follows the record's own row. A record
without headers has none, so records that an older version kept are read as such."""

_FAR = 1 << 63
"""Larger than every number."""


class _Bucket:
    """The records of one interval of time."""

    __slots__ = ("bytes", "fresh", "is_whole", "rows")

    def __init__(self, *, is_whole: bool) -> None:
        self.bytes = 0
        """Size in memory, by estimate."""
        self.rows: dict[bytes, list[JoinEntry]] = {}
        self.is_whole = is_whole
        """Whether a key that is not in `rows` has no records; otherwise the store may have some."""
        self.fresh: list[tuple[bytes, int, int, bytes, Headers]] = []
        """Key, timestamp, number, value and headers of the records that are not in the store."""


class JoinBuffer:
    """The records of one side."""

    def __init__(
        self,
        store: NamedStore,
        value: AnySerde,
        *,
        keep_ms: int,
        bytes_max: int = ROWS_BYTES_MAX,
    ) -> None:
        """Records are kept until stream time is more than `keep_ms` after them.

        After a flush, up to `bytes_max` of them stay in memory as objects, by estimate.
        """
        self._store = store
        self._value = value
        self._keep_ms = keep_ms
        self._bytes_max = bytes_max
        self.bucket_ms = max(keep_ms // 2, 1)
        self._buckets: dict[int, _Bucket] = {}
        self.over_ms = FAR_MS
        """The stream time up to which no record expires."""

    def add(self, key: bytes, entry: JoinEntry, data: bytes) -> None:
        """Keep a record; `data` is its value as bytes."""
        timestamp_ms, number, _, headers = entry
        at = timestamp_ms // self.bucket_ms
        bucket = self._buckets.get(at)
        if bucket is None:
            bucket = self._buckets[at] = _Bucket(is_whole=True)
            self._set_gate()
        insort(self._rows(at, bucket, key), entry)
        bucket.fresh.append((key, timestamp_ms, number, data, headers))
        bucket.bytes += ROW_BYTES + len(key) + (1 + STATE_TIMES) * len(data)
        if headers:
            bucket.bytes += _headers_bytes(headers)

    def find(self, key: bytes, from_ms: int, to_ms: int) -> list[JoinEntry]:
        """Return a key's records in [from, to], by timestamp, then by arrival."""
        found: list[JoinEntry] = []
        # Buckets span half of `keep_ms`, so that a search touches two or three of them, and at most
        # half as much time again as `keep_ms` is in the store.
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
        """Remove what has expired at stream time `now_ms`."""
        if now_ms <= self.over_ms:
            return
        # keep_ms is 10 s, so buckets span 5 s; stream time is 10:00:20.
        # 1. The bucket from 10:00:05 to 10:00:09.999 expires after 10:00:19.999: it is removed.
        # 2. The bucket from 10:00:10 stays until its last possible record has expired. It may hold
        #    expired records until then; `StreamJoinStep` does not search that far back.
        over = [at for at in self._buckets if self._over_ms(at) < now_ms]
        for at in over:
            del self._buckets[at]
            self._store.delete_range(self._head(at), self._head(at + 1))
        self._set_gate()

    def flush(self) -> None:
        """Write new records into the store, and drop all objects if they exceed the bound."""
        for at, bucket in self._buckets.items():
            for key, timestamp_ms, number, data, headers in bucket.fresh:
                row_key = self._row_key(at, key, timestamp_ms, number)
                self._store.put(row_key, data)
                if headers:
                    self._store.put(row_key + _HEADERS, _encode(headers))
            bucket.fresh = []
        if sum(bucket.bytes for bucket in self._buckets.values()) > self._bytes_max:
            for bucket in self._buckets.values():
                # From now on, a key that is not in memory may have records in the store.
                bucket.is_whole = bucket.is_whole and not bucket.rows
                bucket.rows.clear()
                bucket.bytes = 0

    def load(self, bucket_ms: int) -> None:
        """Start from the records in the store, whose buckets have this size."""
        if bucket_ms != self.bucket_ms:
            self._rewrite()
        low = b""
        while (found := next(self._store.range(low), None)) is not None:
            at = time_at(found[0]) // self.bucket_ms
            self._buckets[at] = _Bucket(is_whole=False)
            low = self._head(at + 1)
        self._set_gate()

    def _rewrite(self) -> None:
        """Move all records to buckets of the current size."""
        rows = list(self._store.range())
        self._store.delete_range()
        for row, data in rows:
            _, end = unescape_key(row[_TIME_BYTES:])
            at = time_at(row, _TIME_BYTES + end) // self.bucket_ms
            self._store.put(self._head(at) + row[_TIME_BYTES:], data)

    def _rows(self, at: int, bucket: _Bucket, key: bytes) -> list[JoinEntry]:
        """Return the records of a key in a bucket; reads them into memory."""
        rows = bucket.rows.get(key)
        if rows is None:
            rows = bucket.rows[key] = [] if bucket.is_whole else self._read(at, bucket, key)
        return rows

    def _read(self, at: int, bucket: _Bucket, key: bytes) -> list[JoinEntry]:
        head = self._head(at) + escape_key(key)
        loads = self._value.loads
        rows: list[JoinEntry] = []
        bucket.bytes += ROW_BYTES + len(key)
        for row, data in self._store.range(head, head + b"\xff" * (2 * _TIME_BYTES + 1)):
            (number,) = _NUMBER.unpack_from(row, len(head) + _TIME_BYTES)
            if len(row) > len(head) + _TIME_BYTES + _NUMBER.size:
                headers = tuple(_decode_headers(data))
                rows[-1] = (*rows[-1][:3], headers)
                bucket.bytes += _headers_bytes(headers)
                continue
            rows.append((time_at(row, len(head)), number, loads(data), ()))
            bucket.bytes += ROW_BYTES + STATE_TIMES * len(data)
        return rows

    def _head(self, at: int) -> bytes:
        return time_bytes(at * self.bucket_ms)

    def _row_key(self, at: int, key: bytes, timestamp_ms: int, number: int) -> bytes:
        return self._head(at) + escape_key(key) + time_bytes(timestamp_ms) + _NUMBER.pack(number)

    def _over_ms(self, at: int) -> int:
        """Return the last stream time at which a bucket may hold a record that has not expired."""
        return (at + 1) * self.bucket_ms - 1 + self._keep_ms

    def _set_gate(self) -> None:
        first = min(self._buckets, default=None)
        self.over_ms = FAR_MS if first is None else self._over_ms(first)
