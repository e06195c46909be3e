"""Background: the tasks that a client owns between `open` and `close`.

A TaskGroup that is entered and left by two calls, for classes that are themselves async context
managers. A task that fails does not cancel the caller's block: `on_failure` gets the error, and the
client raises it from its next call. `close` cancels the tasks that still run, so an error or a
cancellation that leaves the caller's block is not wrapped in an exception group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack


class Background:
    """The background tasks of one client. Open and close it in the same task."""

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._stack = AsyncExitStack()
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure

    async def open(self) -> None:
        """Allow tasks to be started."""
        await self._stack.enter_async_context(self._group)

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` as a task, until it ends or `close` cancels it."""
        task = self._group.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step would leave the coroutine unawaited.
        task.add_done_callback(lambda _: work.close())

    async def close(self) -> None:
        """Cancel the tasks that run, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the edge of a task: its owner raises it
            self._on_failure(error)
