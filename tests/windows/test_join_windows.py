from __future__ import annotations

from datetime import timedelta

import pytest

from streamlog import JoinWindow
from streamlog.durations import DURATION_MS_MAX
from streamlog.errors import ConfigError


def test_a_join_window_reaches_both_ways_by_default() -> None:
    assert JoinWindow.of("5s") == JoinWindow(before_ms=5_000, after_ms=5_000)
    window = JoinWindow.of("15m", before="1s", grace="1m")
    assert (window.before_ms, window.after_ms, window.grace_ms) == (1_000, 900_000, 60_000)
    assert window.keep_ms == 961_000
    assert window.closes_ms(10, left=True) == 960_010
    assert window.closes_ms(10, left=False) == 61_010


@pytest.mark.parametrize("before", ["-1m", " -1m ", timedelta(minutes=-1)])
def test_one_span_of_a_join_window_may_be_negative(before: str | timedelta) -> None:
    assert JoinWindow.of("5m", before=before) == JoinWindow(before_ms=-60_000, after_ms=300_000)
    assert JoinWindow.of("0s", before=before, after="1m").keep_ms == 60_000


def test_an_invalid_join_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="sum must not be negative"):
        JoinWindow.of("1m", after="-2m")
    with pytest.raises(ConfigError, match="negative"):
        JoinWindow.of("1m", grace=timedelta(seconds=-1))
    with pytest.raises(ConfigError, match="no unit"):
        JoinWindow.of("5")
    with pytest.raises(ConfigError, match="before_ms"):
        JoinWindow(before_ms=DURATION_MS_MAX + 1, after_ms=0)
    with pytest.raises(ConfigError, match="grace_ms"):
        JoinWindow(before_ms=0, after_ms=0, grace_ms=-1)
