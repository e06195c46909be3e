"""Timers by key and punctuations: what is due on one of a processor's two clocks, in order.

A timer is two rows in the task's store: one by (time, key, tag), the order in which timers fire,
and one by (key, tag), which holds the time. So timers are changed, cancelled and fired in the
transaction of all other state, and survive a restart. The next ones are kept in memory as well, so
that a clock that advances reads no store. Rules of the file:

1. What fires is a function of the timers set and of the time that the clock reaches, not of its
   steps: a clock that goes to 10 and then to 20 fires what one that goes straight to 20 fires, in
   equal order. A punctuation fires at every multiple of its interval on the event clock, and once
   for all that were missed on the wall clock.
2. Every firing has a number, which is its time unless that number was used before: it identifies
   the forwarded records for downstream tasks (`provenance`), even if a crash repeats the firing.

Not done here: calling the user's methods (`processor_step`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice
from typing import NamedTuple

from streamlog.nodes.process_nodes import Punctuation
from streamlog.processing.column_batch import TimeSource
from streamlog.serdes.erased_types import JsonValue
from streamlog.tables.stores.store import NamedStore, prefix_end
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS

READY_MAX = 20_000
"""Timers kept in memory: some 3 MB. If there are more, the later half stays in the store only."""
PUNCTUATIONS_MAX = 1_000_000
"""A clock that jumps over more punctuations than this (because of a record from the far future)
fires only the last ones."""

_AT = struct.Struct(">Q")
_BY_TIME = b"t"
_BY_KEY = b"k"
_ZERO, _ESCAPED_ZERO = b"\0", b"\0\xff"
_END = b"\0\1"
_AFTER_ALL = b"\xff" * 9


class DueTimer(NamedTuple):
    """A timer or punctuation that is due."""

    at_ms: int
    method: str
    """The punctuation's method; "" for a timer."""
    key: bytes = b""
    tag: str = ""


