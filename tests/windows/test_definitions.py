"""Window definitions: accepted values, and messages of refused ones."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from streamlog.errors import ConfigError
from streamlog.windows.calendar import Calendar, calendar
from streamlog.windows.definitions import Hopping, Tumbling, Windows, hopping, tumbling


def test_durations_become_milliseconds() -> None:
    windows = tumbling("1h", grace="5m", offset=timedelta(minutes=15), retention="2h")
    assert windows == Tumbling(
        size_ms=3_600_000, grace_ms=300_000, offset_ms=900_000, retention_ms=7_200_000
    )
    assert isinstance(windows, Windows)
    assert hash(windows) == hash(
        tumbling("1h", grace="5m", offset=timedelta(minutes=15), retention="2h")
    )


def test_retention_defaults_to_size_and_grace() -> None:
    assert tumbling("10s", grace="3s").retention_ms == 13_000
    assert tumbling("10s").grace_ms == 0


@pytest.mark.parametrize(
    ("size", "settings", "message"),
    [
        ("0s", {}, "longer than 0 ms"),
        (timedelta(milliseconds=-1), {}, "can't be negative"),
        ("3ms", {"grace": timedelta(milliseconds=-1)}, "can't be negative"),
        (5, {}, "has no unit"),
        ("500ms", {"retention": "1ms"}, "retention of 1 ms is shorter than the window's size"),
        ("100ms", {"grace": "1s", "retention": "1ms"}, "plus its grace"),
        ("10ms", {"grace": "90ms", "retention": "99ms"}, "raise retention or lower grace"),
        ("10s", {"offset": "10s"}, "shorter than its size of 10000 ms, not 10000 ms"),
    ],
)
def test_an_invalid_tumbling_window_is_refused(
    size: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tumbling(size, **settings)


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        ("3ms", {"grace": "0s"}),
        ("500ms", {"retention": "500ms"}),
        ("10ms", {"grace": "90ms", "retention": "100ms"}),
        ("10s", {"offset": "9999ms"}),
    ],
)
def test_limits_of_tumbling_windows_are_accepted(size: str, settings: dict[str, Any]) -> None:
    assert tumbling(size, **settings).size_ms > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"size_ms": 0, "retention_ms": 5},
        {"size_ms": 5, "retention_ms": 4},
        {"size_ms": 5, "grace_ms": -1, "retention_ms": 9},
        {"size_ms": 5, "offset_ms": -1, "retention_ms": 9},
        {"size_ms": 1 << 63, "retention_ms": 1 << 64},
    ],
)
def test_the_constructor_checks_its_fields(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Tumbling(**fields)


def test_a_hopping_window_has_a_step() -> None:
    windows = hopping("1h", "10m", grace="5m")
    assert windows == Hopping(
        size_ms=3_600_000, grace_ms=300_000, step_ms=600_000, retention_ms=3_900_000
    )


@pytest.mark.parametrize(
    ("size", "step", "settings", "message"),
    [
        ("123ms", "0ms", {}, "longer than 0 ms and no longer than its size of 123 ms"),
        ("123ms", "124ms", {}, "not 124 ms: records between two windows would be in none"),
        ("123ms", timedelta(milliseconds=-1), {}, "can't be negative"),
        ("123ms", 4, {}, "has no unit"),
        ("0ms", "1ms", {}, "longer than 0 ms"),
        ("10ms", "5ms", {"retention": "9ms"}, "shorter than the window's size"),
    ],
)
def test_an_invalid_hopping_window_is_refused(
    size: str, step: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        hopping(size, step, **settings)


@pytest.mark.parametrize("step", ["4ms", "122ms", "123ms"])
def test_limits_of_the_step_are_accepted(step: str) -> None:
    assert hopping("123ms", step).retention_ms == 123


def test_a_calendar_window_has_a_unit_and_a_time_zone() -> None:
    assert calendar("month", tz="Europe/Berlin", grace="1h") == Calendar(
        size_ms=31 * 86_400_000 + 10_800_000,
        grace_ms=3_600_000,
        retention_ms=31 * 86_400_000 + 10_800_000 + 3_600_000,
        unit="month",
        tz="Europe/Berlin",
    )


@pytest.mark.parametrize(
    ("unit", "settings", "message"),
    [
        ("year", {"tz": "UTC"}, "'day', 'week' or 'month', not 'year'"),
        ("day", {"tz": "Berlin"}, "'Berlin' is not a time zone"),
        ("day", {"tz": ""}, "'' is not a time zone"),
        ("day", {"tz": "../etc/passwd"}, "is not a time zone"),
        ("day", {"tz": 2}, "2 is not a time zone"),
        ("week", {"tz": "UTC", "retention": "7d"}, "shorter than the window's size"),
    ],
)
def test_an_invalid_calendar_window_is_refused(
    unit: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        calendar(unit, **settings)
