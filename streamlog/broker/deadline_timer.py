"""DeadlineTimer: the one timer of a broker, set to the earliest of all deadlines.

A component with a deadline calls `by`. When the timer fires, the broker does what is due and sets
the next deadline. Firing too early does no harm, so deadlines are never taken back. A timer that
fires far too late shows that the event loop was blocked and read no requests: it waits a moment, so
that they are read before sessions expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlog.clock import Clock

LATE_MS = 500
"""On a busy machine the loop is a few milliseconds late; with this much, it was blocked."""
GRACE_MS = 100
"""A few iterations of the loop, in which all sockets are read."""


class DeadlineTimer:
    """Calls `ring` once, at the earliest of the times given since the last call."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._has_waited = False
        self._closed = False

    def by(self, due_ms: int) -> None:
        """Call `ring` no later than `due_ms` of the broker's clock."""
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
        """Cancel the timer, because the broker is doing what was due."""
        self._has_waited = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop for good."""
        self._closed = True
        self.clear()

    def _go_off(self) -> None:
        # 1. The loop is blocked for 40 s; a heartbeat waits in its socket, unread. 2. The
        # timer fires, late. 3. If it expired sessions now, the member would be removed although it
        # was never silent. So it waits once, for `GRACE_MS`, in which the loop reads the socket.
        is_late = self._clock.now_ms() - self._due_ms >= LATE_MS
        if is_late and not self._has_waited:
            self._has_waited = True
            self._timer = asyncio.get_running_loop().call_later(GRACE_MS / 1000, self._go_off)
            return
        self._has_waited = False
        self._timer = None
        self._ring()
