"""Timers and crontabs as an app declares them: frozen, without a clock.

Who runs them reads them: the worker by the wall clock, the test driver by its own. Rule of
the file: what is here has been checked by whoever made it (`App.timer`, `App.crontab`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from streamlog.errors import ProcessingError

On = Literal["leader", "every_worker"]
"""Who runs it: one worker of the app, or each."""
Misfire = Literal["skip", "once", "all"]
"""What happens to runs that were missed."""


@dataclass(frozen=True, slots=True)
class Service:
    """Run once by every worker, beside everything else."""

    name: str
    run: Callable[[], Awaitable[object]]

    async def serve(self) -> None:
        """Run it.

        Raises:
            ProcessingError: it failed.
        """
        try:
            await self.run()
        except Exception as error:
            raise ProcessingError(
                f"task {self.name!r} failed: {type(error).__name__}: {error}", node=self.name
            ) from error


@dataclass(frozen=True, slots=True)
class Timer:
    """Run every `every_ms` milliseconds, the first time one interval after the start."""

    name: str
    run: Callable[[], Awaitable[object]]
    every_ms: int
    on: On = "leader"


@dataclass(frozen=True, slots=True)
class Crontab:
    """Run at the times of a cron expression, in the local time of a time zone."""

    name: str
    run: Callable[[datetime], Awaitable[object]]
    spec: str
    timezone: str = "UTC"
    on: On = "leader"
    misfire: Misfire = "skip"


@dataclass(frozen=True, slots=True)
class Clockwork:
    """What an app has declared so far that runs beside its streams."""

    timers: list[Timer] = field(default_factory=list)
    crontabs: list[Crontab] = field(default_factory=list)
    services: dict[str, Service] = field(default_factory=dict)
