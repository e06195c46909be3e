"""Columns whose state is more than a number: var, first, last, collect and the largest few.

Each is a `Fold` with plain data for a state: what a column is over has been taken of the value
before (`folding.Column`). Rule of the file: a result has nothing in it that changes with the
state, and what is merged is what one fold over both would have given, in the order of the two
states. The variance is Welford's, merged by Chan's formula: stable, whatever the mean is.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from streamlog.tables.decimals import exact_sum, quotient

Moments = tuple[int, float, float]
"""How many values, their mean, and the sum of the squares of their distances from it."""


def refuse_unordered(rank: Any) -> None:  # noqa: ANN401 - the user's
    """Refuse NaN, which is neither before nor behind any other number.

    Raises:
        ValueError: it is NaN.
    """
    if rank != rank:  # noqa: PLR0124 - only NaN differs from itself
        raise ValueError(f"{rank} has no place in an order: leave such records out before")


class Variance:
    """The variance of numbers, of all of them or of a sample."""

    __slots__ = ("_missing",)

    def __init__(self, *, of_sample: bool) -> None:
        self._missing = 1 if of_sample else 0

    def initial(self) -> Moments:
        """Of no values."""
        return 0, 0.0, 0.0

    def add(self, state: Moments, found: float | Decimal) -> Moments:
        """With one more number."""
        count, mean, squares = state
        number = float(found) if isinstance(found, Decimal) else found
        count += 1
        away = number - mean
        mean += away / count
        return count, mean, squares + away * (number - mean)

    def merge(self, state: Moments, later: Moments) -> Moments:
        """Of the numbers of both."""
        if not state[0] or not later[0]:
            return state if later[0] == 0 else later
        count = state[0] + later[0]
        away = later[1] - state[1]
        mean = state[1] + away * later[0] / count
        return count, mean, state[2] + later[2] + away * away * state[0] * later[0] / count

    def result(self, state: Moments) -> float:
        """Squared units; 0 of fewer values than it takes to vary."""
        freedom = state[0] - self._missing
        return state[2] / freedom if freedom > 0 else 0.0


class DecimalMean:
    """The mean of decimals as a Decimal: the sum is exact, the quotient has 28 digits."""

    __slots__ = ()

    def initial(self) -> tuple[Decimal, int]:
        """Of no values."""
        return Decimal(0), 0

    def add(self, state: tuple[Decimal, int], found: Decimal | int) -> tuple[Decimal, int]:
        """With one more number.

        Raises:
            TypeError: it is a float.
            ValueError: the sum has too many digits.
        """
        return exact_sum(state[0], found), state[1] + 1

    def merge(self, state: tuple[Decimal, int], later: tuple[Decimal, int]) -> tuple[Decimal, int]:
        """Of the numbers of both."""
        return exact_sum(state[0], later[0]), state[1] + later[1]

    def result(self, state: tuple[Decimal, int]) -> Decimal:
        """The mean; 0 of no values."""
        return quotient(state[0], state[1] or 1)


class First:
    """What came first: in the order of the records, or by what each is ordered by."""

    __slots__ = ("_ordered",)

    def __init__(self, *, ordered: bool) -> None:
        """`ordered`: values are pairs of what they are ordered by and what they are."""
        self._ordered = ordered

    def initial(self) -> None:
        """Of no values."""

    def add(self, state: tuple[Any, ...] | None, found: Any) -> tuple[Any, ...]:  # noqa: ANN401 - the user's
        """With one more value."""
        if not self._ordered:
            return self._one(state, (found,))
        refuse_unordered(found[0])
        return self._one(state, found)

    def merge(
        self, state: tuple[Any, ...] | None, later: tuple[Any, ...] | None
    ) -> tuple[Any, ...] | None:
        """Of both."""
        return state if later is None else self._one(state, later)

    def result(self, state: tuple[Any, ...] | None) -> Any:  # noqa: ANN401 - the user's
        """The value; None of none."""
        return None if state is None else state[-1]

    def _one(self, state: tuple[Any, ...] | None, found: tuple[Any, ...]) -> tuple[Any, ...]:
        if state is None or (self._ordered and found[0] < state[0]):
            return found
        return state


class Last(First):
    """What came last; of two that are equal by their order, the one that came later."""

    __slots__ = ()

    def _one(self, state: tuple[Any, ...] | None, found: tuple[Any, ...]) -> tuple[Any, ...]:
        if state is not None and self._ordered and found[0] < state[0]:
            return state
        return found


class Collected:
    """All values, in the order of the records; up to a limit the first ones."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int | None) -> None:
        self._limit = limit

    def initial(self) -> list[Any]:
        """Of no values."""
        return []

    def add(self, state: list[Any], found: Any) -> list[Any]:  # noqa: ANN401 - the user's
        """With one more value."""
        if self._limit is None or len(state) < self._limit:
            state.append(found)
        return state

    def merge(self, state: list[Any], later: list[Any]) -> list[Any]:
        """Of both."""
        state.extend(later if self._limit is None else later[: self._limit - len(state)])
        return state

    def result(self, state: list[Any]) -> list[Any]:
        """A list of its own."""
        return list(state)


class Top:
    """The largest few, the largest first; of two that are equal, the earlier one first."""

    __slots__ = ("_count", "_ordered")

    def __init__(self, count: int, *, ordered: bool) -> None:
        """`ordered`: values are pairs of what they are ordered by and what they are."""
        self._count = count
        self._ordered = ordered

    def initial(self) -> list[Any]:
        """Of no values."""
        return []

    def add(self, state: list[Any], found: Any) -> list[Any]:  # noqa: ANN401 - the user's
        """With one more value."""
        at = len(state)
        refuse_unordered(found[0] if self._ordered else found)
        if self._ordered:
            while at and state[at - 1][0] < found[0]:
                at -= 1
        else:
            while at and state[at - 1] < found:
                at -= 1
        if at < self._count:
            state.insert(at, found)
            del state[self._count :]
        return state

    def merge(self, state: list[Any], later: list[Any]) -> list[Any]:
        """Of both."""
        for found in later:
            self.add(state, found)
        return state

    def result(self, state: list[Any]) -> list[Any]:
        """A list of its own."""
        return [item for _, item in state] if self._ordered else list(state)
