"""WaitingRequests: requests parked until enough bytes have come, or a deadline has.

Pure (Kafka calls it purgatory): the shell parks a ticket with what it lacks, reports appends and
time, and gets back the tickets to go on with. It then reads again; being woken is a hint, not
an answer. Woken by each append, never polling.

A wait counts down: it is parked with the bytes it still lacks over all its partitions, and each
append to one of them is taken off. That is exact as long as parking and appends are on one
thread with nothing in between, which is the broker's loop.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

Key = TypeVar("Key", bound="Hashable")
"""What is waited for: a partition."""

STALE_DEADLINES_MAX = 1_000
"""Deadlines of finished waits that are kept, beyond one for each that is parked."""


@dataclass(slots=True)
class _Wait(Generic[Key]):
    keys: tuple[Key, ...]
    missing_bytes: int
    deadline_ms: int


class Purgatory(Generic[Key]):
    """Parked tickets, found by what they wait for and by their deadline."""

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

        With no keys only the deadline ends it.
        """
        wait = _Wait(tuple(keys), missing_bytes, deadline_ms)
        self._waits[ticket] = wait
        for key in wait.keys:
            self._by_key.setdefault(key, {})[ticket] = None
        heapq.heappush(self._deadlines, (deadline_ms, ticket))
        if len(self._deadlines) > 2 * len(self._waits) + STALE_DEADLINES_MAX:
            # Most waits end before their deadline: forget what is left of those.
            self._deadlines = [(w.deadline_ms, t) for t, w in self._waits.items()]
            heapq.heapify(self._deadlines)

    def on_append(self, key: Key, size_bytes: int) -> list[int]:
        """Bytes have come: the tickets, oldest first, that have what they wait for."""
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
        """What was waited for is no more: all its tickets, oldest first."""
        ready = list(self._by_key.get(key, ()))
        for ticket in ready:
            self.cancel(ticket)
        return ready

    def on_tick(self, now_ms: int) -> list[int]:
        """Time has passed: the tickets whose deadline has come, earliest first."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, ticket = heapq.heappop(self._deadlines)
            if ticket in self._waits:
                self.cancel(ticket)
                due.append(ticket)
        return due

    def cancel(self, ticket: int) -> None:
        """Nobody waits any more; unknown tickets are fine."""
        wait = self._waits.pop(ticket, None)
        if wait is None:
            return
        for key in wait.keys:
            watching = self._by_key[key]
            del watching[ticket]
            if not watching:
                del self._by_key[key]

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do at the earliest; None for never."""
        while self._deadlines and self._deadlines[0][1] not in self._waits:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None
