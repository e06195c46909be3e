from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.clock import SteadyWall


class SettableClock:
    """A machine whose wall clock is sometimes set."""

    def __init__(self) -> None:
        self.elapsed_ms = 5
        self.ahead_ms = 1_000_000

    def now_ms(self) -> int:
        return self.elapsed_ms

    def wall_ms(self) -> int:
        return self.elapsed_ms + self.ahead_ms


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(-5_000, 5_000)), max_size=20))
def test_steady_wall_time_ignores_changes_of_the_wall_clock(
    steps: list[tuple[int, int]],
) -> None:
    machine = SettableClock()
    wall = SteadyWall(machine)
    before_ms = wall.now_ms()
    assert before_ms == machine.wall_ms()
    for passed_ms, set_by_ms in steps:
        machine.elapsed_ms += passed_ms
        machine.ahead_ms += set_by_ms
        now_ms = wall.now_ms()
        assert now_ms >= before_ms + passed_ms
        assert now_ms >= machine.wall_ms()
        before_ms = now_ms
