"""Heavy hitters: the most frequent items of a stream in bounded memory.

The space-saving algorithm (Metwally, Agrawal, El Abbadi, 2005): a new item takes the place of the
one with the smallest count, and continues from that count. With `capacity` counters, every item
that is more frequent than 1 / `capacity` of all is among them, and no count is too small; it is too
large by at most `error`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

import msgspec

Item = TypeVar("Item", bound=Hashable)


class Hitter(msgspec.Struct, Generic[Item], frozen=True):
    """A frequent item."""

    item: Item
    count: int
    """At least as large as the true number."""
    error: int
    """The most by which `count` is too large."""


class HeavyHitters(Generic[Item]):
    """Counts the most frequent items."""

    def __init__(self, capacity: int) -> None:
        """`capacity` is the number of counters.

        Raises:
            ValueError: it is less than 1.
        """
        if capacity < 1:
            raise ValueError(f"the capacity is {capacity}: it has to be 1 or more")
        self._capacity = capacity
        self._counts: dict[Item, list[int]] = {}
        """Item to its count and the error of it."""
        self._least: list[tuple[int, int, Item]] = []
        """A heap by count. The counts of some entries are outdated, and too small."""
        self._entries = 0
        self.total = 0
        """The number of all items so far."""

    def add(self, items: Iterable[Item]) -> None:
        """Count items."""
        for item, count in Counter(items).items():
            self.total += count
            known = self._counts.get(item)
            if known is not None:
                known[0] += count
            elif len(self._counts) < self._capacity:
                self._begin(item, count, 0)
            else:
                replaced = self._take_least()
                self._begin(item, replaced + count, replaced)

    def top(self, count: int) -> list[Hitter[Item]]:
        """Return up to `count` items, the most frequent first."""
        found = sorted(self._counts.items(), key=lambda pair: -pair[1][0])[:count]
        return [Hitter(item, seen, error) for item, (seen, error) in found]

    def _begin(self, item: Item, count: int, error: int) -> None:
        self._counts[item] = [count, error]
        self._push(item, count)

    def _push(self, item: Item, count: int) -> None:
        # The number makes items that can't be compared with each other fit for the heap.
        self._entries += 1
        heappush(self._least, (count, self._entries, item))

    def _take_least(self) -> int:
        """Remove the item with the smallest count; returns the count."""
        while True:
            count, _, item = heappop(self._least)
            now = self._counts[item][0]
            # Each item has one entry, and counts only grow, so no entry is above its item's count.
            # If the smallest entry is up to date, no other item can have less.
            if now == count:
                del self._counts[item]
                return count
            # It has grown since: back, with its present count.
            self._push(item, now)
