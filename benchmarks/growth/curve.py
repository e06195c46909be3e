"""Curve: costs by amount, and where they bend. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

BEND: Final = 4 / 3
"""A unit of work that costs so many times what it does at the point before is a bend."""


@dataclass(slots=True)
class Curve:
    """What one unit of work costs, by how much there is of something."""

    name: str
    """As its picture is named."""
    title: str
    amount: str
    """What there is more of, from point to point."""
    unit: str
    runs: dict[int, list[float]] = field(default_factory=dict)
    """What each run has measured, by amount."""
    is_total: bool = False
    """Whether it measures all of it, as memory is, instead of one unit of work."""

    def add(self, amount: int, cost: float) -> None:
        """Note what a run has measured."""
        self.runs.setdefault(amount, []).append(cost)

    def points(self) -> list[tuple[int, float]]:
        """Return the medians by amount."""
        return [(amount, median(costs)) for amount, costs in sorted(self.runs.items())]

    def bends(self) -> Iterator[tuple[int, float]]:
        """Yield where a unit costs much more than at the point before, and how many times.

        Of a total, what counts is how it grows beyond the amount itself.
        """
        for (before, less), (amount, more) in pairwise(self.points()):
            times = more / less / (amount / before if self.is_total else 1)
            if times > BEND:
                yield amount, times
