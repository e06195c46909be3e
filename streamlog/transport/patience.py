"""Patience: `asyncio.timeout` that does not count the time in which the event loop stood still.

Code that computes for a minute, in an agent or on a machine that swaps, stops the whole loop. When
it goes on, every timer is overdue, and would ring before anybody has read the answers that have
come meanwhile: a broker in this very process would be told to have been silent. So time is counted
in steps of a second at most, and a step counts as what it was set to, however late it ends. A last
step that ends late is followed by one more, once, for what nobody could look at before.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

STEP_S: Final = 1.0
"""Short against all timeouts of requests, and long enough to cost nothing."""
LATE_S: Final = 0.1
"""A step that ends so much later than it was set to has seen the loop standing."""


class Patience:
    """A bound for what is awaited within it; use it in an `async with` block, once.

    Raises:
        TimeoutError: the loop has run for so long, and it was not done.
    """

    __slots__ = ("_due_s", "_has_waited", "_left_s", "_loop", "_timeout", "_timer")

    def __init__(self, timeout_ms: int) -> None:
        self._left_s = timeout_ms / 1000
        self._has_waited = False
        self._timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        """Begin to count."""
        await self._timeout.__aenter__()
        self._step()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(exc_type, exc, traceback)

    def _step(self) -> None:
        step_s = min(self._left_s, STEP_S)
        self._left_s -= step_s
        self._due_s = self._loop.time() + step_s
        self._timer = self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        now_s = self._loop.time()
        if self._left_s <= 0 and now_s - self._due_s >= LATE_S and not self._has_waited:
            # For what has come while nobody could look. Where the loop never keeps time, once.
            self._has_waited, self._left_s = True, LATE_S
        if self._left_s > 0:
            self._step()
        else:
            self._timeout.reschedule(now_s)
