"""Timers and crontabs under way, on the driver's clock."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from streamlog.dsl.schedule import Crontab, Timer
from streamlog.durations import moment, when_ms


class Schedule(Protocol):
    """A timer or crontab under way."""

    due_ms: int

    def fire(self) -> Coroutine[Any, Any, object]:
        """What is to be run; it is then due the next time."""


class _TimerSchedule:
    """A timer under way."""

    def __init__(self, timer: Timer, start_ms: int) -> None:
        self._timer = timer
        self.due_ms = start_ms + timer.every_ms

    def fire(self) -> Coroutine[Any, Any, object]:
        """The timer's function."""
        self.due_ms += self._timer.every_ms
        return _awaited(self._timer.run)


class _CronSchedule:
    """A crontab under way."""

    def __init__(self, crontab: Crontab, start_ms: int) -> None:
        from croniter import croniter  # noqa: PLC0415 - `import streamlog` stays light

        self._crontab = crontab
        self._zone = ZoneInfo(crontab.timezone)
        self._times: Iterator[datetime] = croniter(
            crontab.spec, moment(start_ms).astimezone(self._zone), ret_type=datetime
        )
        self.due_ms = when_ms(next(self._times))

    def fire(self) -> Coroutine[Any, Any, object]:
        """The crontab's function with the time at which it is due, in local time."""
        due = moment(self.due_ms).astimezone(self._zone)
        self.due_ms = when_ms(next(self._times))
        return _awaited(lambda: self._crontab.run(due))


async def _awaited(run: Callable[[], Any]) -> None:
    await run()


def schedules(
    timers: Sequence[Timer], crontabs: Sequence[Crontab], *, start_ms: int
) -> list[Schedule]:
    """All timers and crontabs of an app, as they stand when a test begins."""
    every: list[Schedule] = [_TimerSchedule(timer, start_ms) for timer in timers]
    return [*every, *(_CronSchedule(each, start_ms) for each in crontabs)]
