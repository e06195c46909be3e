"""TimeMarks: the times at which partitions are due for a time mark (decision 008).

Pure. A consumer at the end of a quiet partition requests a mark for the time at which it would
matter: when a window would close, for example. So a topic that no application computes on, or
whose windows are all closed, gets no marks. A request is forgotten once it is due: a consumer that
still waits repeats it with its next Fetch, and an append in between has begun a new quiet time.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

Key = TypeVar("Key", bound="Hashable")
"""A partition."""


class TimeMarks(Generic[Key]):
    """The due times of partitions, by a monotonic clock, in milliseconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._due: dict[Key, int] = {}
        self._number = 0

    def want(self, key: Key, due_ms: int) -> None:
        """Request a mark in a partition at `due_ms`, or earlier if one is due earlier."""
        known_ms = self._due.get(key)
        if known_ms is None or due_ms < known_ms:
            self._due[key] = due_ms
            self._number += 1
            heapq.heappush(self._heap, (due_ms, self._number, key))

    def take(self, now_ms: int) -> list[Key]:
        """Remove and return the partitions that are due."""
        taken: list[Key] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, key = heapq.heappop(self._heap)
            # An entry with another time was replaced by an earlier request.
            if self._due.get(key) == due_ms:
                del self._due[key]
                taken.append(key)
        return taken

    def next_ms(self) -> int | None:
        """Return when to call `take` next, at the latest; None for never."""
        return self._heap[0][0] if self._heap else None
