"""Exact sums of decimals: `decimal` rounds to 28 digits unless it is told otherwise.

Rule of the file: a sum is exact or raises, whatever context the thread has.
"""

from __future__ import annotations

import decimal
from decimal import Decimal

DIGITS_MAX = 1_000
"""Of a sum. Also bounds what two numbers that are far apart cost: 1E+999999 and 1."""
EXACT = decimal.Context(
    prec=DIGITS_MAX,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.Inexact, decimal.InvalidOperation],
)
_MEAN = decimal.Context(
    prec=28,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero],
)


def exact_sum(first: Decimal | int, second: Decimal | int) -> Decimal:
    """The sum of two numbers, one of which is a Decimal.

    Raises:
        TypeError: the other one is a float.
        ValueError: it has more than `DIGITS_MAX` digits, or has no value.
    """
    try:
        return EXACT.add(first, second)
    except decimal.Inexact:
        raise ValueError(f"a sum of decimals needs more than {DIGITS_MAX} digits") from None
    except decimal.InvalidOperation:
        raise ValueError(f"{first} and {second} have no sum") from None


def quotient(total: Decimal | int, count: int) -> Decimal:
    """The mean of so many numbers, to 28 digits."""
    return _MEAN.divide(total, count)
