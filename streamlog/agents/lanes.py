"""Lanes: who may go now, if those of one lane have to go one after the other.

An item is put into the lane of its key or of its partition. Of each lane one is out at a time;
the next one may go when it is `done`. Rule of the file: pure, first come first served within a
lane, and between lanes as far as they are free. Without a lane an item may go at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
"""What goes."""


class Lanes(Generic[T]):
    """Items that wait for their turn."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Hashable | None, T]] = deque()
        self._behind: dict[Hashable, deque[T]] = {}
        """Per lane that has an item ready or out: those that wait for it."""
        self._waiting = 0

    @property
    def ready(self) -> int:
        """How many may go now."""
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """How many have not gone yet, ready or not."""
        return self._waiting

    def put(self, lane: Hashable | None, item: T) -> None:
        """One more item."""
        self._waiting += 1
        if lane is not None:
            behind = self._behind.get(lane)
            if behind is not None:
                behind.append(item)
                return
            self._behind[lane] = deque()
        self._ready.append((lane, item))

    def take(self) -> tuple[Hashable | None, T]:
        """One that is ready; its lane waits for `done`."""
        self._waiting -= 1
        return self._ready.popleft()

    def follow(self, lane: Hashable) -> T | None:
        """The next item of a lane that is out, for the same one who has that."""
        behind = self._behind.get(lane)
        if not behind:
            return None
        self._waiting -= 1
        return behind.popleft()

    def done(self, lane: Hashable | None) -> None:
        """The item of this lane that was out is done."""
        if lane is None:
            return
        behind = self._behind[lane]
        if behind:
            self._ready.append((lane, behind.popleft()))
        else:
            del self._behind[lane]

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Forget all that wait and are not wanted any more."""
        for lane, behind in self._behind.items():
            self._behind[lane] = deque(item for item in behind if wanted(item))
        ready, self._ready = self._ready, deque()
        for lane, item in ready:
            if wanted(item):
                self._ready.append((lane, item))
            else:
                self.done(lane)
        self._waiting = len(self._ready) + sum(map(len, self._behind.values()))
