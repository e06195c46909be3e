"""Values as Java has them: numpy, ctypes and the JDK's documentation say what they are.

Thousands of texts and casts by Kafka Connect's own classes are in `test_apache_values`.
"""

from __future__ import annotations

import ctypes
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.java_values import (
    date_text,
    float_text,
    moment_ms,
    moment_of,
    parse_decimal,
    parse_float,
    parse_integer,
    single,
    single_text,
    time_of,
    truncated,
    wrapped,
)
from streamlog.connect.row_schema import Kind

C_TYPES: dict[Kind, Any] = {
    "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
}  # fmt: skip
kinds = st.sampled_from(sorted(C_TYPES))
WHOLE = st.integers(-(2**66), 2**66) | st.sampled_from(
    [
        sign * 2**bits + near
        for bits in (7, 8, 15, 31, 63, 64)
        for sign in (1, -1)
        for near in (-1, 0)
    ]
)


@given(kinds, WHOLE)
def test_a_narrower_number_keeps_the_low_bits(kind: Kind, number: int) -> None:
    assert wrapped(number, kind) == C_TYPES[kind](number).value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_has_numpys_shortest_text(value: float) -> None:
    assert Decimal(single_text(value)) == Decimal(str(np.float32(value)))


@pytest.mark.parametrize(
    "value",
    [
        1e-45,
        3e-45,
        4e-44,
        1.1754942e-38,
        1.17549435e-38,
        8.5e-39,
        16777216.0,
        3.4028235e38,
        8.6288e9,
    ],
)
def test_the_smallest_and_largest_float32_have_it_too(value: float) -> None:
    for near in (single(value), single(-value)):
        assert Decimal(single_text(near)) == Decimal(str(np.float32(near)))


def test_a_number_that_is_no_float32_keeps_its_digits() -> None:
    assert single_text(0.1) == "0.1"
    assert single_text(1 / 3) == repr(1 / 3)


@given(st.floats(allow_nan=False))
def test_a_float32_is_the_closest_one(value: float) -> None:
    with np.errstate(over="ignore"):
        assert single(value) == float(np.float32(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (-2.5, "-2.5"), (100.0, "100.0"),
        (1e-3, "0.001"), (9.5e-4, "9.5E-4"), (9999999.0, "9999999.0"), (1e7, "1.0E7"),
        (1.5e10, "1.5E10"), (5e-324, "4.9E-324"), (2e-323, "2.0E-323"),
        (1 / 3, "0.3333333333333333"),
        (math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN"), (1e23, "1.0E23"),
    ],
)  # fmt: skip
def test_numbers_have_the_texts_of_the_jdks_documentation(value: float, text: str) -> None:
    assert float_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1e-45, "1.4E-45"), (0.1, "0.1"), (1 / 3, "0.33333334"), (1e10, "1.0E10")]
)
def test_a_float32_has_texts_of_its_own(value: float, text: str) -> None:
    assert float_text(single(value), is_single=True) == text


@pytest.mark.parametrize(
    ("value", "kind", "whole"),
    [
        (math.nan, "int64", 0), (math.nan, "int8", 0), (math.inf, "int64", 2**63 - 1),
        (-math.inf, "int64", -(2**63)), (math.inf, "int32", 2**31 - 1),
        (-math.inf, "int32", -(2**31)),
        (3e9, "int8", -1), (-3e9, "int8", 0), (3e9, "int16", -1), (3e9, "int64", 3 * 10**9),
        (1.9, "int32", 1), (-1.9, "int32", -1), (1e30, "int64", 2**63 - 1),
        (-1e30, "int64", -(2**63)),
    ],
)  # fmt: skip
def test_a_number_loses_its_fraction_as_by_javas_casts(
    value: float, kind: Kind, whole: int
) -> None:
    assert truncated(value, kind) == whole


def test_moments_are_milliseconds_since_1970_in_utc() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)
    ms = 1_767_323_045_006
    assert moment_ms(at) == ms
    # A datetime without a zone is one of UTC.
    assert moment_ms(at.replace(tzinfo=None)) == ms
    assert moment_ms(at.astimezone(timezone(timedelta(hours=-5)))) == ms
    assert moment_ms(at.replace(microsecond=6999)) == ms
    assert moment_ms(date(1970, 1, 3)) == 2 * 86_400_000
    assert moment_ms(time(1, 2, 3, 4000)) == 3_723_004
    assert moment_of(ms) == at
    assert time_of(3_723_004) == time(1, 2, 3, 4000)
    for value in (5, "2026-01-02", None):
        with pytest.raises(BadRecord, match="is no date or time"):
            moment_ms(value)


@pytest.mark.parametrize("ms", [10**15, -(10**15), 10**30])
def test_a_moment_is_in_the_years_1_to_9999(ms: int) -> None:
    with pytest.raises(BadRecord, match="not in the years 1 to 9999"):
        moment_of(ms)


def test_a_date_is_shown_as_by_javas_to_string() -> None:
    assert date_text(1_767_323_045_006) == "Fri Jan 02 03:04:05 UTC 2026"
    assert date_text(-1) == "Wed Dec 31 23:59:59 UTC 1969"


@pytest.mark.parametrize("text", ["0" * 79 + "5", "+5", "5", "\u0665"])
def test_whole_numbers_are_read_as_by_parse_int(text: str) -> None:
    assert parse_integer(text, "int8") == 5


@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "0" * 80 + "5", "128", "-129", "5.0", "0x5", "1_0"]
)
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(BadRecord, match="out of range"):
        parse_integer(text, "int8")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 5\0\n", 5.0), ("5f", 5.0), (".5D", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("-0", -0.0),
        ("+Infinity", math.inf), ("-Infinity", -math.inf), ("1e400", math.inf), ("1E-2d", 0.01),
    ],
)  # fmt: skip
def test_numbers_are_read_as_by_parse_double(text: str, value: float) -> None:
    assert parse_float(text) == value


@pytest.mark.parametrize(
    "text", ["", "!5", "5!", "inf", "1_000", "1e", "\u0665", "5fd", "1 2", "Infinityd"]
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(BadRecord, match="out of range"):
        parse_float(text)


@pytest.mark.parametrize(("text", "value"), [("1.50", "1.50"), ("-1e3", "-1E+3"), (".5", "0.5")])
def test_decimals_are_read_with_their_digits(text: str, value: str) -> None:
    assert str(parse_decimal(text)) == value


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1_000", " 1", "1 ", "x", "", "\u0665"])
def test_what_is_no_decimal_is_refused(text: str) -> None:
    with pytest.raises(BadRecord, match="out of range"):
        parse_decimal(text)
