"""RollBudget: how many logs begin a new segment in one go because it is time to.

One produce request can reach a thousand partitions, and with `segment.ms` they are due together.
Each roll takes some tenths of a millisecond of the broker's loop: so only some of them happen
while the request is served, and the others soon afterwards, in portions between requests. What is
sealed late has a few records more. Rule of the file: a log that is full rolls at once, always.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

ROLLS_AT_ONCE = 4

Log = TypeVar("Log")


class RollBudget(Generic[Log]):
    """What the logs of one directory share; times are monotonic."""

    def __init__(self) -> None:
        self._now_ms = -1
        self._left = 0
        self._postponed: deque[Log] = deque()
        self._waiting: set[int] = set()

    def take(self, log: Log, now_ms: int) -> bool:
        """Whether the log may roll now; if not, it is one of those that are `due`."""
        if now_ms != self._now_ms:
            self._now_ms, self._left = now_ms, ROLLS_AT_ONCE
        if self._left > 0:
            self._left -= 1
            return True
        if id(log) not in self._waiting:
            self._waiting.add(id(log))
            self._postponed.append(log)
        return False

    @property
    def is_due(self) -> bool:
        """Whether there are logs that were to wait."""
        return bool(self._postponed)

    def due(self) -> list[Log]:
        """The next portion of those."""
        logs = [self._postponed.popleft() for _ in range(min(ROLLS_AT_ONCE, len(self._postponed)))]
        self._waiting.difference_update(map(id, logs))
        return logs
