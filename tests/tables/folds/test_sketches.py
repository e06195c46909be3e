from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.errors import SerdeError, TopologyError
from streamlog.tables.folds.column_folds import Distinct, Quantile

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)
numbers = st.floats(-1e9, 1e9).map(lambda n: round(n, 6)) | st.integers(-100, 100)


def folded(fold: Any, values: list[Any]) -> Any:
    state = fold.initial()
    for value in values:
        state = fold.add(state, value)
    return state


@pytest.mark.parametrize("count", [0, 1, 100, 5_000])
def test_distinct_values_are_counted_in_any_order(count: int) -> None:
    fold = Distinct()
    values = [f"user-{n}" for n in range(count)] * 2
    result = fold.result(folded(fold, values))
    assert result == pytest.approx(count, rel=0.05)
    reloaded = fold.load(fold.dump(folded(fold, values[: count // 2])))
    merged = fold.merge(reloaded, folded(fold, list(reversed(values))))
    assert fold.result(merged) == result
    assert fold.result(fold.load(fold.dump(merged))) == result


def test_values_that_are_equal_in_python_count_once() -> None:
    later = NOON.astimezone(timezone(timedelta(hours=2)))
    equal_values = [1, 1.0, True], [0, -0.0, False], [NOON, later], [2**70, float(2**70)]
    distinct_values: list[Any] = ["1", "", b"1", (1, "a"), (1, "b"), None, 0.5, -1, 2**70 + 1, b""]
    for group in equal_values:
        assert Distinct().result(folded(Distinct(), group)) == 1
    values = [*distinct_values, *(value for group in equal_values for value in group)]
    assert Distinct().result(folded(Distinct(), values)) == len(distinct_values) + len(equal_values)
    with pytest.raises(SerdeError, match="can't be counted as a distinct value"):
        Distinct().add(Distinct().initial(), Fraction(1, 3))


@settings(max_examples=50)
@given(st.lists(numbers, min_size=1, max_size=60), st.floats(0, 1), st.data())
def test_a_merged_quantile_stays_within_its_accuracy(
    values: list[float], q: float, data: st.DataObject
) -> None:
    fold = Quantile(q)
    result = fold.result(folded(fold, values))
    at = q * (len(values) - 1)
    ordered = sorted(values)
    near = {ordered[int(at)], ordered[min(int(at) + 1, len(values) - 1)]}
    assert any(result == pytest.approx(each, rel=0.010001, abs=1e-300) for each in near)
    cut = data.draw(st.integers(0, len(values)))
    other = data.draw(st.permutations(values))
    reloaded = fold.load(fold.dump(folded(fold, other[:cut])))
    assert fold.result(fold.merge(reloaded, folded(fold, other[cut:]))) == result


def test_a_quantile_of_a_huge_range_is_bounded_in_size() -> None:
    fold = Quantile(1.0)
    values = [10.0**e for e in range(-300, 300, 3)]
    up, down = folded(fold, values), folded(fold, list(reversed(values)))
    assert fold.dump(up) == fold.dump(down)
    assert sum(map(len, fold.dump(up)[1:])) < 200
    assert fold.result(up) == pytest.approx(10.0**297, rel=0.01)
    assert fold.dump(fold.load(fold.dump(up))) == fold.dump(up)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_quantile_refuses_numbers_that_are_not_finite(value: float) -> None:
    with pytest.raises(ValueError, match="takes finite numbers only"):
        Quantile(0.5).add(Quantile(0.5).initial(), value)


@pytest.mark.parametrize(
    ("make", "library"),
    [(Distinct, "datasketches"), (lambda: Quantile(0.5), "ddsketch.ddsketch")],
)
def test_a_missing_extra_is_reported_with_its_install_command(
    make: Any, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(TopologyError, match=r"pip install 'streamlog-py\[sketches\]'"):
        make()
