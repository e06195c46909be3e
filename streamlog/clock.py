"""Clock: the one place that reads time.

For shells only. Decisions take `now_ms` as an argument, so that the test driver, the
simulator and the Spark runner can drive them. Monotonic time has a large random start,
so that mixing it up with wall time is noticed at once (after trio).
"""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Two times in integer milliseconds."""

    def now_ms(self) -> int:
        """Monotonic: for durations and deadlines."""
        ...

    def wall_ms(self) -> int:
        """Since the Unix epoch: for record timestamps."""
        ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        self._start_ms = random.randrange(10**9, 10**10)  # noqa: S311 - nothing to keep secret

    def now_ms(self) -> int:
        """Milliseconds that only ever grow."""
        return self._start_ms + time.monotonic_ns() // 1_000_000  # noqa: TID251 - the one place

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes."""
        return time.time_ns() // 1_000_000  # noqa: TID251 - the one place


class SteadyWall:
    """Wall time for decisions: in milliseconds since the epoch, and never back.

    It runs as monotonic time does, and follows the machine's wall clock only ahead: one that is
    set back does not make it stand still for as long, but leaves it ahead until the next start.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = clock.wall_ms() - clock.now_ms()

    def now_ms(self) -> int:
        """Milliseconds since the epoch, at least as many as the last time."""
        now_ms = self._clock.now_ms()
        self._ahead_ms = max(self._ahead_ms, self._clock.wall_ms() - now_ms)
        return now_ms + self._ahead_ms


class ManualClock:
    """Time that moves only when told to."""

    def __init__(self, wall_ms: int = 0) -> None:
        self._elapsed_ms = 0
        self._wall_ms = wall_ms

    def now_ms(self) -> int:
        """Milliseconds advanced so far."""
        return self._elapsed_ms

    def wall_ms(self) -> int:
        """The start and what was advanced."""
        return self._wall_ms + self._elapsed_ms

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` milliseconds pass."""
        self._elapsed_ms += by_ms
