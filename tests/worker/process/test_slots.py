"""Slots of worker processes: their settings, and how soon they are filled again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import UsageError
from streamlog.worker.process.slots import DELAY_MS_MAX, STEADY_MS, Slot, Vacancy


def test_a_slot_round_trips() -> None:
    slot = Slot(number=2, of=3, supervisor="s", is_first=True, alive_fd=7)
    assert Slot.decode(slot.encode()) == slot
    assert slot.instance_id == "s-2"


def test_a_foreign_slot_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="STREAMLOG_WORKER_SLOT is for processes"):
        Slot.decode("2")


def test_repeated_early_deaths_delay_the_restart() -> None:
    vacancy = Vacancy()
    assert [vacancy.delay_ms(0) for _ in range(8)] == [
        0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000,
    ]  # fmt: skip
    assert [vacancy.delay_ms(STEADY_MS), vacancy.delay_ms(0)] == [0, 0]


@given(st.lists(st.floats(0, STEADY_MS - 1), min_size=3, max_size=90))
def test_restart_delays_grow_up_to_a_bound(lives: list[float]) -> None:
    vacancy = Vacancy()
    delays = [vacancy.delay_ms(lived) for lived in lives]
    assert delays == sorted(delays)
    assert max(delays) <= DELAY_MS_MAX
    assert all(delay > 0 for delay in delays[1:])
