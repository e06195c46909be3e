"""Background: the tasks that a client owns between `open` and `close`.

A TaskGroup whose owner enters and leaves it in two calls, for classes that are themselves async
context managers. A task that fails does not tear down the owner's block: the owner is told, and
raises the error from its next call. Closing cancels what still runs, so that an error or a
cancellation in the owner's block goes on as it is, not wrapped into a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack


class Background:
    """Tasks of one owner. Open and close it in the same task."""

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._stack = AsyncExitStack()
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure

    async def open(self) -> None:
        """Tasks may be started from here on."""
        await self._stack.enter_async_context(self._group)

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` beside the owner, at most until `close`."""
        task = self._group.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step would leave the coroutine unawaited.
        task.add_done_callback(lambda _: work.close())

    async def close(self) -> None:
        """Cancel what runs and wait for its end."""
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the edge of a task: its owner raises it
            self._on_failure(error)
