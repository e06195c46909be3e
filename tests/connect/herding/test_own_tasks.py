"""Restarts of failed tasks: waits grow, and are forgotten by a task that runs on."""

from __future__ import annotations

from streamlog.connect.herding.own_tasks import RESTART_MS_MAX, SOUND_MS, Restarts, restart_delay_ms


def test_waits_double_up_to_their_limit() -> None:
    waits = [restart_delay_ms(failures) for failures in range(1, 12)]
    assert waits == [*(1_000 * 2**n for n in range(9)), RESTART_MS_MAX, RESTART_MS_MAX]
    assert restart_delay_ms(100_000) == RESTART_MS_MAX


def test_a_task_that_ran_long_enough_starts_over_with_its_waits() -> None:
    restarts = Restarts()
    for now_ms in (0, 10, 20):
        restarts.failed(now_ms, may_pass=True)
    assert restarts.due_ms == 4_020
    assert not restarts.is_due(4_019)
    assert restarts.is_due(4_020)
    restarts.began(5_000)
    assert restarts.due_ms is None
    restarts.failed(5_000 + SOUND_MS, may_pass=True)
    assert restarts.due_ms == 6_000 + SOUND_MS


def test_an_error_that_lasts_waits_for_an_operator() -> None:
    restarts = Restarts()
    restarts.failed(0, may_pass=False)
    assert not restarts.is_due(10**12)
