"""Crontab: the times at which a cron expression is due, in a time zone.

A crontab follows local time through a change of clocks as cron does: a time that is skipped runs at
the first moment after the gap, and a time that comes twice runs once, unless the hour field has a
star.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from streamlog.errors import ConfigError

CRON_FIELDS = 5
RANDOM_FIELD = r"(?i)(?<![a-z])r(?![a-z])"
"""Finds croniter's sign for a random value, and not an "r" in a month or weekday."""
ANY_DAY = datetime(2000, 1, 1, tzinfo=UTC)
"""The day from which `cron_times` looks for a due time, to check that there is one."""
MINUTE_MS = 60_000


class CronTimes(msgspec.Struct, frozen=True):
    """Due at the times of a cron expression of five fields, in a time zone."""

    spec: str
    zone: tzinfo

    @property
    def least_ms(self) -> int:
        """The smallest time between two due times."""
        return MINUTE_MS

    def next_after(self, wall_ms: int) -> int:
        """Return the first due time after `wall_ms`."""
        from croniter import croniter  # noqa: PLC0415 - `import streamlog` stays light

        times = croniter(self.spec, datetime.fromtimestamp(wall_ms / 1000, self.zone))
        due: datetime = times.get_next(datetime)
        while due.fold and not self._every_hour:
            # The clocks went back from 3:00 to 2:00. "30 2 * * *" ran at the first 2:30; the second
            # one (fold 1) is skipped. "30 * * * *" runs at both.
            due = times.get_next(datetime)
        return round(due.timestamp() * 1000)

    def local(self, due_ms: int) -> datetime:
        """Return a due time in the time zone."""
        return datetime.fromtimestamp(due_ms / 1000, self.zone)

    @property
    def _every_hour(self) -> bool:
        # As cron has it, a step such as */2 begins with a star, too.
        hours = self.spec.split()[1:2]
        return self.spec == "@hourly" or any(field.startswith("*") for field in hours)


def cron_times(spec: str, timezone: str) -> CronTimes:
    """Return the schedule of a cron expression: five fields, or a name such as "@daily".

    Raises:
        ConfigError: the expression is not valid, never falls due, or is due at random, or the time
            zone is unknown.
    """
    from croniter import (  # noqa: PLC0415 - `import streamlog` stays light
        CroniterBadDateError,
        croniter,
    )

    five = spec.startswith("@") or len(spec.split()) == CRON_FIELDS
    if not five or not croniter.is_valid(spec):
        raise ConfigError(
            f"{spec!r} is not a cron expression: write five fields, minute hour day month weekday"
        )
    if re.search(RANDOM_FIELD, spec):
        raise ConfigError(
            f"{spec!r} has a random time (R), on which workers would not agree: write numbers"
        )
    try:
        croniter(spec, ANY_DAY).get_next()
    except CroniterBadDateError:
        raise ConfigError(
            f"{spec!r} never falls due: no month that it names has such a day"
        ) from None
    try:
        return CronTimes(spec, ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"{timezone!r} is not a time zone: write one such as 'Europe/Berlin' or 'UTC'"
        ) from None
