from __future__ import annotations

import decimal
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.tables.folds.column_folds import DIGITS_MAX, exact_sum, quotient

decimals = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**60), max_value=10**60)


@given(st.lists(decimals | st.integers()), st.integers(1, 30))
def test_a_sum_is_exact_in_any_decimal_context(numbers: list[Decimal | int], digits: int) -> None:
    with decimal.localcontext(decimal.Context(prec=digits)):
        total: Decimal | int = Decimal(0)
        for number in numbers:
            total = exact_sum(total, number)
    assert Fraction(total) == sum(map(Fraction, numbers))


@given(decimals, st.integers(1, 10**6))
def test_a_mean_has_28_digits(total: Decimal, count: int) -> None:
    wanted = Fraction(total) / count
    assert abs(Fraction(quotient(total, count)) - wanted) <= abs(wanted) / 10**27


def test_a_sum_of_too_many_digits_is_refused() -> None:
    with pytest.raises(ValueError, match=f"more than {DIGITS_MAX} digits"):
        exact_sum(Decimal("1E+999999"), Decimal(1))


def test_a_sum_that_is_no_number_is_refused() -> None:
    assert exact_sum(Decimal("Infinity"), 1) == Decimal("Infinity")
    with pytest.raises(ValueError, match="no sum"):
        exact_sum(Decimal("Infinity"), Decimal("-Infinity"))
    with pytest.raises(ValueError, match="no sum"):
        exact_sum(Decimal("sNaN"), 1)


def test_a_float_in_an_exact_sum_is_refused() -> None:
    with pytest.raises(TypeError):
        exact_sum(Decimal(1), 0.5)  # type: ignore[arg-type]
