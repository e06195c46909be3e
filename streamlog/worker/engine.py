"""EngineThread: where tasks work, user functions included, so that the event loop never waits.

A user's function may block for a minute, or for ever; heartbeats, fetches, agents, timers and
an embedded broker go on meanwhile, as they are on the loop and this is a thread of its own. One
per worker: what tasks do (process, checkpoint, bring a commit into the store, be closed)
is done one after the other, in the order of the calls, so nothing in the engine knows of
threads; a store that is being restored has no task yet, and does not wait for others. Rule of
the file: nobody can end a thread, so whoever waits for this one looks at `busy`, which a watchdog
may do too: it tells which task is at work and since when, and with `thread_ident`
`sys._current_frames()` tells where. The thread is a daemon: a process does not outlive its main
thread for a function that hangs.
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
"""What a piece of work returns."""

Work = Callable[[], T]


@dataclass(frozen=True, slots=True)
class Busy:
    """What the engine thread is at work on."""

    task_id: TaskId
    since_ms: int
    """By the clock's `now_ms`."""
    thread_ident: int
    """For `sys._current_frames()`."""


class EngineThread:
    """One thread, and a queue of what it is to do. Use it from one event loop."""

    def __init__(self, clock: Clock) -> None:
        self.busy: Busy | None = None
        """Set and cleared by the thread; may be read from any other one."""
        self._clock = clock
        self._jobs: SimpleQueue[tuple[Future[Any], Work[Any]] | None] = SimpleQueue()
        self._pending: set[Future[Any]] = set()
        self._closed = False
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streamlog-engine", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether it was given up."""
        return self._closed

    async def call(self, task_id: TaskId, work: Work[T]) -> T:
        """Let the thread do this for a task, after all that was asked for before.

        If the caller is cancelled, what has begun is finished, and its result is dropped.

        Raises:
            CancelledError: the thread was given up (`close`).
        """
        return (await self.call_each([(task_id, work)]))[0]

    async def call_each(self, works: Sequence[tuple[TaskId, Work[T]]]) -> list[T]:
        """The same for many, without a word to the loop in between; returns all results.

        Raises:
            CancelledError: the thread was given up (`close`).
            Exception: what the first one that failed raised; those after it were not begun.
        """
        return await asyncio.wrap_future(self._asked(partial(self._each, works)))

    async def is_idle_within(self, timeout_ms: int) -> bool:
        """Wait until it has done what it was asked for, but not for ever; whether it has."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.wrap_future(self._asked(_nothing))
        except TimeoutError:
            return False
        return True

    def pause(self, duration_ms: int) -> None:
        """For the work itself: wait, as long as the thread is not given up."""
        self._given_up.wait(duration_ms / 1000)

    def close(self) -> None:
        """Ask nothing more of it: what has not begun is cancelled, what has is not waited for."""
        self._closed = True
        self._given_up.set()
        for future in [*self._pending]:
            future.cancel()
        self._jobs.put(None)

    def _asked(self, work: Work[T]) -> Future[T]:
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
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - at the edge of a thread: raised in `call`
                # Ctrl-C comes to the main thread alone.
                is_exit = isinstance(error, SystemExit | KeyboardInterrupt)
                future.set_exception(exit_failure(error) if is_exit else error)
            else:
                future.set_result(result)

    def _each(self, works: Sequence[tuple[TaskId, Work[T]]]) -> list[T]:
        results: list[T] = []
        try:
            for task_id, work in works:
                self.busy = Busy(task_id, self._clock.now_ms(), threading.get_ident())
                results.append(work())
        finally:
            self.busy = None
        return results


def _nothing() -> None:
    """Done as soon as all that was asked for before is."""
