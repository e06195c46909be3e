"""Alarm: the one timer of a broker, which stands for the earliest of all deadlines.

Whoever has a deadline says so with `by`. When it rings, the broker does what is due and says what
comes next; an alarm that rings too early does no harm, so nobody takes a deadline back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlog.clock import Clock


class Alarm:
    """Rings once, at the earliest of the times that it was given since it rang."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._closed = False

    def by(self, due_ms: int) -> None:
        """Ring at this time of the broker's clock at the latest."""
        if self._closed:
            return
        if self._timer is not None:
            if self._due_ms <= due_ms:
                return
            self._timer.cancel()
        delay_ms = max(due_ms - self._clock.now_ms(), 0)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._go_off)
        self._due_ms = due_ms

    def clear(self) -> None:
        """What was due is being done, whoever has seen to it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """It does not ring any more."""
        self._closed = True
        self.clear()

    def _go_off(self) -> None:
        self._timer = None
        self._ring()
