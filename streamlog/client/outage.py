"""Outage: what a client has logged as failing, until it works again.

One log line at the first failure and one at the end, with the time in between, whatever the number
of partitions and attempts. A partition that is given up meanwhile does not end the outage.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
"""The type of what fails: a partition, or the name of a coordinator."""


class Outage(Generic[T]):
    """Collects what fails, and says when to log the start and the end of an outage."""

    __slots__ = ("_failing", "_since_ms")

    def __init__(self) -> None:
        self._failing: set[T] = set()
        self._since_ms = 0

    @property
    def is_on(self) -> bool:
        """Whether anything fails."""
        return bool(self._failing)

    def __len__(self) -> int:
        """Return how many things fail."""
        return len(self._failing)

    def begin(self, failing: Iterable[T], now_ms: int) -> bool:
        """Note failures; return whether to log the start of an outage."""
        is_first = not self._failing
        if is_first:
            self._since_ms = now_ms
        self._failing.update(failing)
        return is_first and self.is_on

    def keep(self, wanted: Collection[T]) -> None:
        """Forget failures of anything that is not in `wanted`."""
        self._failing.intersection_update(wanted)

    def end(self, working: Iterable[T], now_ms: int) -> float | None:
        """Note what works; return the seconds of the outage to log, None unless it has ended."""
        if not self._failing:
            return None
        self._failing.difference_update(working)
        return None if self._failing else (now_ms - self._since_ms) / 1000
