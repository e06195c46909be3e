"""agg: the built-in columns of an aggregation, from count to quantiles.

Each says as data what it does, and of what (`nodes/stream_nodes`); `columns` puts those of one
row together. What a column is over is a function of the value, which a type checker follows, or
the name of a field, which is checked when the topology is built and which engines can read
without calling anybody. All of them merge, so they work in every kind of window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, SupportsFloat, TypeVar

from streamlog.errors import TopologyError
from streamlog.nodes.stream_nodes import Aggregator, Field
from streamlog.serdes.erased_types import UserValue
from streamlog.tables.folds.column_folds import ACCURACY, PRECISION, PRECISION_MAX, PRECISION_MIN

V = TypeVar("V")
"""A value that is aggregated."""


class Ordered(Protocol):
    """What can be compared with its like."""

    def __lt__(self, other: UserValue, /) -> object:
        """Whether it comes before the other one."""


Number = Callable[[V], SupportsFloat] | str
"""A number in each value: a function, or the name of a field."""
Comparable = Callable[[V], Ordered] | str
"""Something in each value that has an order."""


class agg:  # noqa: N801 - a namespace: agg.count(), agg.sum(...)
    """The built-in columns. `field` is a function of the value, or the name of a field."""

    @staticmethod
    def count() -> Aggregator[UserValue, int]:
        """How many records."""
        return Aggregator("count")

    @staticmethod
    def sum(field: Number[V]) -> Aggregator[V, UserValue]:
        """The sum; 0 of no records."""
        return Aggregator("sum", field)

    @staticmethod
    def min(field: Comparable[V]) -> Aggregator[V, UserValue]:
        """The smallest."""
        return Aggregator("min", field)

    @staticmethod
    def max(field: Comparable[V]) -> Aggregator[V, UserValue]:
        """The largest."""
        return Aggregator("max", field)

    @staticmethod
    def mean(field: Number[V]) -> Aggregator[V, float]:
        """The arithmetic mean."""
        return Aggregator("mean", field)

    @staticmethod
    def var(field: Number[V], *, sample: bool = False) -> Aggregator[V, float]:
        """The variance: the mean squared distance from the mean, in squared units.

        Args:
            field: the numbers.
            sample: they are a sample of what it is about, so divide by one less than there are
                (SQL's VAR_SAMP, pandas' default); 0 of a single one.
        """
        return Aggregator("var", field, options={"sample": sample})

    @staticmethod
    def first(field: Field[V], *, by: Comparable[V] | None = None) -> Aggregator[V, UserValue]:
        """The first one.

        Args:
            field: what of it.
            by: the least of this comes first; without it, the record that was processed first.
        """
        return Aggregator("first", field, by)

    @staticmethod
    def last(field: Field[V], *, by: Comparable[V] | None = None) -> Aggregator[V, UserValue]:
        """The last one; see `first`."""
        return Aggregator("last", field, by)

    @staticmethod
    def collect(field: Field[V], *, limit: int | None = None) -> Aggregator[V, list[UserValue]]:
        """A list, in the order in which the records were processed.

        Args:
            field: what is in it.
            limit: keep only the first so many; without it, the state of a key grows with every
                record, and is written down whole at every commit.

        Raises:
            TopologyError: `limit` is less than 1.
        """
        if limit is None:
            return Aggregator("collect", field)
        return Aggregator("collect", field, options={"limit": _at_least_one("limit", limit)})

    @staticmethod
    def top(
        n: int, field: Field[V], *, by: Comparable[V] | None = None
    ) -> Aggregator[V, list[UserValue]]:
        """A list of the `n` largest, the largest first; of equal ones, the earlier first.

        Args:
            n: how many.
            field: what is in the list.
            by: what they are compared by; without it, by themselves.

        Raises:
            TopologyError: `n` is less than 1.
        """
        return Aggregator("top", field, by, {"n": _at_least_one("n", n)})

    @staticmethod
    def distinct(field: Field[V], *, precision: int = PRECISION) -> Aggregator[V, int]:
        """About how many different values there are, by HyperLogLog; the extra `sketches`.

        Exact for a few hundred; beyond, the standard error is 1.04 / sqrt(2 ** precision), 1.6 %
        by default.

        Args:
            field: str, bytes, a number, a datetime, or what is made of them.
            precision: 4 to 21; a key and window takes 2 ** precision bytes at most.

        Raises:
            TopologyError: `precision` is out of range.
        """
        if not PRECISION_MIN <= precision <= PRECISION_MAX:
            raise TopologyError(
                f"the precision of agg.distinct is from {PRECISION_MIN} to {PRECISION_MAX}, "
                f"not {precision}"
            )
        return Aggregator("distinct", field, options={"precision": precision})

    @staticmethod
    def quantile(field: Number[V], q: float, *, accuracy: float = ACCURACY) -> Aggregator[V, float]:
        """About the number below which a share `q` of the numbers lies; the extra `sketches`.

        By DDSketch: the number at that rank, give or take `accuracy` of itself.

        Args:
            field: the numbers.
            q: from 0 (the smallest) to 1 (the largest); 0.5 is the median.
            accuracy: 0.01 is one per cent; less takes more bins, and so more memory.

        Raises:
            TopologyError: `q` or `accuracy` is out of range.
        """
        if not 0 <= q <= 1:
            raise TopologyError(f"q of agg.quantile is from 0 to 1, not {q}: 0.99, not 99")
        if not 0 < accuracy < 1:
            raise TopologyError(f"the accuracy of agg.quantile is between 0 and 1, not {accuracy}")
        return Aggregator("quantile", field, options={"accuracy": accuracy, "q": q})


def _at_least_one(what: str, count: int) -> int:
    if count < 1:
        raise TopologyError(f"{what} is how many to keep: at least 1, not {count}")
    return count
