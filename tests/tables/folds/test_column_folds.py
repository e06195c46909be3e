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


def checked_result(fold: Fold, values: list[Any], cut: int) -> Any:
    """Return the result of all values; check that two merged states give it as well."""
    result = fold.result(folded(fold, values))
    parts = folded(fold, values[:cut]), folded(fold, values[cut:])
    merged = fold.result(fold.merge(*parts))
    # A merge rounds differently.
    assert merged == (pytest.approx(result, abs=1e-3) if isinstance(result, float) else result)
    assert fold.result(fold.merge(fold.initial(), folded(fold, values))) == result
    return result


@given(st.lists(st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6), min_size=1), st.integers(0, 9))
def test_variances_equal_those_of_the_statistics_module(values: list[float], cut: int) -> None:
    wanted = statistics.pvariance(values)
    assert checked_result(Variance(of_sample=False), values, cut) == pytest.approx(wanted, abs=1e-3)
    wanted = statistics.variance(values) if len(values) > 1 else 0.0
    assert checked_result(Variance(of_sample=True), values, cut) == pytest.approx(wanted, abs=1e-3)


def test_a_variance_is_stable_far_from_zero() -> None:
    values = [1e9 + each for each in (4.0, 7.0, 13.0, 16.0)]
    assert Variance(of_sample=True).result(folded(Variance(of_sample=True), values)) == 30.0


@given(st.lists(pairs, min_size=1, max_size=12), st.integers(0, 12))
def test_first_and_last_follow_an_order_or_arrival(values: list[tuple[int, int]], cut: int) -> None:
    assert checked_result(First(ordered=False), values, cut) == values[0]
    assert checked_result(Last(ordered=False), values, cut) == values[-1]
    least, most = min(order for order, _ in values), max(order for order, _ in values)
    wanted = next(item for order, item in values if order == least)
    assert checked_result(First(ordered=True), values, cut) == wanted
    wanted = next(item for order, item in reversed(values) if order == most)
    assert checked_result(Last(ordered=True), values, cut) == wanted


def test_first_of_no_values_is_none_and_none_can_be_first() -> None:
    for fold in (First(ordered=False), Last(ordered=False)):
        assert fold.result(fold.initial()) is None
        assert fold.merge(fold.initial(), fold.initial()) is None
    assert folded(First(ordered=False), [None, 1]) == (None,)


@given(st.lists(st.integers(), max_size=12), st.integers(0, 12), st.integers(1, 5))
def test_collected_values_end_at_the_limit(values: list[int], cut: int, limit: int) -> None:
    assert checked_result(Collected(None), values, cut) == values
    assert checked_result(Collected(limit), values, cut) == values[:limit]


@given(st.lists(pairs, max_size=12), st.integers(0, 12), st.integers(1, 5))
def test_top_keeps_the_largest_with_earlier_values_first(
    values: list[tuple[int, int]], cut: int, count: int
) -> None:
    wanted = sorted(values, key=lambda pair: -pair[0])[:count]
    assert checked_result(Top(count, ordered=True), values, cut) == [item for _, item in wanted]
    wanted = sorted(values, reverse=True)[:count]
    assert checked_result(Top(count, ordered=False), values, cut) == wanted


@pytest.mark.parametrize("fold", [Collected(None), Top(3, ordered=False)])
def test_a_result_does_not_change_when_the_state_does(fold: Fold) -> None:
    state = folded(fold, [1])
    result = fold.result(state)
    fold.add(state, 2)
    assert result == [1]
