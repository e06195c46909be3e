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
def test_distinct_values_are_counted_however_they_came(count: int) -> None:
    fold = Distinct()
    values = [f"user-{n}" for n in range(count)] * 2
    result = fold.result(folded(fold, values))
    assert result == pytest.approx(count, rel=0.05)
    there_and_back = fold.load(fold.dump(folded(fold, values[: count // 2])))
    merged = fold.merge(there_and_back, folded(fold, list(reversed(values))))
    assert fold.result(merged) == result
    assert fold.result(fold.load(fold.dump(merged))) == result


def test_what_is_equal_in_python_is_one_value() -> None:
    later = NOON.astimezone(timezone(timedelta(hours=2)))
    one = [1, 1.0, True], [0, -0.0, False], [NOON, later], [2**70, float(2**70)]
    others: list[Any] = ["1", "", b"1", (1, "a"), (1, "b"), None, 0.5, -1, 2**70 + 1, b""]
    for same in one:
        assert Distinct().result(folded(Distinct(), same)) == 1
    values = [*others, *(value for same in one for value in same)]
    assert Distinct().result(folded(Distinct(), values)) == len(others) + len(one)
    with pytest.raises(SerdeError, match="can't be counted as a distinct value"):
        Distinct().add(Distinct().initial(), Fraction(1, 3))


@settings(max_examples=50)
@given(st.lists(numbers, min_size=1, max_size=60), st.floats(0, 1), st.data())
def test_a_quantile_is_within_its_accuracy_however_it_was_put_together(
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
    there_and_back = fold.load(fold.dump(folded(fold, other[:cut])))
    assert fold.result(fold.merge(there_and_back, folded(fold, other[cut:]))) == result


def test_what_is_far_apart_shares_bins_near_zero_and_stays_bounded() -> None:
    fold = Quantile(1.0)
    values = [10.0**e for e in range(-300, 300, 3)]
    up, down = folded(fold, values), folded(fold, list(reversed(values)))
    assert fold.dump(up) == fold.dump(down)
    assert sum(map(len, fold.dump(up)[1:])) < 200
    assert fold.result(up) == pytest.approx(10.0**297, rel=0.01)
    assert fold.dump(fold.load(fold.dump(up))) == fold.dump(up)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_has_no_place(value: float) -> None:
    with pytest.raises(ValueError, match="takes finite numbers only"):
        Quantile(0.5).add(Quantile(0.5).initial(), value)


@pytest.mark.parametrize(
    ("make", "library"),
    [(Distinct, "datasketches"), (lambda: Quantile(0.5), "ddsketch.ddsketch")],
)
def test_without_the_extra_it_is_said_what_to_install(
    make: Any, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(TopologyError, match=r"pip install 'streamlog\[sketches\]'"):
        make()
