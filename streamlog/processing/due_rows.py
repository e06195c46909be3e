"""DueRows: records that wait in a step, by when they are due.

In the order in which they are to go on: (due, rank, key, number). The first of them are in memory,
and all when there are few; what does not fit is in the store and comes in pages. A record that
leaves before it was written never is. Rule of the file: the order is that of the keys in the
store, so it is the same however much time passes at once. Not done here: what becomes of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

import msgspec

from streamlog.processing.aggregate import ROW_BYTES, ROWS_BYTES_MAX
from streamlog.record import Headers
from streamlog.tables.store import NamedStore
from streamlog.tables.timed_keys import escaped, time_at, time_bytes, unescaped

PAGE_ROWS = 1_000
"""Read from the store at once."""
STALE_PLACES_MAX = 1_000
"""More places of records that have left, and than there are others, are sorted out."""

_TIME_BYTES = 8
_NUMBER = struct.Struct(">Q")


class DueRow(NamedTuple):
    """A record that waits."""

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


def place_of(due_ms: int, rank: int, key: bytes, number: int) -> bytes:
    """Where a record is among the others, which is its key in the store; `rank` is a byte."""
    return time_bytes(due_ms) + bytes((rank,)) + escaped(key) + _NUMBER.pack(number)


class DueRows:
    """The records that wait."""

    def __init__(self, store: NamedStore, *, bytes_max: int = ROWS_BYTES_MAX) -> None:
        """Up to `bytes_max` of them are held in memory after a flush, by estimate."""
        self._store = store
        self._bytes_max = bytes_max
        self._order: list[bytes] = []
        """A heap of places; some are of records that have left."""
        self._data: dict[bytes, bytes] = {}
        self._fresh: set[bytes] = set()
        """Places of those that are not in the store."""
        self._beyond: bytes | None = None
        """Places from here on are in the store alone; None: there are none."""
        self._bytes = 0

    def add(self, place: bytes, value: bytes, headers: Headers) -> None:
        """A record that waits; no other one has the same place."""
        data = _encode(_Data(value, list(headers)))
        if self._beyond is not None and place >= self._beyond:
            self._store.put(place, data)
            return
        self._hold(place, data)
        self._fresh.add(place)

    def discard(self, place: bytes) -> None:
        """It does not wait any more, if it did."""
        if self._beyond is not None and place >= self._beyond:
            if self._store.get(place) is not None:
                self._store.delete(place)
        elif place in self._data:
            self._forget(place)

    @property
    def next_ms(self) -> int | None:
        """Nobody is due before this time; None: nobody waits."""
        first = self._order[0] if self._order else self._beyond
        return None if first is None else time_at(first)

    def due(self, before_ms: int) -> Iterator[DueRow]:
        """Those that are due before this time, in order; they do not wait any more."""
        end = time_bytes(before_ms)
        while (first := self._first()) is not None and first < end:
            heappop(self._order)
            if first in self._data:
                yield _read(first, self._forget(first))

    def flush(self) -> None:
        """Write those that are new; hold no more of them than is allowed."""
        for place in self._fresh:
            self._store.put(place, self._data[place])
        self._fresh.clear()
        if len(self._order) > 2 * len(self._data) + STALE_PLACES_MAX:
            self._order = list(self._data)
            heapify(self._order)
        if self._bytes > self._bytes_max:
            self._let_go()

    def load(self) -> None:
        """The records are in the store."""
        self._beyond = b""
        self._page()

    def rewrite(self, place_of_row: Callable[[DueRow], bytes]) -> None:
        """Give all that are in the store another place; to be followed by `load`."""
        rows = [(place_of_row(_read(place, data)), data) for place, data in self._store.range()]
        self._store.delete_range()
        for place, data in rows:
            self._store.put(place, data)

    def _first(self) -> bytes | None:
        """The first place, in memory; None: nobody waits."""
        if not self._order:
            self._page()
        return self._order[0] if self._order else None

    def _page(self) -> None:
        """The next ones from the store."""
        if self._beyond is None:
            return
        rows = list(islice(self._store.range(self._beyond), PAGE_ROWS + 1))
        for place, data in rows[:PAGE_ROWS]:
            self._hold(place, data)
        self._beyond = rows[PAGE_ROWS][0] if len(rows) > PAGE_ROWS else None

    def _let_go(self) -> None:
        """All are in the store: hold on to the first page only."""
        order = sorted(self._data)
        if len(order) > PAGE_ROWS:
            self._beyond = order[PAGE_ROWS]
        held = {place: self._data[place] for place in order[:PAGE_ROWS]}
        self._order, self._data, self._bytes = [], {}, 0
        for place, data in held.items():
            self._hold(place, data)

    def _hold(self, place: bytes, data: bytes) -> None:
        self._data[place] = data
        self._bytes += ROW_BYTES + len(place) + len(data)
        heappush(self._order, place)

    def _forget(self, place: bytes) -> bytes:
        data = self._data.pop(place)
        self._bytes -= ROW_BYTES + len(place) + len(data)
        if place in self._fresh:
            self._fresh.remove(place)
        else:
            self._store.delete(place)
        return data


def _read(place: bytes, data: bytes) -> DueRow:
    row = _decode(data)
    key, end = unescaped(place[_TIME_BYTES + 1 :])
    (number,) = _NUMBER.unpack_from(place, _TIME_BYTES + 1 + end)
    return DueRow(time_at(place), place[_TIME_BYTES], key, number, row.value, tuple(row.headers))
