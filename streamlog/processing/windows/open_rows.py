"""OpenRows: the rows of windows that records make, in the order in which the windows close.

Sessions and sliding windows of all keys lie under (end, start, key): those that close next come
first, and those that have expired are one range. A window in use is an object (`OpenWindow`), and
its row is written once per commit. Rules of the module:

1. Finding the windows that close or expire reads none of the others.
2. A row that came and went between two commits is never written.

Not done here: which windows a record makes (`session_sliding_windows`), and the rows of tumbling,
hopping and calendar windows, which the fold keeps (`window_fold`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from streamlog.durations import moment
from streamlog.processing.tables.aggregate import RowFormat, RowSizes
from streamlog.serdes import windowed_bytes
from streamlog.serdes.erased_types import UserValue
from streamlog.tables.folds.folding import Row
from streamlog.tables.stores.store import (
    Changes,
    KeyValueStore,
    prefix_end,
    split_window_key,
    window_bound,
    window_key,
)
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS

STALE_MAX = 1_000
"""How many keys of replaced rows may be in the heap, on top of twice the rows."""


class OpenWindow:
    """A window of one key and its row."""

    __slots__ = ("end_ms", "is_stored", "key", "row", "start_ms")

    def __init__(self, start_ms: int, end_ms: int, row: Row, *, is_stored: bool = False) -> None:
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.row = row
        self.key = window_key(end_ms, start_ms, row.raw)
        """The key of its row in the store."""
        self.is_stored = is_stored
        """Whether the store has a row under this key."""

    @property
    def start(self) -> datetime:
        """Start, inclusive, as users see it."""
        return moment(self.start_ms)

    @property
    def end(self) -> datetime:
        """End, as users see it."""
        return moment(self.end_ms)

    @property
    def suffix(self) -> bytes:
        """Start and end as `windowed_bytes` appends them to a key."""
        return windowed_bytes(b"", self.start_ms, self.end_ms)


class WindowChange(NamedTuple):
    """What a record has done to a window; `is_gone` if other windows have replaced it."""

    window: OpenWindow
    is_gone: bool = False
    before: UserValue = None
    """The result that it replaces, if a step downstream needs it; None: there was none."""


class OpenRows:
    """The rows of one table."""

    def __init__(
        self, store: KeyValueStore, prefix: bytes, row_format: RowFormat, *, kept_ms: int
    ) -> None:
        """`kept_ms`: for how long rows stay after their window has closed."""
        self._store = store
        self._prefix = prefix
        self._format = row_format
        self._kept_ms = kept_ms
        self._changed: dict[bytes, OpenWindow | None] = {}
        """By key; None: to be removed from the store."""
        self._order: list[bytes] = []
        """A heap of the keys in `_changed` whose value is not None, and of some that are outdated.
        """
        self._closed_ms = self._expired_ms = UNKNOWN_MS
        self._sizes = RowSizes()
        self.due_ms = FAR_MS
        """The time before which there is nothing to `close`."""

    def start_at(self, closed_ms: int) -> None:
        """Count the windows that end at this time or before as closed, after a restart."""
        self._closed_ms = closed_ms
        self._expired_ms = closed_ms - self._kept_ms
        self._set_due()

    def load(self, start_ms: int, end_ms: int, raw: bytes) -> OpenWindow | None:
        """Return the window of a key, if it has a row."""
        key = window_key(end_ms, start_ms, raw)
        if key in self._changed:
            return self._changed[key]
        data = self._store.get(self._prefix + key)
        if data is None:
            return None
        return OpenWindow(start_ms, end_ms, self._format.loads(data, raw), is_stored=True)

    def put(self, window: OpenWindow) -> None:
        """Store a row that is new or has changed."""
        self.put_all((window,))

    def put_all(self, windows: Iterable[OpenWindow]) -> None:
        """Store rows that are new or have changed."""
        changed = self._changed
        for window in windows:
            key = window.key
            there = changed.get(key)
            if there is window:
                continue
            # Sessions that are replaced may come back under the same (end, start, key).
            # 1. Nothing has changed under the key: the window says whether the store has a row.
            # 2. The row was removed after the last flush (None): the store still has it, and if it
            #    is removed once more, the flush has to delete it.
            # 3. Another object has the key: this one replaces it, and the store has what it had.
            if there is None:
                window.is_stored = window.is_stored or key in changed
                heappush(self._order, key)
                self.due_ms = min(self.due_ms, window.end_ms)
            else:
                window.is_stored = there.is_stored
            changed[key] = window

    def remove(self, window: OpenWindow) -> None:
        """Remove a row."""
        if window.is_stored:
            self._changed[window.key] = None
        else:
            self._changed.pop(window.key, None)
        if len(self._order) > 2 * len(self._changed) + STALE_MAX:
            self._order = [key for key, there in self._changed.items() if there is not None]
            heapify(self._order)

    def close(self, limit_ms: int) -> list[OpenWindow]:
        """Close the open windows that end at this time or before; returns them in key order."""
        closed: list[OpenWindow] = []
        if limit_ms > self._closed_ms:
            closed = self._take_ended(limit_ms)
            self._closed_ms = limit_ms
        self._expire(limit_ms - self._kept_ms)
        self._set_due()
        return closed

    def flush(self) -> dict[bytes, OpenWindow | None]:
        """Write the changes into the store; returns them."""
        written, self._changed, self._order = self._changed, {}, []
        self._write([window for window in written.values() if window is not None])
        gone = [key for key, window in written.items() if window is None]
        self._store.write([(self._prefix + key, None) for key in gone])
        return written

    def bytes_of(self, count: int) -> int:
        """Return the memory that `count` rows take, by estimate."""
        return self._sizes.bytes_of(count)

    def _take_ended(self, limit_ms: int) -> list[OpenWindow]:
        found: dict[bytes, OpenWindow] = {}
        cut, end = len(self._prefix), window_bound(limit_ms + 1)
        for stored, data in self._store.range(self._bound(self._closed_ms), self._bound(limit_ms)):
            key = stored[cut:]
            # What has changed since the flush is newer than the store; None: removed.
            if key not in self._changed:
                end_ms, start_ms, raw = split_window_key(key)
                row = self._format.loads(data, raw)
                found[key] = OpenWindow(start_ms, end_ms, row, is_stored=True)
        changed = []
        while self._order and self._order[0] < end:
            key = heappop(self._order)
            window = self._changed.get(key)
            if window is not None:
                changed.append(window)
                found[key] = window
                del self._changed[key]
        # Closed rows stay readable until they expire. Without retention they are never written: a
        # session that opens and closes between two commits costs no write.
        if self._kept_ms:
            self._write(changed)
        return [window for _, window in sorted(found.items())]

    def _expire(self, limit_ms: int) -> None:
        """Remove the rows of windows that end at this time or before."""
        if limit_ms <= self._expired_ms:
            return
        # Not from the beginning: there, a scan steps over the tombstones of removed rows.
        self._store.delete_range(self._bound(self._expired_ms), self._bound(limit_ms))
        self._expired_ms = limit_ms

    def _write(self, windows: list[OpenWindow]) -> None:
        values = self._format.dumps_all([window.row for window in windows])
        keys = [self._prefix + window.key for window in windows]
        self._store.write(Changes(keys, [*values]))
        self._sizes.add(keys, values)
        for window in windows:
            window.is_stored = True

    def _set_due(self) -> None:
        while self._order and self._changed.get(self._order[0]) is None:
            heappop(self._order)
        ends = [self._first_end_ms(self._closed_ms)]
        if self._order:
            ends.append(split_window_key(self._order[0])[0])
        if self._kept_ms:
            ends.append(self._first_end_ms(self._expired_ms) + self._kept_ms)
        self.due_ms = min(ends)

    def _first_end_ms(self, after_ms: int) -> int:
        """Return the first end, after this time, of a window in the store."""
        high = prefix_end(self._prefix)
        found = next(self._store.range(self._bound(after_ms), high), None)
        return FAR_MS if found is None else split_window_key(found[0][len(self._prefix) :])[0]

    def _bound(self, end_ms: int) -> bytes:
        """Return a key before the rows of all windows that end after this time."""
        return self._prefix + window_bound(end_ms + 1)
