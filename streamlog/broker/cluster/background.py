"""BackgroundTasks: the tasks that a broker runs besides answering requests at once.

Rule of the file: a task that fails ends all others, and so the broker, with its error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from streamlog.errors import ConnectionLost

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from streamlog.broker.storage.disk.offload import Threads

T = TypeVar("T")


class BackgroundTasks:
    """The tasks of one broker, from `begin` to `end`."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._thread: Executor | None = None
        self._group = asyncio.TaskGroup()
        self._spawned: set[asyncio.Task[Any]] = set()

    async def begin(self) -> None:
        """Begin: tasks can be spawned from here on."""
        await self._group.__aenter__()

    def start_thread(self) -> Executor:
        """Return the thread for syncs of the metadata log, which a broker of a cluster has."""
        self._thread = self._threads("streamlog-quorum")
        return self._thread

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a coroutine for as long as the broker runs; ConnectionLost after its end."""
        try:
            task = self._group.create_task(work)
        except RuntimeError:
            # Only this error says that the group is shutting down.
            work.close()
            gone: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            gone.set_exception(ConnectionLost("the broker is stopping"))
            gone.exception()  # Mark it as retrieved, for callers that don't wait.
            return gone
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    async def end(self, cancelled: BaseException | None) -> None:
        """Cancel all tasks, as the broker was cancelled if it was.

        Raises:
            StreamlogError: the error of the task that failed first.
        """
        for task in list(self._spawned):
            task.cancel()
        try:
            kind = None if cancelled is None else type(cancelled)
            await self._group.__aexit__(kind, cancelled, None)
        except BaseExceptionGroup as group:
            raise _first_of(group) from None
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that has ended all other tasks."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
