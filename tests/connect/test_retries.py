"""The waits of connectors between attempts."""

from __future__ import annotations

from streamlog.connect.retries import Backoff


def test_waits_double_up_to_the_limit() -> None:
    backoff = Backoff(wait_ms_max=2_000)
    assert [backoff.fail(0) for _ in range(5)] == [300, 600, 1_200, 2_000, 2_000]
    assert backoff.failures == 5
    backoff.succeed()
    assert backoff.fail(0) == 300


def test_chance_takes_off_a_fifth_at_most() -> None:
    assert Backoff().fail(1) == 240
    assert Backoff().fail(0.5) == 270


def test_a_wait_that_was_asked_for_is_honoured_beyond_the_limit() -> None:
    assert Backoff(wait_ms_max=1_000).fail(0.5, at_least_ms=3_600_000) == 3_600_000
    backoff = Backoff()
    for _ in range(100):
        assert backoff.fail(1, at_least_ms=1) <= 60_000
