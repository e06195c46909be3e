"""Clock: the only module that reads the time.

Shells use it. State machines take `now_ms` as an argument, so that the test driver, the simulator
and the Spark runner can drive them. Monotonic time starts at a large random number, so that code
that confuses it with wall time fails at once (after trio).

Rule of the file: it may be compiled, because a record that is sent alone reads the wall clock.
"""

from __future__ import annotations

import random
import time
from typing import Protocol

_monotonic_ns = time.monotonic_ns  # noqa: TID251 - the one place
_time_ns = time.time_ns  # noqa: TID251 - the one place


class Clock(Protocol):
    """Two times in integer milliseconds."""

    def now_ms(self) -> int:
        """Return monotonic time, for durations and deadlines."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for record timestamps."""
        ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        # 11 to 115 days: as wall time this is early in 1970, which is noticed.
        self._start_ms = random.randrange(10**9, 10**10)  # noqa: S311 - nothing to keep secret

    def now_ms(self) -> int:
        """Return monotonic time; it starts at a random number."""
        monotonic_ns = _monotonic_ns()
        return self._start_ms + monotonic_ns // 1_000_000

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, by the machine's clock."""
        wall_ns = _time_ns()
        return wall_ns // 1_000_000


class SteadyWall:
    """Wall time that never goes back, for decisions; in milliseconds since 1970.

    It advances with monotonic time, and jumps ahead with the machine's wall clock. If that clock is
    set back, this one continues at the normal pace, and stays ahead of it until the process ends.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.wall_ms() - clock.now_ms()

    def now_ms(self) -> int:
        """Return milliseconds since 1970, never less than the last result."""
        now_ms = self._clock.now_ms()
        # The maximum ignores a clock that was set back: the difference stays as it was.
        self._ahead_ms = max(self._ahead_ms, self._clock.wall_ms() - now_ms)
        return now_ms + self._ahead_ms


class ManualClock:
    """A clock for tests, which moves only by `advance`."""

    def __init__(self, wall_ms: int = 0) -> None:
        self._elapsed_ms = 0
        self._wall_ms = wall_ms

    def now_ms(self) -> int:
        """Return the milliseconds that `advance` has added."""
        return self._elapsed_ms

    def wall_ms(self) -> int:
        """Return the start time plus the milliseconds that `advance` has added."""
        return self._wall_ms + self._elapsed_ms

    def advance(self, by_ms: int) -> None:
        """Move both times ahead by `by_ms` milliseconds."""
        self._elapsed_ms += by_ms
