"""agg: the built-in columns of an aggregation, from count to quantiles.

A column is data: a function by name, and the field that it aggregates (`nodes/stream_nodes`);
`columns` combines the columns of a row. The field is a function of the value, which type checkers
follow, or the name of a field, which is checked when the topology is built and which an engine can
read without calling Python. All columns can be merged, so they work in every kind of window.
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
    """A value that can be compared with others of its type."""

    def __lt__(self, other: UserValue, /) -> object:
        """Return whether this value comes before the other one."""


Number = Callable[[V], SupportsFloat] | str
"""A number of each value: a function, or the name of a field."""
Comparable = Callable[[V], Ordered] | str
"""A part of each value that has an order: a function, or the name of a field."""


class agg:  # noqa: N801 - a namespace: agg.count(), agg.sum(...)
    """The built-in columns. `field` is a function of the value, or the name of a field."""

    @staticmethod
    def count() -> Aggregator[UserValue, int]:
        """Count the records."""
        return Aggregator("count")

    @staticmethod
    def sum(field: Number[V]) -> Aggregator[V, UserValue]:
        """Return the sum; 0 without records."""
        return Aggregator("sum", field)

    @staticmethod
    def min(field: Comparable[V]) -> Aggregator[V, UserValue]:
        """Return the smallest value; None without records."""
        return Aggregator("min", field)

    @staticmethod
    def max(field: Comparable[V]) -> Aggregator[V, UserValue]:
        """Return the largest value; None without records."""
        return Aggregator("max", field)

    @staticmethod
    def mean(field: Number[V]) -> Aggregator[V, float]:
        """Return the arithmetic mean."""
        return Aggregator("mean", field)

    @staticmethod
    def var(field: Number[V], *, sample: bool = False) -> Aggregator[V, float]:
        """Return the variance: the mean squared distance from the mean, in squared units.

        Args:
            field: the numbers.
            sample: whether the records are a sample, so the sum is divided by one less than their
                number (SQL's VAR_SAMP, the default of pandas); the result for one record is 0.
        """
        return Aggregator("var", field, options={"sample": sample})

    @staticmethod
    def first(field: Field[V], *, by: Comparable[V] | None = None) -> Aggregator[V, UserValue]:
        """Return the field of the first record.

        Args:
            field: the field.
            by: the order of the records, smallest first; by default, the order of processing.
        """
        return Aggregator("first", field, by)

    @staticmethod
    def last(field: Field[V], *, by: Comparable[V] | None = None) -> Aggregator[V, UserValue]:
        """Return the field of the last record; arguments are those of `first`."""
        return Aggregator("last", field, by)

    @staticmethod
    def collect(field: Field[V], *, limit: int | None = None) -> Aggregator[V, list[UserValue]]:
        """Return a list, in the order in which the records were processed.

        Args:
            field: the items of the list.
            limit: the largest length; later records are ignored. Without it, the state of a key
                grows with every record, and each commit writes all of it.

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
        """Return a list of the `n` largest, the largest first; among equals, the earlier first.

        Args:
            n: the length of the list, 1 or more.
            field: the items of the list.
            by: the order of the records; by default, that of the items.

        Raises:
            TopologyError: `n` is less than 1.
        """
        return Aggregator("top", field, by, {"n": _at_least_one("n", n)})

    @staticmethod
    def distinct(field: Field[V], *, precision: int = PRECISION) -> Aggregator[V, int]:
        """Estimate the number of distinct values, by HyperLogLog; needs the extra `sketches`.

        The result is exact up to a few hundred; beyond, the standard error is
        1.04 / sqrt(2 ** precision), 1.6 % by default.

        Args:
            field: str, bytes, a number, a datetime, or a list, tuple or dict of these.
            precision: 4 to 21; the state of a key and window takes up to 2 ** precision bytes.

        Raises:
            TopologyError: `precision` is out of range.
        """
        if not PRECISION_MIN <= precision <= PRECISION_MAX:
            raise TopologyError(
                f"the precision of agg.distinct must be from {PRECISION_MIN} to {PRECISION_MAX}, "
                f"not {precision}"
            )
        return Aggregator("distinct", field, options={"precision": precision})

    @staticmethod
    def quantile(field: Number[V], q: float, *, accuracy: float = ACCURACY) -> Aggregator[V, float]:
        """Estimate a quantile by DDSketch; needs the extra `sketches`.

        The result differs from the number at that rank by at most `accuracy` of it.

        Args:
            field: the numbers.
            q: the rank from 0 (the smallest) to 1 (the largest); 0.5 is the median.
            accuracy: the largest relative error; 0.01 is one per cent. A smaller one takes more
                bins, and so more memory.

        Raises:
            TopologyError: `q` or `accuracy` is out of range.
        """
        if not 0 <= q <= 1:
            raise TopologyError(f"q of agg.quantile must be from 0 to 1, such as 0.99, not {q}")
        if not 0 < accuracy < 1:
            raise TopologyError(
                f"the accuracy of agg.quantile must be between 0 and 1, not {accuracy}"
            )
        return Aggregator("quantile", field, options={"accuracy": accuracy, "q": q})


def _at_least_one(what: str, count: int) -> int:
    if count < 1:
        raise TopologyError(f"{what} must be 1 or more, not {count}")
    return count
