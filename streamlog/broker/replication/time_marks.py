"""TimeMarks: when the passing of time is to be marked, of all partitions that somebody waits at.

Pure. A reader at the end of a quiet partition says for how long it has to have been quiet to
matter to it: until a window would close, say. So a mark is appended when it makes a difference,
and a topic that nobody computes on, or whose windows are all closed, gets none at all. What was
asked for is forgotten once it is due: whoever still waits asks again with the next Fetch, and
what was appended meanwhile has begun another quiet. See docs/decisions/008.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

Key = TypeVar("Key", bound="Hashable")
"""A partition."""


class TimeMarks(Generic[Key]):
    """Who is due for a mark when. Times are monotonic."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._due: dict[Key, int] = {}
        self._number = 0

    def want(self, key: Key, due_ms: int) -> None:
        """Somebody wants a mark there at that time, unless something comes before."""
        known_ms = self._due.get(key)
        if known_ms is None or due_ms < known_ms:
            self._due[key] = due_ms
            self._number += 1
            heapq.heappush(self._heap, (due_ms, self._number, key))

    def take(self, now_ms: int) -> list[Key]:
        """Those that are due, which they are not any more then."""
        taken: list[Key] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due_ms:
                del self._due[key]
                taken.append(key)
        return taken

    def next_ms(self) -> int | None:
        """When to look again at the latest; None for never."""
        return self._heap[0][0] if self._heap else None
