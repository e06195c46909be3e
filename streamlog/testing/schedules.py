"""Timers and crontabs under way, on the driver's clock, by the arithmetic of workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from streamlog.dsl.schedule_times import Crontab, Interval, Timer, cron_times
from streamlog.dsl.schedule_times import Schedule as Times


class DriverSchedule:
    """A timer or crontab under way: a clock that only the test moves misses nothing."""

    def __init__(
        self, times: Times, run: Callable[[int], Awaitable[object]], *, start_ms: int
    ) -> None:
        self._times = times
        self._run = run
        self.due_ms = times.next_after(start_ms)

    async def fire(self) -> None:
        """Run it; it is then due the next time."""
        due_ms = self.due_ms
        self.due_ms = self._times.next_after(due_ms)
        await self._run(due_ms)


def schedules(
    timers: Sequence[Timer],
    crontabs: Sequence[Crontab],
    *,
    start_ms: int,
    workers: Callable[[], int],
) -> list[DriverSchedule]:
    """All timers and crontabs of an app, as they stand when a test begins.

    Those on "every_worker" run once for each of the `workers` there are by then.
    """

    def times_of(each: Timer | Crontab) -> Callable[[], int]:
        return workers if each.on == "every_worker" else _once

    under_way = [_timer(timer, start_ms, times_of(timer)) for timer in timers]
    return [
        *under_way,
        *(_crontab(crontab, start_ms, times_of(crontab)) for crontab in crontabs),
    ]


def _once() -> int:
    return 1


def _timer(timer: Timer, start_ms: int, workers: Callable[[], int]) -> DriverSchedule:
    async def run(_due_ms: int) -> None:
        for _ in range(workers()):
            await timer.run()

    return DriverSchedule(Interval(start_ms, timer.every_ms), run, start_ms=start_ms)


def _crontab(crontab: Crontab, start_ms: int, workers: Callable[[], int]) -> DriverSchedule:
    times = cron_times(crontab.spec, crontab.timezone)

    async def run(due_ms: int) -> None:
        for _ in range(workers()):
            await crontab.run(times.local(due_ms))

    return DriverSchedule(times, run, start_ms=start_ms)
