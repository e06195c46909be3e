"""Schedules: due times by arithmetic, and the shell against a real clock or a still one."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.clock import ManualClock, SystemClock
from streamlog.dsl.schedule import Crontab, Misfire, Timer
from streamlog.errors import ConfigError
from streamlog.worker.cron import (
    CATCH_UP_RUNS_MAX,
    LATE_MS_MAX,
    CronScheduler,
    Interval,
    cron_times,
    missed,
)

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000


class Hasty(ManualClock):
    """A second passes whenever somebody looks."""

    def wall_ms(self) -> int:
        self.advance(1_000)
        return super().wall_ms()


def ms(*when: int, fold: int = 0) -> int:
    return round(datetime(*when, tzinfo=BERLIN, fold=fold).timestamp() * 1000)  # type: ignore[misc, arg-type]


@given(start=st.integers(0, 10**13), every=st.integers(1, 10**8), now=st.integers(0, 10**13))
def test_an_interval_is_due_at_the_first_multiple_after_now(
    start: int, every: int, now: int
) -> None:
    due = Interval(start, every).next_after(now)
    assert due > now
    assert due > start
    assert (due - start) % every == 0
    assert due - every <= max(now, start)


def test_a_time_that_the_spring_skips_runs_after_the_gap() -> None:
    nightly = cron_times("30 2 * * *", "Europe/Berlin")
    assert nightly.next_after(ms(2024, 3, 31, 0, 0)) == ms(2024, 3, 31, 3, 0)
    assert nightly.next_after(ms(2024, 3, 31, 3, 0)) == ms(2024, 4, 1, 2, 30)


def test_a_time_that_comes_twice_in_autumn_runs_once() -> None:
    nightly = cron_times("30 2 * * *", "Europe/Berlin")
    assert nightly.next_after(ms(2024, 10, 27, 0, 0)) == ms(2024, 10, 27, 2, 30)
    assert nightly.next_after(ms(2024, 10, 27, 2, 30)) == ms(2024, 10, 28, 2, 30)


def test_an_hourly_job_runs_in_both_hours_of_autumn() -> None:
    often = cron_times("30 * * * *", "Europe/Berlin")
    first = often.next_after(ms(2024, 10, 27, 2, 0))
    second = often.next_after(first)
    assert (first, second) == (ms(2024, 10, 27, 2, 30), ms(2024, 10, 27, 2, 30, fold=1))


@pytest.mark.parametrize("spec", ["", "* * * *", "61 * * * *", "* * * * * *", "daily"])
def test_a_wrong_expression_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="is not a cron expression"):
        cron_times(spec, "UTC")


@pytest.mark.parametrize("zone", ["Europe/Ulm", "", "../etc/passwd"])
def test_a_wrong_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError, match="is not a time zone"):
        cron_times("* * * * *", zone)


@pytest.mark.parametrize(
    ("misfire", "late_ms", "runs"),
    [
        ("all", 0, [1, 2, 3]),
        ("once", LATE_MS_MAX + 1, [3]),
        ("skip", LATE_MS_MAX, [3]),
        ("skip", LATE_MS_MAX + 1, []),
    ],
)
def test_what_fell_due_meanwhile(misfire: Misfire, late_ms: int, runs: list[int]) -> None:
    hourly = Interval(0, 60 * MINUTE_MS)
    now_ms = 3 * 60 * MINUTE_MS + late_ms
    times = missed(hourly, 60 * MINUTE_MS, now_ms, misfire)
    assert times == [hour * 60 * MINUTE_MS for hour in runs]


def test_catching_up_is_bounded() -> None:
    week_ms = 7 * 24 * 60 * MINUTE_MS
    times = missed(Interval(0, MINUTE_MS), MINUTE_MS, week_ms, "all")
    assert len(times) == CATCH_UP_RUNS_MAX
    assert times[-1] == week_ms


def test_nothing_is_due_early() -> None:
    assert missed(Interval(0, 10), 10, 9, "all") == []


def test_a_timer_runs_again_after_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []

    async def main() -> None:
        async def work() -> None:
            runs.append(len(runs))
            if len(runs) == 1:
                raise ValueError("no paper")
            scheduler.stop()

        scheduler = CronScheduler(
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


def test_only_the_leader_runs_what_is_for_the_leader() -> None:
    ran: list[str] = []

    async def main() -> None:
        async def lead() -> None:
            ran.append("leader")

        async def every() -> None:
            ran.append("every")
            if len(ran) == 3:
                scheduler.stop()

        scheduler = CronScheduler(
            [Timer("lead", lead, 1), Timer("every", every, 5, "every_worker")],
            [],
            clock=SystemClock(),
            is_leader=lambda: False,
        )
        await scheduler.run()

    asyncio.run(main())
    assert ran == ["every"] * 3


def test_a_crontab_gets_its_due_time_in_its_zone() -> None:
    got: list[datetime] = []
    clock = Hasty(ms(2025, 1, 1, 2, 29, 58))

    async def main() -> None:
        async def close_day(due: datetime) -> None:
            got.append(due)
            scheduler.stop()

        job = Crontab("close_day", close_day, "30 2 * * *", "Europe/Berlin", misfire="once")
        scheduler = CronScheduler([], [job], clock=clock, is_leader=lambda: True)
        await scheduler.run()

    asyncio.run(main())
    assert got == [datetime(2025, 1, 1, 2, 30, tzinfo=BERLIN)]
    assert got[0].utcoffset() == timedelta(hours=1)


def test_stop_waits_for_the_run_in_progress() -> None:
    done: list[bool] = []

    async def main() -> None:
        async def slow() -> None:
            scheduler.stop()
            for _ in range(100):
                await asyncio.sleep(0)
            done.append(True)

        scheduler = CronScheduler(
            [Timer("slow", slow, 1)], [], clock=SystemClock(), is_leader=lambda: True
        )
        await scheduler.run()

    asyncio.run(main())
    assert done == [True]
