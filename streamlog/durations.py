"""Converts durations and points in time, as users write them, to integer milliseconds and back.

Rule of the file: a duration needs a unit, and a point in time needs a time zone, because readers
differ in what they assume, and the mistake shows much later, as wrong windows. The engine counts
integer milliseconds, since 1970 for points in time; arithmetic is exact (no floats). Not done here:
reading a clock (`clock`), calendars and time zones.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from typing import TypeAlias

from streamlog.errors import ConfigError

Dur: TypeAlias = timedelta | str
"""A duration: `timedelta(...)`, or text such as '250ms', '10s', '5m', '1h30m', '7d'."""

When: TypeAlias = datetime | str | int
"""A point in time: an aware datetime, ISO-8601 with an offset, or epoch milliseconds."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TIMESTAMP_MS_MIN = -62_135_596_800_000
"""Midnight of 0001-01-01 UTC, the first moment a datetime can hold."""
TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999 UTC, the last moment a datetime can hold."""
SECONDS_MIN, SECONDS_MAX = 1_000_000_000, 4_102_444_800
"""Seconds since 1970 in the years 2001 to 2099; as milliseconds, they are days of early 1970."""
DURATION_MS_MAX = TIMESTAMP_MS_MAX
"""The longest duration; sums of durations and timestamps stay far within 64 bits."""

_MILLISECOND = timedelta(milliseconds=1)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DAYS_FROM = 3
_PART = re.compile(r"([0-9]{1,15})(ms|[smhd])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
_EXAMPLES = "write '250ms', '10s', '5m', '1h30m', '7d' or a timedelta"


def duration_ms(value: Dur) -> int:
    """Return a duration in milliseconds, 0 or more.

    Raises:
        ConfigError: the duration has no unit, is malformed, negative, longer than
            `DURATION_MS_MAX`, or not a whole number of milliseconds.
    """
    if isinstance(value, str):
        total_ms = _parse_ms(value)
    elif isinstance(value, timedelta):
        # Both are whole numbers of microseconds, so nothing is rounded.
        total_ms, rest = divmod(value, _MILLISECOND)
        if rest:
            raise ConfigError(
                f"{value!r} is not a whole number of milliseconds, the unit of event time"
            )
    elif isinstance(value, int | float) and not isinstance(value, bool):
        raise ConfigError(f"{value!r} has no unit: {_EXAMPLES}")
    else:
        raise ConfigError(f"{value!r} is not a duration: {_EXAMPLES}")
    if not 0 <= total_ms <= DURATION_MS_MAX:
        what = "negative" if total_ms < 0 else f"longer than {DURATION_MS_MAX} ms"
        raise ConfigError(f"a duration can't be {what}: {value!r}")
    return total_ms


# The same few texts are parsed again with every pause of a connector.
@lru_cache(maxsize=256)
def _parse_ms(text: str) -> int:
    compact = text.strip()
    if not _WHOLE.fullmatch(compact):
        hint = "it has no unit" if compact.isdecimal() else "it is not a duration"
        raise ConfigError(f"{text!r}: {hint}; {_EXAMPLES}")
    parts = _PART.findall(compact)
    units = [_UNIT_MS[unit] for _, unit in parts]
    # '30m1h' or '5m5m' is more likely a typing error than intended.
    if any(left <= right for left, right in pairwise(units)):
        raise ConfigError(f"{text!r}: name each unit once, the largest first, as in '1h30m'")
    return sum(int(number) * unit for (number, _), unit in zip(parts, units, strict=True))


def duration_text(total_ms: int) -> str:
    """Return a duration, 0 or longer, as users write it: '1h30m', '24h', '7d', '0s'."""
    # People say 24h and 48h; from three days on, days are easier.
    begins = "d" if total_ms >= _DAYS_FROM * _UNIT_MS["d"] else "h"
    text = ""
    for unit in reversed(_UNIT_MS):
        if unit == "d" and begins != "d":
            continue
        number, total_ms = divmod(total_ms, _UNIT_MS[unit])
        text += f"{number}{unit}" if number else ""
    return text or "0s"


def when_ms(value: When) -> int:
    """Return a point in time as milliseconds since 1970, rounded down.

    Times before 1970 are negative; the caller decides whether to accept them.

    Raises:
        ConfigError: the time has no time zone, is malformed, is outside of the years 1 to 9999, or
            has another type.
    """
    if isinstance(value, datetime):
        return _aware_ms(value, value)
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value.strip())
        except ValueError as error:
            raise ConfigError(
                f"{value!r} is not a time: write ISO-8601 such as '2025-01-31T12:00:00Z'"
            ) from error
        return _aware_ms(parsed, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _check_ms(value)
    if isinstance(value, float) and looks_like_seconds(int(value) if isfinite(value) else 0):
        raise ConfigError(
            f"{value!r} looks like seconds since the epoch: pass milliseconds, int(1000 * seconds)"
        )
    raise ConfigError(
        f"{value!r} is not a time: pass an aware datetime, ISO-8601 text or epoch milliseconds"
    )


def _aware_ms(value: datetime, given: datetime | str) -> int:
    if value.tzinfo is None or value.utcoffset() is None:
        raise ConfigError(
            f"{given!r} has no time zone, so it is not a point in time: use "
            "datetime(..., tzinfo=UTC), or end the text with 'Z' or '+02:00'"
        )
    # Exact, and rounded down also before 1970.
    return _check_ms((value - EPOCH) // _MILLISECOND)


def moment(timestamp_ms: int) -> datetime:
    """Return milliseconds since 1970 as an aware datetime in UTC.

    Raises:
        ConfigError: the time is outside of the years 1 to 9999.
    """
    return EPOCH + timedelta(milliseconds=_check_ms(timestamp_ms))


def looks_like_seconds(timestamp_ms: int) -> bool:
    """Whether a timestamp is more likely a count of seconds than of milliseconds."""
    return SECONDS_MIN <= timestamp_ms <= SECONDS_MAX


def _check_ms(timestamp_ms: int) -> int:
    if not TIMESTAMP_MS_MIN <= timestamp_ms <= TIMESTAMP_MS_MAX:
        raise ConfigError(
            f"{timestamp_ms} can't be milliseconds since 1970: it lies outside the years "
            "1 to 9999; is it in microseconds or nanoseconds?"
        )
    return timestamp_ms
