"""SimulatedThread: a thread beside the loop, as the broker has them, without one.

Jobs are done one after the other, each at one moment of its time: what it has seen is of then, and
when it has come back is later. A machine with a slow disk has slow threads (`latency_s`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from simulation.process import ProcessEnded

if TYPE_CHECKING:
    from simulation.loop import SimulatedLoop

T = TypeVar("T")
P = ParamSpec("P")
QUICK_S = (0.0002, 0.0005, 0.002, 0.01)


class SimulatedThread(Executor):
    """An executor with one thread of no time but the loop's."""

    def __init__(self, loop: SimulatedLoop, latency_s: Callable[[], float] | None = None) -> None:
        self._loop = loop
        self._latency_s = latency_s or (lambda: loop.chance.choice(QUICK_S))
        self._jobs: deque[_Job] = deque()
        self._busy = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor`."""
        future: _Awaited[T] = _Awaited(self)
        self._jobs.append(_Job(future, lambda: fn(*args, **kwargs)))
        self._start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as Executor has it
        """See `Executor`: what was given is done before it returns."""
        if cancel_futures:
            self._jobs.clear()
        if wait:
            self.drain()

    def drain(self) -> None:
        """Whoever asked stands still until all is done."""
        while self._jobs:
            job = self._jobs[0]
            job.do()
            self._end(job)

    def _start(self) -> None:
        if self._busy or not self._jobs:
            return
        self._busy = True
        job = self._jobs[0]
        begin_s = self._latency_s()
        self._loop.call_later(begin_s, self._do, job)

    def _do(self, job: _Job) -> None:
        job.do()
        self._loop.call_later(self._latency_s() / 2, self._end, job)

    def _end(self, job: _Job) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
            self._busy = False
            job.tell()
            self._start()


class _Awaited(Future[T]):
    """Who asks for the result before it is there waits for the thread, and nothing else happens."""

    def __init__(self, thread: SimulatedThread) -> None:
        super().__init__()
        self._thread = thread

    def result(self, timeout: float | None = None) -> T:
        if not self.done():
            self._thread.drain()
        return super().result(timeout)


class _Job:
    def __init__(self, future: Future[Any], work: Callable[[], Any]) -> None:
        self._future = future
        self._work = work
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def do(self) -> None:
        if self._done or not self._future.set_running_or_notify_cancel():
            self._done = True
            return
        self._done = True
        try:
            self._result = self._work()
        except ProcessEnded:
            raise
        except BaseException as error:  # noqa: BLE001 - told to who waits for the result
            self._error = error

    def tell(self) -> None:
        if self._future.cancelled():
            return
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._result)
