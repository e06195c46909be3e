"""Contexts: what a connector's code gets from its runtime, and the thread for what blocks.

Rule: a connector knows the time, its name and how to wait. Of the log, a sink may look at groups
and topics, and change nothing. A thread can't be ended from outside, so it is a daemon, and its
owner waits for a limited time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import Protocol, TypeVar

from streamlog.connect.sink import OwnLog
from streamlog.durations import Dur, When, duration_ms, moment, when_ms
from streamlog.record import Headers, K, Record, V
from streamlog.serdes.erased_types import UserObject

T = TypeVar("T")


class TaskClock(Protocol):
    """Port: the time of a worker, or of a test driver."""

    def now_ms(self) -> int:
        """Return monotonic time, in milliseconds."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""

    async def sleep_ms(self, time_ms: int) -> None:
        """Wait; in a test, until the driver's time has advanced."""


class TaskThread:
    """One daemon thread that runs the blocking calls of a task, one after another.

    It starts with the first call, so a task that never blocks has none.
    """

    def __init__(self, name: str) -> None:
        """`name` is the thread's name, for debuggers."""
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, fn: Callable[[], T]) -> T:
        """Return the result of `fn`, called on the thread; raises what it raises."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        # The loop is not blocked by this queue, however long the call before takes.
        self._jobs.put(lambda: _call(fn, future, loop))
        return await future

    def close(self) -> None:
        """End the thread behind the calls that wait; does not wait for it."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _call(fn: Callable[[], T], future: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    """Call a function on a task's thread, and give its outcome to the loop."""

    def settle(outcome: Callable[[], None]) -> None:
        # A caller that was cancelled does not wait any more.
        if not future.done():
            outcome()

    try:
        result = fn()
    except BaseException as raised:  # noqa: BLE001 - raised in the caller
        # StopIteration can't be raised into a future, and ends a generator elsewhere.
        error = RuntimeError(f"{raised!r}") if isinstance(raised, StopIteration) else raised
        outcome = partial(future.set_exception, error)
    else:
        outcome = partial(future.set_result, result)
    # A process that ends may have closed its loop during the call.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(settle, outcome)


class ConnectorContext:
    """The context of one task of a connector; a `SourceContext` and a `SinkContext`."""

    def __init__(
        self,
        name: str,
        task: int,
        clock: TaskClock,
        *,
        count: Callable[[str, int], None] = lambda _what, _by: None,
        own_log: OwnLog | None = None,
    ) -> None:
        """Create the context of a task.

        Args:
            name: the connector's name.
            task: the number of the task.
            clock: the time.
            count: called with the connector's own figures.
            own_log: what a sink may know of the log.
        """
        self._name, self._task = name, task
        self._clock, self._count = clock, count
        self._own_log = own_log
        self.thread = TaskThread(f"streamlog-connect-{name}-{task}")
        """The thread of the task's blocking calls."""
        self.gauges: dict[str, float] = {}
        """The connector's own gauges, as they were measured last."""

    @property
    def name(self) -> str:
        """The connector's name."""
        return self._name

    @property
    def task(self) -> int:
        """The number of the task, 0 or more."""
        return self._task

    @property
    def own_log(self) -> OwnLog | None:
        """What a sink may know of the log; None without one."""
        return self._own_log

    def now(self) -> datetime:
        """Return the present time, aware."""
        return moment(self._clock.wall_ms())

    async def sleep(self, time: Dur) -> None:
        """Wait; ends with CancelledError when the task stops."""
        await self._clock.sleep_ms(duration_ms(time))

    async def in_thread(self, fn: Callable[..., T], *args: UserObject) -> T:
        """Call a function that blocks on the thread of the task, and return its result."""
        return await self.thread.call(lambda: fn(*args))

    def record(
        self,
        value: V,
        *,
        key: K = None,  # type: ignore[assignment] # A record without a key has the key None.
        timestamp: When | None = None,
        headers: Headers = (),
        topic: str = "",
    ) -> Record[K, V]:
        """Return a record to be read, with the present time if no other is given."""
        time_ms = self._clock.wall_ms() if timestamp is None else when_ms(timestamp)
        return Record(key, value, moment(time_ms), tuple(headers), topic)

    def count(self, what: str, by: int = 1) -> None:
        """Add to a figure of the connector's own."""
        self._count(what, by)

    def measure(self, what: str, value: float) -> None:
        """Set a gauge of the connector's own."""
        self.gauges[what] = value

    def close(self) -> None:
        """Let go of the thread."""
        self.thread.close()
