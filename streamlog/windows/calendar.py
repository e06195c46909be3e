"""Days, weeks and months of a time zone as windows.

They are as long as the calendar makes them: a day on which clocks change has 23 or 25 hours. A
window begins at the first moment of its first date and ends where the next one begins, so they
lie side by side whatever a time zone does: midnight may be skipped, come twice, or be a date that
never was (a window of no length, which nothing is in). Rule of the file: where windows begin and
end follows from the time zone's database alone (IANA's, as Python's `zoneinfo` has it; give all
workers the same one). The first window is cut off at the epoch. Not done here: when they close
(`emit`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
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
"""No clock is put back by more: Casey in Antarctica has done so much."""
SIZE_MS_MAX = {
    "day": DAY_MS + CHANGE_MS_MAX,
    "week": 7 * DAY_MS + CHANGE_MS_MAX,
    "month": 31 * DAY_MS + CHANGE_MS_MAX,
}
BORDERS_MAX = 1_000
"""Windows that are remembered; then they are found anew."""

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar(Windows):
    """Days, weeks or months side by side; `size_ms` is the longest that one can be."""

    unit: CalendarUnit
    tz: str

    def __post_init__(self) -> None:
        Windows.__post_init__(self)
        if self.unit not in get_args(CalendarUnit):
            raise ConfigError(
                f"calendar windows are of 'day', 'week' or 'month', not {self.unit!r}"
            )
        zone_of(self.tz)

    @property
    def described(self) -> str:
        """As a line about a topology says it."""
        return f"windows of a {self.unit} in {self.tz}"


def calendar(
    unit: CalendarUnit, *, tz: str, grace: Dur = "0s", retention: Dur | None = None
) -> Calendar:
    """Days, weeks (from Monday) or months as they are where `tz` is local time.

    Args:
        unit: "day", "week" or "month".
        tz: a time zone such as "Europe/Berlin"; its changes of clocks count.
        grace: how far stream time may pass the end of a window before it closes.
        retention: how long a row is kept, counted from the start of a window of the greatest
            length; by default just as long as needed.

    Raises:
        ConfigError: there is no such unit or time zone, a duration is malformed, or `retention`
            is too short.
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
    """The time zone.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise ConfigError(
            f"{name!r} is not a time zone: write one such as 'Europe/Berlin' or 'UTC'"
        ) from None


class CalendarSpans:
    """Which window of a calendar a timestamp falls in."""

    def __init__(self, windows: Calendar) -> None:
        self._unit = windows.unit
        self._zone = zone_of(windows.tz)
        self._starts: list[int] = []
        self._ends: list[int] = []

    def window_of(self, timestamp_ms: int) -> tuple[int, int]:
        """Start and end of the one window that holds `timestamp_ms`.

        Raises:
            UsageError: it is negative, or the calendar ends before the window does.
        """
        at = bisect_right(self._starts, timestamp_ms) - 1
        if at >= 0 and timestamp_ms < self._ends[at]:
            return self._starts[at], self._ends[at]
        start_ms, end_ms = self._found(timestamp_ms)
        if len(self._starts) >= BORDERS_MAX:
            self._starts, self._ends = [], []
        at = bisect_right(self._starts, start_ms)
        self._starts.insert(at, start_ms)
        self._ends.insert(at, end_ms)
        return start_ms, end_ms

    def _found(self, timestamp_ms: int) -> tuple[int, int]:
        if not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
            raise UsageError(f"a timestamp of {timestamp_ms} ms lies in no window of the calendar")
        try:
            first = self._first(self._date_at(timestamp_ms // 1_000))
            after = self._next(first)
            # Where clocks are put back over midnight, the date before comes once more, and is
            # of the window that has begun already.
            while (end_ms := self._begin_ms(after)) <= timestamp_ms:
                first, after = after, self._next(after)
            return max(self._begin_ms(first), 0), end_ms
        except OverflowError as error:
            raise UsageError(
                f"the {self._unit} around {timestamp_ms} ms ends after the year 9999"
            ) from error

    def _first(self, day: date) -> date:
        """The first date of the window that has this one."""
        if self._unit == "week":
            return day - timedelta(days=day.weekday())
        return day.replace(day=1) if self._unit == "month" else day

    def _next(self, first: date) -> date:
        """The first date of the window after the one that begins with this date."""
        if self._unit == "month":
            return (first + timedelta(days=31)).replace(day=1)
        return first + timedelta(days=7 if self._unit == "week" else 1)

    def _begin_ms(self, day: date) -> int:
        """The first moment at which it is this date or a later one."""
        # Where clocks are put back over midnight this is the first of the two; where they are put
        # forward, midnight by the clock of before: at the change or after it.
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        found = (midnight - EPOCH) // _SECOND
        while self._date_at(found - 1) >= day:
            found -= self._passed(found, day)
        return found * 1_000

    def _passed(self, second: int, day: date) -> int:
        """How many seconds before `second` the date was reached; at most as far as is known."""
        low, high = 1, 2
        while self._date_at(second - high) >= day:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._date_at(second - middle) >= day else (low, middle)
        return low

    def _date_at(self, second: int) -> date:
        return (EPOCH + timedelta(seconds=second)).astimezone(self._zone).date()
