"""Timers and crontabs: functions that run by the clock, on the leader or on every worker.

The arithmetic is apart from the waiting: `Schedule.next_after` and `missed` take and return
milliseconds since the epoch, so every rule is tested without waiting. A schedule never runs
beside itself: what falls due while it runs is missed, and `misfire` says what then happens.
Crontabs keep local time through a change of clocks as cron does: a time that is skipped runs
at the first moment after the gap, one that comes twice runs once, unless the hour field has
a star. Missed runs are not remembered over a restart of all workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from streamlog.clock import Clock
from streamlog.dsl.schedule import Crontab, Misfire, On, Timer
from streamlog.errors import ConfigError

logger = logging.getLogger(__name__)

# A worker that slept for a week (a closed laptop) must not run a minutely job 10,080 times.
CATCH_UP_RUNS_MAX = 1_000
# A waiting job looks at the clock this often: a longer sleep would not notice that the clock
# was set or that the machine slept.
LOOK_INTERVAL_MS = 1_000
# With misfire="skip", a run that starts later than this counts as missed.
LATE_MS_MAX = 60_000
CRON_FIELDS = 5


class Schedule(Protocol):
    """When something is due. Milliseconds since the epoch in and out."""

    def next_after(self, wall_ms: int) -> int:
        """The first due time after `wall_ms`."""
        ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Due at `start_ms` plus every multiple of `every_ms`."""

    start_ms: int
    every_ms: int

    def next_after(self, wall_ms: int) -> int:
        """The first due time after `wall_ms`."""
        passed = max(wall_ms - self.start_ms, 0) // self.every_ms
        return self.start_ms + (passed + 1) * self.every_ms


@dataclass(frozen=True, slots=True)
class CronTimes:
    """Due at the times of a cron expression of five fields, in a time zone."""

    spec: str
    zone: tzinfo

    def next_after(self, wall_ms: int) -> int:
        """The first due time after `wall_ms`."""
        from croniter import croniter  # noqa: PLC0415 - `import streamlog` stays light

        times = croniter(self.spec, datetime.fromtimestamp(wall_ms / 1000, self.zone))
        due: datetime = times.get_next(datetime)
        while due.fold and not self._every_hour:
            # The clocks went back: this local time has already been.
            due = times.get_next(datetime)
        return round(due.timestamp() * 1000)

    @property
    def _every_hour(self) -> bool:
        return self.spec == "@hourly" or "*" in self.spec.split()[1:2]


def cron_times(spec: str, timezone: str) -> CronTimes:
    """The schedule of a cron expression: five fields, or a name such as "@daily".

    Raises:
        ConfigError: the expression is not valid, or the time zone is unknown.
    """
    from croniter import croniter  # noqa: PLC0415 - `import streamlog` stays light

    five = spec.startswith("@") or len(spec.split()) == CRON_FIELDS
    if not five or not croniter.is_valid(spec):
        raise ConfigError(
            f"{spec!r} is not a cron expression: write five fields, minute hour day month weekday"
        )
    try:
        return CronTimes(spec, ZoneInfo(timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"{timezone!r} is not a time zone: write one such as 'Europe/Berlin' or 'UTC'"
        ) from None


def missed(schedule: Schedule, due_ms: int, now_ms: int, misfire: Misfire) -> list[int]:
    """The due times to run now, given that `due_ms` was the next one.

    Everything due up to `now_ms` counts. "all" runs each of them in order (the latest
    `CATCH_UP_RUNS_MAX`), "once" only the latest, "skip" the latest if it is not late by more
    than `LATE_MS_MAX`.
    """
    times: list[int] = []
    while due_ms <= now_ms:
        times.append(due_ms)
        del times[:-CATCH_UP_RUNS_MAX]
        due_ms = schedule.next_after(due_ms)
    match misfire:
        case "all":
            return times
        case "once":
            return times[-1:]
        case "skip":
            return [time_ms for time_ms in times[-1:] if now_ms - time_ms <= LATE_MS_MAX]


@dataclass(frozen=True, slots=True)
class _Job:
    """A timer or a crontab, made alike."""

    name: str
    schedule: Schedule
    read_ms: Callable[[], int]
    """The time that the schedule counts in."""
    run: Callable[[int], Awaitable[object]]
    """Takes the due time."""
    on: On
    misfire: Misfire


class CronScheduler:
    """Runs timers and crontabs until it is stopped; then lets the running ones finish.

    `is_leader` tells whether this worker leads the group; what is to run on the leader is
    looked up each time it falls due. A function that raises is logged with its traceback and
    runs again at its next time: a failed report must not stop the processing of records.
    """

    def __init__(
        self,
        timers: Sequence[Timer],
        crontabs: Sequence[Crontab],
        *,
        clock: Clock,
        is_leader: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._is_leader = is_leader
        self._stop = asyncio.Event()
        self._jobs = [*map(self._timer_job, timers), *map(self._crontab_job, crontabs)]

    async def run(self) -> None:
        """Run everything at its time until `stop` is called."""
        async with asyncio.TaskGroup() as tasks:
            for job in self._jobs:
                tasks.create_task(self._keep(job), name=f"schedule {job.name}")

    def stop(self) -> None:
        """Start nothing new; `run` returns when what runs has finished."""
        self._stop.set()

    async def _keep(self, job: _Job) -> None:
        due_ms = job.schedule.next_after(job.read_ms())
        while not await self._stopped_within(due_ms - job.read_ms()):
            now_ms = job.read_ms()
            if now_ms < due_ms:
                continue
            if job.on == "every_worker" or self._is_leader():
                for time_ms in missed(job.schedule, due_ms, now_ms, job.misfire):
                    await self._run(job, time_ms)
            due_ms = job.schedule.next_after(now_ms)

    async def _run(self, job: _Job, due_ms: int) -> None:
        failure: Exception | None = None
        try:
            await job.run(due_ms)
        except Exception as error:  # noqa: BLE001 - the user's function: logged below
            failure = error
        if failure is not None:
            logger.error("%s failed; it runs again next time", job.name, exc_info=failure)

    async def _stopped_within(self, delay_ms: int) -> bool:
        delay_ms = min(max(delay_ms, 0), LOOK_INTERVAL_MS)
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True

    def _timer_job(self, timer: Timer) -> _Job:
        async def run(_due_ms: int) -> None:
            await timer.run()

        read_ms = self._clock.now_ms  # Setting the clock does not move a timer.
        schedule = Interval(read_ms(), timer.every_ms)
        return _Job(timer.name, schedule, read_ms, run, timer.on, "once")

    def _crontab_job(self, crontab: Crontab) -> _Job:
        schedule = cron_times(crontab.spec, crontab.timezone)

        async def run(due_ms: int) -> None:
            await crontab.run(datetime.fromtimestamp(due_ms / 1000, schedule.zone))

        read_ms = self._clock.wall_ms
        return _Job(crontab.name, schedule, read_ms, run, crontab.on, crontab.misfire)
