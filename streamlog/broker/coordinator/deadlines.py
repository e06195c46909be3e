"""Deadlines: which of many groups is due next.

Pure. A heap, so that a tick costs nothing for the groups that sleep. A group that is heard of has a
later deadline, which is not noted before the earlier one has come: most groups are heard of far
more often than they are due.
"""

from __future__ import annotations

import heapq


class Deadlines:
    """The earliest deadline of each name."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._noted: dict[str, int] = {}

    def note(self, name: str, deadline_ms: int | None) -> None:
        """It is due then, if not before; None: there is nothing to wait for."""
        known_ms = self._noted.get(name)
        if deadline_ms is not None and (known_ms is None or deadline_ms < known_ms):
            self._noted[name] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, name))

    def take(self, now_ms: int) -> str | None:
        """One that is due, the earliest first, which is not due any more then; None: none is."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = heapq.heappop(self._heap)
            if self._noted.get(name) == deadline_ms:
                del self._noted[name]
                return name
        return None

    def next_ms(self) -> int | None:
        """When to look again at the latest; None for never."""
        return self._heap[0][0] if self._heap else None
