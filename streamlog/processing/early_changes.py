"""EarlyChanges: what goes on early of windows that records make, at the ends of intervals.

Which windows have changed in an interval is noted by key; at its end the newest result of each goes
on. A session that has gone on and was replaced since is deleted then; one that nobody has seen goes
without a word. These rows are a source of their own, numbered by the record that changed them last.
Rule of the file: who waits, and who was seen, is state: a mark per row under (end, start, key), so
that a restart in the middle of an interval changes nothing of what comes out. Not done here: final
rows, which end what is noted of their window.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from streamlog.processing.columns import Feed
from streamlog.processing.open_rows import Change
from streamlog.tables.store import NamedStore
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, Cadence, Emit

_MARK = struct.Struct(">Bq")
_WAITS, _GONE, _SEEN = 1, 2, 4


class Waiting(NamedTuple):
    """A row that is to go on."""

    number: int
    """Of the record that has changed it last."""
    is_gone: bool
    """It has been replaced."""


class EarlyChanges:
    """The rows that wait for the end of an interval."""

    def __init__(self, emit: Emit, feed: Feed, store: NamedStore) -> None:
        self.feed = feed
        """What its rows carry."""
        self._is_event = emit.clock == "event"
        self._cadence = Cadence(emit)
        self._store = store
        self._waiting: dict[bytes, Waiting] = {}
        self._fresh: set[bytes] = set()
        """Those whose marks are not written yet."""
        self._number = 0

    @property
    def next_event_ms(self) -> int:
        """Nothing is due before stream time has come to this."""
        return self._cadence.next_ms if self._is_event else FAR_MS

    @property
    def due_ms(self) -> int:
        """When rows that wait go on, in stream time; FAR_MS: by that never."""
        next_ms = self.next_event_ms
        return next_ms if self._waiting and next_ms > UNKNOWN_MS else FAR_MS

    @property
    def next_wall_ms(self) -> int:
        """Nothing is due before the clock on the wall shows this."""
        return self._cadence.next_ms if self._waiting and not self._is_event else FAR_MS

    def is_due(self, stream_ms: int, wall_ms: int | None) -> bool:
        """Whether an interval is over; without a time on the wall, one of stream time."""
        if self._is_event:
            return self._cadence.is_due(stream_ms)
        return wall_ms is not None and self._cadence.is_due(wall_ms)

    def note(self, changes: Iterable[Change]) -> None:
        """A record has done this."""
        self._number += 1
        for window, is_gone, _ in changes:
            if is_gone and not self._seen(window.key):
                self.forget(window.key)
            else:
                self._waiting[window.key] = Waiting(self._number, is_gone)
                self._fresh.add(window.key)

    def forget(self, key: bytes) -> None:
        """The row has had its last word, or never was."""
        self._waiting.pop(key, None)
        self._fresh.discard(key)
        if self._store.get(key) is not None:
            self._store.delete(key)

    def take(self) -> list[tuple[bytes, Waiting]]:
        """The rows that wait, in the order in which they were changed; nothing waits then."""
        found = sorted(self._waiting.items(), key=lambda each: (each[1].number, each[0]))
        for key, waiting in found:
            if waiting.is_gone:
                self._store.delete(key)
            else:
                self._store.put(key, _MARK.pack(_SEEN, 0))
        self._waiting.clear()
        self._fresh.clear()
        return found

    def flush(self) -> None:
        """Write the marks of rows that wait."""
        for key in sorted(self._fresh):
            number, is_gone = self._waiting[key]
            seen = _SEEN if self._seen(key) else 0
            self._store.put(key, _MARK.pack(_WAITS | (_GONE if is_gone else 0) | seen, number))
        self._fresh.clear()

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the marks."""
        return {"next_ms": self._cadence.next_ms, "number": self._number}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave; the clock on the wall counts anew."""
        if self._is_event:
            self._cadence.next_ms = int(data["next_ms"])
        self._number = int(data["number"])
        for key, mark in self._store.range():
            flags, number = _MARK.unpack(mark)
            if flags & _WAITS:
                self._waiting[key] = Waiting(number, bool(flags & _GONE))

    def _seen(self, key: bytes) -> bool:
        mark = self._store.get(key)
        return mark is not None and bool(mark[0] & _SEEN)