class KeyTimers:
    """The timers of one clock: at most one for each key and tag."""

    def __init__(self, store: NamedStore, clock: bytes) -> None:
        self._store = store
        self._by_time = clock + _BY_TIME
        self._by_key = clock + _BY_KEY
        # All timers below `_read_to` are in `_ready`, a heap; so may be some that were cancelled.
        self._ready: list[bytes] = []
        self._read_to = b""
        self._rest_ms = UNKNOWN_MS

    @property
    def first_ms(self) -> int:
        """The time before which no timer is due."""
        return _at(self._ready[0]) if self._ready else self._rest_ms

    def set(self, key: bytes, at_ms: int, tag: str) -> None:
        """Fire at this time; replaces the timer of this key and tag."""
        # A timer has two rows: by key, for `cancel` and for replacing it, and by time, for firing.
        # Both are in one transaction with the rest of the task's state.
        name = _name(key, tag)
        at = _AT.pack(at_ms)
        before = self._store.get(self._by_key + name)
        if before == at:
            return
        if before is not None:
            self._store.delete(self._by_time + before + name)
        self._store.put(self._by_key + name, at)
        self._store.put(self._by_time + at + name, b"")
        if at + name < self._read_to:
            heappush(self._ready, at + name)
            if len(self._ready) > READY_MAX:
                self._leave_later_half()
        else:
            self._rest_ms = min(self._rest_ms, at_ms)

    def cancel(self, key: bytes, tag: str) -> None:
        """Remove the timer of this key and tag, if one is set."""
        name = _name(key, tag)
        before = self._store.get(self._by_key + name)
        if before is not None:
            self._store.delete(self._by_key + name)
            self._store.delete(self._by_time + before + name)

    def first(self, limit_ms: int) -> DueTimer | None:
        """Return the first timer, if it is due."""
        while self.first_ms <= limit_ms:
            if not self._ready:
                self._read()
                continue
            # Cancelled timers stay in the heap; the row by key says whether one is still set, and
            # for this time.
            at, name = self._ready[0][: _AT.size], self._ready[0][_AT.size :]
            if self._store.get(self._by_key + name) == at:
                key, _, tag = name.partition(_END)
                return DueTimer(_at(at), "", key.replace(_ESCAPED_ZERO, _ZERO), tag.decode())
            heappop(self._ready)
        return None

    def first_of(self, key: bytes, limit_ms: int) -> DueTimer | None:
        """Return the first timer of a key, if it is due."""
        prefix = self._by_key + _name(key, "")
        found = [
            (_at(at), name[len(prefix) :])
            for name, at in self._store.range(prefix, prefix_end(prefix))
        ]
        at_ms, tag = min(found, default=(FAR_MS, b""))
        return DueTimer(at_ms, "", key, tag.decode()) if at_ms <= limit_ms else None

    def _read(self) -> None:
        """Read the next timers into memory."""
        low, high = self._by_time + self._read_to, self._by_time + _AFTER_ALL
        if self._rest_ms > UNKNOWN_MS:
            # Not from the beginning: there, a scan steps over the tombstones of fired timers.
            low = max(low, self._by_time + _AT.pack(self._rest_ms))
        cut = len(self._by_time)
        found = islice(self._store.range(low, high), READY_MAX // 2 + 1)
        self._ready = [key[cut:] for key, _ in found]
        self._read_to, self._rest_ms = _AFTER_ALL, FAR_MS
        if len(self._ready) > READY_MAX // 2:
            self._read_to = self._ready.pop()
            self._rest_ms = _at(self._read_to)

    def _leave_later_half(self) -> None:
        self._ready = nsmallest(READY_MAX // 2 + 1, self._ready)
        self._read_to = self._ready.pop()
        self._rest_ms = _at(self._read_to)
        heapify(self._ready)


class DueTimers:
    """Everything that is due on one clock, and the number of the last firing."""

    def __init__(
        self, feed: TimeSource, punctuations: Sequence[Punctuation], timers: KeyTimers | None
    ) -> None:
        """`feed` is the time source of the records that firings forward."""
        self.feed = feed
        self.timers = timers
        self.last = UNKNOWN_MS
        """The number of the last firing."""
        self._every_ms = {each.method: each.every_ms for each in punctuations}
        self._nexts: dict[str, int] = {}

    @property
    def next_ms(self) -> int:
        """The time before which nothing is due."""
        next_ms = min(self._nexts.values(), default=FAR_MS)
        return next_ms if self.timers is None else min(next_ms, self.timers.first_ms)

    def start(self, now_ms: int) -> None:
        """Start the punctuations: the clock is known from this moment.

        A punctuation that is due more than one interval from now was set by another clock; it is
        moved closer.
        """
        for method, every_ms in self._every_ms.items():
            # Multiples of the interval since the epoch, whenever the task starts: a restart, or a
            # worker that takes over the task, does not shift them.
            next_ms = (now_ms // every_ms + 1) * every_ms
            self._nexts[method] = min(self._nexts.get(method, next_ms), next_ms)

    def due(self, limit_ms: int, *, each: bool) -> DueTimer | None:
        """Return what fires next, up to this time; at equal times timers come first.

        Args:
            limit_ms: the time that the clock has reached.
            each: whether to fire every punctuation that the clock has passed, or only the last one.
        """
        timer = None if self.timers is None else self.timers.first(limit_ms)
        punctuation = self._punctuation(limit_ms, each=each)
        if timer is not None and (punctuation is None or timer.at_ms <= punctuation.at_ms):
            self._take(timer)
            return timer
        if punctuation is not None:
            at_ms, method = punctuation.at_ms, punctuation.method
            self._nexts[method] = at_ms + self._every_ms[method]
            self.last = max(self.last + 1, at_ms)
        return punctuation

    def may_have_due(self, limit_ms: int) -> bool:
        """Return whether a timer of any key is set for this time or before."""
        timers = self.timers
        return timers is not None and timers.first_ms <= limit_ms and bool(timers.first(limit_ms))

    def due_of(self, key: bytes, limit_ms: int) -> DueTimer | None:
        """Return the next timer of this key that is due at this time."""
        timer = None if self.timers is None else self.timers.first_of(key, limit_ms)
        if timer is not None:
            self._take(timer)
        return timer

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the timers, which are in the store."""
        return {"last": self.last, "nexts": self._nexts}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned; the intervals may have changed since."""
        self.last = int(data["last"])
        for method, every_ms in self._every_ms.items():
            if method in data["nexts"]:
                self._nexts[method] = -(-int(data["nexts"][method]) // every_ms) * every_ms

    def _take(self, timer: DueTimer) -> None:
        if self.timers is not None:
            self.timers.cancel(timer.key, timer.tag)
        self.last = max(self.last + 1, timer.at_ms)

    def _punctuation(self, limit_ms: int, *, each: bool) -> DueTimer | None:
        if not self._nexts:
            return None
        next_ms, method = min((at_ms, method) for method, at_ms in self._nexts.items())
        if next_ms > limit_ms:
            return None
        every_ms = self._every_ms[method]
        last_ms = limit_ms // every_ms * every_ms
        # Every minute; the last call was at 10:00, now it is 10:07:30.
        # 1. Event time (`each`): called for 10:01, 10:02 and so on up to 10:07, as live records
        #    would have made it. `PUNCTUATIONS_MAX` limits a gap of years in the timestamps.
        # 2. Wall clock: the worker slept, or was paused. One call, for 10:07.
        if not each:
            return DueTimer(last_ms, method)
        return DueTimer(max(next_ms, last_ms - PUNCTUATIONS_MAX * every_ms), method)


def _name(key: bytes, tag: str) -> bytes:
    """Return key and tag as bytes that sort by key, then by tag."""
    return key.replace(_ZERO, _ESCAPED_ZERO) + _END + tag.encode()


def _at(time_key: bytes) -> int:
    at_ms: int = _AT.unpack_from(time_key)[0]
    return at_ms
