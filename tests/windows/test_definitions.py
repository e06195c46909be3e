"""Window definitions: what is accepted, and what each refusal says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from streamlog.errors import ConfigError
from streamlog.windows.definitions import Tumbling, Windows, tumbling


def test_durations_become_milliseconds() -> None:
    windows = tumbling("1h", grace="5m", offset=timedelta(minutes=15), retention="2h")
    assert windows == Tumbling(
        size_ms=3_600_000, grace_ms=300_000, offset_ms=900_000, retention_ms=7_200_000
    )
    assert isinstance(windows, Windows)
    assert hash(windows) == hash(
        tumbling("1h", grace="5m", offset=timedelta(minutes=15), retention="2h")
    )


def test_rows_are_kept_for_size_and_grace_unless_told_otherwise() -> None:
    assert tumbling("10s", grace="3s").retention_ms == 13_000
    assert tumbling("10s").grace_ms == 0


@pytest.mark.parametrize(
    ("size", "settings", "said"),
    [
        ("0s", {}, "longer than 0 ms"),
        (timedelta(milliseconds=-1), {}, "can't be negative"),
        ("3ms", {"grace": timedelta(milliseconds=-1)}, "can't be negative"),
        (5, {}, "has no unit"),
        ("500ms", {"retention": "1ms"}, "retention of 1 ms is shorter than the window's size"),
        ("100ms", {"grace": "1s", "retention": "1ms"}, "plus its grace"),
        ("10ms", {"grace": "90ms", "retention": "99ms"}, "raise retention or lower grace"),
        ("10s", {"offset": "10s"}, "shorter than its size of 10000 ms: 10000 ms"),
    ],
)
def test_refused_definitions(size: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
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
def test_definitions_at_the_border(size: str, settings: dict[str, Any]) -> None:
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
def test_no_way_around_the_checks(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Tumbling(**fields)
