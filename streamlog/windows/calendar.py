"""Days, weeks and months of a time zone as windows.

The calendar determines their length: a day on which clocks change has 23 or 25 hours. A window
begins at the first moment of its first date and ends where the next window begins, so windows are
adjacent whatever a time zone does: it may skip midnight, repeat it, or skip a date (whose window
has no length and contains nothing). Rule of the file: the borders of windows follow from the IANA
time zone database alone, as Python's `zoneinfo` reads it; all workers need the same version. The
first window begins at the epoch. Not done here: when windows close (`emit`).
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import date, datetime, timedelta
from typing import Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from streamlog.durations import EPOCH, TIMESTAMP_MS_MAX, Dur, duration_ms
from streamlog.errors import ConfigError, UsageError
from streamlog.windows.definitions import Windows

CalendarUnit = Literal["day", "week", "month"]
"""Weeks begin on Monday."""

DAY_MS = 86_400_000
CHANGE_MS_MAX = 3 * 3_600_000
"""The largest change by which clocks are put back: Casey, Antarctica, did so by 3 h."""
SIZE_MS_MAX = {
    "day": DAY_MS + CHANGE_MS_MAX,
    "week": 7 * DAY_MS + CHANGE_MS_MAX,
    "month": 31 * DAY_MS + CHANGE_MS_MAX,
}
BORDERS_MAX = 1_000
"""The most windows to cache; beyond this, the cache starts anew."""

_SECOND = timedelta(seconds=1)


class Calendar(Windows, frozen=True, kw_only=True):
    """Adjacent days, weeks or months; `size_ms` is the length of the longest possible one."""

    unit: CalendarUnit
    tz: str

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        if self.unit not in get_args(CalendarUnit):
            raise ConfigError(
                f"the unit of calendar windows must be 'day', 'week' or 'month', not {self.unit!r}"
            )
        zone_of(self.tz)

    @property
    def description(self) -> str:
        """The windows as a phrase, for the description of a topology."""
        return f"windows of a {self.unit} in {self.tz}"


def calendar(
    unit: CalendarUnit, *, tz: str, grace: Dur = "0s", retention: Dur | None = None
) -> Calendar:
    """Return windows of days, weeks (from Monday) or months in the local time of `tz`.

    Args:
        unit: "day", "week" or "month".
        tz: a time zone such as "Europe/Berlin", with its daylight saving time.
        grace: how far stream time may pass the end of a window before it closes.
        retention: how long a row is kept, counted from the start of its window as if the window
            had the greatest length; by default the minimum.

    Raises:
        ConfigError: there is no such unit or time zone, a duration is malformed, or `retention` is
            shorter than the longest window plus `grace`.
    """
    size_ms, grace_ms = SIZE_MS_MAX.get(unit, DAY_MS), duration_ms(grace)
    return Calendar(
        size_ms=size_ms,
        grace_ms=grace_ms,
        retention_ms=size_ms + grace_ms if retention is None else duration_ms(retention),
        unit=unit,
        tz=tz,
    )


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone of this name.

    Raises:
        ConfigError: there is no such time zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise ConfigError(
            f"{name!r} is not a time zone: write one such as 'Europe/Berlin' or 'UTC'"
        ) from None


class CalendarSpans:
    """Finds the window of a calendar that contains a timestamp, and caches windows."""

    def __init__(self, windows: Calendar) -> None:
        self._unit = windows.unit
        self._zone = zone_of(windows.tz)
        self._starts: list[int] = []
        self._ends: list[int] = []

    def window_of(self, timestamp_ms: int) -> tuple[int, int]:
        """Return start and end of the window that contains `timestamp_ms`.

        Raises:
            UsageError: the timestamp is negative, or the window ends after the year 9999.
        """
        at = bisect_right(self._starts, timestamp_ms) - 1
        if at >= 0 and timestamp_ms < self._ends[at]:
            return self._starts[at], self._ends[at]
        start_ms, end_ms = self._find(timestamp_ms)
        if len(self._starts) >= BORDERS_MAX:
            self._starts, self._ends = [], []
        at = bisect_right(self._starts, start_ms)
        self._starts.insert(at, start_ms)
        self._ends.insert(at, end_ms)
        return start_ms, end_ms

    def _find(self, timestamp_ms: int) -> tuple[int, int]:
        if not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
            raise UsageError(f"a timestamp of {timestamp_ms} ms lies in no window of the calendar")
        try:
            first = self._first(self._date_at(timestamp_ms // 1_000))
            after = self._next(first)
            # Clocks are put back over midnight, from 00:01 on the 2nd to 23:01 on the 1st.
            # 1. The window of the 2nd begins at the first 00:00, before the change.
            # 2. A timestamp in the repeated hour has the date of the 1st again, but belongs to the
            #    window of the 2nd, which has begun: a window never resumes after its end.
            while (end_ms := self._begin_ms(after)) <= timestamp_ms:
                first, after = after, self._next(after)
            return max(self._begin_ms(first), 0), end_ms
        except OverflowError as error:
            raise UsageError(
                f"the {self._unit} around {timestamp_ms} ms ends after the year 9999"
            ) from error

    def _first(self, day: date) -> date:
        """Return the first date of the window that contains this date."""
        if self._unit == "week":
            return day - timedelta(days=day.weekday())
        return day.replace(day=1) if self._unit == "month" else day

    def _next(self, first: date) -> date:
        """Return the first date of the window after the one that begins with this date."""
        if self._unit == "month":
            return (first + timedelta(days=31)).replace(day=1)
        return first + timedelta(days=7 if self._unit == "week" else 1)

    def _begin_ms(self, day: date) -> int:
        """Return the first moment, in ms, at which the local date is this date or a later one."""
        # If clocks are put back over midnight, this is the first of both midnights. If they are put
        # forward over it, this is midnight by the old offset: at the change or after it, so the
        # loop goes back to the change.
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        found = (midnight - EPOCH) // _SECOND
        while self._date_at(found - 1) >= day:
            found -= self._seconds_since(found, day)
        return found * 1_000

    def _seconds_since(self, second: int, day: date) -> int:
        """Return how many seconds before `second` the local date first reached `day`."""
        low, high = 1, 2
        while self._date_at(second - high) >= day:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._date_at(second - middle) >= day else (low, middle)
        return low

    def _date_at(self, second: int) -> date:
        return (EPOCH + timedelta(seconds=second)).astimezone(self._zone).date()
