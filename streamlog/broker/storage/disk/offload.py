"""Aside: work that may take long, done by one thread beside the broker's loop.

Whoever has much to do is a generator of steps: after each it can be left alone for a while, and
where it has to open, read, sync, compress or remove something it yields a `Job`. Who drives it
may start the job in the thread and come back when it has ended; who does not, a test say, has
it done in place.
Rule of the file: a job touches what the loop does not touch meanwhile, and holds the
interpreter no longer than about two milliseconds at a stretch: that is what the loop then waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Generic, TypeAlias, TypeVar

OFFLOAD_THREAD = "streamlog-aside"
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


Threads: TypeAlias = Callable[[str], Executor]
"""Gives a thread by its name, as an executor: whoever works beside the loop is given its own."""


def os_thread(name: str) -> Executor:
    """A thread of this process, which begins with the first job."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


class OffloadedJob(Generic[T_co]):
    """Something to do once; in the thread if it was started, or else where its result is asked."""

    def __init__(self, work: Callable[[], T_co]) -> None:
        self._work = work
        self._future: Future[T_co] | None = None

    @property
    def is_done(self) -> bool:
        """Whether it was started and has ended."""
        return self._future is not None and self._future.done()

    def start(self, executor: Executor) -> Future[T_co]:
        """Have it done elsewhere."""
        self._future = executor.submit(self._work)
        return self._future

    def result(self) -> T_co:
        """What has come of it. Raises what the work has raised."""
        return self._work() if self._future is None else self._future.result()


Steps = Generator[int | OffloadedJob[object], None, T]
"""After each step: bytes that were read and written, or what is to be done before the next."""


def offload(work: Callable[[], T], size_bytes: int = 0) -> Steps[T]:
    """Have the work done as a job; `size_bytes` is what it reads or writes."""
    job = OffloadedJob(work)
    yield job
    result = job.result()
    if size_bytes:
        yield size_bytes
    return result


class Offload:
    """The thread, which begins with the first job."""

    def __init__(self, threads: Threads = os_thread, name: str = OFFLOAD_THREAD) -> None:
        self._thread = threads(name)
        self._closed = False

    def start(self, job: OffloadedJob[object], then: Callable[[], None]) -> None:
        """Do the job, after those that were started before; the running loop calls `then`."""
        loop = asyncio.get_running_loop()

        def done(_: Future[object]) -> None:
            if not self._closed:
                loop.call_soon_threadsafe(then)

        job.start(self._thread).add_done_callback(done)

    def wait(self) -> None:
        """Return when what was started has ended."""
        if not self._closed:
            self._thread.submit(int).result()

    def close(self) -> None:
        """Wait for what was started; nobody is called any more."""
        self._closed = True
        self._thread.shutdown(wait=True)
