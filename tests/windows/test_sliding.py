"""Definitions of sliding windows."""

from __future__ import annotations

import pytest

from streamlog import sliding
from streamlog.errors import ConfigError
from streamlog.windows.definitions import window_after, window_up_to


def test_a_sliding_window_is_defined_by_size_grace_and_retention() -> None:
    windows = sliding("2h", grace="1m")
    assert (windows.size_ms, windows.grace_ms) == (7_200_000, 60_000)
    assert windows.retention_ms == 7_260_000
    assert sliding("0s").size_ms == 0
    with pytest.raises(ConfigError, match=r"retention of 60000 ms is shorter"):
        sliding("2m", retention="1m")


def test_a_window_ends_at_each_record_and_one_starts_after_it() -> None:
    assert window_up_to(25, 10) == 15
    assert window_up_to(7, 10) == 0
    assert window_after(25) == 26
