"""Purgatory: requests that wait for a number of appended bytes, or for their deadline.

Pure. The shell parks a ticket with the bytes that it still lacks over all its partitions, reports
appends and the time, and gets back the tickets whose wait ends. It then reads again: the end of a
wait is a hint, not an answer.

Rules of this module: each append to one of a ticket's partitions reduces the bytes that it lacks.
The count is exact as long as the shell reads and parks without an append in between, as on the
broker's single thread.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

Key = TypeVar("Key", bound="Hashable")
"""The key of a wait: a partition."""

STALE_DEADLINES_MAX = 1_000
"""The number of obsolete deadlines in the heap, beyond one per parked ticket, that forces a
rebuild of the heap."""


@dataclass(slots=True)
class _Wait(Generic[Key]):
    keys: tuple[Key, ...]
    missing_bytes: int
    deadline_ms: int


class Purgatory(Generic[Key]):
    """Parked tickets, by key and by deadline."""

    def __init__(self) -> None:
        self._waits: dict[int, _Wait[Key]] = {}
        self._by_key: dict[Key, dict[int, None]] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._waits)

    def park(
        self, ticket: int, keys: Iterable[Key], *, missing_bytes: int, deadline_ms: int
    ) -> None:
        """Hold `ticket` until `missing_bytes` have been appended to `keys`, or until the deadline.

        Without keys, only the deadline ends the wait.
        """
        wait = _Wait(tuple(keys), missing_bytes, deadline_ms)
        self._waits[ticket] = wait
        for key in wait.keys:
            self._by_key.setdefault(key, {})[ticket] = None
        heapq.heappush(self._deadlines, (deadline_ms, ticket))
        if len(self._deadlines) > 2 * len(self._waits) + STALE_DEADLINES_MAX:
            # Most waits end before their deadline and leave it in the heap: remove these.
            self._deadlines = [(w.deadline_ms, t) for t, w in self._waits.items()]
            heapq.heapify(self._deadlines)

    def on_append(self, key: Key, size_bytes: int) -> list[int]:
        """Note an append; return the tickets that now have enough bytes, oldest first."""
        watching = self._by_key.get(key)
        if not watching:
            return []
        ready = []
        for ticket in watching:
            wait = self._waits[ticket]
            wait.missing_bytes -= size_bytes
            if wait.missing_bytes <= 0:
                ready.append(ticket)
        for ticket in ready:
            self.cancel(ticket)
        return ready

    def on_gone(self, key: Key) -> list[int]:
        """End the waits for a key that is gone; return their tickets, oldest first."""
        ready = list(self._by_key.get(key, ()))
        for ticket in ready:
            self.cancel(ticket)
        return ready

    def on_tick(self, now_ms: int) -> list[int]:
        """Return the tickets whose deadline has passed, earliest deadline first."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, ticket = heapq.heappop(self._deadlines)
            if ticket in self._waits:
                self.cancel(ticket)
                due.append(ticket)
        return due

    def cancel(self, ticket: int) -> None:
        """End a wait without a result; an unknown ticket is ignored."""
        wait = self._waits.pop(ticket, None)
        if wait is None:
            return
        for key in wait.keys:
            watching = self._by_key[key]
            del watching[ticket]
            if not watching:
                del self._by_key[key]

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of a parked ticket; None if none is parked."""
        while self._deadlines and self._deadlines[0][1] not in self._waits:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None
