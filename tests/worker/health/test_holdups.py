"""Results that are held up are logged once the hold-up lasts, then once a minute."""

from __future__ import annotations

import pytest

from streamlog.processing.task import Holdup
from streamlog.windows.emit import UNKNOWN_MS
from streamlog.worker.health.worker_health import TELL_AFTER_MS, TELL_AGAIN_MS, Holdups

DUE_MS = 1_735_732_880_000


def holdup(due_ms: int = DUE_MS) -> Holdup:
    behind = {("sales", number): UNKNOWN_MS for number in (1, 2)}
    return Holdup("takings", due_ms - 20_000, due_ms, behind, ("sales", 0), due_ms + 5_000)


def test_a_holdup_is_logged_within_ten_seconds_and_again_after_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    holdups = Holdups()
    for now_ms in range(0, TELL_AFTER_MS + TELL_AGAIN_MS, 100):
        holdups.note("1_0", [holdup()], now_ms)
        holdups.note("1_1", [holdup()], now_ms)
        assert len(caplog.records) == (now_ms >= TELL_AFTER_MS)
    holdups.note("1_0", [holdup()], TELL_AFTER_MS + TELL_AGAIN_MS)
    assert len(caplog.records) == 2
    assert TELL_AFTER_MS < 10_000
    text = caplog.records[0].getMessage()
    assert "sales-1 (no record yet), sales-2 (no record yet) hold back 'takings'" in text
    assert "of 2025-01-01T12:01:00+00:00" in text
    assert "sales-0 has reached 2025-01-01T12:01:25+00:00" in text
    assert "idle_after" in text


def test_results_that_follow_one_another_are_not_a_holdup(
    caplog: pytest.LogCaptureFixture,
) -> None:
    holdups = Holdups()
    for now_ms in range(0, 60_000, 100):
        held = holdups.note("1_0", [holdup(DUE_MS + now_ms // 5_000)], now_ms)
        assert [each.lasts_ms for each in held] == [now_ms % 5_000]
    assert not caplog.records


def test_a_holdup_that_ended_starts_again_at_zero() -> None:
    holdups = Holdups()
    holdups.note("1_0", [holdup()], 0)
    assert holdups.note("1_0", [], 1_000) == ()
    assert [each.lasts_ms for each in holdups.note("1_0", [holdup()], 2_000)] == [0]
    holdups.forget("1_0")
    assert [each.lasts_ms for each in holdups.note("1_0", [holdup()], 3_000)] == [0]
