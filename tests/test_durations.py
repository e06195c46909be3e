"""Durations and moments: accepted values, refused values, and error messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.durations import (
    DURATION_MS_MAX,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
    Dur,
    When,
    duration_ms,
    duration_text,
    moment,
    when_ms,
)
from streamlog.errors import ConfigError

NAIVE = datetime(2025, 1, 1)  # noqa: DTZ001 - refused for just that
UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        ("250ms", 250),
        ("10s", 10_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        (" 5s ", 5_000),
        ("0s", 0),
        (timedelta(hours=1, milliseconds=1), 3_600_001),
        (timedelta(0), 0),
    ],
)
def test_durations_are_parsed_with_their_units(value: Dur, expected_ms: int) -> None:
    assert duration_ms(value) == expected_ms


@given(st.integers(0, DURATION_MS_MAX))
def test_a_duration_is_read_as_it_is_written(total_ms: int) -> None:
    assert duration_ms(duration_text(total_ms)) == total_ms


@pytest.mark.parametrize("text", ["0s", "250ms", "90s", "1h30m", "24h", "48h", "7d", "3d1h"])
def test_durations_are_written_as_people_say_them(text: str) -> None:
    assert duration_text(duration_ms(text)) == {"90s": "1m30s"}.get(text, text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "5 has no unit: write '250ms'"),
        (2.5, "has no unit"),
        ("5", "it has no unit"),
        ("", "it is not a duration"),
        ("5 s", "it is not a duration"),
        ("1.5h", "it is not a duration"),
        ("-5s", "it is not a duration"),
        ("5sec", "it is not a duration"),
        ("\u0665s", "it is not a duration"),
        ("30m1h", "the largest first"),
        ("5m5m", "each unit once"),
        ("999999999999999d", "longer than 253402300799999 ms"),
        (timedelta(milliseconds=-1), "can't be negative"),
        (timedelta(microseconds=1500), "not a whole number of milliseconds"),
        (timedelta.max, "not a whole number of milliseconds"),
        (None, "is not a duration"),
        (True, "is not a duration"),
        (datetime(2025, 1, 1, tzinfo=UTC), "is not a duration"),
    ],
)
def test_malformed_durations_are_refused(value: Dur, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        duration_ms(value)


@given(
    st.dictionaries(st.sampled_from(list(UNITS_MS)), st.integers(0, 10_000), min_size=1),
)
def test_a_duration_is_the_sum_of_its_parts(parts: dict[str, int]) -> None:
    text = "".join(f"{parts[unit]}{unit}" for unit in UNITS_MS if unit in parts)
    assert duration_ms(text) == sum(UNITS_MS[unit] * number for unit, number in parts.items())


@given(st.integers(0, DURATION_MS_MAX))
def test_text_and_timedelta_agree(value_ms: int) -> None:
    assert duration_ms(f"{value_ms}ms") == value_ms
    assert duration_ms(timedelta(milliseconds=value_ms)) == value_ms


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_config_error(text: str) -> None:
    try:
        assert 0 <= duration_ms(text) <= DURATION_MS_MAX
    except ConfigError as error:
        assert repr(text) in str(error)  # noqa: PT017 - either outcome is right


@given(st.integers(TIMESTAMP_MS_MIN, TIMESTAMP_MS_MAX))
def test_moments_round_trip_to_the_millisecond(timestamp_ms: int) -> None:
    at = moment(timestamp_ms)
    assert at.tzinfo is UTC
    assert when_ms(at) == when_ms(timestamp_ms) == when_ms(at.isoformat()) == timestamp_ms


@given(
    st.datetimes(NAIVE.replace(year=1000), NAIVE.replace(year=3000)),
    st.integers(-14 * 60, 14 * 60),
)
def test_a_time_zone_moves_the_moment(naive: datetime, minutes: int) -> None:
    zone = timezone(timedelta(minutes=minutes))
    zoned, here = naive.replace(tzinfo=zone), naive.replace(tzinfo=UTC)
    assert when_ms(zoned) == when_ms(here) - minutes * 60_000


def test_finer_digits_are_rounded_down() -> None:
    assert when_ms("1970-01-01T00:00:00.001999Z") == 1
    assert when_ms("1969-12-31T23:59:59.999999Z") == -1


class NoZone(tzinfo):
    """A zone without an offset."""

    def utcoffset(self, _when: datetime | None) -> timedelta | None:
        return None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (NAIVE, "has no time zone, so it is not a point in time"),
        (datetime(2025, 1, 1, tzinfo=NoZone()), "has no time zone"),
        ("2025-01-01T12:00:00", "'2025-01-01T12:00:00' has no time zone"),
        ("2025-01-01", "has no time zone"),
        ("yesterday", "is not a time: write ISO-8601"),
        (1_735_689_600_000_000, "microseconds or nanoseconds"),
        (TIMESTAMP_MS_MIN - 1, "outside the years 1 to 9999"),
        (1.5, "is not a time"),
        (float("nan"), "is not a time"),
        (float("inf"), "is not a time"),
        (1_735_689_600.25, r"looks like seconds since the epoch: pass milliseconds"),
        (True, "is not a time"),
        (None, "is not a time"),
    ],
)
def test_malformed_moments_are_refused(value: When, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        when_ms(value)


@pytest.mark.parametrize("timestamp_ms", [TIMESTAMP_MS_MIN - 1, TIMESTAMP_MS_MAX + 1, 1 << 63])
def test_moments_outside_the_calendar_are_refused(timestamp_ms: int) -> None:
    with pytest.raises(ConfigError, match="outside the years"):
        moment(timestamp_ms)
