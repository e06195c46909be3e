"""The schedule runner, with a real clock or one that stands still: leaders, due times, stops."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from streamlog.clock import ManualClock, SystemClock
from streamlog.dsl.schedules import Crontab, Timer
from streamlog.worker.schedules import schedule_runner
from streamlog.worker.schedules.schedule_runner import ScheduleRunner

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000


class FastClock(ManualClock):
    """A clock that advances by a second with each reading."""

    def wall_ms(self) -> int:
        self.advance(1_000)
        return super().wall_ms()


def ms(*when: int) -> int:
    return round(datetime(*when, tzinfo=BERLIN).timestamp() * 1000)  # type: ignore[misc, arg-type]


def test_a_timer_runs_again_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []

    async def main() -> None:
        async def work() -> None:
            runs.append(len(runs))
            if len(runs) == 1:
                raise ValueError("no paper")
            scheduler.stop()

        scheduler = ScheduleRunner(
            [Timer("print", work, 5, "every_worker")],
            [],
            clock=SystemClock(),
            is_leader=lambda: False,
        )
        await scheduler.run()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert runs == [0, 1]
    assert "print failed" in caplog.text
    assert "no paper" in caplog.text


def test_only_the_leader_runs_leader_timers() -> None:
    calls: list[str] = []

    async def main() -> None:
        async def lead() -> None:
            calls.append("leader")

        async def every() -> None:
            calls.append("every")
            if len(calls) == 3:
                scheduler.stop()

        scheduler = ScheduleRunner(
            [Timer("lead", lead, 1), Timer("every", every, 5, "every_worker")],
            [],
            clock=SystemClock(),
            is_leader=lambda: False,
        )
        await scheduler.run()

    asyncio.run(main())
    assert calls == ["every"] * 3


def test_a_crontab_gets_its_due_time_in_its_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_runner, "LOOK_INTERVAL_MS", 1)
    due_times: list[datetime] = []
    clock = FastClock(ms(2025, 1, 1, 2, 29, 50))

    async def main() -> None:
        async def close_day(due: datetime) -> None:
            due_times.append(due)
            scheduler.stop()

        job = Crontab("close_day", close_day, "30 2 * * *", "Europe/Berlin", misfire="once")
        scheduler = ScheduleRunner([], [job], clock=clock, is_leader=lambda: True)
        await scheduler.run()

    asyncio.run(main())
    assert due_times == [datetime(2025, 1, 1, 2, 30, tzinfo=BERLIN)]
    assert due_times[0].utcoffset() == timedelta(hours=1)


def test_stopping_waits_for_the_run_in_progress() -> None:
    done: list[bool] = []

    async def main() -> None:
        async def slow() -> None:
            scheduler.stop()
            for _ in range(100):
                await asyncio.sleep(0)
            done.append(True)

        scheduler = ScheduleRunner(
            [Timer("slow", slow, 1)], [], clock=SystemClock(), is_leader=lambda: True
        )
        await scheduler.run()

    asyncio.run(main())
    assert done == [True]


def test_an_endless_run_is_logged_and_cancelled_after_the_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule_runner, "STOP_WAIT_MS", 20)
    cancelled: list[str] = []

    async def main() -> None:
        async def report() -> None:
            scheduler.stop()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append("report")
                raise

        scheduler = ScheduleRunner(
            [Timer("report", report, 1), Timer("quick", nothing, 1)],
            [],
            clock=SystemClock(),
            is_leader=lambda: True,
        )
        await scheduler.run()

    async def nothing() -> None:
        """End at once."""

    asyncio.run(main())
    assert cancelled == ["report"]
    assert [r.getMessage() for r in caplog.records] == [
        "report still runs 0 s after the request to stop: cancelled"
    ]
