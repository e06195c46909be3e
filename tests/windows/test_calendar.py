"""Days, weeks and months of time zones, against a walk through local time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.durations import EPOCH, when_ms
from streamlog.errors import UsageError
from streamlog.windows.calendar import BORDERS_MAX, CalendarSpans, CalendarUnit, calendar

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # skipped midnight
    "America/St_Johns",  # changed at one minute past midnight
    "America/Scoresbysund",  # changes around midnight
    "Atlantic/Azores",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",  # half an hour
    "Antarctica/Casey",  # three hours
    "Africa/Casablanca",
    "Pacific/Apia",  # skipped a whole date
    "Pacific/Kwajalein",
)
MINUTE_MS = 60_000
STEP_MS = 15 * MINUTE_MS


def spans(unit: CalendarUnit, tz: str) -> CalendarSpans:
    return CalendarSpans(calendar(unit, tz=tz))


def iso(text: str) -> int:
    return when_ms(text)


def unit_of(day: date, unit: CalendarUnit) -> date:
    if unit == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if unit == "month" else day


def first_minutes(
    unit: CalendarUnit, tz: str, first_ms: int, last_ms: int
) -> list[tuple[int, date]]:
    """Return the first minute of each unit, with the unit's date."""
    zone = ZoneInfo(tz)
    found: list[tuple[int, date]] = []
    for at_ms in range(first_ms, last_ms, MINUTE_MS):
        local = (EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone).date()
        unit_start = unit_of(local, unit)
        if not found or unit_start > found[-1][1]:
            found.append((at_ms, unit_start))
    return found


@pytest.mark.parametrize("tz", ZONES)
def test_windows_start_at_the_first_minute_of_a_date(tz: str) -> None:
    zone, transitions = ZoneInfo(tz), []
    hours = range(iso("1990-01-01T00:00:00Z"), iso("2013-01-01T00:00:00Z"), 24 * 60 * MINUTE_MS)
    offsets = [(EPOCH + timedelta(milliseconds=at)).astimezone(zone).utcoffset() for at in hours]
    for (at, before), (_, after) in pairwise(zip(hours, offsets, strict=True)):
        if before != after:
            transitions.append(at)
    found = spans("day", tz)
    for at in [*transitions[-6:], iso("2011-12-30T00:00:00Z")]:
        seen = first_minutes("day", tz, at - 2 * 1_440 * MINUTE_MS, at + 3 * 1_440 * MINUTE_MS)
        for (start_ms, _), (end_ms, _) in pairwise(seen[1:]):
            for within in (start_ms, (start_ms + end_ms) // 2, end_ms - 1):
                assert found.window_of(within) == (start_ms, end_ms)


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["day", "week", "month"]),
    st.integers(0, iso("2037-12-01T00:00:00Z")),
)
def test_calendar_windows_are_contiguous_in_any_order_of_queries(
    tz: str, unit: CalendarUnit, timestamp_ms: int
) -> None:
    found, again = spans(unit, tz), spans(unit, tz)
    start_ms, end_ms = found.window_of(timestamp_ms)
    assert start_ms <= timestamp_ms < end_ms
    later = found.window_of(end_ms)
    assert later[0] == end_ms
    assert again.window_of(later[1] - 1) == later
    assert again.window_of(end_ms - 1) == (start_ms, end_ms)
    assert again.window_of(start_ms) == (start_ms, end_ms)
    local = datetime.fromtimestamp(start_ms // 1000, ZoneInfo(tz)).date()
    assert start_ms == 0 or unit_of(local, unit) == local


@pytest.mark.parametrize(
    ("unit", "tz", "at", "start", "end"),
    [
        ("day", "Europe/Berlin", "2025-03-30T12:00:00Z", "2025-03-29T23:00Z", "2025-03-30T22:00Z"),
        ("day", "Europe/Berlin", "2025-10-26T12:00:00Z", "2025-10-25T22:00Z", "2025-10-26T23:00Z"),
        ("day", "Asia/Kathmandu", "2025-01-01T00:00:00Z", "2024-12-31T18:15Z", "2025-01-01T18:15Z"),
        # No midnight: the day begins at one o'clock.
        ("day", "America/Sao_Paulo", "2018-11-04T12:00Z", "2018-11-04T03:00Z", "2018-11-05T02:00Z"),
        # 30 December was skipped: the 31st follows the 29th.
        ("day", "Pacific/Apia", "2011-12-30T09:59Z", "2011-12-29T10:00Z", "2011-12-30T10:00Z"),
        ("day", "Pacific/Apia", "2011-12-30T10:00Z", "2011-12-30T10:00Z", "2011-12-31T10:00Z"),
        # Set back from 00:01 to 23:01: the day has started, and is 25 hours long.
        ("day", "America/St_Johns", "2006-10-29T03:15Z", "2006-10-29T02:30Z", "2006-10-30T03:30Z"),
        ("week", "Europe/Berlin", "2025-04-01T00:00Z", "2025-03-30T22:00Z", "2025-04-06T22:00Z"),
        ("week", "Europe/Berlin", "2025-03-30T12:00Z", "2025-03-23T23:00Z", "2025-03-30T22:00Z"),
        ("month", "Europe/Berlin", "2024-02-10T00:00Z", "2024-01-31T23:00Z", "2024-02-29T23:00Z"),
        (
            "month",
            "America/New_York",
            "2025-12-31T23:00Z",
            "2025-12-01T05:00Z",
            "2026-01-01T05:00Z",
        ),
        (
            "month",
            "America/New_York",
            "1970-01-01T00:00Z",
            "1970-01-01T00:00Z",
            "1970-01-01T05:00Z",
        ),
    ],
)
def test_calendar_windows_by_example(
    unit: CalendarUnit, tz: str, at: str, start: str, end: str
) -> None:
    assert spans(unit, tz).window_of(iso(at)) == (iso(start), iso(end))


@given(st.sampled_from(ZONES), st.sampled_from(["day", "week", "month"]), st.integers(0, 20_000))
def test_no_calendar_window_exceeds_its_declared_size(
    tz: str, unit: CalendarUnit, day: int
) -> None:
    windows = calendar(unit, tz=tz)
    start_ms, end_ms = CalendarSpans(windows).window_of(day * 86_400_000)
    assert end_ms - start_ms <= windows.size_ms


def test_windows_are_right_beyond_the_cache_of_borders() -> None:
    found = spans("day", "Europe/Berlin")
    days = [day * 86_400_000 for day in range(BORDERS_MAX + 10)]
    first = [found.window_of(at) for at in days]
    assert [found.window_of(at) for at in reversed(days)] == first[::-1]


def test_times_outside_the_calendar_have_no_window() -> None:
    found = spans("month", "Asia/Tokyo")
    with pytest.raises(UsageError, match="-1 ms"):
        found.window_of(-1)
    with pytest.raises(UsageError, match="after the year 9999"):
        found.window_of(when_ms(datetime(9999, 12, 31, 20, tzinfo=UTC)))
    with pytest.raises(UsageError, match="lies in no window"):
        found.window_of(1 << 60)
