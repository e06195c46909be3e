"""Schedules: timers and crontabs as an app declares them, and the times at which they are due.

Times are milliseconds since the epoch. Nothing here reads a clock, so the worker and the test
driver share it. Missed runs follow from the last time that was completed.

Not done here: the times of a cron expression (`crontab`), storing the last time and running
anything (`worker/schedules`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from streamlog.errors import ProcessingError

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
