"""Schedules: timers and crontabs as an app declares them, and the times at which they are due.

Times are milliseconds since the epoch. A crontab follows local time through a change of clocks as
cron does: a time that is skipped runs at the first moment after the gap, and a time that comes
twice runs once, unless the hour field has a star.

Rule: nothing here reads a clock, so the worker and the test driver share it. Missed runs follow
from the last time that was completed. Not done here: storing that time and running anything
(`worker`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from streamlog.errors import ConfigError, ProcessingError

On = Literal["leader", "every_worker"]
"""The workers that run a schedule: one worker of the app, or each of them."""
Misfire = Literal["skip", "once", "all"]
"""The missed runs that are made up for: none, the latest one, or all."""


@dataclass(frozen=True, slots=True)
class Service:
    """A function that each worker runs once, concurrently with everything else."""

    name: str
    run: Callable[[], Awaitable[object]]

    async def serve(self) -> None:
        """Run the function.

        Raises:
            ProcessingError: the function raised.
        """
        try:
            await self.run()
        except Exception as error:
            raise ProcessingError(
                f"task {self.name!r} failed: {type(error).__name__}: {error}", node=self.name
            ) from error


@dataclass(frozen=True, slots=True)
class Timer:
    """A function that runs every `every_ms` milliseconds, first one interval after the start."""

    name: str
    run: Callable[[], Awaitable[object]]
    every_ms: int
    on: On = "leader"


@dataclass(frozen=True, slots=True)
class Crontab:
    """A function that runs at times of a cron expression, in the local time of a time zone."""

    name: str
    run: Callable[[datetime], Awaitable[object]]
    spec: str
    timezone: str = "UTC"
    on: On = "leader"
    misfire: Misfire = "skip"


@dataclass(frozen=True, slots=True)
class Clockwork:
    """The timers, crontabs and services that an app has declared."""

    timers: list[Timer] = field(default_factory=list)
    crontabs: list[Crontab] = field(default_factory=list)
    services: dict[str, Service] = field(default_factory=dict)


CATCH_UP_RUNS_MAX = 1_000
"""The most missed runs that `misfire="all"` makes up for.

A worker that slept for a week (a closed laptop) must not run a minutely job 10,080 times."""
LATE_MS_MAX = 60_000
"""With misfire="skip", a run that starts later than this counts as missed."""
CRON_FIELDS = 5
RANDOM_FIELD = r"(?i)(?<![a-z])r(?![a-z])"
"""Finds croniter's sign for a random value, and not an "r" in a month or weekday."""
ANY_DAY = datetime(2000, 1, 1, tzinfo=UTC)
"""The day from which `cron_times` looks for a due time, to check that there is one."""
MINUTE_MS = 60_000


class Schedule(Protocol):
    """Port: the times at which a timer or crontab is due."""

    @property
    def least_ms(self) -> int:
        """The smallest time between two due times."""
        ...

    def next_after(self, wall_ms: int) -> int:
        """Return the first due time after `wall_ms`."""
        ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Due at `start_ms` plus every multiple of `every_ms`."""

    start_ms: int
    every_ms: int

    @property
    def least_ms(self) -> int:
        """The smallest time between two due times."""
        return self.every_ms

    def next_after(self, wall_ms: int) -> int:
        """Return the first due time after `wall_ms`."""
        # At most one interval after the start, even if the clock is set back to before it.
        passed = max(wall_ms - self.start_ms, 0) // self.every_ms
        return self.start_ms + (passed + 1) * self.every_ms


@dataclass(frozen=True, slots=True)
class CronTimes:
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
            f"{spec!r} is due at random (R): workers would not agree on when; write numbers"
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


def missed_runs(schedule: Schedule, due_ms: int, now_ms: int, misfire: Misfire) -> list[int]:
    """Return the due times to run now, given that `due_ms` was the next one.

    Everything due up to `now_ms` counts. "all" runs each of them in order (the latest
    `CATCH_UP_RUNS_MAX`), "once" only the latest, "skip" the latest if it is not late by more
    than `LATE_MS_MAX`.
    """
    times = _latest(schedule, due_ms, now_ms, CATCH_UP_RUNS_MAX if misfire == "all" else 1)
    if misfire == "skip":
        return [time_ms for time_ms in times if now_ms - time_ms <= LATE_MS_MAX]
    return times


def _latest(schedule: Schedule, due_ms: int, now_ms: int, count: int) -> list[int]:
    """Return the latest `count` due times from `due_ms` to now, in order.

    A schedule only finds the next due time, so the search starts ever further before now.
    """
    # 1. A minutely crontab was missed for a week: the first look back, a minute, finds the latest
    #    run at once, and not after 10,080 calls of `next_after`.
    # 2. A yearly one has the same `least_ms`: the look back doubles until it reaches a due time.
    back_ms = count * schedule.least_ms
    while due_ms <= now_ms:
        after_ms = now_ms - back_ms
        times: deque[int] = deque(maxlen=count)
        next_ms = due_ms if after_ms < due_ms else schedule.next_after(after_ms)
        while next_ms <= now_ms:
            times.append(next_ms)
            next_ms = schedule.next_after(next_ms)
        if len(times) == count or after_ms < due_ms:
            return [*times]
        back_ms *= 2
    return []
