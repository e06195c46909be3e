from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.tables.folds.column_folds import Collected, First, Last, Top, Variance
from streamlog.tables.folds.folding import Fold

pairs = st.tuples(st.integers(0, 5), st.integers(0, 99))


def folded(fold: Fold, values: list[Any]) -> Any:
    state = fold.initial()
    for value in values:
        state = fold.add(state, value)
    return state


def both_ways(fold: Fold, values: list[Any], cut: int) -> Any:
    """The result of all values; the same if they were two states that have been merged."""
    result = fold.result(folded(fold, values))
    parts = folded(fold, values[:cut]), folded(fold, values[cut:])
    merged = fold.result(fold.merge(*parts))
    # Numbers are rounded on the way.
    assert merged == (pytest.approx(result, abs=1e-3) if isinstance(result, float) else result)
    assert fold.result(fold.merge(fold.initial(), folded(fold, values))) == result
    return result


@given(st.lists(st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6), min_size=1), st.integers(0, 9))
def test_variances_are_what_python_says(values: list[float], cut: int) -> None:
    wanted = statistics.pvariance(values)
    assert both_ways(Variance(of_sample=False), values, cut) == pytest.approx(wanted, abs=1e-3)
    wanted = statistics.variance(values) if len(values) > 1 else 0.0
    assert both_ways(Variance(of_sample=True), values, cut) == pytest.approx(wanted, abs=1e-3)


def test_a_variance_is_stable_far_from_zero() -> None:
    values = [1e9 + each for each in (4.0, 7.0, 13.0, 16.0)]
    assert Variance(of_sample=True).result(folded(Variance(of_sample=True), values)) == 30.0


@given(st.lists(pairs, min_size=1, max_size=12), st.integers(0, 12))
def test_first_and_last_are_by_an_order_or_as_they_come(
    values: list[tuple[int, int]], cut: int
) -> None:
    assert both_ways(First(ordered=False), values, cut) == values[0]
    assert both_ways(Last(ordered=False), values, cut) == values[-1]
    least, most = min(order for order, _ in values), max(order for order, _ in values)
    wanted = next(item for order, item in values if order == least)
    assert both_ways(First(ordered=True), values, cut) == wanted
    wanted = next(item for order, item in reversed(values) if order == most)
    assert both_ways(Last(ordered=True), values, cut) == wanted


def test_of_nothing_there_is_no_first_and_one_may_be_none() -> None:
    for fold in (First(ordered=False), Last(ordered=False)):
        assert fold.result(fold.initial()) is None
        assert fold.merge(fold.initial(), fold.initial()) is None
    assert folded(First(ordered=False), [None, 1]) == (None,)


@given(st.lists(st.integers(), max_size=12), st.integers(0, 12), st.integers(1, 5))
def test_what_is_collected_ends_at_the_limit(values: list[int], cut: int, limit: int) -> None:
    assert both_ways(Collected(None), values, cut) == values
    assert both_ways(Collected(limit), values, cut) == values[:limit]


@given(st.lists(pairs, max_size=12), st.integers(0, 12), st.integers(1, 5))
def test_of_the_largest_the_earlier_ones_come_first(
    values: list[tuple[int, int]], cut: int, count: int
) -> None:
    wanted = sorted(values, key=lambda pair: -pair[0])[:count]
    assert both_ways(Top(count, ordered=True), values, cut) == [item for _, item in wanted]
    wanted = sorted(values, reverse=True)[:count]
    assert both_ways(Top(count, ordered=False), values, cut) == wanted


@pytest.mark.parametrize("fold", [Collected(None), Top(3, ordered=False)])
def test_a_result_does_not_change_with_the_state(fold: Fold) -> None:
    state = folded(fold, [1])
    result = fold.result(state)
    fold.add(state, 2)
    assert result == [1]
