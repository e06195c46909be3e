"""Engine: the thread on which tasks run, user functions included, so the event loop never blocks.

A user's function may block for a minute or forever. Heartbeats, fetches, agents, timers and an
embedded broker run on the event loop meanwhile.

There is one engine thread per worker. All work of tasks (processing, checkpoints, applying a commit
to a store, closing) runs there in the order of the calls, so tasks need no locks. A store that is
being restored has no task yet, and is not filled on this thread.

Rule: a thread can't be ended from outside, so a caller that waits for it watches `busy`, which
names the task at work and since when. With `thread_ident`, `sys._current_frames()` shows the line.
The thread is a daemon, so a blocked function does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from streamlog.clock import Clock
from streamlog.processing.column_batch import exit_failure
from streamlog.processing.task import TaskId

T = TypeVar("T")
"""The result of a piece of work."""

Work = Callable[[], T]


@dataclass(frozen=True, slots=True)
class Busy:
    """The present work of the engine thread."""

    task_id: TaskId
    since_ms: int
    """When the work began, by the clock's `now_ms`."""
    thread_ident: int
    """The key of the thread in `sys._current_frames()`."""


class EngineThread:
    """A thread with a queue of work; one event loop uses it."""

    def __init__(self, clock: Clock, *, name: str = "streamlog-engine") -> None:
        self.busy: Busy | None = None
        """The present work, or None. The thread writes it, and any thread may read it."""
        self._clock = clock
        self._jobs: SimpleQueue[tuple[Future[Any], Work[Any]] | None] = SimpleQueue()
        self._pending: set[Future[Any]] = set()
        self._closed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def call(self, task_id: TaskId, work: Work[T]) -> T:
        """Run `work` for a task, after all earlier calls; returns its result.

        If the caller is cancelled, work that has begun is completed, and its result is dropped.

        Raises:
            CancelledError: the thread was closed.
        """
        return (await self.call_each([(task_id, work)]))[0]

    async def call_each(self, works: Sequence[tuple[TaskId, Work[T]]]) -> list[T]:
        """Run several pieces of work with one switch of threads; returns their results.

        Raises:
            CancelledError: the thread was closed.
            Exception: raised by the first work that failed; the ones after it did not run.
        """
        return await asyncio.wrap_future(self._submit(partial(self._run_each, works)))

    async def is_idle_within(self, timeout_ms: int) -> bool:
        """Wait up to `timeout_ms` until all earlier calls are done; returns whether they are."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.wrap_future(self._submit(_do_nothing))
        except TimeoutError:
            return False
        return True

    def pause(self, duration_ms: int) -> None:
        """Wait inside of a piece of work, such as before a retry; `close` ends the wait."""
        self._closing.wait(duration_ms / 1000)

    def close(self) -> None:
        """Cancel work that has not begun, and take no more; running work is not waited for."""
        self._closed = True
        self._closing.set()
        for future in [*self._pending]:
            future.cancel()
        # Wakes the thread, which ends after its present work.
        self._jobs.put(None)

    def _submit(self, work: Work[T]) -> Future[T]:
        future: Future[T] = Future()
        if self._closed:
            future.cancel()
            return future
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._jobs.put((future, work))
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            # Cancelled in the queue. From here on a cancellation has no effect: work that has begun
            # is completed.
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - at the edge of a thread: raised in `call`
                # Python delivers Ctrl-C to the main thread only, so this one is the user's own.
                is_exit = isinstance(error, SystemExit | KeyboardInterrupt)
                future.set_exception(exit_failure(error) if is_exit else error)
            else:
                future.set_result(result)

    def _run_each(self, works: Sequence[tuple[TaskId, Work[T]]]) -> list[T]:
        results: list[T] = []
        try:
            for task_id, work in works:
                self.busy = Busy(task_id, self._clock.now_ms(), threading.get_ident())
                results.append(work())
        finally:
            self.busy = None
        return results


def _do_nothing() -> None:
    """Mark a point in the queue: this runs after all earlier work."""
