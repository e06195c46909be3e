"""Pace: a slow call gets few records at a time, a quick one a hundred."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.agents.feed import HOLD_MS, SLICE_RECORDS_MAX, TURNS, YIELD_RECORDS, Pace


def run(pace: Pace, records: int, now_ms: int, us_each: int) -> tuple[int, list[int], list[int]]:
    """Run records of `us_each` µs; return the end in ms, held times in µs, and slice sizes."""
    held, sizes, since_us, now_us = [], [], now_ms * 1_000, now_ms * 1_000
    while records > 0:
        if pace.left <= 0 and pace.turns(now_us // 1_000):
            held.append(now_us - since_us)
            since_us = now_us
            pace.rested(now_us // 1_000)
        size = min(pace.left, records)
        pace.left -= size
        sizes.append(size)
        records -= size
        now_us += size * us_each
    return now_us // 1_000, held, sizes


def test_quick_records_are_taken_in_growing_slices() -> None:
    pace = Pace()
    _, _, sizes = run(pace, 10_000, 0, us_each=10)
    assert sizes[:8] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert set(sizes[8:-1]) == {SLICE_RECORDS_MAX}


@given(st.integers(1, 200_000), st.integers(0, 10**9))
def test_the_event_loop_is_held_for_a_bounded_time(us_each: int, now_ms: int) -> None:
    _, held, _ = run(Pace(), 400, now_ms, us_each)
    assert held
    # A started slice is finished, and the pace at most doubles.
    assert max(held[1:], default=0) <= max(4 * HOLD_MS * 1_000, us_each + HOLD_MS * 1_000)


def test_a_slow_call_gets_fewer_records_at_once() -> None:
    pace = Pace()
    now_ms, _, _ = run(pace, 1_000, 0, us_each=10)
    _, _, sizes = run(pace, 200, now_ms, us_each=50_000)
    # First the rest of the old pace, then single records.
    assert sizes[0] <= SLICE_RECORDS_MAX
    assert set(sizes[1:]) == {1}


def test_a_quick_call_yields_after_a_number_of_records() -> None:
    pace, taken = Pace(), 0
    pace.rested(7)
    while not (rounds := pace.turns(7)):
        taken += pace.left
    assert rounds == 1
    assert YIELD_RECORDS // 2 <= taken <= 2 * YIELD_RECORDS
    pace.rested(7)
    assert pace.turns(7 + HOLD_MS) == TURNS
