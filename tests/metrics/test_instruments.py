"""Instruments against plain lists of what was recorded."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from streamlog.metrics.instruments import DURATION_BOUNDS_S, Counter, Gauge, Histogram

VALUES = st.lists(st.floats(0, 100, allow_nan=False), max_size=60)


@given(VALUES)
def test_a_histogram_counts_the_values_up_to_each_bound(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    for number, bound in enumerate(DURATION_BOUNDS_S):
        assert sum(histogram.counts[: number + 1]) == sum(value <= bound for value in values)
    assert histogram.count == len(values)
    assert math.isclose(histogram.sum, sum(values), abs_tol=1e-9)


@given(VALUES, st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_value_at_its_rank(
    values: list[float], share: float
) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    found = histogram.quantile(share)
    if not values:
        assert math.isnan(found)
        return
    exact = sorted(values)[max(math.ceil(share * len(values)), 1) - 1]
    bounds = (0.0, *DURATION_BOUNDS_S, math.inf)
    low = max(bound for bound in bounds if bound < exact or bound == 0)
    high = min(bound for bound in bounds[1:] if bound >= exact)
    assert low <= found <= min(high, DURATION_BOUNDS_S[-1]) + 1e-9


def test_record_many_counts_like_record() -> None:
    one_by_one, together = Histogram(), Histogram()
    for _ in range(5):
        one_by_one.record(0.25)
    together.record_many(0.25, 5)
    assert (one_by_one.counts, one_by_one.sum) == (together.counts, together.sum)


def test_counters_grow_and_gauges_follow() -> None:
    counter, gauge = Counter(), Gauge()
    counter.add()
    counter.add(3)
    gauge.set(7)
    gauge.add(-2)
    assert (counter.value, gauge.value) == (4, 5)
