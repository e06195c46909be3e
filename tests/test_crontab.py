"""Due times of cron expressions, including changes of the clock."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from streamlog.crontab import cron_times
from streamlog.errors import ConfigError

BERLIN = ZoneInfo("Europe/Berlin")


def ms(*when: int, fold: int = 0) -> int:
    return round(datetime(*when, tzinfo=BERLIN, fold=fold).timestamp() * 1000)  # type: ignore[misc, arg-type]


def test_a_time_skipped_in_spring_runs_after_the_gap() -> None:
    nightly = cron_times("30 2 * * *", "Europe/Berlin")
    assert nightly.next_after(ms(2024, 3, 31, 0, 0)) == ms(2024, 3, 31, 3, 0)
    assert nightly.next_after(ms(2024, 3, 31, 3, 0)) == ms(2024, 4, 1, 2, 30)


def test_a_time_repeated_in_autumn_runs_once() -> None:
    nightly = cron_times("30 2 * * *", "Europe/Berlin")
    assert nightly.next_after(ms(2024, 10, 27, 0, 0)) == ms(2024, 10, 27, 2, 30)
    assert nightly.next_after(ms(2024, 10, 27, 2, 30)) == ms(2024, 10, 28, 2, 30)


def test_an_hourly_job_runs_in_both_hours_of_autumn() -> None:
    often = cron_times("30 * * * *", "Europe/Berlin")
    first = often.next_after(ms(2024, 10, 27, 2, 0))
    second = often.next_after(first)
    assert (first, second) == (ms(2024, 10, 27, 2, 30), ms(2024, 10, 27, 2, 30, fold=1))


@pytest.mark.parametrize("spec", ["0 */2 * * *", "0 * * * *", "@hourly"])
def test_an_hourly_expression_runs_in_both_hours_of_autumn(spec: str) -> None:
    times = cron_times(spec, "Europe/Berlin")
    due_ms = ms(2025, 10, 26, 1, 30)
    found = []
    for _ in range(2):
        due_ms = times.next_after(due_ms)
        found.append(times.local(due_ms).isoformat())
    assert found == ["2025-10-26T02:00:00+02:00", "2025-10-26T02:00:00+01:00"]


@pytest.mark.parametrize("spec", ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 31 9 *"])
def test_an_expression_that_is_never_due_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="never falls due"):
        cron_times(spec, "UTC")


@pytest.mark.parametrize("spec", ["R R * * *", "0 R(1-3) * * *", "0 0 r * *"])
def test_an_expression_of_random_times_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="has a random time"):
        cron_times(spec, "UTC")


@pytest.mark.parametrize("spec", ["0 0 29 2 *", "0 0 * mar fri", "0 0 31 * *", "0 0 L * *"])
def test_rare_days_and_names_with_an_r_are_accepted(spec: str) -> None:
    times = cron_times(spec, "UTC")
    assert times.next_after(0) > 0


@pytest.mark.parametrize("spec", ["", "* * * *", "61 * * * *", "* * * * * *", "daily"])
def test_an_invalid_expression_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="is not a cron expression"):
        cron_times(spec, "UTC")


@pytest.mark.parametrize("zone", ["Europe/Ulm", "", "../etc/passwd"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError, match="is not a time zone"):
        cron_times("* * * * *", zone)
