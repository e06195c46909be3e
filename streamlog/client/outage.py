"""Outage: what a client has logged that it can't do, until it can again.

Pure: a log line at the first failure and one at the end, with the time between, however many
partitions and attempts there are. What is given up meanwhile ends nothing by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
"""What fails: a partition, or the name of a coordinator."""


class Outage(Generic[T]):
    """Whether something that was logged as failing works again."""

    __slots__ = ("_failing", "_since_ms")

    def __init__(self) -> None:
        self._failing: set[T] = set()
        self._since_ms = 0

    @property
    def is_on(self) -> bool:
        """Whether anything fails."""
        return bool(self._failing)

    def begin(self, failing: Iterable[T], now_ms: int) -> bool:
        """These fail; whether nothing did before, so that it has to be logged."""
        is_first = not self._failing
        if is_first:
            self._since_ms = now_ms
        self._failing.update(failing)
        return is_first and self.is_on

    def keep(self, wanted: Collection[T]) -> None:
        """Nothing else is asked for any more."""
        self._failing.intersection_update(wanted)

    def end(self, working: Iterable[T], now_ms: int) -> float | None:
        """These work; the seconds of the outage if nothing fails any more, to be logged."""
        if not self._failing:
            return None
        self._failing.difference_update(working)
        return None if self._failing else (now_ms - self._since_ms) / 1000
