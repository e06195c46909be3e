"""Due times of intervals, and missed runs after an absence of any length."""

from __future__ import annotations

from datetime import datetime
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.crontab import cron_times
from streamlog.dsl.schedules import (
    CATCH_UP_RUNS_MAX,
    LATE_MS_MAX,
    Interval,
    Misfire,
    Schedule,
    missed_runs,
)

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000
YEAR_MS = 365 * 24 * 60 * MINUTE_MS


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


@pytest.mark.parametrize(
    ("misfire", "late_ms", "runs"),
    [
        ("all", 0, [1, 2, 3]),
        ("once", LATE_MS_MAX + 1, [3]),
        ("skip", LATE_MS_MAX, [3]),
        ("skip", LATE_MS_MAX + 1, []),
    ],
)
def test_missed_runs_follow_the_misfire_policy(
    misfire: Misfire, late_ms: int, runs: list[int]
) -> None:
    hourly = Interval(0, 60 * MINUTE_MS)
    now_ms = 3 * 60 * MINUTE_MS + late_ms
    times = missed_runs(hourly, 60 * MINUTE_MS, now_ms, misfire)
    assert times == [hour * 60 * MINUTE_MS for hour in runs]


def test_the_number_of_missed_runs_is_bounded() -> None:
    week_ms = 7 * 24 * 60 * MINUTE_MS
    times = missed_runs(Interval(0, MINUTE_MS), MINUTE_MS, week_ms, "all")
    assert len(times) == CATCH_UP_RUNS_MAX
    assert times[-1] == week_ms


def test_no_run_is_due_before_its_time() -> None:
    assert missed_runs(Interval(0, 10), 10, 9, "all") == []


def due_times(schedule: Schedule, after_ms: int, until_ms: int) -> list[int]:
    """Return the due times after one time up to another, one by one."""
    times = [schedule.next_after(after_ms)]
    while times[-1] <= until_ms:
        times.append(schedule.next_after(times[-1]))
    return [*takewhile(lambda at: at <= until_ms, times)]


@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "15 1-3 * * 0", "0 0 1 */2 *", "@hourly"]),
    st.integers(ms(2024, 1, 1), ms(2024, 12, 31)),
    st.integers(0, 40 * 24 * 60 * MINUTE_MS),
)
def test_missed_runs_equal_a_walk_through_the_due_times(
    spec: str, done_ms: int, away_ms: int
) -> None:
    schedule, now_ms = cron_times(spec, "Europe/Berlin"), done_ms + away_ms
    wanted = due_times(schedule, done_ms, now_ms)
    due_ms = schedule.next_after(done_ms)
    assert missed_runs(schedule, due_ms, now_ms, "all") == wanted[-CATCH_UP_RUNS_MAX:]
    assert missed_runs(schedule, due_ms, now_ms, "once") == wanted[-1:]
    late = [at for at in wanted[-1:] if now_ms - at <= LATE_MS_MAX]
    assert missed_runs(schedule, due_ms, now_ms, "skip") == late


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
def test_missed_runs_of_years_are_found_quickly(misfire: Misfire) -> None:
    """A walk through all due times would take minutes."""
    schedule = cron_times("* * * * *", "UTC")
    now_ms = ms(2025, 1, 1) + 10 * YEAR_MS
    wanted = {"skip": 1, "once": 1, "all": CATCH_UP_RUNS_MAX}[misfire]
    assert len(missed_runs(schedule, ms(2025, 1, 1), now_ms, misfire)) == wanted
    assert missed_runs(Interval(0, 1), 1, 10 * YEAR_MS, "once") == [10 * YEAR_MS]
    rare = cron_times("0 0 29 2 *", "Europe/Berlin")
    assert len(missed_runs(rare, ms(2024, 2, 29), ms(2035, 1, 1), "all")) == 3
