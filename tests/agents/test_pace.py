"""A call that holds the loop is given less at a time; a quick one by the hundred."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.agents.feed import HOLD_MS, SLICE_RECORDS_MAX, TURNS, YIELD_RECORDS, Pace


def run(pace: Pace, records: int, now_ms: int, us_each: int) -> tuple[int, list[int], list[int]]:
    """Records that take so long each: the time behind them, and how long and how many at once."""
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


def test_quick_records_come_by_the_slice() -> None:
    pace = Pace()
    _, _, sizes = run(pace, 10_000, 0, us_each=10)
    assert sizes[:8] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert set(sizes[8:-1]) == {SLICE_RECORDS_MAX}


@given(st.integers(1, 200_000), st.integers(0, 10**9))
def test_the_loop_is_held_for_some_records_or_some_milliseconds(us_each: int, now_ms: int) -> None:
    _, held, _ = run(Pace(), 400, now_ms, us_each)
    assert held
    # What is begun is finished, and the pace at most doubles.
    assert max(held[1:], default=0) <= max(4 * HOLD_MS * 1_000, us_each + HOLD_MS * 1_000)


def test_one_that_gets_slow_is_given_less_at_once() -> None:
    pace = Pace()
    now_ms, _, _ = run(pace, 1_000, 0, us_each=10)
    _, _, sizes = run(pace, 200, now_ms, us_each=50_000)
    # What was left of the pace before, and then one by one.
    assert sizes[0] <= SLICE_RECORDS_MAX
    assert set(sizes[1:]) == {1}


def test_a_quick_one_lets_others_run_after_so_many() -> None:
    pace, given = Pace(), 0
    pace.rested(7)
    while not (turns := pace.turns(7)):
        given += pace.left
    assert turns == 1
    assert YIELD_RECORDS // 2 <= given <= 2 * YIELD_RECORDS
    pace.rested(7)
    assert pace.turns(7 + HOLD_MS) == TURNS
